"""Record processors on amazon_kclpy 1, 2 and 3, aws-kcl for Node, aws-kclrb and the crate kcl, as they are, get and
checkpoint, to the end of the shard, what the sources give: several streams, framed records as JSON, the changes of
DynamoDB tables."""

from __future__ import annotations

import base64
import json
import os
import signal
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import pytest

from tests.integration.world import ENVIRONMENT, MakeWorld, World
from tests.support.daemon import ROOT
from tests.support.image import children_of
from tests.support.unchanged import KEYLESS, PANICKING, executable_names

pytestmark = pytest.mark.full

FRAMES = ROOT / "tests" / "interop" / "frames" / "frames.json"
VERSION_ID = slice(2, 18)
"""Where in a frame the id of the schema version stands."""
ORDER = {
    "id": 7,
    "note": "ü",
    "raw": "AP8=",
    "price": "12.50",
    "at": "2026-11-23T07:56:39.667000Z",
    "kind": "OLD",
    "tags": ["a", "b"],
    "sizes": {"s": 1},
    "place": {"x": 1.5},
}
"""The first order of the frames."""


@dataclass(frozen=True)
class Source:
    """What one child reads, and what it should say of the only record: its data and one of its keys."""

    arn: str
    data: object
    schema_name: str | None = None


@dataclass(frozen=True)
class Mode:
    """A source for each kind of child, what ends its only shard, what of the data of a record is compared, and the
    daemon's keys."""

    sources: dict[str, Source]
    end_shard: Callable[[World, str], object]
    data_of: Callable[[bytes], object]
    keys: dict[str, object] = field(default_factory=dict)


def stream(world: World, kind: str, data: bytes) -> str:
    """The ARN of a new stream with one record."""
    name = f"{world.stream}-{kind}"
    world.kinesis.create_stream(StreamName=name, ShardCount=1)
    world.kinesis.get_waiter("stream_exists").wait(StreamName=name, WaiterConfig={"Delay": 1})
    world.kinesis.put_record(StreamName=name, Data=data, PartitionKey="k")
    summary = world.kinesis.describe_stream_summary(StreamName=name)["StreamDescriptionSummary"]
    return str(summary["StreamARN"])


def split(world: World, kind: str) -> None:
    world.kinesis.split_shard(
        StreamName=f"{world.stream}-{kind}", ShardToSplit="shardId-000000000000", NewStartingHashKey=str(2**127)
    )


def several_streams(world: World, kinds: Iterable[str]) -> Mode:
    texts = {kind: f"for {kind}: é\n".encode() for kind in kinds}
    sources = {kind: Source(stream(world, kind, text), text) for kind, text in texts.items()}
    return Mode(sources, split, bytes)


def framed_records(world: World, kinds: Iterable[str]) -> Mode:
    """An Avro record as Amazon's serializer framed it; only the id of the schema version is that of this registry."""
    written = json.loads(FRAMES.read_text())["written"][0]
    glue = world.aws.client("glue")
    glue.create_registry(RegistryName=world.stream)
    made = glue.create_schema(
        RegistryId={"RegistryName": world.stream},
        SchemaName="orders",
        DataFormat=written["format"],
        Compatibility="NONE",
        SchemaDefinition=written["definition"],
    )
    glue.close()
    data = bytearray(base64.b64decode(written["data"]))
    data[VERSION_ID] = uuid.UUID(made["SchemaVersionId"]).bytes
    keys: dict[str, object] = {"mld.schemaRegistry": "json"}
    sources = {kind: Source(stream(world, kind, bytes(data)), ORDER, schema_name="orders") for kind in kinds}
    return Mode(sources, split, json.loads, keys)


def changes_of_tables(world: World, kinds: Iterable[str]) -> Mode:
    def table(kind: str) -> Source:
        made = world.dynamo.create_table(
            TableName=f"{world.stream}-{kind}",
            KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
            AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
            BillingMode="PAY_PER_REQUEST",
            StreamSpecification={"StreamEnabled": True, "StreamViewType": "NEW_AND_OLD_IMAGES"},
        )["TableDescription"]
        item = {"id": {"S": kind}, "n": {"N": "7"}}
        world.dynamo.put_item(TableName=made["TableName"], Item=item)
        return Source(made["LatestStreamArn"], ("INSERT", item))

    def change_of(data: bytes) -> object:
        change = json.loads(data)
        return change["eventName"], change["dynamodb"]["NewImage"]

    def switch_off(world: World, kind: str) -> None:
        world.dynamo.update_table(TableName=f"{world.stream}-{kind}", StreamSpecification={"StreamEnabled": False})

    return Mode({kind: table(kind) for kind in kinds}, switch_off, change_of)


