"""A recording child whose first lives on one shard are hostile; on all other shards, and later, it is the recorder.

    python -S -E hostile.py DIRECTORY mode=MODE [shard=SHARD] [lives=N] [OPTION=VALUE ...]

`shard` is the end of a shard id (default 000000000000), `lives` how many processes misbehave (default 2). The modes are
the functions below named `mode_...`; each says in its first line what it does.
"""

import binascii
import json
import os
import signal
import sys
import time

import recorder

MEGABYTES = 50


class Hostile(recorder.Recorder):
    """Good until the moment its mode chooses."""

    misbehave = None
    is_stubborn = False
    repeats_status = False
    asks_late = None  # for this position, after the answer to the batch

    def handle(self, message):
        if self.misbehave is not None:
            self.misbehave(self, message)
        super().handle(message)

    def say(self, message):
        if self.repeats_status and message["action"] == "status":
            self.raw(2 * (json.dumps(message).encode() + b"\n"))  # in one write: the daemon sees both together
        else:
            super().say(message)
        if self.asks_late and message["action"] == "status":
            self.ask(*self.asks_late)

    def ask(self, sequence, sub):
        """Ask for a checkpoint between two actions; an action may come before the reply, and is kept."""
        self.asks_late, asked = None, time.monotonic_ns()
        self.say({"action": "checkpoint", "sequenceNumber": sequence, "subSequenceNumber": sub})
        kept = []
        while (reply := json.loads(line := self.stdin.readline()))["action"] != "checkpoint":
            kept.append(line)
        self.note({"kind": "checkpoint", "asked": asked, "sequence": sequence, "sub": sub, "error": reply["error"]})
        for line in kept:
            message = json.loads(line)
            self.handle(message)
            self.say({"action": "status", "responseFor": message["action"]})

    def raw(self, data):
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()


def processing(message):
    return message["action"] == "processRecords" and bool(message["records"])


def mode_garbage(child, message):
    """Answers a batch with bytes that are no message, for ever, and goes on: only noise, no failure."""
    if processing(message):
        child.raw(b'\xff\xfe\x00 not a message\n{]\n\n[1,2]\n"text"\n')


def mode_late(child, message):
    """Asks for its checkpoints after its answers, never in between: no failure."""
    child.options["checkpoint"] = "none"
    if processing(message):
        last = message["records"][-1]
        child.asks_late = last["sequenceNumber"], last["subSequenceNumber"]


def mode_half_line(child, message):
    """Says half a status and ends."""
    if processing(message):
        child.raw(b'{"action": "status", "respon')
        os._exit(0)


def mode_long_stdout(child, message):
    """Writes one line of 50 MB before it answers: only noise, no failure."""
    if processing(message) and recorder.first_time(child.directory, "long_stdout"):
        for _ in range(MEGABYTES):
            child.raw(b"x" * 1_000_000)
        child.raw(b"\n")


def mode_long_stderr(child, message):
    """Writes 50 MB without a line break to stderr before it answers: no failure."""
    if processing(message) and recorder.first_time(child.directory, "long_stderr"):
        for _ in range(MEGABYTES):
            sys.stderr.buffer.write(b"y" * 1_000_000)
        sys.stderr.buffer.flush()


def mode_closed_stdout(child, message):
    """Closes its stdout and lives on, deaf to the end of its input."""
    if processing(message):
        os.close(1)
        sleep_for_ever()


def mode_closed_stdin(child, message):
    """Closes its stdin in the middle of a batch and answers all the same; the next action cannot reach it."""
    if processing(message):
        os.close(0)
        child.say({"action": "status", "responseFor": "processRecords"})
        sleep_for_ever()


def mode_no_answer(child, message):
    """Never answers a batch."""
    if processing(message):
        sleep_for_ever()


def mode_no_answer_to_initialize(child, message):
    """Never answers the first message."""
    if message["action"] == "initialize":
        sleep_for_ever()


def mode_wrong_answer(child, message):
    """Answers a batch with the status of another action."""
    if processing(message):
        child.say({"action": "status", "responseFor": "shardEnded"})
        sleep_for_ever()


def mode_unknown_action(child, message):
    """Answers a batch with an action that does not exist, and never with a status."""
    if processing(message):
        child.say({"action": "explode"})
        sleep_for_ever()


def mode_exit_at_start(child, message):
    """Ends when it is asked to initialize."""
    if message["action"] == "initialize":
        os._exit(7)


def mode_exit_in_batch(child, message):
    """Ends with a batch in its hands."""
    if processing(message):
        os._exit(0)


def mode_poison(child, message):
    """Dies of every batch with a record that begins with `poison`, and says why on stderr."""
    if processing(message):
        for record in message["records"]:
            if binascii.a2b_base64(record["data"]).startswith(b"poison"):
                print(f"Traceback of {os.getpid()}\nValueError: poison", file=sys.stderr, flush=True)
                os._exit(1)


def mode_exit_at_shard_end(child, message):
    """Ends when it is told that the shard has ended."""
    if message["action"] == "shardEnded":
        os._exit(9)


def mode_shard_end_without_checkpoint(child, message):
    """Answers shardEnded without a checkpoint."""
    if message["action"] == "shardEnded":
        child.say({"action": "status", "responseFor": "shardEnded"})
        sleep_for_ever()


def mode_exit_at_checkpoint(child, message):
    """Asks for a checkpoint of its batch and ends before the answer can come."""
    if processing(message):
        records = message["records"]
        child.note_delivered(records)
        child.say({"action": "checkpoint", "sequenceNumber": records[-1]["sequenceNumber"]})
        os._exit(0)


def mode_checkpoint_ahead(child, message):
    """Asks for a checkpoint far beyond what it was given, must be refused, then goes on properly."""
    if processing(message):
        ahead = str(int(message["records"][-1]["sequenceNumber"]) + 10**12)
        child.checkpoint(ahead)


def mode_grandchild(child, message):
    """Leaves a grandchild that holds all three pipes and ignores SIGTERM, and ends with a batch in its hands."""
    if processing(message):
        if os.fork() == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            sleep_for_ever()
        os._exit(0)


def mode_stubborn(child, message):
    """Answers properly, but ignores SIGTERM and the end of its input for ever."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    child.is_stubborn = True


def mode_chatter(child, message):
    """Says every status twice: the second is stale and must not be taken for the answer to the next action."""
    child.repeats_status = True


def sleep_for_ever():
    while True:
        time.sleep(3600)


def main():
    directory, options = recorder.parse(sys.argv[1:])
    child = Hostile(directory, options)
    is_target = child.shard.endswith(options.get("shard", "000000000000"))
    lives = range(int(options.get("lives", 2)))
    if is_target and any(recorder.first_time(directory, f"life-{number}") for number in lives):
        child.note({"kind": "hostile"})
        child.misbehave = globals()["mode_" + options["mode"]]
    child.serve()
    if child.is_stubborn:
        sleep_for_ever()


if __name__ == "__main__":
    main()
