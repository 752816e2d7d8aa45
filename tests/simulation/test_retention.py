"""Random lives of fleets that are not read for longer than their stream keeps records, and of fleets with poison.

Many more seeds: `make campaigns CAMPAIGN_ARGS="--only retention,poison"`.
"""

from __future__ import annotations

import pytest

from tests.simulation import poison, retention
from tests.virtual_time import run_virtual

SEEDS = 3
MORE_SEEDS = 30


@pytest.mark.parametrize("seed", range(SEEDS))
def test_what_is_lost_is_reported_and_nothing_else(seed: int) -> None:
    run_virtual(retention.live(seed))


@pytest.mark.parametrize("seed", range(SEEDS))
def test_what_kills_a_child_is_set_aside_and_nothing_else(seed: int) -> None:
    run_virtual(poison.live(seed))


@pytest.mark.full
def test_many_lives_lose_nothing_unreported() -> None:
    for seed in range(SEEDS, SEEDS + MORE_SEEDS):
        run_virtual(retention.live(seed))
        run_virtual(poison.live(seed))
