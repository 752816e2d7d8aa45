"""`mld peek`, `mld replay` and `mld lag --probe` as a user types them, against servers and with real children."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from mld.cli import commands
from tests.acceptance.commands import mld
from tests.integration.history import Put
from tests.integration.world import ENVIRONMENT, MakeWorld, World
from tests.support.kpl import User, aggregate

SHARD_0 = "shardId-000000000000"


@pytest.fixture
def world(make_world: MakeWorld) -> World:
    return make_world(shards=2)


def properties(world: World, **keys: object) -> Path:
    file = world.directory / "looking.properties"
    file.write_text("".join(f"{key} = {value}\n" for key, value in world.keys("w1", world.recorder(), keys).items()))
    return file


@dataclass(frozen=True)
class Outcome:
    returncode: int
    stdout: str
    stderr: str


def run(*arguments: object) -> Outcome:
    """The command in this process, which saves a second of start."""
    result = CliRunner().invoke(commands, [str(word) for word in arguments], env=ENVIRONMENT, prog_name="mld")
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return Outcome(result.exit_code, result.stdout, result.stderr)


def run_as_user(*arguments: object) -> subprocess.CompletedProcess[str]:
    return mld(*arguments, environment={**os.environ, **ENVIRONMENT})


def put(world: World, data: bytes) -> str:
    """One record into shard 0; its sequence number."""
    answer = world.kinesis.put_record(StreamName=world.stream, Data=data, PartitionKey="k", ExplicitHashKey="0")
    return str(answer["SequenceNumber"])


def peeked(*arguments: object) -> list[dict[str, Any]]:
    result = run("peek", *arguments, "-o", "json")
    assert result.returncode == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


# --- peek -------------------------------------------------------------------------------------------------------------


def test_peek_opens_aggregates_and_gzip_and_lays_json_out(world: World) -> None:
    file = properties(world)
    put(world, aggregate([User("a", b"one", "0"), User("b", gzip.compress(b'{"two": [2]}'), "0")]))
    result = run_as_user("peek", file, "0")
    assert result.returncode == 0
    assert "key=a  3 bytes\n    one\n" in result.stdout
    assert 'bytes [gzip]\n    {\n      "two": [\n        2\n      ]\n    }\n' in result.stdout
    assert "2 records; there are no more now" in result.stderr


@pytest.mark.full
def test_peek_begins_where_it_is_told_and_shows_so_many(world: World) -> None:
    file = properties(world)
    sequences = [put(world, f"r{n}".encode()) for n in range(5)]
    assert [r["text"] for r in peeked(file, "0", "-n", "2")] == ["r0", "r1"]
    assert [r["text"] for r in peeked(file, "0", "--at", sequences[3])] == ["r3", "r4"]
    assert [r["text"] for r in peeked(file, "0", "--at", "1h", "-n", "1")] == ["r0"]
    assert [r["text"] for r in peeked(file, "0", "--at", "now")] == []


@pytest.mark.full
def test_peek_at_the_checkpoint_shows_what_comes_next(world: World) -> None:
    file = properties(world)
    sequence = put(world, b"done")
    world.puts.append(Put(SHARD_0, int(sequence), "done"))
    daemon = world.daemon()
    world.until_delivered()
    world.until_caught_up()
    assert daemon.stop() == 0
    put(world, b"next")
    assert [record["text"] for record in peeked(file, "0", "--at", "checkpoint")] == ["next"]


@pytest.mark.full
@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["7"], 1, "`mld leases` shows the shards"),
        (["0", "--at", "checkpoint"], 1, "has no row in the lease table: name another place"),
        (["0", "--at", "9" * 56], 1, "has no such place"),
        (["0", "--at", "yesterday"], 2, "names no place in a stream"),
        ([], 2, "missing argument: SHARD"),
    ],
)
def test_peek_says_what_it_cannot_do(world: World, arguments: list[str], code: int, words: str) -> None:
    result = run("peek", properties(world), *arguments)
    assert result.returncode == code
    assert words in result.stderr


@pytest.mark.full
def test_peek_waits_while_the_shard_is_throttled(world: World) -> None:
    put(world, b"r")
    error = "ProvisionedThroughputExceededException"
    world.aws.inject_faults({"service": "kinesis", "operation": "GetRecords", "code": error, "count": 1})
    assert [record["text"] for record in peeked(properties(world), "0")] == ["r"]


# --- replay -----------------------------------------------------------------------------------------------------------

CHILD = """
import base64, json, sys

print('{"some": "noise"}', flush=True)
print('{"its own": "JSON"}', file=sys.stderr)
for line in sys.stdin:
    message = json.loads(line)
    print("saw", message["action"], file=sys.stderr)
    for record in message.get("records", ()):
        data = base64.b64decode(record["data"]).decode()
        if data == "poison":
            raise ValueError("poison")
        print("got", data, file=sys.stderr)
    if message["action"] in ("processRecords", "shutdownRequested", "shardEnded"):
        sequence = "9" * 56 if "wrong" in sys.argv else None
        print(json.dumps({"action": "checkpoint", "sequenceNumber": sequence, "subSequenceNumber": None}), flush=True)
        reply = json.loads(sys.stdin.readline())
        print("reply", reply["error"], file=sys.stderr)
    print(json.dumps({"action": "status", "responseFor": message["action"]}), flush=True)
