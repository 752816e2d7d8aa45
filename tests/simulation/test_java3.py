"""The model of a Java 3.x worker, alone in its fleet: what the checkers of mixed fleets take for granted."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import pytest

from mld.leases.rows import parse_row
from tests.simulation.java_world import TABLE, JavaWorld, in_world, run_world
from tests.simulation.world.java3 import JavaWorker3
from tests.simulation.world.java3_lam import PriorityQueue, Report, VarianceDecider, compare, ema, ratio
from tests.simulation.world.java3_lock import shuffled
from tests.simulation.world.java3_table import Lease3

START_S = 150.0
"""Empty-table wait, the idle minute after the first sync, two assignment runs, and a discovery."""


class Java3World(JavaWorld):
    """`settings` are those of every worker."""

    def __init__(self, shards: int = 6, **settings: Any) -> None:
        super().__init__(shards)
        self.settings = settings

    def start(self, name: str, **settings: Any) -> JavaWorker3:
        def load() -> float:
            return 5.0 + 10.0 * len(worker.held())

        worker: JavaWorker3 = self.run(JavaWorker3, name, load=load, **{**self.settings, **settings})
        return worker

    def seen(self) -> set[int]:
        return self.notes.seen()

    def owners(self) -> Counter[str | None]:
        rows = self.dynamo.rows(TABLE).values()
        leases = [parse_row(row) for row in rows if row.get("entityType", {"S": "LEASE"})["S"] == "LEASE"]
        return Counter(lease.owner for lease in leases if lease is not None)

    async def wait(self, seconds: float) -> None:
        await self.clock.sleep(seconds)


@pytest.mark.parametrize("tagged", [True, False])
def test_a_fleet_is_led_and_works_and_shares(tagged: bool) -> None:
    async def story() -> None:
        world = Java3World(tagged=tagged)
        world.start("a")
        world.records(60)
        await world.wait(START_S)
        assert world.owners() == {"a": 6}
        world.start("b", tagged=tagged)
        world.start("c")
        await world.wait(600.0)
        assert set(world.owners()) == {"a", "b", "c"}
        world.records(60)
        await world.wait(60.0)
        assert world.seen() == world.put
        assert [worker.leads() for worker in world.workers.values()].count(True) == 1
        assert world.dynamo.has_table(f"{TABLE}-CoordinatorState") is not tagged
        place = TABLE if tagged else f"{TABLE}-CoordinatorState"
        lock = world.dynamo.row(place, "Leader")
        assert lock is not None and lock["ownerName"] == {"S": "a"}
        assert ("entityType" in lock) is tagged

    run_world(story())


@in_world(Java3World)
async def test_a_dead_leader_is_followed_after_its_lock_has_expired(world: Java3World) -> None:
    for name in "abc":
        world.start(name)
        await world.wait(5.0)
    await world.wait(START_S + 120)
    (leader,) = [name for name, worker in world.workers.items() if worker.leads()]
    world.kill(leader)
    await world.wait(60.0)
    assert not any(worker.leads() for worker in world.workers.values())
    await world.wait(150.0)
    assert [worker.leads() for worker in world.workers.values()].count(True) == 1
    assert leader not in world.owners()


@in_world(Java3World)
async def test_whoever_loses_the_race_for_the_first_row_dies_of_it(world: Java3World) -> None:
    """As coordination#what-java-does-differently says of the initial version."""
    tasks = []
    for name in "ab":
        tasks.append(world.start(name))
    await world.wait(60.0)
    assert sorted(worker.versions.state is None for worker in tasks) == [False, True]


@in_world(Java3World)
async def test_a_stopped_worker_leaves_its_rows_and_its_report_and_frees_the_lock(world: Java3World) -> None:
    worker = world.start("a")
    await world.wait(START_S)
    worker.request_stop()
    await world.wait(40.0)
    assert world.owners() == {"a": 6}
    assert world.dynamo.row(TABLE, "a") is not None
    assert world.dynamo.row(TABLE, "Leader") is None


def test_workers_without_figures_get_nothing_of_a_new_application() -> None:
    """NaN sorts first and the heap alternates between two (coordination#what-java-does-differently)."""
    leases = [Lease3(f"s{n}") for n in range(8)]
    reports = [Report(f"w{n}", 0, {}, {}, 1, 0, False) for n in range(8)]
    decider = VarianceDecider(leases, reports, lambda lease: True, Random(1))
    decider.assign_waiting(leases)
    assert len({owner for _, owner in decider.moves.values()}) == 2


def test_the_worked_example_of_the_assignment() -> None:
    def lease(key: str, owner: str, kbps: float) -> Lease3:
        return Lease3(key, owner=owner, kbps=kbps)

    leases = [lease(f"a{n}", "A", kbps) for n, kbps in enumerate((300.0, 250.0, 150.0, 100.0))]
    leases += [lease("b1", "B", 200.0), lease("b2", "B", 100.0), lease("c1", "Cw", 100.0)]
    loads = {"A": 80.0, "B": 40.0, "Cw": 30.0}
    reports = [Report(name, 0, {"C": [load]}, {"C": [100.0]}, 1, 0, False) for name, load in loads.items()]
    found = set()
    for seed in range(20):
        decider = VarianceDecider(leases, reports, lambda lease: False, Random(seed))
        decider.balance()
        (move,) = decider.moves.values()
        found.add((move[0].key, move[1]))
    assert found == {("a2", "Cw"), ("a3", "Cw")}


def test_arithmetic_is_that_of_java() -> None:
    assert ratio(0.0, 0.0) != ratio(0.0, 0.0)
    assert compare(float("nan"), 1e300) == 1
    assert ema([20.0, 40.0, -1.0, 60.0]) == 45.0
    assert PriorityQueue(lambda a, b: 0).poll() is None


@pytest.mark.parametrize(
    "count, order",
    [
        (3, ["wc", "wa", "wb"]),
        (5, ["we", "wa", "wc", "wb", "wd"]),
        (8, ["wc", "wd", "wa", "wg", "we", "wh", "wb", "wf"]),
    ],
)
def test_shuffles_as_java_does(count: int, order: list[str]) -> None:
    assert shuffled([f"w{letter}" for letter in "abcdefgh"[:count]]) == order
