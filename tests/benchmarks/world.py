"""The embedded AWS as a process of its own, with streams and records in it."""

from __future__ import annotations

import os
import threading
from typing import Any

from tests.support.servers import EmbeddedAws

HASH_KEYS = 2**128
PUT_RECORDS_MAX = 500  # a limit of the API
PRODUCER_PAUSE_S = 0.1


def explicit_hash_key(shard: int, shards: int) -> str:
    """A hash key in the middle of the n-th of `shards` equal shards."""
    return str((2 * shard + 1) * HASH_KEYS // (2 * shards))


def make_stream(kinesis: Any, stream: str, shards: int) -> None:
    """Create a stream and wait until it can be used."""
    kinesis.create_stream(StreamName=stream, ShardCount=shards)
    kinesis.get_waiter("stream_exists").wait(StreamName=stream, WaiterConfig={"Delay": 1})


def put_evenly(kinesis: Any, stream: str, shards: int, per_shard: int, data_bytes: int = 1024) -> None:
    """The same number of records in every shard, of incompressible bytes."""
    for shard in range(shards):
        key = explicit_hash_key(shard, shards)
        for start in range(0, per_shard, PUT_RECORDS_MAX):
            count = min(PUT_RECORDS_MAX, per_shard - start)
            entries = [
                {"Data": os.urandom(data_bytes), "PartitionKey": "bench", "ExplicitHashKey": key} for _ in range(count)
            ]
            answer = kinesis.put_records(StreamName=stream, Records=entries)
            assert answer["FailedRecordCount"] == 0


class Producer:
    """Puts one record into every shard ten times a second until closed."""

    def __init__(self, aws: EmbeddedAws, stream: str, shards: int) -> None:
        self._kinesis = aws.client("kinesis")
        self._stream = stream
        self._shards = shards
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"producer-{stream}", daemon=True)

    def _run(self) -> None:
        while not self._stop.wait(PRODUCER_PAUSE_S):
            put_evenly_once(self._kinesis, self._stream, self._shards)

    def __enter__(self) -> Producer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


def put_evenly_once(kinesis: Any, stream: str, shards: int) -> None:
    entries = [
        {"Data": os.urandom(100), "PartitionKey": "bench", "ExplicitHashKey": explicit_hash_key(shard, shards)}
        for shard in range(shards)
    ]
    kinesis.put_records(StreamName=stream, Records=entries)