"""


@pytest.fixture
def child(world: World) -> list[str]:
    file = world.directory / "child.py"
    file.write_text(CHILD)
    return [sys.executable, str(file)]


def replay(world: World, *arguments: object, **keys: object) -> Outcome:
    return run("replay", properties(world, **keys), "0", *arguments)


def got(result: Outcome | subprocess.CompletedProcess[str]) -> list[str]:
    return [line.removeprefix("got ") for line in result.stderr.splitlines() if line.startswith("got ")]


def test_replay_drives_the_processor_as_the_daemon_does_and_stores_nothing(world: World, child: list[str]) -> None:
    last = [put(world, f"r{n}".encode()) for n in range(3)][-1]
    result = run_as_user("replay", properties(world), "0", "--from", "trim-horizon", "--", *child)
    assert result.returncode == 0, result.stderr
    actions = [line for line in result.stderr.splitlines() if line.startswith("saw ")]
    assert actions == ["saw initialize", "saw processRecords", "saw shutdownRequested", "saw leaseLost"]
    assert got(result) == ["r0", "r1", "r2"]
    assert '{"its own": "JSON"}\n' in result.stderr
    assert '{"some": "noise"}' in result.stderr, "it may explain a processor that hangs"
    assert f"mld: checkpoint {last}/0 (not stored)" in result.stderr
    assert "3 records in 1 batches" in result.stderr
    assert world.leases() == {}


@pytest.mark.full
def test_replay_ends_with_the_span(world: World, child: list[str]) -> None:
    sequences = [put(world, f"r{n}".encode()) for n in range(6)]
    result = replay(world, "--from", sequences[1], "--to", sequences[3], "-D", "maxRecords=2", "--", *child)
    assert got(result) == ["r1", "r2", "r3"]
    result = replay(world, "--from", "1h", "--to", "30m", "--", *child)
    assert (result.returncode, got(result)) == (0, [])
    result = replay(world, "--from", "1h", "--to", "now", "--", *child)
    assert got(result) == [f"r{n}" for n in range(6)]


@pytest.mark.full
def test_replay_opens_aggregates_and_may_begin_inside_one(world: World, child: list[str]) -> None:
    sequence = put(world, aggregate([User(k, k.encode(), "0") for k in "abcd"]))
    assert got(replay(world, "--from", f"{sequence}/1", "--to", f"{sequence}/2", "--", *child)) == ["b", "c"]


def test_replay_tells_where_the_processor_failed(world: World, child: list[str]) -> None:
    sequences = [put(world, data) for data in (b"good", b"good", b"poison")]
    result = replay(world, "--from", "trim-horizon", "--", *child, maxRecords=1)
    assert result.returncode == 1
    assert "ValueError: poison" in result.stderr
    assert f"2 records in 2 batches of {SHARD_0} were processed, the last one {sequences[1]}/0" in result.stderr
    assert f"the processor failed at the batch up to {sequences[2]}/0" in result.stderr
    assert "exited with status 1" in result.stderr


@pytest.mark.full
def test_replay_judges_checkpoints_as_the_daemon_does(world: World, child: list[str]) -> None:
    put(world, b"r")
    result = replay(world, "--from", "trim-horizon", "--", *child, "wrong")
    assert f"checkpoint refused: {'9' * 56}/0" in result.stderr
    assert "reply InvalidArgumentException" in result.stderr or "reply IllegalArgumentException" in result.stderr


@pytest.mark.full
def test_replay_of_a_shard_that_has_ended_tells_the_processor(world: World, child: list[str]) -> None:
    put(world, b"r")
    world.split(SHARD_0)
    result = replay(world, "--from", "trim-horizon", "--", *child)
    assert result.returncode == 0
    assert "saw shardEnded" in result.stderr
    assert "mld: checkpoint SHARD_END (not stored)" in result.stderr


@pytest.mark.full
def test_replay_without_a_command_runs_that_of_the_file(world: World) -> None:
    put(world, b"r")
    result = replay(world, "--from", "trim-horizon")
    assert result.returncode == 0, result.stderr
    (life,) = world.history.lives()
    assert [record.data for record in life.delivered] == ["r"]
    assert life.worker == "replay"


@pytest.mark.full
@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--from", "trim-horizon", "--", "./nowhere"], 1, "no executable file './nowhere' is found"),
        (["--from", "latest"], 2, "is not possible here"),
        ([], 2, "Missing option '--from'"),
        (["--from", "checkpoint"], 1, "has no row in the lease table"),
    ],
)
def test_replay_says_what_it_cannot_do(world: World, arguments: list[str], code: int, words: str) -> None:
    result = replay(world, *arguments)
    assert (result.returncode, words in result.stderr) == (code, True), result.stderr


# --- lag --probe ------------------------------------------------------------------------------------------------------


def test_probed_lag_is_that_of_kinesis_and_marked(world: World) -> None:
    daemon = world.daemon()
    world.put(20)
    world.until_delivered()
    world.until_caught_up()
    assert daemon.stop() == 0
    world.dynamo.update_item(  # as a Java worker would own it
        TableName=world.table,
        Key={"leaseKey": {"S": SHARD_0}},
        UpdateExpression="SET leaseOwner = :java REMOVE mldState, mldBehindAt, mldBehindMs, mldDelivered",
        ExpressionAttributeValues={":java": {"S": "java"}},
    )
    put(world, b"waits")
    put(world, b"waits")
    file = properties(world)
    plain = {s["shard"]: s for s in json.loads(run("lag", file, "-o", "json").stdout)["shards"]}
    assert (plain[SHARD_0]["verdict"], plain[SHARD_0]["behindSeconds"]) == ("unknown", None)
    probed = {s["shard"]: s for s in json.loads(run("lag", file, "--probe", "-o", "json").stdout)["shards"]}
    assert (probed[SHARD_0]["verdict"], probed[SHARD_0]["isProbed"]) == ("ok", True)
    assert probed[SHARD_0]["behindSeconds"] > 0
    assert probed["shardId-000000000001"]["behindSeconds"] == 0
    assert "probed" in run("lag", file, "--probe").stdout
