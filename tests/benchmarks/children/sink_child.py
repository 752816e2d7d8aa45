"""The cheapest child that keeps the protocol: answers every action, parses nothing, notes how many records it got.

Run it with ``python -I -S``: with 64 of them on a small machine, the interpreter's own start counts. It works on file
descriptors, as importing more would cost more than it does.
"""

import os
import sys
import time

directory = os.environ["BENCH_MARKS"]
shard = os.environ["MLD_SHARD_ID"]
out = os.open(f"{directory}/sink.{shard}.{os.getpid()}.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
for line in sys.stdin.buffer:
    start = line.index(b'"action"')
    name = line[start : start + 60].split(b'"')[3].decode()
    if name in ("initialize", "processRecords"):
        event = "records" if name == "processRecords" else name
        count = line.count(b'"sequenceNumber"') if event == "records" else 0
        os.write(out, f'{{"event": "{event}", "at": {time.time():.6f}, "count": {count}}}\n'.encode())
    os.write(1, f'{{"action":"status","responseFor":"{name}"}}\n'.encode())
