"""An amazon_kclpy processor as people write them: some milliseconds of work for each record, a checkpoint each second.

It notes twice a second how old records are when they are done; the child that has the hot key notes so.
"""

from __future__ import annotations

import os
import time
from typing import Any

from amazon_kclpy import kcl
from amazon_kclpy.v3 import processor

from tests.benchmarks.children.marks import HOT, mark

NOTE_EVERY_S = 0.5
WORK_S = float(os.environ.get("BENCH_WORK_MS", "5")) / 1000


def _note(ages: dict[str, float], done: int) -> None:
    for event, age in ages.items():
        mark(event, round(age * 1000))
    mark("records", done)


class Sleeping(processor.RecordProcessorBase):
    def __init__(self) -> None:
        self._checkpointed_at = 0.0
        self._has_hot_key = False

    def initialize(self, initialize_input: Any) -> None:
        mark("initialized")

    def process_records(self, process_records_input: Any) -> None:
        ages, done, noted_at = {}, 0, time.monotonic()
        for record in process_records_input.records:
            time.sleep(WORK_S)
            self._has_hot_key = self._has_hot_key or record.partition_key == HOT
            key = "age beside hot" if self._has_hot_key else "age"
            ages[key] = max(ages.get(key, 0.0), time.time() - float(record.binary_data.split()[0]))
            done += 1
            if time.monotonic() - noted_at > NOTE_EVERY_S:
                _note(ages, done)
                ages, done, noted_at = {}, 0, time.monotonic()
        _note(ages, done)
        if time.monotonic() - self._checkpointed_at > 1:
            process_records_input.checkpointer.checkpoint()
            self._checkpointed_at = time.monotonic()

    def lease_lost(self, lease_lost_input: Any) -> None:
        pass

    def shard_ended(self, shard_ended_input: Any) -> None:
        shard_ended_input.checkpointer.checkpoint()

    def shutdown_requested(self, shutdown_requested_input: Any) -> None:
        shutdown_requested_input.checkpointer.checkpoint()


if __name__ == "__main__":
    kcl.KCLProcess(Sleeping()).run()
