"""Records per second of `spark.read.format("mld")`, beside a loop over boto3, in the same run.

    .venv-spark-pandas/bin/python -m tests.benchmarks.datasource --records 40000

Both read the same stream of the embedded AWS, which enforces no limits; Spark has two cores, one shard a task, and
counts the rows and the bytes of their data.
"""

from __future__ import annotations

import argparse
import os
import time
from typing import Any

from tests.support.datasource_driver import session
from tests.support.servers import EmbeddedAws

SHARDS, BATCH, RECORD_BYTES = 2, 500, 1024


def fill(kinesis: Any, name: str, records: int) -> None:
    for start in range(0, records, BATCH):
        items = [
            {"Data": os.urandom(RECORD_BYTES // 2).hex().encode(), "PartitionKey": str(n)}
            for n in range(start, min(start + BATCH, records))
        ]
        assert kinesis.put_records(StreamName=name, Records=items)["FailedRecordCount"] == 0


def naive(kinesis: Any, name: str) -> int:
    """What a notebook would do: shard after shard, page after page."""
    total = 0
    for shard in kinesis.list_shards(StreamName=name)["Shards"]:
        asked = {"StreamName": name, "ShardId": shard["ShardId"], "ShardIteratorType": "TRIM_HORIZON"}
        iterator = kinesis.get_shard_iterator(**asked)["ShardIterator"]
        while True:
            answer = kinesis.get_records(ShardIterator=iterator)
            total += len([(record["SequenceNumber"], len(record["Data"])) for record in answer["Records"]])
            iterator = answer["NextShardIterator"]
            if answer["MillisBehindLatest"] == 0:
                break
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=40_000)
    parser.add_argument("--runs", type=int, default=3)
    given = parser.parse_args()
    os.environ |= {"AWS_ACCESS_KEY_ID": "123456789012", "AWS_SECRET_ACCESS_KEY": "local"}
    with EmbeddedAws(streams={"bench": SHARDS}) as aws:
        kinesis = aws.client("kinesis")
        fill(kinesis, "bench", given.records)
        spark = session()
        options = {"stream": "bench", "endpoint": aws.endpoint, "region": "us-east-1"}
        for run in range(given.runs):
            started = time.perf_counter()
            read = spark.read.format("mld").options(**options).load()
            rows, _ = read.selectExpr("count(*)", "sum(length(data))").first()
            by_spark = time.perf_counter() - started
            started = time.perf_counter()
            total = naive(kinesis, "bench")
            by_loop = time.perf_counter() - started
            assert rows == total == given.records, (rows, total)
            print(
                f"run {run + 1}: mld source {rows / by_spark:,.0f} records/s ({by_spark:.1f} s), "
                f"boto3 loop {total / by_loop:,.0f} records/s ({by_loop:.1f} s)",
                flush=True,
            )
        spark.stop()


if __name__ == "__main__":
    main()
