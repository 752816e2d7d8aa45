"""Reads a backlog with async-kinesis, in an interpreter that has it; see `tests.benchmarks.path.peers`.

    PYTHON peer_reader.py ENDPOINT STREAM RECORDS FROM UNTIL

Prints JSON: when the first record came (epoch seconds), CPU seconds between the records FROM and UNTIL and of the whole
process, and its peak memory in MB.

Settings: records as bytes, as they came; checkpoints in memory only, so that nothing is written; the shards by
ListShards; five requests a second and shard, and 0.2 s between empty polls, as Kinesis allows. The rest is as by
default: 10,000 records a request and in the queue.
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
import time

from kinesis import Consumer  # type: ignore[import-not-found]
from kinesis.aggregators import SimpleAggregator  # type: ignore[import-not-found]
from kinesis.processors import Processor  # type: ignore[import-not-found]
from kinesis.serializers import Serializer  # type: ignore[import-not-found]

REGION = "us-east-1"
POLL_S = 0.2
REQUESTS_PER_S = 5


class Bytes(Processor, SimpleAggregator, Serializer):  # type: ignore[misc]
    """Leaves a record as it came."""

    def serialize(self, msg: bytes) -> bytes:
        return msg

    def deserialize(self, data: bytes) -> bytes:
        return data


async def read(endpoint: str, stream: str, records: int, since: int, until: int) -> dict[str, float]:
    figures: dict[str, float] = {}
    consumer = Consumer(
        stream,
        endpoint_url=endpoint,
        region_name=REGION,
        processor=Bytes(),
        use_list_shards=True,
        shard_fetch_rate=REQUESTS_PER_S,
        sleep_time_no_records=POLL_S,
    )
    done = 0
    async with consumer:
        while done < records:
            async for _ in consumer:  # ends when the queue was empty for a while
                done += 1
                if done == 1:
                    figures["first_at"] = time.time()
                if done == since:
                    figures["cpu_s_since"] = time.process_time()
                if done == until:
                    figures["steady_cpu_s"] = time.process_time() - figures["cpu_s_since"]
                if done == records:
                    break
        figures["whole_cpu_s"] = time.process_time()
    figures["peak_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
    return figures


if __name__ == "__main__":
    print(json.dumps(asyncio.run(read(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])))))
