"""What the daemon is compared with: the shortest boto3 scripts that do the same calls with the same child.

    python -m tests.benchmarks.baseline start    ENDPOINT TABLE STREAM WORKER CHILD...
    python -m tests.benchmarks.baseline read     ENDPOINT STREAM RECORDS CHILD...
    python -m tests.benchmarks.baseline idle     ENDPOINT STREAM CALLS

`start`: scan the table, list the shards, renew every lease, get the iterators, start a child per shard, `initialize`,
GetRecords, first batch; one thing after the other. `read`: GetRecords, base64, json.dumps into the pipe of a child,
shard by shard in turn. `idle`: GetRecords without an answer. `read` and `idle` print JSON with wall and CPU seconds of
this process. No leases are kept, and nothing is retried: this is a yardstick, not a daemon.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import time
from typing import Any

import boto3

REGION = "us-east-1"
RECORDS_MAX = 10_000


def main() -> None:
    what, endpoint, *rest = sys.argv[1:]
    match what:
        case "start":
            table, stream, worker, *child = rest
            start(endpoint, table, stream, worker, child)
        case "read":
            stream, records, *child = rest
            read(endpoint, stream, int(records), child)
        case "idle":
            stream, calls = rest
            idle(endpoint, stream, int(calls))


def start(endpoint: str, table: str, stream: str, worker: str, command: list[str]) -> None:
    dynamo, kinesis = client("dynamodb", endpoint), client("kinesis", endpoint)
    rows = dynamo.scan(TableName=table)["Items"]
    leases = [row for row in rows if "leaseCounter" in row]  # others are the fleet's reports, lock and states
    kinesis.list_shards(StreamName=stream)
    for lease in leases:
        dynamo.update_item(
            TableName=table,
            Key={"leaseKey": lease["leaseKey"]},
            UpdateExpression="SET leaseCounter = :new",
            ConditionExpression="leaseCounter = :old AND leaseOwner = :me",
            ExpressionAttributeValues={
                ":old": lease["leaseCounter"],
                ":new": {"N": str(int(lease["leaseCounter"]["N"]) + 1)},
                ":me": {"S": worker},
            },
        )
    children = []
    for lease in leases:
        shard = lease["leaseKey"]["S"]
        iterator = first_iterator(kinesis, stream, shard)
        child = Child(command, shard)
        child.ask({"action": "initialize", "shardId": shard, "sequenceNumber": "TRIM_HORIZON", "subSequenceNumber": 0})
        child.ask(process_records(kinesis.get_records(ShardIterator=iterator)))
        children.append(child)
    for child in children:
        child.close()


def read(endpoint: str, stream: str, records: int, command: list[str]) -> None:
    kinesis = client("kinesis", endpoint)
    shards = [shard["ShardId"] for shard in kinesis.list_shards(StreamName=stream)["Shards"]]
    iterators = {shard: first_iterator(kinesis, stream, shard) for shard in shards}
    children = {shard: Child(command, shard) for shard in shards}
    for shard, child in children.items():
        child.ask({"action": "initialize", "shardId": shard, "sequenceNumber": "TRIM_HORIZON", "subSequenceNumber": 0})
    wall, cpu = time.perf_counter(), time.process_time()
    done = 0
    while done < records:
        for shard in shards:
            answer = kinesis.get_records(ShardIterator=iterators[shard], Limit=RECORDS_MAX)
            iterators[shard] = answer["NextShardIterator"]
            done += len(answer["Records"])
            if answer["Records"]:
                children[shard].ask(process_records(answer))
    print(json.dumps({"wall_s": time.perf_counter() - wall, "cpu_s": time.process_time() - cpu}), flush=True)
    for child in children.values():
        child.close()


def idle(endpoint: str, stream: str, calls: int) -> None:
    kinesis = client("kinesis", endpoint)
    shards = [shard["ShardId"] for shard in kinesis.list_shards(StreamName=stream)["Shards"]]
    iterators = {shard: first_iterator(kinesis, stream, shard) for shard in shards}
    wall, cpu = time.perf_counter(), time.process_time()
    for number in range(calls):
        shard = shards[number % len(shards)]
        iterators[shard] = kinesis.get_records(ShardIterator=iterators[shard])["NextShardIterator"]
    print(json.dumps({"wall_s": time.perf_counter() - wall, "cpu_s": time.process_time() - cpu}), flush=True)


class Child:
    """A record processor, one message at a time."""

    def __init__(self, command: list[str], shard: str) -> None:
        environment = {**os.environ, "MLD_SHARD_ID": shard}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment
        )

    def ask(self, message: dict[str, Any]) -> None:
        """Write a message and wait for the answer."""
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(json.dumps(message).encode() + b"\n")
        self._process.stdin.flush()
        self._process.stdout.readline()

    def close(self) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait()


def process_records(answer: dict[str, Any]) -> dict[str, Any]:
    return {
        "action": "processRecords",
        "records": [
            {
                "data": base64.b64encode(record["Data"]).decode(),
                "partitionKey": record["PartitionKey"],
                "sequenceNumber": record["SequenceNumber"],
                "approximateArrivalTimestamp": int(record["ApproximateArrivalTimestamp"].timestamp() * 1000),
                "subSequenceNumber": 0,
                "action": "record",
            }
            for record in answer["Records"]
        ],
        "millisBehindLatest": answer["MillisBehindLatest"],
    }


def client(service: str, endpoint: str) -> Any:
    return boto3.client(service, endpoint_url=endpoint, region_name=REGION)


def first_iterator(kinesis: Any, stream: str, shard: str) -> str:
    answer = kinesis.get_shard_iterator(StreamName=stream, ShardId=shard, ShardIteratorType="TRIM_HORIZON")
    return str(answer["ShardIterator"])


if __name__ == "__main__":
    main()
