"""Which rows a reset makes: those of a bootstrap, in an order of which every prefix is safe."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mld.core.positions import LATEST, SHARD_END, TRIM_HORIZON, Position
from mld.core.steps import finish
from mld.core.streams import HASH_KEY_MAX, HashRange, Shard
from mld.leases.lease import Lease
from mld.operating.plan import ActRefusedError
from mld.operating.reset_rows import (
    ResetRows,
    direction,
    shard_reset,
    whole_reset,
)
from mld.shards.graph import ShardGraph, oldest_generation
from mld.tracking.parents import blocking_parent
from tests.unit.shards.twins import (
    FROM_HORIZON,
    FROM_LATEST,
    GRAPH_A,
    GRAPH_B,
    GRAPH_M,
    done,
    leases_for_empty_table,
    missing_leases,
    row,
    sid,
)


class Stream:
    """Shards that split and merge; `moments` are listings of what was open at some moment."""

    def __init__(self, steps: list[tuple[bool, int]], shards: int) -> None:
        self.shards: dict[str, Shard] = {}
        self.now = 100
        width = (HASH_KEY_MAX + 1) // shards
        for number in range(shards):
            end = HASH_KEY_MAX if number == shards - 1 else (number + 1) * width - 1
            self._add(HashRange(number * width, end))
        self.moments = [self.open()]
        for splits, pick in steps:
            self.now += 10
            (self._split if splits else self._merge)(pick)
            self.moments.append(self.open())

    @property
    def listing(self) -> tuple[Shard, ...]:
        return tuple(self.shards.values())

    def open(self) -> tuple[str, ...]:
        found = [shard for shard in self.shards.values() if shard.is_open]
        return tuple(shard.shard_id for shard in sorted(found, key=lambda shard: shard.hash_range.start))

    def _add(self, keys: HashRange, *parents: str) -> None:
        names = [*parents, None, None]
        shard_id = sid(len(self.shards))
        self.shards[shard_id] = Shard(shard_id, keys, str(self.now), None, names[0], names[1])

    def _close(self, shard_id: str) -> Shard:
        self.shards[shard_id] = replace(self.shards[shard_id], ending_sequence=str(self.now - 1))
        return self.shards[shard_id]

    def _split(self, pick: int) -> None:
        shard = self._close(self.open()[pick % len(self.open())])
        middle = (shard.hash_range.start + shard.hash_range.end) // 2
        self._add(HashRange(shard.hash_range.start, middle), shard.shard_id)
        self._add(HashRange(middle + 1, shard.hash_range.end), shard.shard_id)

    def _merge(self, pick: int) -> None:
        if len(self.open()) > 1:
            at = pick % (len(self.open()) - 1)
            left, right = (self._close(one) for one in self.open()[at : at + 2])
            self._add(HashRange(left.hash_range.start, right.hash_range.end), left.shard_id, right.shard_id)

    def rows_after(self, done_before: int, *, clean: bool) -> dict[str, Lease]:
        """The rows of an application that has read all that ended before a moment; `clean`: complete ones are gone."""
        there = set(self.moments[done_before])
        found: dict[str, Lease] = {}
        for shard in self.shards.values():
            if shard.shard_id in there:
                found[shard.shard_id] = Lease(
                    shard.shard_id,
                    Position(str(int(shard.starting_sequence) + 1)),
                    parents=shard.parents,
                    hash_range=shard.hash_range,
                )
            elif not clean and int(shard.starting_sequence) < 100 + 10 * done_before and not shard.is_open:
                children = frozenset(one.shard_id for one in self.listing if shard.shard_id in one.parents)
                found[shard.shard_id] = Lease(
                    shard.shard_id, SHARD_END, parents=shard.parents, children=children, hash_range=shard.hash_range
                )
        return found


streams = st.builds(
    Stream, st.lists(st.tuples(st.booleans(), st.integers(0, 5)), min_size=1, max_size=7), st.integers(1, 3)
)


def applied(rows: dict[str, Lease], plan: ResetRows, writes: int = 10**6) -> dict[str, Lease]:
    """The table after so many of the plan's writes."""
    found = dict(rows)
    for lease in plan.puts[:writes]:
        old = found.get(lease.key)
        found[lease.key] = lease if old is None else replace(lease, counter=old.counter + 1)
    for key in plan.deletes[: max(0, writes - len(plan.puts))]:
        del found[key]
    return found


def identity(leases: Any) -> set[tuple[Any, ...]]:
    """What tells one row from another."""
    return {(one.key, one.checkpoint, one.parents, one.children, one.hash_range) for one in leases}


@settings(max_examples=200)
@given(streams, st.data(), st.booleans())
def test_a_reset_leaves_the_rows_of_a_bootstrap(stream: Stream, data: st.DataObject, clean: bool) -> None:
    moment = data.draw(st.integers(0, len(stream.moments) - 1))
    rows = stream.rows_after(data.draw(st.integers(0, len(stream.moments) - 1)), clean=clean)
    begin = finish(oldest_generation([stream.shards[key] for key in stream.moments[moment]]))
    initial = FROM_LATEST if moment == len(stream.moments) - 1 else FROM_HORIZON
    positions = dict.fromkeys((shard.shard_id for shard in begin), initial.sentinel)

    plan = finish(whole_reset(begin, positions, list(rows.values())))

    assert identity(applied(rows, plan).values()) == identity(leases_for_empty_table(begin, initial))
    again = finish(whole_reset(begin, positions, list(applied(rows, plan).values())))
    assert not again.deletes


