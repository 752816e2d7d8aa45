"""A version 1 processor of amazon_kclpy: checkpoints after every batch and at the end."""

from amazon_kclpy import kcl
from amazon_kclpy.checkpoint_error import CheckpointError


class Processor(kcl.RecordProcessorBase):
    def initialize(self, shard_id):
        self.shard_id = shard_id

    def process_records(self, records, checkpointer):
        try:
            checkpointer.checkpoint(records[-1].get("sequenceNumber"), records[-1].get("subSequenceNumber"))
        except CheckpointError as error:
            if error.value == "ThrottlingException":
                checkpointer.checkpoint()

    def shutdown(self, checkpointer, reason):
        if reason == "TERMINATE":
            checkpointer.checkpoint()

    def shutdown_requested(self, checkpointer):
        checkpointer.checkpoint()


if __name__ == "__main__":
    kcl.KCLProcess(Processor()).run()