@pytest.mark.parametrize("make_mode", [several_streams, framed_records, changes_of_tables])
def test_unchanged_children_read_every_source(
    make_world: MakeWorld, make_mode: Callable[[World, Iterable[str]], Mode]
) -> None:
    world, commands = make_world(1), executable_names()
    mode = make_mode(world, commands)
    keys = {"streamName": "", "mld.streams": ",".join(commands), **mode.keys}
    for kind, command in commands.items():
        keys |= {f"mld.stream.{kind}.executableName": command, f"mld.stream.{kind}.arn": mode.sources[kind].arn}
    environment = {**ENVIRONMENT, "AWS_ENDPOINT_URL_GLUE": world.aws.endpoint}
    daemon = world.daemon(child="false", process={"environment": environment}, **keys)

    def all_have_checkpointed() -> bool:
        rows = world.leases().values()
        return len(rows) == len(commands) and all(row.checkpoint.number is not None for row in rows)

    def all_have_finished() -> bool:
        rows = world.leases()
        return all(key not in rows or rows[key].is_complete for key in begun)

    world.until(all_have_checkpointed, what="a checkpoint of each child")
    begun = set(world.leases())
    for kind in commands:
        mode.end_shard(world, kind)
    world.until(all_have_finished, what="the end of each shard")
    assert daemon.stop() == 0
    said = sorted(daemon.with_action("child_stderr", call="record"), key=lambda event: str(event["kind"]))
    heard = [(event["kind"], mode.data_of(base64.b64decode(event["data"])), event["schemaName"]) for event in said]
    assert heard == [
        (kind, source.data, None if kind in KEYLESS else source.schema_name)
        for kind, source in sorted(mode.sources.items())
    ]
    assert len(daemon.with_action("child_stderr")) == len(said), "no child complained"
    ended = [str(event["message"]) for event in daemon.with_action("child_ended")]
    assert len(ended) >= len(commands)
    # Where the machine is slow, a child is ended by SIGTERM before it has exited by itself.
    allowed = {"0", "SIGTERM"} | ({"101"} if PANICKING & commands.keys() else set())
    assert {message.rpartition(" ")[2] for message in ended} <= allowed, ended
    for trouble in ("child_failed", "child_killed", "child_stdout"):
        assert daemon.with_action(trouble) == []


def test_unchanged_children_that_are_killed_go_on_from_their_checkpoints(make_world: MakeWorld) -> None:
    world, commands = make_world(1), executable_names()
    mode = several_streams(world, commands)
    keys = {"streamName": "", "mld.streams": ",".join(commands), **mode.keys}
    for kind, command in commands.items():
        keys |= {f"mld.stream.{kind}.executableName": command, f"mld.stream.{kind}.arn": mode.sources[kind].arn}
    daemon = world.daemon(child="false", **keys)

    def said() -> list[tuple[str, bytes]]:
        events = daemon.with_action("child_stderr", call="record")
        return sorted((str(event["kind"]), base64.b64decode(event["data"])) for event in events)

    def have_checkpointed() -> bool:
        rows = world.leases().values()
        return len(rows) == len(commands) and all(row.checkpoint.number is not None for row in rows)

    first = sorted((kind, source.data) for kind, source in mode.sources.items())
    world.until(have_checkpointed, what="a checkpoint of each child")
    for pid in children_of(daemon.process.pid):
        os.kill(pid, signal.SIGKILL)
    for kind in commands:
        world.kinesis.put_record(StreamName=f"{world.stream}-{kind}", Data=b"again", PartitionKey="k")
    both = sorted([*first, *((kind, b"again") for kind in commands)])
    world.until(lambda: said() == both, what="the second record of each, and no first one again")
    assert daemon.stop() == 0
