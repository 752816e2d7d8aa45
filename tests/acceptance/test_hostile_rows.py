"""What commands print of rows that somebody else wrote: names and words in them steer no terminal and fake no line.

One fleet: a daemon at work, and beside its rows one of each kind with escape sequences, line breaks and bidirectional
controls in every text, once as far as it stays readable and once damaged. Every command is called, also later ones.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import click
import pytest

from mld.cli import commands
from mld.leases import rows
from mld.metrics.events import Event, EventKind, pack
from mld.operating.events import KEY as EVENTS
from tests.acceptance.commands import COMMAND_TIMEOUT_S, MLD
from tests.fuzz.rows import LIST, LOCK, REPORT, STATE
from tests.integration.world import ENVIRONMENT, SHORT_LEASE, World
from tests.support.declared import own_attributes
from tests.support.servers import EmbeddedAws

pytestmark = pytest.mark.full

HOSTILE = "shardId-7\x1b]0;owned\x07\x1b[2J\x9b31m\rmld: all is well\n  \u2028\u202e\u2066\u200f end"
WORKER = f"{HOSTILE}w"
SHOWN = "shardId-7\\x1b]0;owned"
OURS = {one.name: {one.kind: one.example} for one in own_attributes() if one.name.startswith("mld")}
KEPT = ("entityType", rows.CHECKPOINT, rows.CHECKPOINT_SUB, rows.HASH_START, rows.HASH_END)
NO_TABLE = {"alerts", "check", "conformance", "dashboard", "iam-policy", "local", "quickstart", "systemd-unit", "table"}
"""These read no table."""
SHOWING = {"apps", "events", "lag", "leases", "run", "workers"}
"""These name rows, so that there is something to escape."""
WORDS: dict[str, tuple[tuple[str, ...], ...]] = {
    "apps": ((), ("--region", "us-east-1"), ("-o", "json")),
    "doctor": ((), ("-o", "json")),
    "drain": ((WORKER,), (WORKER, "--execute"), (WORKER, "--undo"), ("nobody",)),
    "events": ((), ("--worker", WORKER), ("--since", "1h", "-o", "json")),
    "export": ((), ("--file", "out.jsonl")),
    "lag": ((), ("--probe",), ("-o", "json"), ("--stream", HOSTILE)),
    "leases": ((), ("--all",), ("--by", "stream"), ("-o", "json"), ("--stream", HOSTILE)),
    "move": ((HOSTILE, WORKER), (HOSTILE, "w1")),
    "pause": ((HOSTILE,), (HOSTILE, "--execute"), ("999",)),
    "peek": (("0", "--at", "trim-horizon"), ("0", "--at", "trim-horizon", "-o", "json"), (HOSTILE,)),
    "release": ((HOSTILE,),),
    "replay": (("0", "--from", "trim-horizon", "--", "true"),),
    "reset": (("--to", "TRIM_HORIZON"), ("--to", "TRIM_HORIZON", "--shard", HOSTILE)),
    "restart-child": ((HOSTILE,), (HOSTILE, "--execute")),
    "restore": (("rows.jsonl",),),
    "resume": ((HOSTILE,), (HOSTILE, "--execute")),
    "run": (("--until-caught-up", "--max-time", "5s"),),
    "skip": ((HOSTILE, "--only", "1", "--file", "saved"),),
    "tap": (("999",),),
}
"""What is given to a command besides the file, each time; nothing to those that are not here."""
COMMANDS = sorted(set(commands.list_commands(click.Context(commands))) - NO_TABLE)


def hostile(value: dict[str, Any]) -> dict[str, Any]:
    """A value of the same type with hostile texts."""
    ((kind, found),) = value.items()
    match kind:
        case "S" if found[:1] == "[":
            return {kind: json.dumps(_hostile_document(json.loads(found)))}
        case "S":
            return {kind: HOSTILE}
        case "SS":
            return {kind: [f"{HOSTILE}{number}" for number in range(len(found))]}
        case "L":
            return {kind: [hostile(one) for one in found]}
        case "M":
            return {kind: {name: hostile(one) for name, one in found.items()}}
    return value


def _hostile_document(found: Any) -> Any:
    match found:
        case dict():
            return {name: _hostile_document(one) for name, one in found.items()}
        case list():
            return [_hostile_document(one) for one in found]
    return HOSTILE if isinstance(found, str) else found


def readable(lease: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """One row of each kind with hostile texts wherever it stays what it is."""
    kin = {"parentShardId": {"SS": ["p"]}, "childShardIds": {"SS": ["c"]}}
    yield {**_hostile({**lease, **kin, **OURS}, *KEPT, "mldFailing", "mldDelivered"), "leaseOwner": {"S": WORKER}}
    yield {**_hostile({**REPORT, **OURS}, "entityType"), rows.KEY: {"S": WORKER}, "lut": {"N": str(int(time.time()))}}
    yield _hostile(LOCK, "entityType", rows.KEY, "leaseDuration", "isReleased")
    yield _hostile(STATE, "entityType", rows.KEY, "cv")
    event = Event(EventKind.FAILED, HOSTILE, HOSTILE, WORKER, int(time.time()), (HOSTILE,))
    yield {rows.KEY: {"S": EVENTS}, "entityType": {"S": "LEADER"}, "events": {"B": pack((event,))}}
    label = [{"stream": "1:a:9", "label": HOSTILE, "arn": "", "former_since_s": 1}]
    yield {**LIST, "streams": {"S": json.dumps(label)}}


def damaged(lease: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The same with hostile texts everywhere, and rows that are of no kind or of another form of the table."""
    yield {**_hostile({**lease, **OURS}, "entityType"), rows.KEY: {"S": f"{HOSTILE}!"}}
    yield {**_hostile(REPORT, "entityType"), rows.KEY: {"S": f"{WORKER}!"}, "sts": {"S": HOSTILE}}
    for row in (LOCK, STATE, LIST):
        yield _hostile(row, "entityType", rows.KEY)
    yield {rows.KEY: {"S": f"{HOSTILE}e"}, "entityType": {"S": HOSTILE}}
    stream = f"1:{HOSTILE.replace(':', '.')}:9"
    yield {**lease, rows.KEY: {"S": f"{stream}:shardId-1"}, rows.STREAM: {"S": stream}, "leaseOwner": {"S": WORKER}}


