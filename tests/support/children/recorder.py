"""A record processor that writes down everything that happens to it, for the checkers of the integration tests.

    python -S -E recorder.py DIRECTORY [OPTION=VALUE ...]

Speaks the protocol by hand (standard library only: it must start fast, and share no code with what it tests). Each
process appends JSON lines to a file of its own; a line is one `write`, so that a killed process leaves whole lines.
Times are CLOCK_MONOTONIC nanoseconds, which all processes of a machine share.

Options: `checkpoint` is `batch` (the default: after every batch, at everything delivered), `last` (names the last
record), `middle` (names a record in the middle of the batch), `none`; `pause_s` is slept in every batch before it is
answered; `on_shutdown` is `checkpoint` (default), `hang` (never answer) or `nothing`; `die_after` exits with status 3
in the middle of the first batch after so many records, if no other child of the shard has done so before.
"""

import binascii
import json
import os
import signal
import sys
import time


class Recorder:
    def __init__(self, directory, options):
        self.directory = directory
        self.options = options
        self.shard = os.environ.get("MLD_SHARD_ID", "?")
        path = f"{directory}/{self.shard}.{os.getpid()}.jsonl"
        self.file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self.stdin = sys.stdin.buffer
        self.delivered = 0
        self.note(
            {
                "kind": "start",
                "pid": os.getpid(),
                "worker": os.environ.get("MLD_WORKER_ID"),
                "shard": self.shard,
                "group": os.getpgrp(),
                "number": int(os.environ.get("MLD_CHILD_NUMBER", "0")),
                "children": int(os.environ.get("MLD_CHILDREN_PER_SHARD", "1")),
            }
        )

    def note(self, *events):
        now = time.monotonic_ns()
        os.write(self.file, b"".join(json.dumps({"at": now, **event}).encode() + b"\n" for event in events))

    def say(self, message):
        sys.stdout.buffer.write(json.dumps(message).encode() + b"\n")
        sys.stdout.buffer.flush()

    def checkpoint(self, sequence=None, sub=None):
        asked = time.monotonic_ns()
        self.say({"action": "checkpoint", "sequenceNumber": sequence, "subSequenceNumber": sub})
        line = self.stdin.readline()
        if not line:
            self.note({"kind": "checkpoint", "asked": asked, "sequence": sequence, "sub": sub, "error": "EOF"})
            sys.exit(0)
        reply = json.loads(line)
        error = reply.get("error")
        self.note({"kind": "checkpoint", "asked": asked, "sequence": sequence, "sub": sub, "error": error})
        return error

    def serve(self):
        while line := self.stdin.readline():
            message = json.loads(line)
            self.handle(message)
            self.say({"action": "status", "responseFor": message["action"]})
        self.note({"kind": "eof"})

    def handle(self, message):
        action = message["action"]
        if action == "processRecords":
            self.process(message["records"])
            return
        self.note({"kind": action, **{key: message[key] for key in message if key != "action"}})
        if action == "shardEnded":
            while self.checkpoint() in ("ThrottlingException", "KinesisClientLibDependencyException"):
                time.sleep(0.1)
        elif action == "shutdownRequested":
            self.shut_down()

    def shut_down(self):
        how = self.options.get("on_shutdown", "checkpoint")
        if how == "checkpoint":
            self.checkpoint()
        elif how == "hang":
            signal.pause()

    def process(self, records):
        self.note_delivered(records)
        self.perhaps_die()
        time.sleep(float(self.options.get("pause_s", 0)))
        how = self.options.get("checkpoint", "batch")
        if how == "batch":
            self.checkpoint()
        elif how == "last" and records:
            self.checkpoint(records[-1]["sequenceNumber"], records[-1].get("subSequenceNumber"))
        elif how == "middle" and records:
            self.checkpoint(records[len(records) // 2]["sequenceNumber"], None)

    def note_delivered(self, records):
        self.note(
            *(
                {
                    "kind": "delivered",
                    "sequence": record["sequenceNumber"],
                    "sub": record.get("subSequenceNumber") or 0,
                    "data": binascii.a2b_base64(record["data"]).decode(),
                }
                for record in records
            )
        )
        self.delivered += len(records)

    def perhaps_die(self):
        limit = int(self.options.get("die_after", 0))
        if limit and self.delivered >= limit and first_time(self.directory, self.shard + ".died"):
            os._exit(3)


def first_time(directory, name):
    """Whether nobody was here before under this name."""
    try:
        os.close(os.open(f"{directory}/{name}", os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def parse(arguments):
    return arguments[0], dict(argument.split("=", 1) for argument in arguments[1:])


if __name__ == "__main__":
    Recorder(*parse(sys.argv[1:])).serve()
