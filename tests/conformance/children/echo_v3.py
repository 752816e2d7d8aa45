"""A version 3 processor of amazon_kclpy that reports what it was given, on standard error, as JSON lines."""

import json
import sys

from amazon_kclpy import kcl
from amazon_kclpy.v3 import processor


def say(**fields):
    sys.stderr.write(json.dumps(fields) + "\n")
    sys.stderr.flush()


class Processor(processor.RecordProcessorBase):
    def initialize(self, initialize_input):
        say(
            call="initialize",
            shard=initialize_input.shard_id,
            sequence=initialize_input.sequence_number,
            sub=initialize_input.sub_sequence_number,
        )

    def process_records(self, process_records_input):
        say(
            call="process_records",
            lag=process_records_input.millis_behind_latest,
            records=[
                [
                    record.binary_data.hex(),
                    record.partition_key,
                    str(record.sequence_number),
                    record.sub_sequence_number,
                    record.timestamp_millis,
                ]
                for record in process_records_input.records
            ],
        )
        try:
            process_records_input.checkpointer.checkpoint()
        except kcl.CheckpointError as error:
            say(call="checkpoint", error=error.value)

    def lease_lost(self, lease_lost_input):
        say(call="lease_lost")

    def shard_ended(self, shard_ended_input):
        shard_ended_input.checkpointer.checkpoint()

    def shutdown_requested(self, shutdown_requested_input):
        shutdown_requested_input.checkpointer.checkpoint()


if __name__ == "__main__":
    kcl.KCLProcess(Processor()).run()
