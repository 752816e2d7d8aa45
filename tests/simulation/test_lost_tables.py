"""Tables are deleted, made again and restored under fleets whose clocks disagree: random lives, and broken daemons that
the checkers catch.

Many more seeds: `make campaigns CAMPAIGN_ARGS="--only lost-tables"`.
"""

from __future__ import annotations

import pytest

from tests.simulation.lost_tables import draw, live
from tests.support.tiers import sliced
from tests.virtual_time import run_virtual

SEEDS = 3
MORE_SEEDS = 24


@pytest.mark.parametrize("seed", sliced(range(SEEDS + MORE_SEEDS), *range(SEEDS)))
def test_a_fleet_outlives_its_table(seed: int) -> None:
    run_virtual(live(seed))


def test_a_seed_is_one_plan() -> None:
    assert draw(7) == draw(7) != draw(8)
