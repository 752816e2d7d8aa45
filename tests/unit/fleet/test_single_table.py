"""The migration to a single table against its tables (coordination#table-layout and on)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mld.core.errors import StartupError
from mld.core.positions import TRIM_HORIZON
from mld.fleet.migrate.single_table import (
    DEPLOYED_BAKE_S,
    MOVED_TOGETHER_MAX,
    SUMMARY_AGE_S_MAX,
    FleetSummary,
    Routes,
    Step,
    chunks,
    initial_status,
    leader_step,
    missing_reports_warning,
    refreshed_status,
    rows_to_move,
    summarise,
)
from mld.fleet.migrate.states import TABLE_MIGRATION, TableStatus, first_row
from mld.fleet.report.reports import WorkerReport
from mld.leases.lease import Lease
from mld.leases.rows import Place

INIT, DEPLOYED, PENDING, COMPLETE = TableStatus
TABLE = "app-CoordinatorState"

# --- local status


@pytest.mark.parametrize(
    ("stored", "without", "with_migrate"),
    [
        (None, INIT, None),
        (INIT, INIT, None),
        (DEPLOYED, DEPLOYED, PENDING),
        (PENDING, DEPLOYED, PENDING),
        (COMPLETE, COMPLETE, COMPLETE),
    ],
)
def test_local_status_at_start(stored, without, with_migrate):
    assert initial_status(stored, coordinator_table=TABLE, migrate=False) is without
    if with_migrate is None:
        with pytest.raises(StartupError) as refused:
            initial_status(stored, coordinator_table=TABLE, migrate=True)
        for word in ("migrateAllEntitiesToLeaseTable=true", TABLE, "TableMigration3.5", "=false and wait"):
            assert word in str(refused.value)
    else:
        assert initial_status(stored, coordinator_table=TABLE, migrate=True) is with_migrate


@pytest.mark.parametrize("migrate", [False, True])
def test_without_a_coordinator_table_all_is_complete(migrate):
    assert initial_status(None, coordinator_table=None, migrate=migrate) is COMPLETE


@pytest.mark.parametrize(
    ("stored", "without", "with_migrate"),
    [
        (None, INIT, PENDING),  # its leader creates the row again
        (INIT, INIT, INIT),
        (DEPLOYED, DEPLOYED, PENDING),
        (PENDING, DEPLOYED, PENDING),
        (COMPLETE, COMPLETE, COMPLETE),
    ],
)
def test_local_status_at_a_refresh(stored, without, with_migrate):
    assert refreshed_status(DEPLOYED, stored, migrate=False) is without
    assert refreshed_status(PENDING, stored, migrate=True) is with_migrate


@pytest.mark.parametrize("stored", [None, *TableStatus])
@pytest.mark.parametrize("migrate", [False, True])
def test_complete_is_final(stored, migrate):
    assert refreshed_status(COMPLETE, stored, migrate=migrate) is COMPLETE


# --- routing

ROUTES = Routes("app", TABLE, "app-WorkerMetricStats")
LEASES = Place("app", "leaseKey")
STATES = Place(TABLE, "key")
REPORTS = Place("app-WorkerMetricStats", "wid")


@pytest.mark.parametrize(
    ("status", "read_states", "read_reports", "write_state", "write_report", "lock"),
    [
        (INIT, (STATES, LEASES), (REPORTS, LEASES), STATES, REPORTS, STATES),
        (DEPLOYED, (STATES, LEASES), (REPORTS, LEASES), STATES, REPORTS, STATES),
        (PENDING, (STATES, LEASES), (REPORTS, LEASES), LEASES, LEASES, STATES),
        (COMPLETE, (LEASES,), (LEASES,), LEASES, LEASES, LEASES),
    ],
)
def test_routing(status, read_states, read_reports, write_state, write_report, lock):
    live, at_start = replace(ROUTES, live=status), replace(ROUTES, at_start=status)
    assert (live.read_places, live.report_read_places, live.lock_place) == (read_states, read_reports, lock)
    assert (at_start.write_place, at_start.report_place) == (write_state, write_report)


def test_without_legacy_tables_everything_is_in_the_lease_table():
    routes = Routes("app")
    assert routes.read_places == routes.report_read_places == (LEASES,)
    assert routes.write_place == routes.report_place == routes.lock_place == LEASES


@pytest.mark.parametrize(("status", "warned"), [(INIT, True), (DEPLOYED, True), (PENDING, False), (COMPLETE, False)])
def test_a_missing_reports_table_is_told(status, warned):
    routes = Routes("app", TABLE, at_start=status, live=INIT)
    assert routes.report_read_places == (LEASES,)
    warning = missing_reports_warning(routes, "app-WorkerMetricStats")
    assert (warning is not None) == warned
    if warning:
        assert "app-WorkerMetricStats" in warning
        assert "mld.metadataLayout=legacy" in warning
    assert missing_reports_warning(replace(ROUTES, at_start=status), "app-WorkerMetricStats") is None


# --- summary

WALL_S = 1_784_640_000


def lease(key, owner):
    return Lease(key, TRIM_HORIZON, owner=owner)


def report(worker, *, age_s=0, code=1, code_age_s=None, legacy=False):
    said_at = WALL_S - (age_s if code_age_s is None else code_age_s)
    return WorkerReport(
        worker,
        WALL_S - age_s,
        support_code=code,
        support_at_s=None if code is None else said_at,
        legacy=legacy,
    )


def summary_of(leases, reports, **known):
    return summarise(leases, reports, wall_s=WALL_S, at=0.0, report_period_s=30.0, **known)


def test_summary_of_a_fleet():
    summary = summary_of(
        [lease("s1", "a"), lease("s2", "a"), lease("s3", "b"), lease("s4", None)],
        [report("a"), report("b", legacy=True), report("gone", age_s=61), report("late", age_s=60)],
    )
    assert summary == FleetSummary(0.0, frozenset("ab"), frozenset({"a", "late"}), frozenset("b"), 1)


@pytest.mark.parametrize(
    ("reports", "lowest"),
    [
        ([report("a"), report("b")], 1),
        ([report("a"), report("b", code=2)], 1),
        ([report("a")], 0),
        ([report("a"), report("b", code=None)], 0),
        ([report("a"), report("b", code=0)], 0),
        ([report("a"), report("b", code_age_s=90)], 1),
        ([report("a"), report("b", code_age_s=91)], 0),
        ([report("a"), report("b", code=0, code_age_s=5), report("b", code=1, code_age_s=3, legacy=True)], 1),
        ([report("a"), report("b", code=1, code_age_s=5), report("b", code=0, code_age_s=3, legacy=True)], 0),
        ([report("a"), report("b"), report("idle", code=None)], 0),  # alive, and may have a lease in a moment
        ([report("a"), report("b"), report("idle", code=None, legacy=True)], 0),
        ([report("a"), report("b"), report("idle")], 1),
        ([report("a"), report("b"), report("gone", code=None, age_s=61)], 1),
    ],
)
def test_lowest_support_code_of_owners_and_of_who_reports(reports, lowest):
    assert summary_of([lease("s1", "a"), lease("s2", "b")], reports).lowest_code == lowest


def test_a_fleet_without_owners_supports_nothing():
    assert summary_of([lease("s1", None)], [report("a")]).lowest_code == 0


def test_owners_of_expired_leases_do_not_count():
    leases = [lease("s1", "a"), lease("s2", "crashed")]
    assert not summary_of(leases, [report("a")]).all_support
    summary = summary_of(leases, [report("a")], expired={"s2"})
    assert summary.owners == {"a"}
    assert summary.all_support
    assert summary.all_moved


def test_a_new_leader_does_not_know_yet_whether_a_silent_owner_is_dead():
    leases = [lease("s1", "a"), lease("s2", "crashed")]
    assert summary_of(leases, [report("a")], unproven={"s1", "s2"}) is None
    assert summary_of(leases, [report("a")], unproven={"s1"}).owners == {"a", "crashed"}, "it renews, and is silent"
    assert summary_of(leases, [report("a")], expired={"s2"}, unproven={"s1"}).owners == {"a"}
    assert summary_of(leases, [report("a"), report("crashed")], unproven={"s1", "s2"}) is not None


@pytest.mark.parametrize(
    ("reports", "moved"),
    [
        ([report("a"), report("b")], True),
        ([report("a"), report("b", legacy=True)], False),
        ([report("a"), report("b"), report("b", legacy=True)], False),
        ([report("a"), report("b"), report("b", legacy=True, age_s=61)], True),
        ([report("a")], False),
        ([report("a"), report("b"), report("idle", legacy=True)], False),
    ],
)
def test_all_moved(reports, moved):
    assert summary_of([lease("s1", "a"), lease("s2", "b")], reports).all_moved == moved


# --- the leader's table

NOW_MS = WALL_S * 1000
GOOD = FleetSummary(0.0, frozenset("a"), frozenset("a"), frozenset(), 1)
OLD_WORKER = FleetSummary(0.0, frozenset("ab"), frozenset("a"), frozenset("b"), 0)
NOT_MOVED = FleetSummary(0.0, frozenset("a"), frozenset(), frozenset("a"), 1)
BAKE_S = 86_400.0
EMPTY = ("Leader", "TableMigration3.5")
FULL = (*EMPTY, "Migration3.0")


def row(state, age_s=0.0):
    return None if state is None else first_row(TABLE_MIGRATION, state, "w", NOW_MS - int(age_s * 1000))


def step(local, stored, summary, age_s=0.0, keys=None, now=0.0):
    return leader_step(
        local,
        row(stored, age_s),
        summary,
        wall_ms=NOW_MS,
        now=now,
        complete_bake_s=BAKE_S,
        legacy_keys=keys,
    )


@pytest.mark.parametrize(
    ("local", "stored", "summary", "age_s", "keys", "expected"),
    [
        (INIT, None, OLD_WORKER, 0, None, Step.NOTHING),
        (INIT, INIT, OLD_WORKER, 9999, None, Step.DELETE_ROW),
        (INIT, None, GOOD, 0, None, Step.CREATE_INIT),
        (INIT, INIT, GOOD, DEPLOYED_BAKE_S - 1, None, Step.NOTHING),
        (INIT, INIT, GOOD, DEPLOYED_BAKE_S, None, Step.TO_DEPLOYED),
        (INIT, DEPLOYED, GOOD, 0, None, Step.NOTHING),
        (INIT, DEPLOYED, OLD_WORKER, 0, None, Step.NOTHING),
        (DEPLOYED, PENDING, GOOD, 0, None, Step.TO_DEPLOYED),
        (DEPLOYED, PENDING, None, 0, None, Step.TO_DEPLOYED),
        (DEPLOYED, DEPLOYED, GOOD, 9e9, None, Step.NOTHING),
        (PENDING, None, GOOD, 0, None, Step.CREATE_DEPLOYED),
        (PENDING, None, None, 0, None, Step.CREATE_DEPLOYED),
        (PENDING, DEPLOYED, GOOD, 0, None, Step.LIST_LEGACY),
        (PENDING, DEPLOYED, GOOD, 0, FULL, Step.MOVE_ROWS),
        (PENDING, DEPLOYED, GOOD, 0, EMPTY, Step.TO_PENDING),
        (PENDING, DEPLOYED, NOT_MOVED, 0, None, Step.STOP_MOVE),
        (PENDING, PENDING, NOT_MOVED, 9e9, EMPTY, Step.TO_DEPLOYED),
        (PENDING, PENDING, GOOD, 9e9, None, Step.LIST_LEGACY),
        (PENDING, PENDING, GOOD, 9e9, FULL, Step.TO_DEPLOYED),
        (PENDING, PENDING, GOOD, BAKE_S - 1, EMPTY, Step.NOTHING),
        (PENDING, PENDING, GOOD, BAKE_S, EMPTY, Step.FINALISE),
        (COMPLETE, COMPLETE, GOOD, 9e9, EMPTY, Step.NOTHING),
    ],
)
def test_leader_actions(local, stored, summary, age_s, keys, expected):
    assert step(local, stored, summary, age_s, keys) is expected


@pytest.mark.parametrize("stored", [INIT, DEPLOYED, PENDING])
@pytest.mark.parametrize("local", [INIT, PENDING])
@pytest.mark.parametrize("keys", [None, EMPTY, FULL])
def test_without_a_fresh_summary_a_leader_does_nothing(local, stored, keys):
    assert step(local, stored, None, 9e9, keys) is Step.NOTHING
    for summary in (GOOD, OLD_WORKER, NOT_MOVED):
        assert step(local, stored, summary, 9e9, keys, now=SUMMARY_AGE_S_MAX + 1) is Step.NOTHING


@given(
    st.sampled_from(TableStatus),
    st.sampled_from([None, *TableStatus]),
    st.sampled_from([None, GOOD, OLD_WORKER, NOT_MOVED]),
    st.floats(0, 1e6),
    st.sampled_from([None, EMPTY, FULL]),
)
def test_nothing_is_completed_before_its_bake_or_with_an_unmoved_fleet(local, stored, summary, age_s, keys):
    if step(local, stored, summary, age_s, keys) is Step.FINALISE:
        assert (local, stored, summary, keys) == (PENDING, PENDING, GOOD, EMPTY)
        assert age_s >= BAKE_S - 1


def test_any_other_key_in_the_coordinator_table_is_to_be_moved():
    assert rows_to_move(FULL) == ("Migration3.0",)
    assert rows_to_move(EMPTY) == ()


def test_rows_are_moved_25_at_a_time():
    assert [len(chunk) for chunk in chunks(range(60))] == [25, 25, 10]
    assert list(chunks(())) == []
    assert 1 + 2 * MOVED_TOGETHER_MAX <= 100, "actions of a transaction"
