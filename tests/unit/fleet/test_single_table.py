"""Where rows live, by the row of the migration to a single table (coordination#table-layout and on)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mld.core.errors import StartupError
from mld.fleet.migrate.single_table import Routes, initial_status, missing_reports_warning, refreshed_status
from mld.fleet.migrate.states import TableStatus
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
        for word in (
            "migrateAllEntitiesToLeaseTable=true",
            TABLE,
            "TableMigration3.5",
            "=false and wait",
            "a Java worker of 3.5",
        ):
            assert word in str(refused.value)
    else:
        assert initial_status(stored, coordinator_table=TABLE, migrate=True) is with_migrate


@pytest.mark.parametrize("migrate", [False, True])
def test_without_a_coordinator_table_all_is_complete(migrate):
    assert initial_status(None, coordinator_table=None, migrate=migrate) is COMPLETE


@pytest.mark.parametrize(
    ("stored", "without", "with_migrate"),
    [
        (None, INIT, PENDING),  # a Java leader creates the row again
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
