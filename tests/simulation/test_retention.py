"""Random lives of fleets that are not read for longer than their stream keeps records, and of fleets with poison.

Many more seeds: `make campaigns CAMPAIGN_ARGS="--only retention,poison"`.
"""

from __future__ import annotations

import pytest

from tests.simulation import poison, retention
from tests.support.tiers import sliced
from tests.virtual_time import run_virtual

SEEDS = 3
MORE_SEEDS = 30
ONCE_FAILED = (700_000, 760_004)
"""A child was to hang at its next batch, which came only when everything had to go well; an operator did not resume a
shard that the stream no longer listed."""


@pytest.mark.parametrize("seed", sliced((*range(SEEDS + MORE_SEEDS), *ONCE_FAILED), *range(SEEDS)))
def test_what_is_lost_is_reported_and_nothing_else(seed: int) -> None:
    run_virtual(retention.live(seed))


@pytest.mark.parametrize("seed", sliced(range(SEEDS + MORE_SEEDS), *range(SEEDS)))
def test_what_kills_a_child_is_set_aside_and_nothing_else(seed: int) -> None:
    run_virtual(poison.live(seed))
