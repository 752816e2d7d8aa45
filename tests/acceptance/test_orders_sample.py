"""The samples about a DynamoDB table: its changes reach a record processor, and Parquet's pipeline, once and in order.

Each change has the image before and the one after, so that those of an order are a chain. One that is missing, twice or
out of order breaks it, and the last one must be what stands in the table.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from mld.processors.samples.orders import TABLE
from mld.properties.lines import parse
from tests.acceptance.commands import ROOT
from tests.integration.world import ENVIRONMENT
from tests.support.daemon import Daemon, until
from tests.support.patience import PATIENCE_S
from tests.support.servers import EmbeddedAws
from tests.support.spark_bed import rows

SAMPLE = ROOT / "properties" / "samples" / "dynamodb-streams.properties"
WRITES = 300
SESSION_S = 150.0
Change = tuple[str, Any, Any]
"""The order, and what there was of it before and is after; None for nothing."""


@pytest.fixture
def orders(aws: EmbeddedAws) -> Iterator[str]:
    """The ARN of the stream of a table with orders, whose only shard was split meanwhile."""
    command = [sys.executable, "-m", "mld.processors.samples.orders", aws.endpoint, str(WRITES)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as script:
        assert script.stdout is not None
        arn = script.stdout.readline().removeprefix("streamArn = ").strip()
        until(lambda: table(aws), PATIENCE_S, "an order in the table")
        assert len(aws.control("POST", "dynamodb/split", {"stream": arn})["children"]) == 2
    assert script.returncode == 0
    yield arn
    dynamo = aws.client("dynamodb")
    dynamo.delete_table(TableName=TABLE)
    dynamo.close()


def table(aws: EmbeddedAws) -> dict[str, Any]:
    dynamo = aws.client("dynamodb")
    items = dynamo.scan(TableName=TABLE)["Items"]
    dynamo.close()
    return {item["order_id"]["S"]: item for item in items}


def keys(aws: EmbeddedAws, arn: str, **more: object) -> dict[str, object]:
    """Those of the sample, on the embedded AWS."""
    sample = {entry.key: entry.value for entry in parse(SAMPLE.read_bytes())}
    endpoints = {"kinesisEndpoint": aws.endpoint, "dynamoDBEndpoint": aws.endpoint}
    return {**sample, **endpoints, "streamArn": arn, "applicationName": f"orders-{os.getpid()}-{len(more)}", **more}


def folded(changes: Iterable[Change]) -> dict[str, Any]:
    """What the changes leave; fails at one that does not follow from those before."""
    state: dict[str, Any] = {}
    for order, before, after in changes:
        assert state.pop(order, None) == before, order
        if after is not None:
            state[order] = after
    return state


def archived(directory: Path) -> Iterator[Change]:
    for path in sorted(directory.glob("shardId-*.jsonl")):  # parents before their children
        for line in path.read_text().splitlines(keepends=True):
            if line.endswith("\n"):
                told = json.loads(json.loads(line)["data"])["dynamodb"]
                yield told["Keys"]["order_id"]["S"], told.get("OldImage"), told.get("NewImage")


def test_the_changes_reach_a_record_processor_once_and_in_order(aws: EmbeddedAws, orders: str, tmp_path: Path) -> None:
    archive = tmp_path / "archive"
    mine = {name: value for name, value in keys(aws, orders).items() if not name.startswith("mld.spark.")} | {
        "executableName": f"{sys.executable} -m mld.processors.archive {archive}"
    }
    with Daemon(tmp_path, mine, environment=ENVIRONMENT) as daemon:
        until(lambda: folded(archived(archive)) == table(aws), PATIENCE_S, "all changes in the archive")
        assert daemon.stop() == 0
    assert folded(archived(archive)) == table(aws)
    assert sum(1 for _ in archived(archive)) == WRITES
    assert len(list(archive.glob("shardId-*.jsonl"))) == 3


def statuses(items: Mapping[str, Any]) -> dict[str, str]:
    return {order: item["status"]["S"] for order, item in items.items()}


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_the_sample_s_pipeline_makes_a_row_of_each_change(aws: EmbeddedAws, orders: str, tmp_path: Path) -> None:
    pytest.importorskip("pyspark", reason="needs the extra: pip install 'mld-kinesis[spark]'")
    mine = keys(
        aws,
        orders,
        executableName=Path(sys.executable).with_name("mld-spark"),
        shutdownGraceMillis=150_000,
        **{
            "mld.spark.pipeline": f"{ROOT}/processors/samples/changes.py:transform",
            "mld.spark.sink.changes.path": tmp_path / "changes",
            "mld.spark.sink.changes.format": "json",
            "mld.spark.deadLetter": tmp_path / "dead",
            "mld.spark.conf.spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
        },
    )

    def changes() -> list[Change]:
        found = sorted(rows(tmp_path / "changes"), key=lambda row: int(row["sequenceNumber"]))
        return [(row["order_id"], row.get("status_before"), row.get("status")) for row in found]

    with Daemon(tmp_path, mine, environment=ENVIRONMENT) as daemon:
        until(lambda: len(changes()) >= WRITES, SESSION_S, "all changes in the sink")
        assert daemon.stop(timeout_s=SESSION_S) == 0
    assert len(changes()) == WRITES
    assert folded(changes()) == statuses(table(aws))
