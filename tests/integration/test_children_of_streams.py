"""Real children of several streams: what they are told, their own commands, amazon_kclpy unchanged, and a list that
changes while the daemon runs."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.integration.world import ENVIRONMENT, MakeWorld, World
from tests.support.daemon import ROOT
from tests.support.fetch_kclpy import installed
from tests.support.servers import ACCOUNT

ECHO = ROOT / "tests" / "conformance" / "children" / "echo_v3.py"
WITHIN_S = 60.0  # what is promised of a line that comes or goes
CHILD = """
import json, os, sys
from mld.sdk import RecordProcessor, run

def say(**fields):
    print(json.dumps(fields), file=sys.stderr, flush=True)

class Child(RecordProcessor):
    def initialize(self, shard_id, sequence_number, sub_sequence_number):
        told = {name: os.environ.get(f"MLD_{name}") for name in ("STREAM_NAME", "STREAM_ARN", "STREAM_ID", "LEASE_KEY")}
        label = self.stream and [self.stream.name, self.stream.arn, self.stream.id]
        say(message="told", label=label, told=told, id=[shard_id, os.environ["MLD_SHARD_ID"]], parent=os.getppid())

    def process_records(self, records, checkpointer, millis_behind_latest):
        for record in records:
            label = self.stream and self.stream.name
            say(message="got", text=record.data.decode(), label=label, extra=dict(record.extra))
        checkpointer.checkpoint()

    def shard_ended(self, checkpointer):
        checkpointer.checkpoint()

run(Child)
"""


class Streams:
    """Some streams of a world beside its own, and the file that lists them."""

    def __init__(self, world: World, *names: str) -> None:
        self.world = world
        self.names = {name: f"{world.stream}-{name}" for name in names}
        self.list = world.directory / "streams.txt"
        self.child = world.directory / "child.py"
        self.child.write_text(CHILD)
        for name in self.names.values():
            world.kinesis.create_stream(StreamName=name, ShardCount=1)
            world.kinesis.get_waiter("stream_exists").wait(StreamName=name, WaiterConfig={"Delay": 1})

    def put(self, name: str, text: str) -> None:
        self.world.kinesis.put_record(StreamName=self.names[name], Data=text.encode(), PartitionKey="k")

    def write_list(self, *lines: str) -> None:
        new = self.list.with_suffix(".new")
        new.write_text("".join(f"{line}\n" for line in lines))
        new.replace(self.list)

    def identifier(self, name: str) -> str:
        summary = self.world.kinesis.describe_stream_summary(StreamName=self.names[name])["StreamDescriptionSummary"]
        return f"{ACCOUNT}:{self.names[name]}:{int(summary['StreamCreationTimestamp'].timestamp())}"

    def arn(self, name: str) -> str:
        return f"arn:aws:kinesis:us-east-1:{ACCOUNT}:stream/{self.names[name]}"


def python(path: Path) -> str:
    return f"{sys.executable} {path}"


def environment(*paths: object) -> dict[str, str]:
    return {**ENVIRONMENT, "PYTHONPATH": os.pathsep.join(map(str, (*paths, ROOT)))}


def test_each_child_is_told_its_stream_whatever_starts_it(make_world: MakeWorld) -> None:
    world = make_world(1)
    streams = Streams(world, "plain", "forked")
    zygote = Path(sys.executable).with_name("mld-zygote")
    for name in streams.names:
        streams.put(name, f"for {name}")
    daemon = world.daemon(
        child=python(streams.child),
        process={"environment": environment()},
        **{
            "streamName": "",
            "mld.streams": "here,there",
            "mld.stream.here.arn": streams.arn("plain"),
            "mld.stream.there.arn": streams.arn("forked"),
            "mld.stream.there.executableName": f"{zygote} {streams.child}",
        },
    )
    for name in streams.names:
        identifier, shard = streams.identifier(name), "shardId-000000000000"
        key = f"{identifier}:{shard}"
        told = daemon.wait_for_event("child_stderr", message="told", stream=streams.names[name])
        label = [streams.names[name], streams.arn(name), identifier]
        assert told["shard"] == key
        assert told["label"] == label
        assert list(told["told"].values()) == [*label, key]
        assert told["id"] == [shard, shard]
        got = daemon.wait_for_event("child_stderr", message="got", stream=streams.names[name])
        assert (got["text"], got["label"]) == (f"for {name}", streams.names[name])
        assert got["extra"] == {}
    assert daemon.stop() == 0


def test_a_child_of_one_stream_is_told_of_no_other(make_world: MakeWorld) -> None:
    world = make_world(1)
    streams = Streams(world)
    arn = f"arn:aws:kinesis:us-east-1:{ACCOUNT}:stream/{world.stream}"
    daemon = world.daemon(child=python(streams.child), process={"environment": environment()}, streamArn=arn)
    told = daemon.wait_for_event("child_stderr", message="told")
    shard = "shardId-000000000000"
    assert (told["shard"], told["label"], told["id"], "stream" in told) == (shard, None, [shard, shard], False)
    assert told["told"] == {
        "STREAM_NAME": world.stream,
        "STREAM_ARN": arn,
        "STREAM_ID": None,
        "LEASE_KEY": shard,
    }
    assert daemon.stop() == 0


def test_amazon_kclpy_reads_several_streams_unchanged(make_world: MakeWorld) -> None:
    kclpy = installed()
    if kclpy is None:
        pytest.skip("amazon_kclpy is not fetched: run python tests/support/fetch_kclpy.py")
    world = make_world(1)
    streams = Streams(world, "one", "two")
    for name in streams.names:
        streams.put(name, name)
    daemon = world.daemon(
        child=python(ECHO),
        process={"environment": environment(kclpy)},
        **{"streamName": "", "mld.streams": ",".join(streams.names.values())},
    )
    for name, stream in streams.names.items():
        begun = daemon.wait_for_event("child_stderr", call="initialize", stream=stream)
        assert begun["child_shard"] == "shardId-000000000000"
        got = daemon.wait_for_event("child_stderr", call="process_records", stream=stream)
        assert [bytes.fromhex(record[0]).decode() for record in got["records"]] == [name]
    assert daemon.stop() == 0
    rows = world.leases()
    assert {row.stream for row in rows.values()} == {streams.identifier(name) for name in streams.names}
    assert all(row.checkpoint.number is not None for row in rows.values())


@pytest.mark.full
def test_streams_come_and_go_by_their_lines(make_world: MakeWorld) -> None:
    world = make_world(1)
    streams = Streams(world, "first", "second")
    first, second = streams.names["first"], streams.names["second"]
    streams.write_list(first)
    daemon = world.daemon(
        child=python(streams.child),
        process={"environment": environment()},
        **{"streamName": "", "mld.streamsFile": str(streams.list)},
    )
    daemon.wait_for_event("child_stderr", message="told", stream=first)
    streams.put("second", "new")
    streams.write_list(second)
    daemon.wait_for_event("child_stderr", message="got", text="new", timeout_s=WITHIN_S)
    daemon.wait_for_event("stream_left", stream=streams.identifier("first"), timeout_s=WITHIN_S)

    def is_given_back() -> bool:
        return all(row.owner is None for row in world.leases().values() if row.stream == streams.identifier("first"))

    world.until(is_given_back, what="leases of a former stream without an owner")
    assert daemon.stop() == 0
