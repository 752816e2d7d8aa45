"""What may be concluded about shards of a DynamoDB stream: their ids tell their age, and they have no hash keys."""

from __future__ import annotations

import pytest

from mld.core.positions import SHARD_END, TRIM_HORIZON, Position
from mld.core.steps import finish
from mld.core.streams import ChildShard, HashRange, Shard, StreamKind
from mld.leases.lease import Lease
from mld.shards.ending import Create, Invalid, plan_shard_end
from mld.shards.identity import DYNAMODB_RETENTION_S, Park, ShardIsListed, ShardIsOver, Survey, created_s_of

NOW_S = 1_800_000_000.0
KEYS = HashRange(0, 1)


def name(age_s: float, letter: str) -> str:
    return f"shardId-{round((NOW_S - age_s) * 1000):020d}-{letter * 8}"


OLD, YESTERDAY, YOUNG = name(30 * 3600, "a"), name(25 * 3600, "b"), name(600, "c")


def listed(shard_id: str, first: int, last: int | None = None, parent: str | None = None) -> Shard:
    return Shard(shard_id, KEYS, str(first), None if last is None else str(last), parent)


def lease(shard_id: str, checkpoint: Position = TRIM_HORIZON) -> Lease:
    return Lease(shard_id, checkpoint, hash_range=KEYS)


def judge(lost: Lease, leases: list[Lease], shards: list[Shard]) -> object:
    return finish(Survey.steps([lost, *leases], shards, StreamKind.DYNAMODB, NOW_S)).judge(lost)


def test_an_old_shard_whose_child_is_listed_is_over() -> None:
    verdict = judge(lease(OLD), [], [listed(YESTERDAY, 300, parent=OLD)])
    assert isinstance(verdict, ShardIsOver)
    assert YESTERDAY in verdict.evidence


def test_an_old_shard_is_over_where_another_lease_proves_the_stream() -> None:
    proof = lease(YESTERDAY, Position("350"))
    assert isinstance(judge(lease(OLD), [proof], [listed(YESTERDAY, 300)]), ShardIsOver)


@pytest.mark.parametrize(
    ("lost", "leases", "shards"),
    [
        (lease(YOUNG), [lease(YESTERDAY, Position("350"))], [listed(YESTERDAY, 300)]),
        (lease(YOUNG), [], [listed(name(60, "d"), 900, parent=YOUNG)]),
        (lease(OLD), [], [listed(YESTERDAY, 300)]),
        (lease(OLD), [lease(YESTERDAY, Position("350"))], []),
        (lease("shardId-of-another-kind"), [lease(YESTERDAY, Position("350"))], [listed(YESTERDAY, 300)]),
    ],
    ids=["not listed yet", "even with a child", "nothing proves the stream", "nothing is listed", "no age"],
)
def test_whatever_else_is_missing_keeps_its_lease(lost: Lease, leases: list[Lease], shards: list[Shard]) -> None:
    assert isinstance(judge(lost, leases, shards), Park)


def test_nobody_is_told_to_delete_the_lease_of_a_shard_that_may_be_listed_later() -> None:
    verdict = judge(lease(YOUNG), [lease(YESTERDAY, Position("350"))], [listed(YESTERDAY, 300)])
    assert isinstance(verdict, Park)
    assert "DynamoDB does not list shard" in verdict.reason and "less than 24 hours ago" in verdict.reason
    assert "delete" not in verdict.reason


def test_a_listed_shard_is_asked_again() -> None:
    assert isinstance(judge(lease(OLD), [], [listed(OLD, 100, 200)]), ShardIsListed)


def test_a_shard_is_not_over_in_the_very_hour_in_which_its_records_may_still_be_there() -> None:
    proof = [lease(YOUNG, Position("950"))]
    shards = [listed(YOUNG, 900)]
    assert isinstance(judge(lease(name(DYNAMODB_RETENTION_S, "e")), proof, shards), Park)
    assert isinstance(judge(lease(name(DYNAMODB_RETENTION_S + 1, "e")), proof, shards), ShardIsOver)


def test_a_single_child_is_an_ordinary_one() -> None:
    child = ChildShard(YOUNG, frozenset({OLD}), KEYS)
    assert isinstance(plan_shard_end(lease(OLD), [child], [], merges=False), Create)
    assert isinstance(plan_shard_end(lease(OLD), [child], []), Invalid)
    stranger = ChildShard(YOUNG, frozenset({YESTERDAY}), KEYS)
    assert isinstance(plan_shard_end(lease(OLD), [stranger], [], merges=False), Invalid)


@pytest.mark.parametrize(
    ("shard_id", "created_s"),
    [
        ("shardId-00000001414576573621-f55eea83", 1414576573.621),
        ("shardId-000000000000", None),
        ("shardId--f55eea83", None),
    ],
)
def test_the_id_tells_when_a_shard_was_made(shard_id: str, created_s: float | None) -> None:
    assert created_s_of(shard_id) == created_s


def test_a_finished_lease_stays_comparable() -> None:
    assert isinstance(judge(lease(OLD, SHARD_END), [], [listed(YESTERDAY, 300, parent=OLD)]), ShardIsOver)


def test_a_row_without_a_hash_range_proves_the_stream_too() -> None:
    """Early versions of Amazon's adapter wrote none."""
    proof = Lease(YESTERDAY, Position("350"))
    assert isinstance(judge(lease(OLD), [proof], [listed(YESTERDAY, 300)]), ShardIsOver)
