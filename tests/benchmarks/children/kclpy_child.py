"""The same with the unmodified amazon_kclpy package, which must be on PYTHONPATH."""

from __future__ import annotations

from typing import Any

from tests.benchmarks.children.marks import mark

mark("started")

from amazon_kclpy import kcl  # noqa: E402
from amazon_kclpy.v3 import processor  # noqa: E402


class Noting(processor.RecordProcessorBase):
    def initialize(self, initialize_input: Any) -> None:
        mark("initialize")

    def process_records(self, process_records_input: Any) -> None:
        mark("records", count=len(process_records_input.records))

    def lease_lost(self, lease_lost_input: Any) -> None:
        pass

    def shard_ended(self, shard_ended_input: Any) -> None:
        shard_ended_input.checkpointer.checkpoint()

    def shutdown_requested(self, shutdown_requested_input: Any) -> None:
        pass


if __name__ == "__main__":
    kcl.KCLProcess(Noting()).run()
