"""A processor of the 1.x generation of amazon_kclpy that reports its calls, on standard error, as JSON lines."""

import json
import sys

from amazon_kclpy import kcl
from amazon_kclpy.v2 import processor


def say(**fields):
    sys.stderr.write(json.dumps(fields) + "\n")
    sys.stderr.flush()


class Processor(processor.RecordProcessorBase):
    def initialize(self, initialize_input):
        say(call="initialize")

    def process_records(self, process_records_input):
        say(call="process_records")
        last = process_records_input.records[-1]
        process_records_input.checkpointer.checkpoint(last.sequence_number, last.sub_sequence_number)

    def shutdown(self, shutdown_input):
        say(call="shutdown", reason=shutdown_input.reason)
        if shutdown_input.reason == "TERMINATE":
            shutdown_input.checkpointer.checkpoint()

    def shutdown_requested(self, shutdown_requested_input):
        say(call="shutdown_requested")


if __name__ == "__main__":
    kcl.KCLProcess(Processor()).run()
