"""Which evidence proves a foreign table, and which proves that a missing shard is over."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mld.core.positions import LATEST, SHARD_END, TRIM_HORIZON, Position
from mld.core.streams import HASH_KEY_MAX, HashRange, Shard
from mld.leases.lease import Lease
from mld.shards.identity import Park, ShardIsListed, ShardIsOver, oddity
from tests.unit.shards.twins import GRAPH_B, GRAPH_S, done, foreign_evidence, judge_missing_shard, row, shard, sid

HALF = HASH_KEY_MAX // 2


def _ranged(number: int, checkpoint: object, graph: tuple[Shard, ...]) -> Lease:
    found = next(s for s in graph if s.shard_id == sid(number))
    return row(number, checkpoint, hash_range=found.hash_range)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("lease", "certain"),
    [
        (row(0, hash_range=HashRange(0, 5)), True),
        (row(0, 9), True),
        (row(0, 10), False),
        (row(0, 19), False),
        (row(0, 20), True),  # closed at 19
        (row(3, 10**60), False),  # open: no number is too high
        (row(3, 9), True),
        (row(0, LATEST), False),
        (done(0), False),
        (row(77, 5), False),  # not listed: that alone proves nothing
    ],
)
def test_only_a_contradiction_proves_a_foreign_table(lease: Lease, certain: bool) -> None:
    evidence = foreign_evidence(GRAPH_S, [row(1), lease])

    assert (evidence is not None) is certain
    assert evidence is None or (lease.key in evidence and "applicationName" in evidence)


def test_sequence_numbers_are_compared_as_numbers() -> None:
    assert foreign_evidence([shard(0, born=9)], [row(0, 10)]) is None
    assert foreign_evidence([shard(0, born=10)], [row(0, 9)]) is not None


S_TRIMMED = tuple(s for s in GRAPH_S if s.shard_id != sid(0))
LOST = _ranged(0, 15, GRAPH_S)


def test_a_trimmed_shard_with_a_listed_child_is_over() -> None:
    verdict = judge_missing_shard(LOST, [LOST], S_TRIMMED)

    assert isinstance(verdict, ShardIsOver)
    assert sid(1) in verdict.evidence


def test_a_listed_shard_is_asked_again() -> None:
    assert judge_missing_shard(LOST, [LOST], GRAPH_S) == ShardIsListed()


ODD = [row(0, 0), row(0, 9), row(0, 20), row(0, 15, hash_range=HashRange(1, 2))]


@pytest.mark.parametrize("odd", ODD)
def test_one_odd_row_parks_its_shard_and_no_other(odd: Lease) -> None:
    rows = [odd, _ranged(1, 30, GRAPH_S), _ranged(2, 30, GRAPH_S), _ranged(3, LATEST, GRAPH_S)]

    verdict = judge_missing_shard(odd, rows, GRAPH_S)

    assert foreign_evidence(GRAPH_S, rows) is None
    assert isinstance(verdict, Park)
    assert f"`mld reset --shard {sid(0)} --to trim-horizon`" in verdict.reason
    assert "another stream" not in verdict.reason
    assert all(judge_missing_shard(one, rows, GRAPH_S) == ShardIsListed() for one in rows[1:])


@pytest.mark.parametrize("sentinel", [LATEST, TRIM_HORIZON])
def test_one_odd_number_proves_nothing_while_the_other_rows_have_none(sentinel: Position) -> None:
    begun = [_ranged(number, sentinel, GRAPH_S) for number in (1, 2, 3)]
    odd = _ranged(0, 9, GRAPH_S)

    assert foreign_evidence(GRAPH_S, [odd, *begun]) is None
    assert isinstance(judge_missing_shard(odd, [odd, *begun], GRAPH_S), Park)
    assert foreign_evidence(GRAPH_S, [odd, *begun[:-1], _ranged(3, 9, GRAPH_S)]) is not None


@pytest.mark.parametrize("odd", ODD[1:])
def test_a_table_is_foreign_where_no_row_fits_or_more_contradict_than_fit(odd: Lease) -> None:
    another = replace(row(3, 9), hash_range=odd.hash_range)
    fits = _ranged(1, 30, GRAPH_S)

    for rows in ([odd], [odd, another], [odd, another, fits], [odd, row(2)]):
        verdict = judge_missing_shard(odd, rows, GRAPH_S)
        assert isinstance(verdict, Park)
        assert "belongs to another stream" in verdict.reason
    assert foreign_evidence(GRAPH_S, [odd, fits]) is None


@pytest.mark.parametrize("number", [0, 1, 2**185 - 1, 10**56 - 1])
def test_what_is_no_number_of_kinesis_says_nothing_about_the_stream(number: int) -> None:
    first = 2 << 184 | 1700 << 100
    listed = (shard(0, born=first), shard(1, born=first + 1))

    assert foreign_evidence(listed, [row(0, number)]) is None
    assert oddity(listed[0], row(0, number)) is not None
    assert foreign_evidence(listed, [row(0, first - 1)]) is not None
    assert oddity(listed[0], row(0, first + 10**30)) is None


def test_the_hash_range_of_a_finished_row_proves_no_stream() -> None:
    rows = [replace(_ranged(0, 15, GRAPH_S), checkpoint=SHARD_END), row(3, hash_range=HashRange(1, 2))]

    assert foreign_evidence(GRAPH_S, rows) is not None


@pytest.mark.parametrize("shards", [None, ()])
def test_without_a_list_of_shards_the_lease_is_parked(shards: tuple[Shard, ...] | None) -> None:
    verdict = judge_missing_shard(LOST, [LOST], shards)

    assert isinstance(verdict, Park)
    assert "regionName" in verdict.reason


def test_a_foreign_table_parks_even_with_a_listed_child() -> None:
    foreign = row(3, hash_range=HashRange(1, 2))

    assert isinstance(judge_missing_shard(LOST, [LOST, foreign], S_TRIMMED), Park)


def test_a_child_of_the_same_name_in_an_older_stream_does_not_end_our_shard() -> None:
    # Every stream has a shard 0; ours was read after that one's children were born.
    lease = replace(LOST, checkpoint=row(0, 5000).checkpoint)

    verdict = judge_missing_shard(lease, [lease], S_TRIMMED)

    assert isinstance(verdict, Park)
    assert "5000" in verdict.reason


def test_a_smaller_wrong_stream_with_the_same_first_shards_parks() -> None:
    # Shard ids and ranges of 1 and 3 agree, as in any two streams of one size; the wrong one never had a shard 7.
    rows = [_ranged(1, 30, GRAPH_S), _ranged(3, 30, GRAPH_S), row(7, LATEST, hash_range=HashRange(HALF // 2, HALF))]

    assert isinstance(judge_missing_shard(rows[2], rows, S_TRIMMED), Park)


def test_a_trimmed_shard_whose_children_are_trimmed_too_needs_a_row_that_proves_the_stream() -> None:
    kept = tuple(s for s in GRAPH_B if int(s.shard_id[-12:]) >= 8)
    lost = _ranged(5, 45, GRAPH_B)

    assert isinstance(judge_missing_shard(lost, [lost], kept), Park)
    # A row that was only just created for this list proves nothing while others hold checkpoints.
    assert isinstance(judge_missing_shard(lost, [lost, _ranged(9, LATEST, GRAPH_B)], kept), Park)
    # Nor does one without a range: only id and number would agree.
    assert isinstance(judge_missing_shard(lost, [lost, row(9, 71)], kept), Park)
    assert isinstance(judge_missing_shard(lost, [lost, _ranged(9, 71, GRAPH_B)], kept), ShardIsOver)


def test_a_table_without_checkpoints_is_known_by_id_and_range() -> None:
    kept = tuple(s for s in GRAPH_B if int(s.shard_id[-12:]) >= 8)
    lost = _ranged(5, LATEST, GRAPH_B)

    assert isinstance(judge_missing_shard(lost, [lost, _ranged(9, LATEST, GRAPH_B)], kept), ShardIsOver)


def test_a_row_without_a_hash_range_is_known_by_its_child_only() -> None:
    assert isinstance(judge_missing_shard(row(0, 15), [row(0, 15)], S_TRIMMED), ShardIsOver)
    assert isinstance(judge_missing_shard(row(9, 15), [row(9, 15), _ranged(3, 15, GRAPH_S)], S_TRIMMED), Park)


def test_no_shard_of_an_unrelated_stream_is_ever_over() -> None:
    # Law: a wrong stream name must not mark anything SHARD_END while the application is up to date.
    wrong: tuple[Shard, ...] = (shard(0, born=1, keys=(0, HALF)), shard(1, born=1, keys=(HALF + 1, HASH_KEY_MAX)))
    wrong += (shard(8, (4,), born=40), shard(9, (5,), born=50, keys=(0, HALF)))
    rows = [row(n, 1000 + n, hash_range=HashRange(n * (HALF // 4), HASH_KEY_MAX)) for n in range(4, 8)]

    assert all(isinstance(judge_missing_shard(lease, rows, wrong), Park) for lease in rows)
