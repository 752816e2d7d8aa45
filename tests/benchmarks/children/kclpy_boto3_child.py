"""An unmodified amazon_kclpy processor that imports boto3, as most do; amazon_kclpy must be on PYTHONPATH."""

from __future__ import annotations

from typing import Any

import boto3
from amazon_kclpy import kcl
from amazon_kclpy.v3 import processor

USED = (boto3,)


class Quiet(processor.RecordProcessorBase):
    def initialize(self, initialize_input: Any) -> None:
        pass

    def process_records(self, process_records_input: Any) -> None:
        pass

    def lease_lost(self, lease_lost_input: Any) -> None:
        pass

    def shard_ended(self, shard_ended_input: Any) -> None:
        shard_ended_input.checkpointer.checkpoint()

    def shutdown_requested(self, shutdown_requested_input: Any) -> None:
        pass


if __name__ == "__main__":
    kcl.KCLProcess(Quiet()).run()
