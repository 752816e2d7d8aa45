"""Fleets that read DynamoDB Streams in virtual time: random lives, and broken daemons that the checkers catch.

Many more seeds: `make campaigns CAMPAIGN_ARGS="--only table-streams"`.
"""

from __future__ import annotations

import pytest

from tests.simulation.table_streams import draw, live
from tests.simulation.variants.patching import Patch, patched
from tests.virtual_time import run_virtual


def test_no_change_is_lost_or_skipped() -> None:
    run_virtual(live(1))


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
        3,
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
