"""Fleets that read DynamoDB Streams in virtual time: random lives, and broken daemons that the checkers catch.

Many more seeds: `MLD_TABLE_STREAM_SEEDS=3000 python -m pytest tests/simulation/test_table_streams.py -m full`.
"""

from __future__ import annotations

import os

import pytest

from tests.simulation.table_streams import EVENTS, draw, live
from tests.simulation.variants.patching import Patch, patched
from tests.virtual_time import run_virtual

MORE_SEEDS = int(os.environ.get("MLD_TABLE_STREAM_SEEDS", "1"))


def test_no_change_is_lost_or_skipped() -> None:
    run_virtual(live(1))


@pytest.mark.full
def test_no_change_is_lost_or_skipped_in_more_lives() -> None:
    kinds: set[str] = set()
    for seed in range(2, 2 + MORE_SEEDS):

        async def run(seed: int = seed) -> None:
            kinds.update((await live(seed)).kinds)

        run_virtual(run())
    assert kinds >= set(EVENTS) or len(EVENTS) > MORE_SEEDS, "something never happened"


def test_a_seed_is_one_plan() -> None:
    assert draw(7) == draw(7) != draw(8)


VARIANTS: dict[str, tuple[int, str, tuple[Patch, ...]]] = {
    "a shard without records is taken for one that is over": (
        0,
        "everything delivered|before a long wait",
        (
            Patch(
                "mld.aws.dynamo_streams",
                'following = answer.get("NextShardIterator") or None',
                'following = (answer.get("NextShardIterator") or None) if answer["Records"] else None',
            ),
            Patch("mld.shards.ending", "if is_open and (", "if False and ("),
            Patch("mld.shards.ending", "if not children and not await", "if not children or not await"),
        ),
    ),
    "a shard that is not found is over, however young": (
        12,
        "everything delivered|before a long wait",
        (Patch("mld.shards.identity", "if self.now_s - made_s <= DYNAMODB_RETENTION_S:", "if False:"),),
    ),
}
"""The seed that catches it, what the checker says, and what is broken."""


@pytest.mark.full
@pytest.mark.parametrize("name", VARIANTS)
def test_a_broken_variant_is_caught(name: str) -> None:
    seed, says, patches = VARIANTS[name]
    with patched(patches), pytest.raises(AssertionError, match=says):
        run_virtual(live(seed))
