"""A version 2 processor of amazon_kclpy: checkpoints after every batch and at the end."""

from amazon_kclpy import kcl
from amazon_kclpy.checkpoint_error import CheckpointError
from amazon_kclpy.v2 import processor


class Processor(processor.RecordProcessorBase):
    def initialize(self, initialize_input):
        self.shard_id = initialize_input.shard_id

    def process_records(self, process_records_input):
        for record in process_records_input.records:
            assert isinstance(record.binary_data, bytes)
        try:
            process_records_input.checkpointer.checkpoint()
        except CheckpointError as error:
            if error.value == "ThrottlingException":
                process_records_input.checkpointer.checkpoint()

    def shutdown(self, shutdown_input):
        if shutdown_input.reason == "TERMINATE":
            shutdown_input.checkpointer.checkpoint()

    def shutdown_requested(self, shutdown_requested_input):
        shutdown_requested_input.checkpointer.checkpoint()


if __name__ == "__main__":
    kcl.KCLProcess(Processor()).run()
