"""An mld worker that comes while the Java leader has not yet found the leases it gave itself.

The leader assigns from its first second on, but looks for its own leases only after its start, which waits up to 30 s
at random, and then every `leaseAssignmentIntervalMillis`/2: to others the new owner is silent meanwhile. Whatever they
make of that, when Java really ends its leases must be taken in time.
"""

from __future__ import annotations

import pytest

from tests.interop.conftest import MakeWorld
from tests.interop.world import FAILOVER_S, JAVA_START_S, LEADER_LOST_S, MOVE_S, InteropWorld
from tests.support.daemon import Daemon

# The lease duration twice (a watched lease and one that is not), and a machine whose processes wait for each other;
# what this must tell apart is a dead leader's lock, which lasts 120 s.
TAKEN_S = 4 * FAILOVER_S


def _leader(world: InteropWorld, *, is_fresh: bool) -> Daemon:
    """Java, which leads since a moment, and mld-1 right behind it."""
    if not is_fresh:
        world.prepare()
    java = world.java("java-1")
    world.until(lambda: world.leader() == "java-1", JAVA_START_S, "java-1 leads")
    world.mld("mld-1", mld__metadataLayout="auto")
    return java


def _until_reads(world: InteropWorld, java: str) -> None:
    """Both own leases, and Java's children have begun on a lease that it still owns."""

    def reads() -> bool:
        owned = {key for key, lease in world.leases().items() if lease.owner == java and lease.checkpoint_owner is None}
        return any(life.shard in owned and life.delivered for life in world.history.lives(worker=java))

    world.until(reads, JAVA_START_S, f"{java} reads")
    world.until_owners(lambda owned: owned["mld-1"] >= 1 and owned[java] >= 1, f"mld-1 and {java} own leases", MOVE_S)
    world.note(f"owned: {dict(world.owned())}, leader: {world.leader()}")


def _lose(world: InteropWorld, worker: str, java: Daemon, how: str) -> None:
    with world.phase(f"{worker} {how}"):
        java.freeze() if how == "frozen" else java.kill()
        took_s = world.until_owners(lambda owned: owned[worker] == 0, f"nothing with {worker}", LEADER_LOST_S)
        world.until_all_with("mld-1")
    world.note(f"{worker} {how}: its last lease was taken after {took_s:.1f} s")
    assert took_s < TAKEN_S


@pytest.mark.parametrize("java", ["3.5.1"], indirect=True)
@pytest.mark.parametrize("how", ["killed", "frozen"])
@pytest.mark.parametrize("is_fresh", [True, False], ids=["fresh", "used"])
def test_a_leader_that_has_just_begun_is_lost(make_world: MakeWorld, how: str, is_fresh: bool) -> None:
    world = make_world()
    java = _leader(world, is_fresh=is_fresh)
    with world.phase("mld joins a leader that has just begun"):
        _until_reads(world, "java-1")
    _lose(world, "java-1", java, how)
    world.finish()


@pytest.mark.parametrize("java", ["3.5.1"], indirect=True)
def test_a_leader_is_lost_before_it_has_found_its_leases(make_world: MakeWorld) -> None:
    world = make_world()
    java = _leader(world, is_fresh=True)
    world.until_owners(lambda owned: owned["java-1"] >= 1, "java-1 has given itself leases")
    _lose(world, "java-1", java, "killed")
    world.finish()


@pytest.mark.parametrize("java", ["3.5.1"], indirect=True)
def test_one_after_the_other_is_lost(make_world: MakeWorld) -> None:
    world = make_world()
    java = _leader(world, is_fresh=False)
    for number in (1, 2, 3):
        worker = f"java-{number}"
        if number > 1:
            java = world.java(worker)
        _until_reads(world, worker)
        _lose(world, worker, java, "killed")
    world.finish()
