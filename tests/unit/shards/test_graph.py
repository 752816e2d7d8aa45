"""Which leases are missing. The worked examples are stories, `tests/scenarios/shards_graph_*.txt`; here is the rest."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mld.core.errors import InvalidStreamResponseError
from mld.core.positions import TRIM_HORIZON, InitialPosition
from mld.core.streams import HASH_KEY_MAX, Shard
from mld.leases.lease import Lease
from mld.shards.graph import (
    ShardGraph,
    children_in,
    partition_fault,
)
from tests.unit.shards.twins import (
    FROM_HORIZON,
    FROM_LATEST,
    FROM_TIMESTAMP,
    GRAPH_A,
    GRAPH_B,
    GRAPH_C,
    GRAPH_M,
    GRAPH_S,
    done,
    leases_for_empty_table,
    missing_leases,
    numbers,
    plain_missing_leases,
    row,
    shard,
    sid,
)


@pytest.mark.parametrize("initial", [FROM_LATEST, FROM_HORIZON, FROM_TIMESTAMP])
@pytest.mark.parametrize(("shards", "existing"), [(GRAPH_A, (4, 8, 9)), (GRAPH_B, (9,)), (GRAPH_C, (1, 6, 7, 8))])
def test_the_order_of_the_listing_changes_nothing(
    shards: tuple[Shard, ...], existing: tuple[int, ...], initial: InitialPosition
) -> None:
    rows = [row(number) for number in existing]
    assert missing_leases(shards[::-1], rows, initial) == missing_leases(shards, rows, initial)


def test_only_the_next_layer_is_recreated_below_a_completed_row() -> None:
    made = missing_leases(GRAPH_B, [done(5)], FROM_HORIZON)

    assert numbers(made) == {6, 7}


def test_children_of_a_completed_row_are_recreated_from_their_start_whatever_the_position() -> None:
    for initial in (FROM_LATEST, FROM_HORIZON, FROM_TIMESTAMP):
        made = missing_leases(GRAPH_S, [done(0), row(3)], initial)
        assert [(lease.key, lease.checkpoint) for lease in made] == [(sid(1), TRIM_HORIZON), (sid(2), TRIM_HORIZON)]


def test_a_merge_child_is_not_recreated_before_its_other_parent_has_a_row() -> None:
    # Created now, shard 2 would start without waiting for shard 1.
    for initial in (FROM_LATEST, FROM_HORIZON):
        made = missing_leases(GRAPH_M, [done(0)], initial)
        assert [(lease.key, lease.checkpoint) for lease in made] == [(sid(1), initial.sentinel)]
    both = missing_leases(GRAPH_M, [done(0), row(1, 15)], FROM_LATEST)
    assert both == (Lease(sid(2), TRIM_HORIZON, parents=GRAPH_M[2].parents, hash_range=GRAPH_M[2].hash_range),)


def test_a_trimmed_merge_parent_with_a_row_counts_as_a_leased_ancestor() -> None:
    # Java under LATEST would create the open child at LATEST and skip what it holds already.
    without_0 = tuple(s for s in GRAPH_M if s.shard_id != sid(0))

    first = missing_leases(without_0, [row(0, 12)], FROM_LATEST)
    second = missing_leases(without_0, [row(0, 12), *first], FROM_LATEST)

    assert numbers(first) == {1}
    assert [(lease.key, lease.checkpoint) for lease in second] == [(sid(2), TRIM_HORIZON)]


def test_after_an_outage_over_several_reshards_the_oldest_listed_descendants_are_read_from_their_start() -> None:
    kept = tuple(s for s in GRAPH_B if int(s.shard_id[-12:]) >= 6)
    stranded = row(2, 25, hash_range=GRAPH_B[2].hash_range)

    made = missing_leases(kept, [stranded], FROM_LATEST)

    assert [(lease.key, lease.checkpoint) for lease in made] == [(sid(6), TRIM_HORIZON), (sid(7), TRIM_HORIZON)]


def test_a_passed_generation_below_a_row_is_left_to_that_row() -> None:
    # Shard 0 is read again and will create 5 and then 10; 10 must not overtake them.
    made = missing_leases(GRAPH_C, [row(0), row(4), row(9), row(1), row(6)], FROM_HORIZON)

    assert made == ()


def test_a_generation_between_a_trimmed_row_and_a_leased_descendant_is_read() -> None:
    # Parent 1 was passed, parent 0 is trimmed with an unfinished row: nobody else would create 2, which leads to 4.
    kept = tuple(s for s in GRAPH_B if s.shard_id in {sid(1), sid(2), sid(3), sid(4)})
    kept = tuple(replace(s, ending_sequence=None) if s.shard_id in {sid(3), sid(4)} else s for s in kept)

    made = missing_leases(kept, [row(0, 15), row(3, 35)], FROM_HORIZON)

    assert [(lease.key, lease.checkpoint) for lease in made] == [(sid(2), TRIM_HORIZON)]


def test_a_row_younger_than_the_listing_brings_no_ancestor_back() -> None:
    younger = row(7, 25, hash_range=GRAPH_M[2].hash_range)

    assert missing_leases(GRAPH_M, [row(2, 21), younger], FROM_HORIZON) == ()


def test_unexpected_children_are_skipped_even_below_a_completed_row() -> None:
    listing = tuple(replace(s, ending_sequence=None) if s.shard_id == sid(0) else s for s in GRAPH_S)

    assert missing_leases(listing, [done(0), row(3)], FROM_LATEST, ignore_unexpected_children=True) == ()


def test_unreadable_rows_count_as_leased() -> None:
    made = missing_leases(GRAPH_S, [row(3)], FROM_LATEST, unreadable=[sid(1), sid(2)])

    assert made == ()


def test_leases_come_in_numeric_order_of_their_first_sequence_number_and_then_of_their_id() -> None:
    listing = (shard(1, born=100), shard(3, born=20), shard(2, born=20), shard(9, born=9))

    assert [lease.key for lease in leases_for_empty_table(listing, FROM_LATEST)] == [sid(9), sid(2), sid(3), sid(1)]


def test_children_of_an_open_parent_make_the_listing_inconsistent() -> None:
    listing = tuple(replace(s, ending_sequence=None) if s.shard_id == sid(0) else s for s in GRAPH_S)

    assert ShardGraph(listing).inconsistent() == {sid(1), sid(2)}
    with pytest.raises(InvalidStreamResponseError, match="ignoreUnexpectedChildShards"):
        missing_leases(listing, [row(3)], FROM_LATEST)
    for initial in (FROM_LATEST, FROM_HORIZON):
        plain = plain_missing_leases(listing, {sid(3)}, initial)
        ours = missing_leases(listing, [row(3)], initial, ignore_unexpected_children=True)
        assert plain == ours
        assert numbers(ours) == {0}


def test_a_long_chain_of_reshards_does_not_exhaust_the_stack() -> None:
    length = 5_000
    chain = tuple(
        shard(n, (n - 1,) if n else (), born=10 * n, ended=10 * n + 9 if n < length - 1 else None)
        for n in range(length)
    )

    assert numbers(missing_leases(chain, [], FROM_HORIZON)) == {0}
    assert missing_leases(chain, [row(0)], FROM_HORIZON) == ()


def test_a_listing_with_a_cycle_comes_to_an_end() -> None:
    listing = (shard(0, (1,), born=1, ended=5), shard(1, (0,), born=2, ended=6), shard(2, (1,), born=7))

    assert numbers(missing_leases(listing, [], FROM_LATEST)) == {2}


@pytest.mark.parametrize(
    ("ranges", "fault"),
    [
        ([(0, 4), (5, HASH_KEY_MAX)], None),
        ([(5, HASH_KEY_MAX), (0, 4)], None),
        ([(1, HASH_KEY_MAX), (0, 0)], None),
        ([(0, 4), (6, HASH_KEY_MAX)], "no listed shard covers the hash keys 5 to 5"),
        ([(1, HASH_KEY_MAX)], "no listed shard covers the hash keys 0 to 0"),
        ([(0, 4), (4, HASH_KEY_MAX)], "overlaps"),
        ([(0, HASH_KEY_MAX), (0, HASH_KEY_MAX)], "overlaps"),
        ([(0, 9)], "end at hash key 9"),
    ],
)
def test_a_snapshot_must_cover_the_key_space_exactly_once(ranges: list[tuple[int, int]], fault: str | None) -> None:
    found = partition_fault([shard(i, born=1, keys=keys) for i, keys in enumerate(ranges)])

    assert found is None if fault is None else found is not None and fault in found


def test_children_are_found_by_either_parent() -> None:
    assert [c.shard_id for c in children_in(GRAPH_M, sid(1))] == [sid(2)]
    assert [c.shard_id for c in children_in(GRAPH_S, sid(0))] == [sid(1), sid(2)]
    only_adjacent = Shard(sid(5), GRAPH_M[2].hash_range, "9", None, None, sid(4))
    assert [c.parents for c in children_in([only_adjacent], sid(4))] == [frozenset({sid(4)})]


def test_graphs_of_the_examples_are_sound() -> None:
    # The builder of the examples is itself under test: open shards cover the key space.
    for graph in (GRAPH_A, GRAPH_B, GRAPH_C, GRAPH_S, GRAPH_M):
        assert partition_fault([s for s in graph if s.is_open]) is None