@settings(max_examples=300)
@given(streams, st.data(), st.booleans())
def test_after_any_write_a_sync_finds_nothing_to_skip_and_starts_nothing_too_soon(
    stream: Stream, data: st.DataObject, clean: bool
) -> None:
    moment = data.draw(st.integers(0, len(stream.moments) - 1))
    rows = stream.rows_after(data.draw(st.integers(0, len(stream.moments) - 1)), clean=clean)
    begin = [stream.shards[key] for key in stream.moments[moment]]
    positions = {shard.shard_id: Position(shard.starting_sequence) for shard in begin}
    plan = finish(whole_reset(begin, positions, list(rows.values())))
    stopped_after = data.draw(st.integers(0, len(plan.puts) + len(plan.deletes)))

    table = applied(rows, plan, stopped_after)
    created = missing_leases(stream.listing, list(table.values()), FROM_HORIZON)

    table |= {lease.key: lease for lease in created}
    for shard_id in stream.open():  # every open shard is read, or comes after a shard that is
        assert shard_id in table or any(
            key in table and not table[key].is_complete for key in finish(ShardGraph(stream.listing).above([shard_id]))
        )
    if stopped_after >= len(plan.puts):
        target = {shard.shard_id for shard in begin}
        for lease in created:
            assert lease.key not in target
            assert blocking_parent(lease, table) is not None, f"{lease.key} is read beside the shards it comes after"


@settings(max_examples=200)
@given(streams, st.data(), st.booleans())
def test_one_shard_is_read_again_and_no_other_row_changes(stream: Stream, data: st.DataObject, clean: bool) -> None:
    at = data.draw(st.integers(0, len(stream.moments) - 1))
    rows = stream.rows_after(at, clean=clean)
    begun = [one for one in stream.listing if int(one.starting_sequence) < 101 + 10 * at]
    shard = data.draw(st.sampled_from(begun))

    plan = finish(shard_reset(ShardGraph(stream.listing), shard.shard_id, TRIM_HORIZON, list(rows.values())))
    table = applied(rows, plan)

    assert not plan.deletes
    assert table[shard.shard_id].checkpoint == TRIM_HORIZON
    assert blocking_parent(table[shard.shard_id], table) is None
    for key, lease in rows.items():
        assert key == shard.shard_id or table[key] == lease
    assert all(table[key].is_complete for key in table.keys() - rows.keys() - {shard.shard_id})
    # Its end creates nothing that was read before, and waits for no row that is not there.
    for child in stream.listing:
        if shard.shard_id in child.parents and child.shard_id not in table:
            for parent in child.parents - table.keys():
                above = finish(ShardGraph(stream.listing).above([parent]))
                assert any(key in table and not table[key].is_complete for key in above), f"{parent} never gets a row"
    assert not missing_leases(stream.listing, list(table.values()), FROM_HORIZON)


def test_a_shard_whose_children_were_cleaned_up_gets_complete_rows_below_it():
    rows = [row(9, 300, (8,)), row(10, 300, (8,))]

    plan = finish(shard_reset(ShardGraph(GRAPH_B), sid(5), TRIM_HORIZON, rows))

    assert [(lease.key, lease.checkpoint) for lease in plan.puts] == [
        (sid(8), SHARD_END),
        (sid(7), SHARD_END),
        (sid(6), SHARD_END),
        (sid(5), TRIM_HORIZON),
    ]
    assert plan.puts[0].children == {sid(9), sid(10)}


def test_a_shard_that_has_not_begun_is_refused():
    with pytest.raises(ActRefusedError, match=r"comes after shardId-0+1, which is not read to its end"):
        finish(shard_reset(ShardGraph(GRAPH_M), sid(2), TRIM_HORIZON, [done(0, children=(2,)), row(1, 12)]))


def test_what_a_shard_had_under_its_parents_is_not_read_again_and_is_said():
    plan = finish(shard_reset(ShardGraph(GRAPH_M), sid(2), TRIM_HORIZON, [row(2, 300, (0, 1))]))

    assert plan.notes == (
        f"{sid(2)} is read from its beginning; earlier records of its keys are in {sid(0)} and {sid(1)}, which this "
        "does not reset",
    )


def test_rows_go_from_old_to_young_after_the_others_are_written():
    rows = [row(4, 300), row(9, 300, (5,)), row(10, 300, (5,)), row(8, 300, (6, 7)), done(6, (0, 1)), done(7, (2, 3))]
    begin = [shard for shard in GRAPH_A if shard.shard_id in {sid(n) for n in range(6)}]

    plan = finish(whole_reset(begin, {sid(n): TRIM_HORIZON for n in range(6)}, rows))

    assert [lease.key for lease in plan.puts] == [sid(n) for n in range(6)]
    assert plan.deletes == (sid(6), sid(7), sid(8), sid(9), sid(10))


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (SHARD_END, TRIM_HORIZON, "back"),
        (Position("5"), TRIM_HORIZON, "back"),
        (Position("5"), Position("4"), "back"),
        (Position("5"), Position("5", 1), "forward"),
        (Position("5"), LATEST, "forward"),
        (TRIM_HORIZON, Position("5"), "forward"),
        (Position("5"), SHARD_END, "forward"),
        (LATEST, Position("5"), "aside"),
    ],
)
def test_direction(old: Position, new: Position, words: str) -> None:
    assert direction(old, new) == words
