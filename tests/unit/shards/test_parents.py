"""A shard starts once every parent that has a row is at SHARD_END."""

from __future__ import annotations

import pytest

from mld.core.positions import LATEST, SHARD_END_NAME, TRIM_HORIZON, Position
from mld.core.streams import HashRange, Shard
from mld.leases.lease import Lease
from mld.tracking.parents import ANCESTORS_MAX, ancestors_of, blocking_parent, parents_complete
from tests.unit.shards.twins import MemoryTable, done, row, sid
from tests.virtual_time import run_virtual


@pytest.mark.parametrize(
    ("rows", "blocked_by"),
    [
        ([], None),
        ([done(0)], None),
        ([done(0), done(1)], None),
        ([row(0, TRIM_HORIZON)], sid(0)),
        ([done(0), row(1, LATEST)], sid(1)),
        ([row(0, 10**60), done(1)], sid(0)),
        ([row(0, Position(SHARD_END_NAME, 5))], sid(0)),  # Java compares for equality, sub number included
    ],
)
def test_only_an_unfinished_parent_row_blocks(rows: list[Lease], blocked_by: str | None) -> None:
    merged = row(2, parents=(0, 1))
    by_key = {lease.key: lease for lease in rows}

    assert blocking_parent(merged, by_key) == blocked_by
    assert blocking_parent(merged, {sid(0): None, sid(1): None, **by_key}) == blocked_by
    assert run_virtual(parents_complete(MemoryTable(rows), merged)) == blocked_by


def test_a_shard_without_parents_never_waits() -> None:
    table = MemoryTable([row(0)])

    assert run_virtual(parents_complete(table, row(5))) is None
    assert table.reads == []


def listed(*family: tuple[int, ...]) -> dict[str, Shard]:
    """Shards by their ids, each number with those of its parents."""
    return {sid(one): Shard(sid(one), HashRange(0, 1), "1", None, *map(sid, parents)) for one, *parents in family}


def test_a_child_is_told_all_that_its_shard_follows_the_nearest_first() -> None:
    family = listed((9, 7, 8), (8, 5), (7, 5), (5, 1), (6, 1))

    assert ancestors_of(row(9, parents=(7, 8)), family) == (sid(7), sid(8), sid(5), sid(1))
    assert ancestors_of(row(9, parents=(7, 8)), {}) == (sid(7), sid(8)), "nothing was listed"
    assert ancestors_of(row(1), family) == ()


def test_of_many_generations_the_nearest_are_told() -> None:
    last = 2 * ANCESTORS_MAX
    line = listed(*((number, number - 1) for number in range(1, last)))

    told = ancestors_of(row(last, parents=(last - 1,)), line)
    assert told == tuple(sid(last - n) for n in range(1, ANCESTORS_MAX + 1))
