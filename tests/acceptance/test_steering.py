"""`mld move`, `release`, `drain`, `pause` and `resume` on two real daemons that go on working: nothing is lost."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from mld.operating.backup import read_backup
from tests.acceptance.commands import mld
from tests.integration.world import ASSIGNED, ENVIRONMENT, World
from tests.support.servers import EmbeddedAws

SHARDS = 4
COUNTED = {
    **ASSIGNED,
    "mld.leaseAssignmentStrategy": "count",
    "workerMetricsReporterFreqInMillis": 4000,  # after two of them without a report a worker counts as dead
}


class SteeredFleet:
    """Two workers with two shards each, and a directory in which an operator types."""

    def __init__(self, world: World, desk: Path) -> None:
        self.world = world
        self.desk = desk
        for worker in ("w1", "w2"):
            world.daemon(worker, world.recorder(), **COUNTED)
        world.until(lambda: sorted(map(len, self.owned().values())) == [2, 2], what="two shards on each worker")

    def owned(self) -> dict[str, list[str]]:
        """The open shards of each worker that nobody is about to give away."""
        owned: dict[str, list[str]] = {"w1": [], "w2": []}
        for key, lease in sorted(self.world.leases().items()):
            if lease.owner is not None and lease.checkpoint_owner is None:
                owned[lease.owner].append(key)
        return owned

    def type(self, command: str, *words: str) -> subprocess.CompletedProcess[str]:
        direct = f"dynamoDBEndpoint={self.world.aws.endpoint}"  # the file's notes what the worker w1 writes
        file = self.world.daemons[0].file
        return mld(command, file, *words, "-D", direct, cwd=self.desk, environment=ENVIRONMENT)

    def does(self, command: str, *words: str) -> str:
        result = self.type(command, *words, "--execute")
        assert (result.returncode, result.stderr) == (0, ""), result.stdout + result.stderr
        return result.stdout

    def refuses(self, command: str, *words: str) -> str:
        """Owners may change meanwhile, by the leader. But an act saves the old rows before it writes."""
        before, saved = self.world.leases(), sorted(self.desk.iterdir())
        result = self.type(command, *words, "--execute")
        assert (result.returncode, result.stdout) == (1, "")
        assert sorted(self.desk.iterdir()) == saved
        after = self.world.leases()
        assert [one.paused for one in after.values()] == [one.paused for one in before.values()]
        return result.stderr


@pytest.fixture
def fleet(aws_server: EmbeddedAws, tmp_path: Path) -> Iterator[SteeredFleet]:
    desk = tmp_path / "desk"
    desk.mkdir()
    world = World(aws_server, tmp_path, shards=SHARDS)
    try:
        yield SteeredFleet(world, desk)
    finally:
        world.close()


@pytest.mark.full
def test_a_shard_is_moved_stays_there_and_loses_nothing(fleet: SteeredFleet) -> None:
    world = fleet.world
    world.put(100)
    shard = fleet.owned()["w1"][0]
    planned = fleet.type("move", shard, "w2")
    assert planned.returncode == 0
    assert f"  {shard}: handed by w1 to w2\n" in planned.stdout
    assert planned.stdout.endswith("nothing was done; --execute does it\n")
    assert world.lease(shard).owner == "w1"
    assert list(fleet.desk.iterdir()) == []

    done = fleet.does("move", shard, "w2")
    assert f"  {shard}: done\n" in done
    (saved,) = fleet.desk.iterdir()
    header, rows = read_backup(saved)
    assert (header.table, header.by) == (world.table, "mld move")
    (row,) = [row for row in rows if row["leaseKey"]["S"] == shard]
    assert row["leaseOwner"]["S"] == "w1"
    world.until(lambda: shard in fleet.owned()["w2"], what="the shard on w2")
    world.until(lambda: sorted(map(len, fleet.owned().values())) == [2, 2], what="a load that is even again")
    assert shard in fleet.owned()["w2"], "the leader has given another one back"
    world.put(100)
    world.until_caught_up()
    world.check()
    assert f"{shard} belongs to w2 already" in fleet.refuses("move", shard, "w2")


@pytest.mark.full
def test_a_worker_is_drained_and_gets_nothing_until_that_is_undone(fleet: SteeredFleet) -> None:
    world = fleet.world
    world.put(100)
    said = fleet.does("drain", "w2", "--why", "new disks")
    assert "w2: gets no more leases" in said
    world.until(lambda: fleet.owned() == {"w1": sorted(world.leases()), "w2": []}, what="an empty worker")
    workers = json.loads(fleet.type("workers", "-o", "json").stdout)["workers"]
    (words,) = [one["drained"] for one in workers if one["worker"] == "w2"]
    assert words.startswith("by ") and words.endswith(": new disks")
    assert "w2 is drained" in fleet.refuses("move", "0", "w2")
    assert "no other worker lives that may have leases" in fleet.refuses("drain", "w1")
    assert "no other worker lives that may have leases" in fleet.refuses("release", "0")

    world.split(sorted(world.leases())[0])
    world.put(100)
    world.until_caught_up()
    assert fleet.owned()["w2"] == []

    fleet.does("drain", "w2", "--undo")
    world.until(lambda: len(fleet.owned()["w2"]) >= 2, what="leases on w2 again")
    world.put(100)
    world.until_caught_up()
    world.check()


@pytest.mark.full
def test_a_drained_worker_that_is_left_alone_works_again(fleet: SteeredFleet) -> None:
    world = fleet.world
    fleet.does("drain", "w2")
    world.until(lambda: fleet.owned() == {"w1": sorted(world.leases()), "w2": []}, what="an empty worker")
    world.put(100)
    world.daemons[0].kill()
    world.until(lambda: len(fleet.owned()["w2"]) == SHARDS, what="everything on the drained worker")
    world.until_caught_up()
    world.check()


def test_a_paused_shard_gets_nothing_until_it_is_resumed(fleet: SteeredFleet) -> None:
    world = fleet.world
    shard = fleet.owned()["w1"][0]
    fleet.does("pause", shard, "--why", "their database is away")
    world.daemons[0].wait_for_event("shard_paused", shard=shard)
    assert "is paused already: by " in fleet.refuses("pause", shard)
    put = world.put(100)
    others = [one for one in put if one.shard != shard]
    assert len(others) < len(put)
    world.until_delivered(others)
    assert not {(one.shard, one.sequence) for one in put if one.shard == shard} & world.history.delivered()
    shown = fleet.type("leases").stdout
    (line,) = [line for line in shown.splitlines() if "  paused  " in line]
    assert line.split()[0] in (shard, str(int(shard.rpartition("-")[2]))), "a number where the line would be too long"
    assert ": their database is away -> mld resume" in line

    fleet.does("resume", shard)
    world.daemons[0].wait_for_event("shard_resumed", shard=shard)
    world.until_delivered(put)
    world.until_caught_up()
    world.check()
    assert "is not paused" in fleet.refuses("resume", shard)


@pytest.mark.full
def test_a_pause_outlives_its_worker(fleet: SteeredFleet) -> None:
    world = fleet.world
    shard = fleet.owned()["w1"][0]
    fleet.does("pause", shard)
    world.daemons[0].wait_for_event("shard_paused", shard=shard)
    put = world.put(100)
    assert world.daemons[0].stop() == 0
    world.daemons[1].wait_for_event("shard_paused", shard=shard)
    world.until_delivered([one for one in put if one.shard != shard])
    assert world.lease(shard).checkpoint.is_sentinel
    fleet.does("resume", shard)
    world.until_caught_up()
    world.check()


@pytest.mark.full
def test_what_cannot_be_done_is_said_and_nothing_changes(fleet: SteeredFleet) -> None:
    assert "there is no shard 9 in the lease table; it has shardId-" in fleet.refuses("move", "9", "w2")
    assert "there is no worker w3; the table knows w1, w2" in fleet.refuses("move", "0", "w3")
    assert "there is no worker w3; the table knows w1, w2" in fleet.refuses("drain", "w3")
    assert "worker w2 is not drained" in fleet.refuses("drain", "w2", "--undo")
    (fleet.desk / "there").write_text("")
    assert "there exists already" in fleet.type("pause", "0", "--backup", "there", "--execute").stderr
    assert fleet.world.lease(fleet.owned()["w1"][0]).paused is None
    missing = fleet.type("pause", "0", "-D", "tableName=none-of-this-name", "--execute")
    assert (missing.returncode, missing.stdout) == (1, "")
    assert "none-of-this-name" in missing.stderr
