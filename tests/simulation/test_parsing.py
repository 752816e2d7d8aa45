"""Rows are parsed once in a run, and only as long as they are the same row."""

from __future__ import annotations

from mld.core.positions import TRIM_HORIZON
from mld.leases import rows
from mld.leases.lease import Lease
from tests.simulation.world import parsing


def test_a_row_is_parsed_once_and_another_like_it_again() -> None:
    row = rows.new_row(Lease("a", TRIM_HORIZON))
    plain = rows._parse
    with parsing.parsed_once():
        first, again, other = (rows.parse_row(one) for one in (row, row, dict(row)))
    assert first is again
    assert other == first and other is not first
    assert rows._parse is plain
