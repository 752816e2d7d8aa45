"""`mld leave-3x`: removes from the lease table what KCL 2.x cannot read. Rule: coordination#bare-tables.

Only leases are left. A table of this form tells workers of mld that workers of 2.x may use it, so that they start in
the modes of 2.x. The row that puts the fleet into 3.x mode is removed last. So if the command breaks off, the fleet is
still in 3.x mode, and the command can be run again.

Workers of 3.x would write such rows again, so none of them may be alive; they are known by their reports. Workers of
2.x may run already; they do not report.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from mld.fleet.migrate.states import CLIENT_VERSION
from mld.leases import rows, writes
from mld.leases.dynamodb import DynamoLeaseTable
from mld.leases.rows import COORDINATOR_TABLE_KEY, Place
from mld.leases.table import Condition, LeaseTable, LeaseWrite, Value
from mld.operating.acting import perform
from mld.operating.application import Application
from mld.operating.backup import save_rows
from mld.operating.open_services import REQUEST_TIMEOUT_S
from mld.operating.options import Invocation
from mld.operating.owner_life import Observed, reporting_workers
from mld.operating.plan import ActPlan, Change, Outcome, RawTable, Row
from mld.operating.table_access import Report, carry_out

TITLE = "the lease table becomes one that KCL 2.x can read"
STOP_REMEDY = "stop them first: they write rows that KCL 2.x cannot read"


def plan_leaving(table: RawTable, coordinator_rows: Iterable[Row] = (), coordinator: Place | None = None) -> ActPlan:
    """Plan what is left to change in the lease table, and in the coordinator table of KCL 3.0 to 3.4."""
    changes = [
        Change("no longer says that it was made for KCL 3.5", _write_if_unchanged(row, removes=(rows.ENTITY_TYPE,)))
        for row in table.rows
        if rows.is_lease(row) and rows.ENTITY_TYPE in row
    ]
    # The row that puts the fleet into 3.x mode comes last.
    gone = sorted(table.scan.others, key=lambda row: (_key(row) == CLIENT_VERSION.key, _key(row)))
    changes += [Change("goes", _write_if_unchanged(row)) for row in gone]
    for row in coordinator_rows:
        if row[COORDINATOR_TABLE_KEY]["S"] == CLIENT_VERSION.key:
            seen = Value(":seen", row[CLIENT_VERSION.attribute])
            write = writes.yes_or_no("leave", CLIENT_VERSION.key, Condition.equal(CLIENT_VERSION.attribute, seen))
            changes.append(Change(f"goes from {coordinator.table if coordinator else ''}", write, coordinator))
    return ActPlan(TITLE, tuple(changes))


def _write_if_unchanged(row: Row, **how: tuple[str, ...]) -> LeaseWrite[bool]:
    """Return a write that changes or deletes the row, if the row's entity type is still the one that was read. `how`
    has further arguments of the write.
    """
    seen = Condition.equal(rows.ENTITY_TYPE, Value(":type", row[rows.ENTITY_TYPE]))
    return writes.yes_or_no("leave", _key(row), seen, **how)


def _key(row: Row) -> str:
    return str(row[rows.KEY]["S"])


async def make_room_for_2x(app: Application, invocation: Invocation) -> int:
    """Print what KCL 2.x cannot read, and with --execute remove it; return the exit code.

    Raises ActRefusedError, TableError.
    """
    observed = await app.require_table()
    coordinator = Place(app.settings.coordinator_state_table.name, COORDINATOR_TABLE_KEY)
    plan = plan_leaving(observed.table, await app.rows_of(coordinator.table), coordinator)

    def table_of(change: Change) -> LeaseTable:
        """Return the table that the change is written to."""
        if change.place is None:
            return app.leases
        return DynamoLeaseTable(
            app.dynamo,
            app.clock,
            table_name=change.place.table,
            request_timeout_s=REQUEST_TIMEOUT_S,
            key_name=change.place.key,
        )

    def save() -> Path:
        """Save the rows as they were read."""
        return save_rows("mld leave-3x", app.settings, observed.table.rows, app.clock.wall(), invocation.backup_file)

    async def write(report: Report) -> Sequence[Outcome]:
        """Write the changes. No event is noted, because the row of the history is removed, too."""
        return await carry_out(plan, table_of, app.clock, report=report)

    return await perform(plan, invocation, save, write, lambda: _require_none_of_3x(app, observed))


async def _require_none_of_3x(app: Application, observed: Observed) -> None:
    """Raise ActRefusedError if a worker that has a report is alive. Workers of KCL 2.x have none."""
    await app.require_no_workers(observed, STOP_REMEDY, whom=reporting_workers(observed).__contains__)
