"""Holes and what they prove: the table of shards#holes-in-coverage, and where we differ from Java on purpose."""

from __future__ import annotations

import itertools
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from mld.core.positions import SHARD_END, TRIM_HORIZON, Position
from mld.core.steps import finish
from mld.core.streams import HASH_KEY_MAX, HashRange, Shard
from mld.leases.lease import Lease
from mld.shards.holes import Findings, abandoned, hole_steps, is_urgent, missing_children, ranges_to_fill, sightings
from tests.unit.shards.twins import done, examine, row, shard, sid

N = HASH_KEY_MAX
HERE = HashRange(5, 9)
THERE = HashRange(20, 29)


def leases(*ranges: tuple[int, int], checkpoint: Position = TRIM_HORIZON) -> list[Lease]:
    return [row(n, checkpoint, hash_range=HashRange(*keys)) for n, keys in enumerate(ranges)]


# --- the table of shards#holes-in-coverage ---------------------------------------------------------------------------


def test_the_table_of_the_spec() -> None:
    parent_over = [row(9, SHARD_END, hash_range=HashRange(0, N)), *leases((0, 4))]

    assert examine(leases((0, 4), (5, 9), (10, N))).is_clean
    assert examine(leases((0, N), (5, 10))).is_clean  # Java reports a hole, because the inner range comes last
    assert examine(leases((0, 9), (0, 4), (5, 9), (10, N))).is_clean
    assert examine(leases((0, 4), (6, N))).holes == (HashRange(5, 5),)
    assert examine(leases((1, N))).holes == (HashRange(0, 0),)
    assert examine(parent_over).holes == (HashRange(5, N),)
    assert examine(leases((0, 4), (5, N), checkpoint=SHARD_END)).holes == (HashRange(0, N),)
    assert examine([]).is_empty


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)).map(sorted), max_size=8))
def test_a_key_is_in_a_hole_exactly_if_no_range_has_it(pairs: list[list[int]]) -> None:
    ranges = [HashRange(low, high) for low, high in pairs] + [HashRange(31, N)]
    holes = finish(hole_steps(ranges))

    for key in range(31):
        covered = any(r.start <= key <= r.end for r in ranges)
        assert covered != any(hole.start <= key <= hole.end for hole in holes)
    assert all(one.end + 1 < other.start for one, other in itertools.pairwise(holes))


# --- rows that do not say what they cover ----------------------------------------------------------------------------


def test_a_row_without_a_range_is_a_finding_until_its_range_is_known() -> None:
    rows = [*leases((0, 4)), row(7)]

    assert examine(rows).rangeless == {sid(7)}
    assert examine(rows, known={sid(7): HashRange(5, N)}).is_clean
    assert examine(rows, known={sid(7): None}) == Findings(holes=(HashRange(5, N),))
    assert examine([*leases((0, N)), done(7)]).is_clean


def test_an_unreadable_row_covers_the_keys_of_its_shard() -> None:
    assert examine(leases((0, 4)), [sid(7)]).rangeless == {sid(7)}
    assert examine(leases((0, 4)), [sid(7)], {sid(7): HashRange(5, N)}).is_clean
    assert not examine([], [sid(7)]).is_empty


def test_ranges_are_filled_in_on_active_rows_of_listed_shards() -> None:
    shards: list[Shard] = [shard(n, born=1, keys=(n * 10, n * 10 + (n != 4))) for n in range(6)]
    rows = [row(0), row(1, hash_range=HashRange(10, 11)), done(2), row(4), row(9)]

    # 1 has its range, 2 is over, 4 has one key only, 9 is not listed.
    assert ranges_to_fill(rows, shards) == {sid(0): HashRange(0, 1)}


# --- children --------------------------------------------------------------------------------------------------------


def test_a_child_without_a_row_is_a_finding_even_if_its_keys_are_covered() -> None:
    rows = [done(0, children=(1, 2)), row(1, hash_range=HashRange(0, 9)), row(5, hash_range=HashRange(0, N))]

    assert examine(rows) == Findings(missing_children=frozenset({sid(2)}))
    assert examine(rows).without([sid(2)]).is_clean
    assert missing_children(rows, [sid(2)]) == frozenset()
    assert missing_children([row(0, 15, children=frozenset({sid(1)}))]) == frozenset(), "its end is still to come"


# --- counting --------------------------------------------------------------------------------------------------------


def test_a_hole_that_stays_is_urgent_at_the_third_sighting() -> None:
    counts: dict[HashRange, int] = {}
    urgent = []
    for _ in range(4):
        counts = sightings(counts, [HERE])
        urgent.append(is_urgent(counts))

    assert urgent == [False, False, True, True]


def test_findings_are_one_sentence() -> None:
    findings = Findings(holes=(HERE, THERE), missing_children=frozenset({sid(3), sid(2)}))

    assert findings.sentence() == (
        f"no active lease has the hash keys 5 to 9, 1 other holes, {sid(2)} has no row although its parent is over"
    )


def test_a_hole_that_was_not_seen_for_once_begins_anew() -> None:
    # Two holes that alternate: nothing is missing twice in a row.
    counts = sightings(sightings(sightings({}, [HERE]), [THERE]), [HERE])

    assert counts == {HERE: 1}


def test_a_hole_that_shrinks_or_grows_goes_on() -> None:
    # Java's descriptor names the leases around the hole, so that its count begins anew.
    shrunk = sightings(sightings({}, [HashRange(5, 29)]), [HERE, THERE])
    grown = sightings(shrunk, [HashRange(0, 40)])

    assert shrunk == {HERE: 2, THERE: 2}
    assert grown == {HashRange(0, 40): 3}


@given(
    st.lists(st.sets(st.integers(0, 12)), min_size=1, max_size=5),
)
def test_keys_that_are_missing_in_a_row_are_counted(audits: list[set[int]]) -> None:
    counts: dict[HashRange, int] = {}
    in_a_row = dict.fromkeys(range(13), 0)
    for missing in audits:
        there = [HashRange(key, key) for key in range(13) if key not in missing]
        holes = finish(hole_steps([*there, HashRange(13, N)]))
        counts = sightings(counts, holes)
        in_a_row = {key: in_a_row[key] + 1 if key in missing else 0 for key in in_a_row}

    for hole, count in counts.items():
        assert count >= max(in_a_row[key] for key in range(hole.start, hole.end + 1))
        assert count <= len(audits)


# --- rows that nobody looks after ------------------------------------------------------------------------------------


def test_a_completed_row_that_nobody_renews_is_abandoned_at_the_second_sight() -> None:
    rows = [done(0, counter=4, owner="dead"), done(1, counter=7), row(2, 15, counter=3)]
    first, counters = abandoned({}, rows)
    renewed = [rows[0], replace(rows[1], counter=8), rows[2]]

    assert first == ()
    assert abandoned(counters, renewed)[0] == (rows[0],)
    assert abandoned(counters, [row(0, 5, counter=4)]) == ((), {})
