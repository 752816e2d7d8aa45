"""Jobs that run until they have caught up, in virtual time: random lives, and broken daemons that the checkers catch.

Many more seeds: `make campaigns CAMPAIGN_ARGS="--only catch-ups"`.
"""

from __future__ import annotations

import pytest

from tests.simulation.catch_ups import live
from tests.simulation.variants.patching import Patch, patched
from tests.support.tiers import sliced
from tests.virtual_time import run_virtual

SEEDS = 6
MORE_SEEDS = 60


@pytest.mark.parametrize("seed", sliced(range(SEEDS + MORE_SEEDS), *range(SEEDS)))
def test_who_says_caught_up_has_done_all_that_was_there(seed: int) -> None:
    assert run_virtual(live(seed)).caught_up


VARIANTS: dict[str, tuple[int, str, tuple[Patch, ...]]] = {
    "an empty page of a table's stream is taken for the tip": (
        5,
        "a run was caught up, and these come again",
        (
            Patch(
                "mld.aws.dynamo_streams",
                "return self.quiet_pages >= QUIET_PAGES and now - self.quiet_from_s >= QUIET_S",
                "return True",
            ),
        ),
    ),
    "a daemon at work is not left alone": (
        0,
        "run 1 ends",
        (
            Patch(
                "mld.daemon.until_tip",
                "if others := self._others.at_work(scan.leases, read_from):",
                "if others := None:",
            ),
        ),
    ),
}
"""The seed that catches it, what the checker says, and what is broken."""


@pytest.mark.parametrize("name", VARIANTS)
def test_a_broken_variant_is_caught(name: str) -> None:
    seed, says, patches = VARIANTS[name]
    with patched(patches), pytest.raises(AssertionError, match=says):
        run_virtual(live(seed))
