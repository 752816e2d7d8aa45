"""The same record processor that users have, under Java: a shard without records that splits, a kill of the child, a
kill of the daemon, the end of a shard with records, and a stop.

What is looked at is what the program gets, and which of it ends the daemon: a dead child ends that of Java.
"""

from __future__ import annotations

import base64
import json
import os
import re
import shlex
import signal
from pathlib import Path

import pytest

from tests.integration.test_other_programs import EMPTY, FILLED, command, texts
from tests.interop.conftest import MakeWorld
from tests.interop.world import JAVA_START_S, MOVE_S, STOP_S, InteropWorld
from tests.support.daemon import Daemon
from tests.support.image import children_of

pytestmark = [pytest.mark.timeout(1500), pytest.mark.parametrize("java", ["2.7.2", "3.5.1"], indirect=True)]
_HEARD = re.compile(r'\{"call": ?"record".*?\}')


def heard(daemons: list[Daemon]) -> set[str]:
    """The records that children have told on standard error, which Java logs or leaves alone."""
    told = (json.loads(line) for daemon in daemons for line in _HEARD.findall(daemon.log()))
    return {base64.b64decode(one["data"]).decode() for one in told}


def put(world: InteropWorld, text: str, hash_key: str) -> None:
    world.kinesis.put_record(StreamName=world.stream, Data=text.encode(), PartitionKey="k", ExplicitHashKey=hash_key)


@pytest.mark.parametrize("kind", ["v2"])
def test_a_program_goes_through_all_that_happens_to_a_shard(make_world: MakeWorld, tmp_path: Path, kind: str) -> None:
    program = command(kind, tmp_path)
    assert program is not None
    world, names, wanted = make_world(2, is_loaded=False), texts(), set[str]()
    daemons: list[Daemon] = []

    def start() -> None:
        daemons.append(world.java(f"java-{len(daemons) + 1}", executableName=shlex.join(program)))

    def fill(count: int) -> None:
        """Put records into every open shard."""
        for shard in [one for one in world.shards() if "EndingSequenceNumber" not in one["SequenceNumberRange"]]:
            for _ in range(count):
                wanted.add(text := next(names))
                put(world, text, shard["HashKeyRange"]["StartingHashKey"])

    def everywhere(count: int, within_s: float = MOVE_S) -> None:
        """Put records, and wait until children have told of all."""
        fill(count)
        world.until(lambda: heard(daemons) >= wanted, within_s, f"the records, {len(wanted)} in all")

    def split(shard: str) -> None:
        world.split(shard)
        world.until(
            lambda: shard not in (rows := world.leases()) or rows[shard].is_complete, MOVE_S, f"the end of {shard}"
        )

    start()
    world.until_all_with("java-1", within_s=JAVA_START_S)
    wanted.add(first := next(names))
    put(world, first, "0")
    world.until(lambda: heard(daemons) >= wanted, MOVE_S, "the first record")
    split(EMPTY)
    everywhere(3)

    world.daemons.remove(daemons[0])  # it ends with status 1, as it is meant to
    for pid in children_of(daemons[0].process.pid):
        os.kill(pid, signal.SIGKILL)
    fill(3)  # a dead child is noticed when it is to get something
    try:
        status = daemons[0].process.wait(STOP_S)
    finally:
        daemons[0].close()
    world.note(f"{kind}: the daemon ended with status {status} after its children were killed")
    assert status != 0
    start()
    everywhere(3, JAVA_START_S)

    daemons[1].kill()
    start()
    everywhere(3, JAVA_START_S)
    split(FILLED)
    everywhere(3)
    world.note(f"{kind}: stopped with status {daemons[2].stop(timeout_s=STOP_S)}")
    assert heard(daemons) == wanted
