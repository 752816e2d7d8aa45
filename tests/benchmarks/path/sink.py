"""As native/sink.c, for machines without a compiler; and it can note how old records are (``delays``).

Run it with ``python -I -S``. With ``delays`` the partition key of each record is the time it was put, and what is noted
for it is how many microseconds ago that was.
"""

import os
import sys
import time

PIECE_BYTES = 256 * 1024
INDEX_DIGITS = 19
HEAD_BYTES = 512
TAIL_BYTES = 1024

notes = os.open(os.environ.get("BENCH_NOTES", os.devnull), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
every = int(os.environ.get("BENCH_CHECKPOINT_EVERY", "0"))
shard = "none"
sequence = ""
batches = 0


def value_of(text: bytes, field: bytes) -> str:
    return text.partition(field)[2].split(b'"', 2)[1].decode()


def answer_status(name: str) -> None:
    os.write(1, f'{{"action":"status","responseFor":"{name}"}}\n'.encode())


def records(tail: bytes) -> None:
    global sequence, batches
    _, found, last = tail.rpartition(b'"sequenceNumber":')
    if found:
        sequence = last.split(b'"', 2)[1].decode()
        os.write(notes, f"{shard} records {time.time():.6f} {int(sequence[-INDEX_DIGITS:]) + 1}\n".encode())
    if every and sequence:
        batches += 1
        if batches % every == 0:
            asked = f'{{"action":"checkpoint","sequenceNumber":"{sequence}","subSequenceNumber":0}}\n'
            os.write(1, asked.encode())
            return
    answer_status("processRecords")


def ages(line: bytes) -> None:
    now = time.time()
    for part in line.split(b'"partitionKey":')[1:]:
        put_at = float(part.split(b'"', 2)[1])
        os.write(notes, f"{shard} delay {now:.6f} {int((now - put_at) * 1e6)}\n".encode())


def main() -> None:
    global shard
    has_delays = sys.argv[1:] == ["delays"]
    drains = sys.argv[1:] == ["drain"]
    line = tail = b""
    while piece := os.read(0, PIECE_BYTES):
        if drains:
            continue
        if has_delays or len(line) < HEAD_BYTES:
            line += piece
        tail = (tail + piece)[-TAIL_BYTES:]
        if not piece.endswith(b"\n"):
            continue
        name = value_of(line, b'"action":')
        if name == "processRecords":
            if has_delays:
                ages(line)
            records(tail)
        elif name == "checkpoint":
            answer_status("processRecords")
        else:
            if name == "initialize":
                shard = value_of(line, b'"shardId":')
                os.write(notes, f"{shard} initialize {time.time():.6f} 0\n".encode())
            answer_status(name)
        line = tail = b""


main()
