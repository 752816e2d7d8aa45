"""A record processor written against the unmodified amazon_kclpy package (its version 3 interface).

    python -m mld.processors.kclpy_sample

It shows that processors written for Amazon's daemon run under this one as they are. Needs `pip install amazon_kclpy`;
nothing else in this package does. Per batch it says on standard error how much it got, then checkpoints.

amazon_kclpy prints an exception of a processor and goes on as if the batch were done; so a failure must end the process
here, or its records would be skipped.
"""

from __future__ import annotations

import os
import sys
import traceback
from typing import Any

FATAL_EXIT_STATUS = 1


def make_processor() -> Any:
    """Return the processor; imports amazon_kclpy only now, so that this module can be read without it."""
    from amazon_kclpy.checkpoint_error import CheckpointError  # type: ignore[import-not-found]
    from amazon_kclpy.v3 import processor  # type: ignore[import-not-found]

    class SampleProcessor(processor.RecordProcessorBase):  # type: ignore[misc]
        shard_id = "?"

        def initialize(self, initialize_input: Any) -> None:
            self.shard_id = initialize_input.shard_id

        def process_records(self, process_records_input: Any) -> None:
            try:
                records = process_records_input.records
                payload_bytes = sum(len(record.binary_data) for record in records)
                _say(f"{self.shard_id}: {len(records)} records, {payload_bytes} bytes")
                if records:
                    last = records[-1]
                    checkpoint(process_records_input.checkpointer, str(last.sequence_number), last.sub_sequence_number)
            except Exception:
                traceback.print_exc()
                sys.stderr.flush()
                os._exit(FATAL_EXIT_STATUS)

        def lease_lost(self, lease_lost_input: Any) -> None:
            _say(f"{self.shard_id}: the lease is lost")

        def shard_ended(self, shard_ended_input: Any) -> None:
            checkpoint(shard_ended_input.checkpointer)

        def shutdown_requested(self, shutdown_requested_input: Any) -> None:
            checkpoint(shutdown_requested_input.checkpointer)

    def checkpoint(
        checkpointer: Any, sequence_number: str | None = None, sub_sequence_number: int | None = None
    ) -> None:
        try:
            checkpointer.checkpoint(sequence_number, sub_sequence_number)
        except CheckpointError as error:
            # Safe to go on: the next checkpoint covers this one, or the records are delivered again.
            _say(f"no checkpoint: {error.value}")

    return SampleProcessor()


def main() -> None:
    from amazon_kclpy import kcl  # type: ignore[import-not-found]

    kcl.KCLProcess(make_processor()).run()


def _say(text: str) -> None:
    sys.stderr.write(f"kclpy_sample: {text}\n")


if __name__ == "__main__":
    main()
