"""A record processor as Amazon's users have it, on amazon_kclpy of version 1, 2 or 3 (the argument): checkpoints after
every batch and at the end, and says on standard error, in one JSON line for each record, what it was given."""

import json
import sys

from amazon_kclpy import kcl
from amazon_kclpy.v2 import processor as v2
from amazon_kclpy.v3 import processor as v3

VERSION = sys.argv[1]


def key_of(record, name):
    try:
        return record.get(name)
    except KeyError:
        return None


def heard(records):
    for record in records:
        keys = {name: key_of(record, name) for name in ("data", "streamName", "schemaName")}
        sys.stderr.write(json.dumps({"call": "record", "kind": VERSION, **keys}) + "\n")
    sys.stderr.flush()


def settled(checkpointer, *position):
    try:
        checkpointer.checkpoint(*position)
    except kcl.CheckpointError as error:
        if error.value == "ThrottlingException":
            checkpointer.checkpoint(*position)


class First(kcl.RecordProcessorBase):
    def initialize(self, shard_id):
        pass

    def process_records(self, records, checkpointer):
        heard(records)
        settled(checkpointer, records[-1].get("sequenceNumber"), records[-1].get("subSequenceNumber"))

    def shutdown(self, checkpointer, reason):
        if reason == "TERMINATE":
            settled(checkpointer)

    def shutdown_requested(self, checkpointer):
        settled(checkpointer)


class Second(v2.RecordProcessorBase):
    def initialize(self, initialize_input):
        pass

    def process_records(self, process_records_input):
        heard(process_records_input.records)
        settled(process_records_input.checkpointer)

    def shutdown(self, shutdown_input):
        if shutdown_input.reason == "TERMINATE":
            settled(shutdown_input.checkpointer)

    def shutdown_requested(self, shutdown_requested_input):
        settled(shutdown_requested_input.checkpointer)


class Third(v3.RecordProcessorBase):
    def initialize(self, initialize_input):
        pass

    def process_records(self, process_records_input):
        heard(process_records_input.records)
        settled(process_records_input.checkpointer)

    def lease_lost(self, lease_lost_input):
        pass

    def shard_ended(self, shard_ended_input):
        settled(shard_ended_input.checkpointer)

    def shutdown_requested(self, shutdown_requested_input):
        settled(shutdown_requested_input.checkpointer)


if __name__ == "__main__":
    kcl.KCLProcess({"v1": First, "v2": Second, "v3": Third}[VERSION]()).run()
