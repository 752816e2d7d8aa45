"""Who syncs at the start, and who goes on without: every case there is."""

from __future__ import annotations

import itertools

import pytest

from mld.leases.table import TableScan
from mld.shards.bootstrap import SyncMode, leases_exist, syncs_at_start
from tests.unit.shards.twins import row, sid

SYNC, NONE = True, False

# is_leader, leases_exist, skip_if_exist -> 2.x mode, 3.x mode
CASES = {
    (False, False, False): (SYNC, NONE),
    (False, False, True): (SYNC, NONE),
    (False, True, False): (SYNC, NONE),
    (False, True, True): (NONE, NONE),
    (True, False, False): (SYNC, SYNC),
    (True, False, True): (SYNC, SYNC),
    (True, True, False): (SYNC, SYNC),
    (True, True, True): (NONE, NONE),
}


def test_the_table_is_complete() -> None:
    assert set(CASES) == set(itertools.product((False, True), repeat=3))


@pytest.mark.parametrize(("case", "answers"), CASES.items())
def test_the_decision(case: tuple[bool, bool, bool], answers: tuple[bool, bool]) -> None:
    is_leader, exist, skip = case
    for mode, answer in zip(SyncMode, answers, strict=True):
        assert syncs_at_start(mode, is_leader=is_leader, leases_exist=exist, skip_if_exist=skip) is answer


def test_an_unreadable_lease_is_a_lease() -> None:
    assert not leases_exist(TableScan(()))
    assert leases_exist(TableScan((row(0),)))
    assert leases_exist(TableScan((), ((sid(0), "no counter"),)))
