"""What an operator sees of a fleet in trouble, by commands and pages as a user calls them, with their output as text.

The fleet is that of `tests/support/operated.py`: a split, a processor that fails, a parked shard, and a worker killed
by SIGKILL. Times, counts of failures and digits of sequence numbers differ from run to run; the output is shown with
``<time>``, ``<n>`` and ``…<digits>`` in their places, throughputs are left out, and runs of blanks are two.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from textwrap import dedent

import pytest

from tests.acceptance.commands import mld
from tests.integration.world import ENVIRONMENT, World
from tests.support.operated import CHILDREN, SHARDS, OperatedFleet
from tests.support.servers import EmbeddedAws

pytestmark = pytest.mark.full

_VARYING = (
    (re.compile(r"app-\d+-\d+"), "clicks-app"),
    (re.compile(r"(?<![\w.-])\d+(\.\d+)? (ms|s|min|h|d)\b"), "<time>"),
    (re.compile(r"…\d+(/\d+)?"), "…<digits>"),
    (re.compile(r"failed \d+ times"), "failed <n> times"),
    (re.compile(r"  \d+\.\d(?=  |$)", re.MULTILINE), ""),  # KB/s, which is not known of every lease
    (re.compile(r"mld \d+\.\d+\.\d+"), "mld <version>"),
    (re.compile(r" {2,}"), "  "),
    (re.compile(r" +$", re.MULTILINE), ""),
)


def normal(text: str) -> str:
    """The text with what differs from run to run replaced."""
    for pattern, shown in _VARYING:
        text = pattern.sub(shown, text)
    return text


def wanted(text: str) -> str:
    return dedent(text).lstrip("\n")


@pytest.fixture(scope="module")
def fleet(aws_server: EmbeddedAws, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OperatedFleet]:
    """In trouble, and with w2 dead."""
    world = World(aws_server, tmp_path_factory.mktemp("fleet"), shards=SHARDS)
    try:
        fleet = OperatedFleet(world).start()
        fleet.put()
        fleet.split()
        fleet.put()
        fleet.until_in_trouble()
        fleet.kill()
        fleet.until_dead()
        yield fleet
    finally:
        world.close()


def see(fleet: OperatedFleet, command: str, *options: str) -> tuple[int, str]:
    """Exit code and normalized output of a command on the file of w1."""
    result = mld(command, fleet.file, *options, environment=ENVIRONMENT)
    assert result.stderr == ""
    return result.returncode, normal(result.stdout)


def test_leases_shows_who_fails_who_is_parked_and_whose_owner_is_dead(fleet: OperatedFleet) -> None:
    assert see(fleet, "leases", "--all") == (
        0,
        wanted(
            """
            shard  state  owner  behind  KB/s  checkpoint  note
            shardId-000000000000  ended  w2  SHARD_END
            shardId-000000000001  stopped  w2  unknown  …<digits>  its owner is dead
            shardId-000000000002  failing  w1  <time>  TRIM_HORIZON  failed <n> times at TRIM_HORIZON
            shardId-000000000003  idle  w1  <time>  …<digits>
            shardId-000000000004  stopped  w2  unknown  …<digits>  its owner is dead; child of 0
            shardId-000000000005  stopped  w2  unknown  …<digits>  its owner is dead; child of 0
            shardId-000000000009  parked  w1  unknown  TRIM_HORIZON
            6 open shards: 1 ok, 1 failing, 1 parked, 3 stopped; 1 ended; furthest behind: <time>
            """
        ),
    )


def test_workers_shows_who_is_dead_and_who_leads(fleet: OperatedFleet) -> None:
    assert see(fleet, "workers") == (
        0,
        wanted(
            """
            worker  kind  leases  share  CPU  furthest behind  last heard  note
            w1  mld <version>  3  50%  <time>  <time> ago  leader
            w2  mld <version>  3  50%  unknown  <time> ago  dead
            1 live workers, led by w1
            """
        ),
    )


def test_lag_shows_the_worst_first_and_fails_with_a_bound(fleet: OperatedFleet) -> None:
    text = wanted(
        """
        shard  verdict  behind  owner  note
        shardId-000000000001  stopped  unknown  w2  its owner is dead
        shardId-000000000004  stopped  unknown  w2  its owner is dead; child of 0
        shardId-000000000005  stopped  unknown  w2  its owner is dead; child of 0
        shardId-000000000009  parked  unknown  w1
        shardId-000000000002  failing  <time>  w1  failed <n> times at TRIM_HORIZON
        shardId-000000000003  ok  <time>  w1
        6 open shards: 1 ok, 1 failing, 1 parked, 3 stopped; 1 ended; furthest behind: <time>
        """
    )
    assert see(fleet, "lag") == (0, text)
    assert see(fleet, "lag", "--max", "5m") == (1, text)


def test_the_share_by_worker_tells_whether_the_fleet_is_balanced(fleet: OperatedFleet) -> None:
    assert see(fleet, "leases", "--by", "worker") == (
        0,
        wanted(
            """
            worker  leases  share  KB/s
            w1  3  50%
            w2  3  50%
            balanced
            """
        ),
    )


def test_machines_get_the_same_as_json(fleet: OperatedFleet) -> None:
    code, text = see(fleet, "leases", "-o", "json")
    value = json.loads(text)
    assert code == 0
    assert {one["shard"]: one["verdict"] for one in value["shards"]}[CHILDREN[0]] == "stopped"
    assert value["leader"] == "w1"
