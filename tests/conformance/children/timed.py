"""A record processor in the manner of Amazon's sample for Python: it remembers the largest position, checkpoints there
once in a while, and without a position when its shard ends or its worker stops; on some errors it tries again."""

import json
import sys
import time

from amazon_kclpy import kcl
from amazon_kclpy.v3 import processor

EVERY_S = 1.0
TRIES = 5


class Timed(processor.RecordProcessorBase):
    def initialize(self, initialize_input):
        self.largest = (None, None)
        self.checkpointed_at = time.time()

    def process_records(self, process_records_input):
        for record in process_records_input.records:
            sys.stderr.write(json.dumps({"call": "record", "data": record.get("data")}) + "\n")
            position = (int(record.sequence_number), record.sub_sequence_number)
            if self.largest == (None, None) or position > self.largest:
                self.largest = position
        if time.time() - self.checkpointed_at > EVERY_S:
            self.settle(process_records_input.checkpointer, str(self.largest[0]), self.largest[1])
            self.checkpointed_at = time.time()

    def settle(self, checkpointer, sequence=None, sub=None):
        for _ in range(TRIES):
            try:
                checkpointer.checkpoint(sequence, sub)
                return
            except kcl.CheckpointError as error:
                if error.value not in ("ThrottlingException", "InvalidStateException"):
                    sys.stderr.write(f"checkpoint at {sequence}: {error.value}\n")
                    return
                time.sleep(0.2)

    def lease_lost(self, lease_lost_input):
        pass

    def shard_ended(self, shard_ended_input):
        self.settle(shard_ended_input.checkpointer)

    def shutdown_requested(self, shutdown_requested_input):
        self.settle(shutdown_requested_input.checkpointer)


if __name__ == "__main__":
    kcl.KCLProcess(Timed()).run()
