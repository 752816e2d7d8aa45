"""As `sink_child`, for lines of megabytes: reads what the pipe holds, and looks at the first and last bytes only.

A record line counts as one page; nothing in it is counted. Run it with ``python -I -S``.
"""

import os
import time

directory = os.environ["BENCH_MARKS"]
shard = os.environ["MLD_SHARD_ID"]
out = os.open(f"{directory}/sink.{shard}.{os.getpid()}.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
head = b""
while piece := os.read(0, 1 << 20):
    if len(head) < 60:
        head += piece[:60]
    if piece.endswith(b"\n"):
        name = head.split(b'"', 4)[3].decode()
        event = "records" if name == "processRecords" else name
        os.write(out, f'{{"event": "{event}", "at": {time.time():.6f}, "count": 1}}\n'.encode())
        os.write(1, f'{{"action":"status","responseFor":"{name}"}}\n'.encode())
        head = b""
