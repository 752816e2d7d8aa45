"""``python -m tests.benchmarks.wide``: what commands and the status page cost on a table of 10,000 shards.

A real daemon holds one of the leases; the rows of the others name 100 workers that are not there. It prints how long
each command and each page takes with its peak of memory. The DynamoDB is a stand-in in Python that uses most of the
time: how long one scan of it takes stands in the first line. See docs/lab/scale.md.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mld.core.positions import TRIM_HORIZON, Position
from mld.core.streams import HASH_KEY_MAX, HashRange
from mld.fleet.report.reports import attributes, own_report
from mld.leases.lease import Lease, ShardStatus
from mld.leases.rows import LEASE_TABLE_KEY, new_row, status_values
from tests.benchmarks.tables import load_average, table
from tests.integration.world import ASSIGNED, ENVIRONMENT
from tests.support.daemon import Daemon, child_command
from tests.support.servers import EmbeddedAws, Ministack, ServerProcess

APPLICATION, STREAM = "wide", "wide"
WORKERS = 100
PUT_BATCH = 25  # of BatchWriteItem
LONG_S = 3600  # no lease expires, and nothing is too old, while this runs
RUNS = 3
PAGES = ("/livez", "/", "/status.json, compressed", "/status.json")
COMMANDS = (("leases",), ("leases", "-o", "json"), ("workers",), ("lag",))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.wide", description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000, help="leases in the table (default %(default)s)")
    parser.add_argument(
        "--ministack", action="store_true", help="ministack as the DynamoDB instead of the embedded AWS"
    )
    arguments = parser.parse_args()
    print(f"{arguments.rows} leases; load average at the start: {load_average()}")
    with tempfile.TemporaryDirectory(prefix="mld-wide-") as scratch, EmbeddedAws() as aws:
        if arguments.ministack:
            with Ministack() as dynamo:
                measure(Path(scratch), aws, dynamo, arguments.rows)
        else:
            measure(Path(scratch), aws, aws, arguments.rows)
    return 0


# --- commands and pages -----------------------------------------------------------------------------------------------


def measure(scratch: Path, aws: EmbeddedAws, dynamo: ServerProcess, rows: int) -> None:
    aws.client("kinesis").create_stream(StreamName=STREAM, ShardCount=1)
    fill(dynamo, rows)
    print(f"one scan by botocore, answers of the stand-in included: {scan_s(dynamo):.2f} s")
    keys = {
        **ASSIGNED,
        "executableName": child_command("recorder.py", scratch),
        "applicationName": APPLICATION,
        "streamName": STREAM,
        "workerId": "w-here",
        "regionName": "us-east-1",
        "kinesisEndpoint": aws.endpoint,
        "dynamoDBEndpoint": dynamo.endpoint,
        "AwsCredentialsProvider": "DefaultCredentialsProvider",
        "initialPositionInStream": "TRIM_HORIZON",
        "retrievalMode": "POLLING",
        "failoverTimeMillis": LONG_S * 1000,
        "maxLeasesForWorker": 1,
        "mld.http": "127.0.0.1:0",
    }
    with Daemon(scratch, keys, environment=ENVIRONMENT) as daemon:
        base = f"http://{daemon.wait_for_event('http_serving')['address']}"
        daemon.wait_for_event("lease_held")
        resting = memory_mb(daemon.process.pid)
        commands = [row_of_command(daemon.file, command) for command in COMMANDS]
        print()
        table("Commands", ["command", "seconds", "of them CPU", "peak MB", "KB printed"], commands, f"median of {RUNS}")
        pages = [row_of_page(base, daemon.process.pid, page) for page in PAGES]
        note = f"median of {RUNS}; the daemon before anybody looked: {resting:.0f} MB"
        table("Pages of a daemon", ["page", "seconds", "daemon's peak MB", "KB sent"], pages, note)


def fill(dynamo: ServerProcess, rows: int) -> None:
    client = dynamo.client("dynamodb")
    client.create_table(
        TableName=APPLICATION,
        AttributeDefinitions=[{"AttributeName": "leaseKey", "AttributeType": "S"}],
        KeySchema=[{"AttributeName": "leaseKey", "KeyType": "HASH"}],
        BillingMode="PAY_PER_REQUEST",
    )
    items = [row(lease) for lease in leases(rows)]
    for number in range(WORKERS):  # reports of the future never expire
        report = own_report(worker(number), {}, time.time() + LONG_S, "0.2.0")
        items.append(attributes(report) | {LEASE_TABLE_KEY: {"S": worker(number)}})
    for start in range(0, len(items), PUT_BATCH):
        puts = [{"PutRequest": {"Item": item}} for item in items[start : start + PUT_BATCH]]
        client.batch_write_item(RequestItems={APPLICATION: puts})


def worker(number: int) -> str:
    return f"ip-10-0-0-{number}.eu-central-1.compute.internal:5f0c9a6e-3b1d-4e57-9f3a-{number:012}"


def leases(rows: int) -> Iterator[Lease]:
    """The first is free, so that the daemon has one; it is the only shard of the stream."""
    yield Lease("shardId-000000000000", TRIM_HORIZON, hash_range=HashRange(0, HASH_KEY_MAX))
    step = HASH_KEY_MAX // rows
    for number in range(1, rows):
        position = Position(str(49_040_468_252_813_494_484_915_263_510_243_806_446_485_198_519_914_201_089 + number))
        yield Lease(
            f"shardId-{number:012}",
            position,
            owner=worker(number % WORKERS),
            hash_range=HashRange(number * step, (number + 1) * step),
            status=ShardStatus("processing", int(time.time()), 10 * number, position),
            throughput_kbps=1.5,
        )


def row(lease: Lease) -> dict[str, Any]:
    return new_row(lease) | ({} if lease.status is None else status_values(lease.status))


def scan_s(dynamo: ServerProcess) -> float:
    client, began = dynamo.client("dynamodb"), time.perf_counter()
    parameters: dict[str, Any] = {"TableName": APPLICATION}
    while True:
        answer = client.scan(**parameters)
        if "LastEvaluatedKey" not in answer:
            return time.perf_counter() - began
        parameters["ExclusiveStartKey"] = answer["LastEvaluatedKey"]


def row_of_command(file: Path, command: tuple[str, ...]) -> tuple[str, ...]:
    seconds, busy, peaks, printed = [], [], [], 0
    for _ in range(RUNS):
        began = time.perf_counter()
        with tempfile.TemporaryFile() as out:
            words = [sys.executable, "-m", "mld", command[0], str(file), *command[1:]]
            started = subprocess.Popen(words, stdout=out, env={**os.environ, **ENVIRONMENT})
            _, status, used = os.wait4(started.pid, 0)
            started.returncode = os.waitstatus_to_exitcode(status)
            assert started.returncode == 0, words
            printed = out.tell()
        seconds.append(time.perf_counter() - began)
        busy.append(used.ru_utime + used.ru_stime)
        peaks.append(used.ru_maxrss / 1024)
    figures = f"{statistics.median(seconds):.2f}", f"{statistics.median(busy):.2f}", f"{max(peaks):.0f}"
    return f"mld {' '.join(command)}", *figures, f"{printed / 1024:.0f}"


def row_of_page(base: str, pid: int, page: str) -> tuple[str, ...]:
    path, _, zipped = page.partition(", ")
    seconds, sent = [], 0
    for _ in range(RUNS):
        time.sleep(6)  # until what was seen before is too old
        began = time.perf_counter()
        sent = len(fetch(base + path, zipped=bool(zipped)))
        seconds.append(time.perf_counter() - began)
    return page, f"{statistics.median(seconds):.3f}", f"{peak_mb(pid):.0f}", f"{sent / 1024:.0f}"


def fetch(url: str, *, zipped: bool = False) -> bytes:
    request = urllib.request.Request(url, headers={"Accept-Encoding": "gzip"} if zipped else {})
    with urllib.request.urlopen(request) as answer:
        body: bytes = answer.read()
    if url.endswith(".json"):
        json.loads(gzip.decompress(body) if zipped else body)
    return body


def memory_mb(pid: int) -> float:
    return _of_status(pid, "VmRSS")


def peak_mb(pid: int) -> float:
    return _of_status(pid, "VmHWM")


def _of_status(pid: int, name: str) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(f"{name}:"))


if __name__ == "__main__":
    sys.exit(main())
