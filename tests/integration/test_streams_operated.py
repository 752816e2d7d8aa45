"""What an operator sees of several streams, and does to one of them: commands and a page beside a real daemon."""

from __future__ import annotations

import json
import subprocess
import urllib.request
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from tests.acceptance.commands import mld
from tests.integration.world import ENVIRONMENT, SHORT_LEASE, MakeWorld, World

SHARD_0 = "shardId-000000000000"
FAST = {**SHORT_LEASE, "workerMetricsReporterFreqInMillis": 1000}

pytestmark = pytest.mark.full


class Operated:
    """Two streams of two shards, all read to the end by one daemon."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.other = f"{world.stream}-other"
        world.kinesis.create_stream(StreamName=self.other, ShardCount=2)
        world.kinesis.get_waiter("stream_exists").wait(StreamName=self.other, WaiterConfig={"Delay": 1})
        self.keys = {
            **FAST,
            "streamName": "",
            "mld.streams": f"{world.stream}, {self.other}",
            "mld.http": "127.0.0.1:0",
            "mld.metrics": "prometheus",
        }
        world.put(10)
        records = [{"Data": b"x", "PartitionKey": str(number)} for number in range(10)]
        world.kinesis.put_records(StreamName=self.other, Records=records)
        self.daemon = world.daemon("w1", **self.keys)
        self.base = f"http://{self.daemon.wait_for_event('http_serving')['address']}"
        world.until(lambda: len(self.checkpoints()) == 4, what="checkpoints of all shards")
        self.file = world.directory / "operator.properties"
        values = world.keys("operator", world.recorder(), self.keys)
        self.file.write_text("".join(f"{key} = {value}\n" for key, value in values.items()))
        self.cwd = world.directory / "operator"
        self.cwd.mkdir()

    def rows(self) -> dict[str, Any]:
        items = self.world.dynamo.scan(TableName=self.world.table, ConsistentRead=True)["Items"]
        return {row["leaseKey"]["S"]: row for row in items if row.get("entityType", {}).get("S") == "LEASE"}

    def checkpoints(self) -> dict[str, str]:
        """Of those that were made, by key."""
        if self.world.table not in self.world.dynamo.list_tables()["TableNames"]:
            return {}
        rows = self.rows()
        return {key: row["checkpoint"]["S"] for key, row in rows.items() if row["checkpoint"]["S"].isdigit()}

    def run(self, name: str, *rest: object) -> subprocess.CompletedProcess[str]:
        return mld(name, "-p", self.file, *rest, environment=ENVIRONMENT, cwd=self.cwd)

    def done(self, name: str, *rest: object) -> str:
        result = self.run(name, *rest)
        assert result.returncode == 0, result.stderr + result.stdout
        return result.stdout

    def shown(self, name: str, *rest: object) -> str:
        """What a command shows, whatever its verdict: a machine that stood still for seconds makes shards unknown."""
        return self.run(name, *rest).stdout

    def refused(self, name: str, *rest: object) -> str:
        result = self.run(name, *rest)
        assert result.returncode == 1, result.stdout
        assert len(result.stderr.splitlines()) == 1, result.stderr
        return result.stderr

    def stop(self) -> None:
        assert self.daemon.stop() == 0


@pytest.fixture
def operated(make_world: MakeWorld) -> Iterator[Operated]:
    yield Operated(make_world(2))


def streams_of(value: Mapping[str, Any]) -> list[str]:
    return [shard["stream"] for shard in value["shards"]]


def test_streams_are_seen_everywhere(operated: Operated) -> None:
    one, other = operated.world.stream, operated.other
    assert streams_of(json.loads(operated.shown("leases", "-o", "json"))) == [one, one, other, other]
    assert streams_of(json.loads(operated.shown("lag", "--stream", other, "-o", "json"))) == [other, other]
    assert [line.split()[0] for line in operated.shown("leases", "--by", "stream").splitlines()[1:3]] == [one, other]
    assert sorted(streams_of(json.loads(operated.shown("status", "-o", "json")))) == [one, one, other, other]
    assert "has no stream nope" in operated.refused("lag", "--stream", "nope")
    with urllib.request.urlopen(f"{operated.base}/metrics") as answer:
        text = answer.read().decode()
    for stream in (one, other):
        assert f'shard="{SHARD_0}",stream="{stream}"' in text
    with urllib.request.urlopen(f"{operated.base}/status.json") as answer:
        assert streams_of(json.load(answer)) == [one, one, other, other]


def test_a_shard_is_named_with_its_stream_or_it_is_said_which_there_are(operated: Operated) -> None:
    one, other = operated.world.stream, operated.other
    for command in (["pause", "0"], ["peek", "0"], ["reset", "--shard", "0", "--to", "2h"]):
        said = operated.refused(*command)
        assert "2 streams have a shard 0: say which one" in said
        assert f"{one}:0" in said
        assert f"{other}:0" in said
    assert f"{other}:" in operated.done("pause", f"{other}:0", "--execute")
    paused = [key for key, row in operated.rows().items() if "mldPaused" in row]
    assert [key.split(":")[1] for key in paused] == [other]
    assert "key=" in operated.done("peek", f"{other}:0", "-n", "1")


def test_one_stream_is_reset_restored_and_taken_down_beside_the_other(operated: Operated) -> None:
    one, other = operated.world.stream, operated.other
    before = operated.checkpoints()
    operated.stop()
    assert "say which one with --stream" in operated.refused("reset", "--to", "trim-horizon")
    operated.done("export", "--file", "saved.jsonl")

    said = operated.done("reset", "--to", "trim-horizon", "--stream", other, "--execute")
    assert said.startswith(f"stream {other}: all shards to trim-horizon")
    after = operated.rows()
    assert {key.split(":")[1] for key, row in after.items() if row["checkpoint"]["S"] == "TRIM_HORIZON"} == {other}
    assert {key: at for key, at in before.items() if key.split(":")[1] == one} == operated.checkpoints()

    operated.done("restore", "saved.jsonl", "--stream", other, "--skip-forward", "--execute")
    assert operated.checkpoints() == before
