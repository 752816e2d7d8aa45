"""A cabinet of other people's programs: processors on libraries of others, with the habits that samples spread. Each
goes through a shard without records that splits, a kill of the child, a kill of the daemon, the end of a shard with
records, and a stop: as the only child of each shard, and as one of three that share its records."""

from __future__ import annotations

import base64
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.world import MakeWorld, World
from tests.support import fetch_kclpy
from tests.support.daemon import Daemon
from tests.support.fetch_sdks import node_packages
from tests.support.image import children_of
from tests.support.servers import find_node, require
from tests.support.unchanged import CHILDREN, OTHERS, PYTHONS, command_of

pytestmark = pytest.mark.full

EMPTY, FILLED = "shardId-000000000001", "shardId-000000000000"
KEYS = {"go": {"mld.protocolVersion": 1}}
"""What a program needs in the properties file."""
PARTITION_KEYS = tuple(f"k{number}" for number in range(7))
"""Each of three children has some of them."""
PARKING = {"clicks"}
"""They keep records without a checkpoint when their worker stops."""


def command(kind: str, directory: Path) -> list[str] | None:
    """What starts it; None if its language is not installed and need not be."""
    match kind:
        case "clicks":
            node, packages = find_node(), node_packages()
            require(node is not None and (packages / "node_modules" / "aws-kcl").is_dir(), "aws-kcl for Node.js")
            return [str(node), str(CHILDREN / "clicks.js"), str(packages)]
        case "timed":
            kclpy = fetch_kclpy.installed()
            require(kclpy is not None, "amazon_kclpy")
            return ["env", f"PYTHONPATH={kclpy}", sys.executable, str(CHILDREN / "timed.py")]
        case "go":
            go = shutil.which("go")
            if go is None:
                return None
            program, caches = directory / "child", {"GOCACHE": str(directory / "cache"), "GO111MODULE": "off"}
            source = CHILDREN / "go" / "main.go"
            subprocess.run([go, "build", "-o", program, source], env=os.environ | caches, check=True)
            return [str(program)]
    return command_of(kind)


def heard(daemons: list[Daemon]) -> set[str]:
    """The records that children have told."""
    events = [event for daemon in daemons for event in daemon.with_action("child_stderr", call="record")]
    return {base64.b64decode(str(event["data"])).decode() for event in events}


def busy(daemon: Daemon) -> set[object]:
    """The processes that have told of records."""
    return {event["pid"] for event in daemon.with_action("child_stderr", call="record")}


def assert_in_order_of_keys(daemons: list[Daemon]) -> None:
    """Each process has told of the records of a key in the order in which they were put."""
    told: dict[tuple[str, object, str], list[int]] = {}
    for daemon in daemons:
        for event in daemon.with_action("child_stderr", call="record"):
            text = base64.b64decode(str(event["data"])).decode()
            told.setdefault((daemon.name, event["pid"], key_of(text)), []).append(int(text.split()[-1]))
    assert told
    for who, numbers in told.items():
        assert numbers == sorted(set(numbers)), who


def texts() -> Iterator[str]:
    return (f"record {number}" for number in range(10_000))


def key_of(text: str) -> str:
    return PARTITION_KEYS[int(text.split()[-1]) % len(PARTITION_KEYS)]


def put(world: World, text: str, hash_key: int) -> tuple[str, str]:
    """Its shard and sequence number."""
    answer = world.kinesis.put_record(
        StreamName=world.stream, Data=text.encode(), PartitionKey=key_of(text), ExplicitHashKey=str(hash_key)
    )
    return answer["ShardId"], answer["SequenceNumber"]


@pytest.mark.parametrize("children", [1, 3])
@pytest.mark.parametrize("kind", ["clicks", "timed", "go", *PYTHONS, *OTHERS])
def test_a_program_of_others_goes_through_all_that_happens_to_a_shard(
    make_world: MakeWorld, tmp_path: Path, kind: str, children: int
) -> None:
    started = command(kind, tmp_path)
    if started is None:
        pytest.skip(f"what {kind} needs is not installed")
    world, names, wanted = make_world(2), texts(), set[str]()
    keys = {**KEYS.get(kind, {}), **({} if children == 1 else {"mld.childrenPerShard": children})}
    last: dict[str, str] = {}
    count = 3 if children == 1 else len(PARTITION_KEYS)
    daemons = [world.daemon(child=shlex.join(started), **keys)]

    def has_ended(shard: str) -> bool:
        rows = world.leases()
        return bool(rows) and (shard not in rows or rows[shard].is_complete)

    def put_next(hash_key: int) -> None:
        wanted.add(text := next(names))
        shard, sequence = put(world, text, hash_key)
        last[shard] = sequence

    def everywhere() -> None:
        """Put records into every open shard, and wait until children have told of all."""
        for shard in [one for one in world.shards() if "EndingSequenceNumber" not in one["SequenceNumberRange"]]:
            for _ in range(count):
                put_next(int(shard["HashKeyRange"]["StartingHashKey"]))
        world.until(lambda: heard(daemons) >= wanted, what=f"the records {len(wanted)} in all")

    for shard in (EMPTY, FILLED):
        daemons[0].wait_for_event("consumer_started", shard=shard)
    put_next(0)
    world.until(lambda: heard(daemons) >= wanted, what="the first record")

    world.split(EMPTY)
    world.until(lambda: has_ended(EMPTY), what="the end of a shard that never had a record")
    everywhere()

    processes = children_of(daemons[0].process.pid)
    victims = [pid for pid in processes if pid in busy(daemons[0])][:1] if children > 1 else processes
    assert victims
    for pid in victims:
        os.kill(pid, signal.SIGKILL)
    everywhere()

    daemons[0].kill()
    daemons.append(world.daemon(child=shlex.join(started), **keys))
    everywhere()

    world.split(FILLED)
    world.until(lambda: has_ended(FILLED), what="the end of a shard with records")
    everywhere()

    assert daemons[1].stop() == 0
    assert heard(daemons) == wanted
    assert_in_order_of_keys(daemons)
    numbers = {
        event.get("child_number") for daemon in daemons for event in daemon.with_action("child_stderr", call="record")
    }
    assert numbers == ({None} if children == 1 else set(range(children)))
    rows = world.leases()
    unfinished = {
        shard: rows[shard].checkpoint.sequence for shard in last if shard in rows and not rows[shard].is_complete
    }
    assert EMPTY not in unfinished
    assert FILLED not in unfinished
    if kind not in PARKING:
        assert unfinished == {shard: last[shard] for shard in unfinished}, "the last record of each is checkpointed"
    assert [daemon.with_action("shard_parked") for daemon in daemons] == [[], []]
    failed = daemons[1].with_action("child_failed")
    assert not failed or kind == "go", failed
