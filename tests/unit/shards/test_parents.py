"""A shard starts once every parent that has a row is at SHARD_END."""

from __future__ import annotations

import pytest

from mld.core.positions import LATEST, SHARD_END_NAME, TRIM_HORIZON, Position
from mld.leases.lease import Lease
from mld.tracking.stream_set import blocking_parent, parents_complete
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
