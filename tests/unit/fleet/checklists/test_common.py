"""The checklist of every worker (coordination#every-worker): identity, clocks, layout, permissions."""

from __future__ import annotations

import pytest

from mld.core.errors import StartupError
from tests.support.fleet import TABLE
from tests.unit.fleet.checklists.java import JavaWorker
from tests.unit.fleet.checklists.wire import LEASES, REPORTS, STATES, V3X, story


@story(2, **V3X)
async def test_one_worker_id_stands_in_leases_handoffs_report_and_lock(stage):
    stage.start("host-1:9f3c")
    await stage.until(lambda: len(stage.owned_by("host-1:9f3c")) == 2)
    assert stage.leader() == "host-1:9f3c"
    assert stage.row("host-1:9f3c")["entityType"] == {"S": "WORKER_METRIC_STATS"}
    assert stage.text("Migration3.0", "mb") == "host-1:9f3c"
    JavaWorker(stage, "java-1").start()
    await stage.until(lambda: len(stage.owned_by("java-1")) == 1, 120)
    owners = {w.after["checkpointOwner"]["S"] for w in stage.dynamo.history if "checkpointOwner" in w.after}
    assert owners == {"host-1:9f3c"}


@pytest.mark.parametrize("ahead_s", [-5.0, 5.0])
@story(4, **V3X)
async def test_a_clock_some_seconds_off_changes_nothing(stage, ahead_s):
    stage.start("w1")
    await stage.until(lambda: len(stage.owned_by("w1")) == 4)
    java = JavaWorker(stage, "java-1", clock_ahead_s=ahead_s).start()
    await stage.until(lambda: len(java.held()) == 2, 200)
    await stage.advance(120)
    assert len(java.held()) == 2


@pytest.mark.parametrize(
    ("stored", "migrate", "lock_at", "report_at"),
    [
        (None, "false", STATES, REPORTS),
        ("INIT", "false", STATES, REPORTS),
        ("DEPLOYED", "false", STATES, REPORTS),
        ("PENDING", "false", STATES, REPORTS),
        ("DEPLOYED", "true", STATES, LEASES),
        ("PENDING", "true", STATES, LEASES),
        ("COMPLETE", "false", LEASES, LEASES),
        ("COMPLETE", "true", LEASES, LEASES),
    ],
)
@story(1, **V3X)
async def test_the_layout_is_that_of_the_stored_status(stage, stored, migrate, lock_at, report_at):
    await stage.legacy()
    if stored is not None:
        stage.plant_status(stored)
    stage.start("w1", migrateAllEntitiesToLeaseTable=migrate)
    await stage.until(lambda: stage.leader(lock_at) == "w1" and stage.row("w1", report_at) is not None)
    other = {LEASES: STATES, STATES: LEASES}[lock_at]
    assert stage.leader(other) is None
    assert stage.row("w1", LEASES if report_at == REPORTS else REPORTS) is None


@pytest.mark.parametrize("migrate", ["false", "true"])
@story(1, **V3X)
async def test_without_legacy_tables_everything_is_in_the_lease_table(stage, migrate):
    stage.start("w1", migrateAllEntitiesToLeaseTable=migrate)
    await stage.until(lambda: stage.leader() == "w1" and stage.row("w1") is not None and stage.version() == "3X")
    await stage.advance(60)
    assert not stage.dynamo.has_table(STATES.table)
    assert not stage.dynamo.has_table(REPORTS.table)
    assert stage.row("TableMigration3.5") is None, "COMPLETE by absence is not written"
    assert stage.requests.of("w1", "DescribeTable", table=STATES.table), "but it was looked for"


@story(1, **V3X)
async def test_a_forbidden_look_for_the_legacy_tables_is_a_sentence(stage):
    stage.dynamo.forbidden.add(("DescribeTable", STATES.table))
    worker = stage.start("w1")
    with pytest.raises(StartupError, match="dynamodb:DescribeTable") as caught:
        await worker.task
    assert STATES.table in str(caught.value)
    assert stage.leader() is None


@story(2, **V3X)
async def test_without_permission_for_the_index_leases_are_found_by_scans(stage):
    stage.dynamo.forbidden |= {"Query", "UpdateTable"}
    worker = stage.start("w1")
    await stage.until(lambda: len(worker.worker.held()) == 2, 30)
    scans = [r for r in stage.requests.of("w1", "Scan", table=TABLE) if r.params.get("ProjectionExpression")]
    assert scans
