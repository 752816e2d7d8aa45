"""A processor on our own base class that notes when things happen and checkpoints every batch if told to."""

from __future__ import annotations

import os
from collections.abc import Sequence

from mld.processors.sdk import Checkpointer, Record, RecordProcessor, run
from tests.benchmarks.children.marks import mark

CHECKPOINTS = os.environ.get("BENCH_CHECKPOINTS") == "1"


class Noting(RecordProcessor):
    def initialize(self, shard_id: str, sequence_number: str | None, sub_sequence_number: int | None) -> None:
        mark("initialize")

    def process_records(
        self, records: Sequence[Record], checkpointer: Checkpointer, millis_behind_latest: int | None
    ) -> None:
        mark("records", count=len(records))
        if CHECKPOINTS:
            checkpointer.checkpoint()

    def shard_ended(self, checkpointer: Checkpointer) -> None:
        checkpointer.checkpoint()

    def shutdown_requested(self, checkpointer: Checkpointer) -> None:
        if CHECKPOINTS:
            checkpointer.checkpoint()

    def lease_lost(self) -> None:
        mark("lease_lost")


if __name__ == "__main__":
    mark("started")
    run(Noting)
