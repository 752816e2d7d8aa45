"""The model of a Java 3.x worker, alone in its fleet: what the checkers of mixed fleets take for granted."""

from __future__ import annotations

from random import Random

import pytest

from tests.simulation.java_world import JavaWorld, in_world
from tests.simulation.world.java3 import JavaWorker3
from tests.simulation.world.java3_lam import PriorityQueue, Report, VarianceDecider, compare, ema, ratio
from tests.simulation.world.java3_lock import shuffled
from tests.simulation.world.java3_table import Lease3


@in_world(JavaWorld, 6)
async def test_whoever_loses_the_race_for_the_first_row_dies_of_it(world: JavaWorld) -> None:
    """As coordination#what-java-does-differently says of the initial version."""
    workers = [world.run(JavaWorker3, name) for name in "ab"]
    await world.clock.sleep(60.0)
    assert sorted(worker.versions.state is None for worker in workers) == [False, True]


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
