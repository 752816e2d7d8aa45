"""Operators steer fleets in virtual time: random lives, and broken daemons that the checkers catch.

Many more seeds: `make campaigns CAMPAIGN_ARGS="--only steering"`.
"""

from __future__ import annotations

import pytest

from tests.simulation.steering import ACTS, draw, live
from tests.simulation.variants.patching import Patch, patched
from tests.support.tiers import sliced
from tests.virtual_time import run_virtual

SEEDS = 4
MORE_SEEDS = 24


@pytest.mark.parametrize("seed", range(SEEDS))
def test_nothing_is_lost_or_skipped_by_steering(seed: int) -> None:
    run_virtual(live(seed))


@pytest.mark.full
def test_nothing_is_lost_or_skipped_by_much_steering() -> None:
    done: set[str] = set()
    for seed in range(SEEDS, SEEDS + MORE_SEEDS):

        async def run(seed: int = seed) -> None:
            done.update((await live(seed)).done)

        run_virtual(run())
    assert done == set(ACTS), "an act was never carried out"


def test_a_seed_is_one_plan() -> None:
    assert draw(7) == draw(7) != draw(8)


VARIANTS: dict[str, tuple[int, str, tuple[Patch, ...]]] = {
    "a pause is not seen": (
        10,
        "is paused since",
        (Patch("mld.consumer.wishes", "self._unpaused.clear()", "pass"),),
    ),
    "a pause never ends": (
        2,
        "everything delivered",
        (
            Patch(
                "mld.consumer.wishes",
                "                self._unpaused.set()\n",
                "                pass\n",
            ),
        ),
    ),
    "what surrounds a record is left out with it": (
        1,
        "everything delivered",
        (Patch("mld.consumer.wishes", "                kept.append(record)", "                pass"),),
    ),
    "nobody respects a drain": (
        24,
        "a drained worker holds",
        (
            Patch("mld.fleet.assign.fleet_load", "(load.is_drained, rank,", "(False, rank,"),
            Patch("mld.fleet.assign.assignment", "    if load.is_drained:\n", "    if False:\n"),
            Patch("mld.fleet.departure", "return 0 if self._is_drained else ", "return "),
        ),
    ),
}
"""The seed that catches it, what the checker says, and what is broken."""


@pytest.mark.parametrize("name", sliced(VARIANTS, "a pause is not seen", "nobody respects a drain"))
def test_a_broken_variant_is_caught(name: str) -> None:
    seed, says, patches = VARIANTS[name]
    with patched(patches), pytest.raises(AssertionError, match=says):
        run_virtual(live(seed))