def _hostile(row: dict[str, Any], *kept: str) -> dict[str, Any]:
    return {name: value if name in kept else hostile(value) for name, value in row.items()}


class Planted:
    """A daemon at work, and rows of strangers, which are put again before each command: the daemon takes some away."""

    def __init__(self, world: World) -> None:
        self.world = world
        world.kinesis.put_record(StreamName=world.stream, PartitionKey=HOSTILE, Data=HOSTILE.encode())
        world.daemon("w1", **SHORT_LEASE).wait_for_event("lease_held")
        there = world.dynamo.scan(TableName=world.table)["Items"]
        (self.lease,) = (row for row in there if rows.is_lease(row))
        self.file = world.directory / "operator.properties"
        keys = world.keys("operator", "true", SHORT_LEASE)
        self.file.write_text("".join(f"{key} = {value}\n" for key, value in keys.items()))

    def printed(self, *words: str, more: tuple[dict[str, Any], ...] = ()) -> bytes:
        """What a command prints on both streams."""
        for row in (*readable(self.lease), *more):
            self.world.dynamo.put_item(TableName=self.world.table, Item=row)
        done = subprocess.run(
            [MLD, words[0], "-p", self.file, *words[1:]],
            cwd=self.world.directory,
            env=ENVIRONMENT,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=COMMAND_TIMEOUT_S,
        )
        for row in more:
            self.world.dynamo.delete_item(TableName=self.world.table, Key={rows.KEY: row[rows.KEY]})
        print(done)
        return done.stdout + done.stderr


@pytest.fixture(scope="module")
def fleet(aws_server: EmbeddedAws, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Planted]:
    world = World(aws_server, tmp_path_factory.mktemp("hostile"))
    try:
        fleet = Planted(world)
        fleet.printed("export", "--file", "rows.jsonl")
        yield fleet
    finally:
        world.close()


@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_prints_what_rows_say_as_it_is(fleet: Planted, command: str) -> None:
    calls = [(command, *words) for words in WORDS.get(command, ((),))]
    output = [fleet.printed(*call) for call in calls]
    output.append(fleet.printed(*calls[0], more=tuple(damaged(fleet.lease))))
    assert [line for one in output for line in harmful(one)] == []
    assert command not in SHOWING or SHOWN in b"".join(output).decode()


def harmful(output: bytes) -> list[str]:
    """Lines that steer a terminal, or that a row has made up."""
    lines = output.decode().split("\n")
    return [line for line in lines if not line.isprintable() or line.startswith(("mld: all", "  \u2028"))]
