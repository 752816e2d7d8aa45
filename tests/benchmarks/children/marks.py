"""Where children write down when what happened: one JSON line per event in a file of their own.

`BENCH_MARKS` names the directory; without it nothing is written. Times are epoch seconds, so that they can be set
beside the daemon's log and the benchmark's own clock.
"""

from __future__ import annotations

import json
import os
import time

HOT = "hot"
"""The partition key of half of the records, where one is hot."""
_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND


def _open() -> int | None:
    directory = os.environ.get("BENCH_MARKS")
    if directory is None:
        return None
    worker, shard = os.environ.get("MLD_WORKER_ID", "none"), os.environ.get("MLD_SHARD_ID", "none")
    return os.open(f"{directory}/{worker}.{shard}.{os.getpid()}.jsonl", _FLAGS)


_file = _open()


def mark(event: str, count: int = 0) -> None:
    """Note `event` as of now."""
    now = time.time()
    if _file is not None:
        os.write(_file, json.dumps({"event": event, "at": now, "count": count}).encode() + b"\n")
