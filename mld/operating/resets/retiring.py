"""`mld teardown`: what an application has in AWS, and taking it down: its tables, and its own consumer of fan-out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mld.aws.service import Service
from mld.aws.table_calls import REFUSED_CODE, RefusedError, TableCalls
from mld.core.errors import AwsError, MldError, StreamNotFoundError, TableMissingError
from mld.fleet.values import COORDINATOR_TABLE_KEY, LEASE_TABLE_KEY, REPORTS_TABLE_KEY
from mld.leases import rows
from mld.operating.acts.backup import backup_name, free_name, save_rows
from mld.operating.acts.plan import ActRefusedError, RawTable, Row
from mld.operating.resets.application import Application, Doors, application_of
from mld.properties.settings import Settings, StreamSetting
from mld.tracking.stream_list import ENTITY as LIST_ENTITY

PROTECTED_CODE = "ValidationException"
GONE_CODE = "ResourceNotFoundException"
ENTITIES = frozenset(
    {"LEASE", "STREAM", "LEADER", "CLIENT_VERSION_MIGRATION", "TABLE_MIGRATION", "WORKER_METRIC_STATS", LIST_ENTITY}
)
"""What the kinds of rows are called that KCL and mld write into a lease table."""


@dataclass(frozen=True, slots=True)
class FoundTable:
    """A table of the application, with all its rows."""

    name: str
    what: str
    rows: tuple[Row, ...]
    indexes: tuple[str, ...]
    is_protected: bool

    @property
    def words(self) -> str:
        """For people."""
        indexes = f", index {', '.join(self.indexes)}" if self.indexes else ""
        protected = "; deletion protection is on" if self.is_protected else ""
        return f"{self.what}, {len(self.rows)} rows{indexes}{protected}"


@dataclass(frozen=True, slots=True)
class Possessions:
    """What there is. `consumer` is the ARN of the application's own fan-out consumer."""

    tables: tuple[FoundTable, ...]
    consumer: str | None = None
    more_consumers: tuple[tuple[StreamSetting, str], ...] = ()
    """Those of several streams."""

    @property
    def consumers(self) -> tuple[str, ...]:
        """The ARNs of all of them."""
        return (*((self.consumer,) if self.consumer else ()), *(arn for _, arn in self.more_consumers))


async def possessions(app: Application, settings: Settings, dynamo: Service, kinesis: Service) -> Possessions:
    """Look for everything. Raises ActRefusedError for a table of something else; TableError, StreamError."""
    wanted = (
        (settings.table_name, LEASE_TABLE_KEY, "lease table"),
        (settings.coordinator_state_table_name, COORDINATOR_TABLE_KEY, "coordinator states of KCL 3.0 to 3.4"),
        (settings.worker_metrics_table_name, REPORTS_TABLE_KEY, "worker reports of KCL 3.0 to 3.4"),
    )
    found = []
    for name, key, what in wanted:
        table = await _table(app, TableCalls(dynamo, name, 10.0), key, what)
        if table is not None:
            found.append(table)
    consumer = None if settings.is_multi_stream else await own_consumer(app, settings, kinesis)
    return Possessions(tuple(found), consumer)


async def consumers_of_all(settings: Settings) -> tuple[tuple[StreamSetting, str], ...]:
    """The consumers that the application has registered with its streams. Raises StreamError, AwsError."""
    found = []
    for setting in settings.streams:
        async with application_of(settings, setting) as doors:
            arn = await own_consumer(doors.app, doors.settings, doors.kinesis)
        if arn is not None:
            found.append((setting, arn))
    return tuple(found)


async def deregister_all(
    settings: Settings, consumers: Sequence[tuple[StreamSetting, str]]
) -> Sequence[tuple[str, str]]:
    """Deregister them; what became of each. A failure does not stop the others."""
    outcomes = []
    for setting, arn in consumers:
        async with application_of(settings, setting) as doors:
            outcomes.append((arn, await _deregister(arn, doors.kinesis)))
    return outcomes


async def _table(app: Application, calls: TableCalls, key: str, what: str) -> FoundTable | None:
    from mld.operating.acts.execution import read_table

    try:
        described = (await calls.send("DescribeTable", {}))["Table"]
    except TableMissingError:
        return None
    require_key(calls.table_name, described, key)
    table: RawTable = await read_table(calls)
    if what == "lease table":
        require_lease_rows(calls.table_name, table)
    return FoundTable(
        calls.table_name,
        what,
        table.rows,
        tuple(index["IndexName"] for index in described.get("GlobalSecondaryIndexes", ())),
        bool(described.get("DeletionProtectionEnabled")),
    )


def require_key(name: str, described: Mapping[str, Any], key: str) -> None:
    """Raises ActRefusedError for a table of another shape."""
    schema = [(one.get("AttributeName"), one.get("KeyType")) for one in described.get("KeySchema", ())]
    if schema != [(key, "HASH")]:
        shown = ", ".join(f"{attribute} {kind}" for attribute, kind in schema)
        raise ActRefusedError(
            f"table {name} is no table of KCL: its key is {shown}, not {key} HASH; check applicationName and tableName"
        )


def require_lease_rows(name: str, table: RawTable) -> None:
    """Raises ActRefusedError if a row is neither a lease nor anything else that KCL keeps there."""
    for row in table.rows:
        kind = row.get(rows.ENTITY_TYPE, {}).get("S")
        is_known = kind in ENTITIES if kind is not None else rows.COUNTER in row and rows.CHECKPOINT in row
        if not is_known:
            key = row.get(rows.KEY, {}).get("S", rows.UNKNOWN_KEY)
            raise ActRefusedError(
                f"table {name} holds a row that no lease table has ({key[:60]}): it serves something else too; delete "
                "it yourself if that is right"
            )


async def own_consumer(app: Application, settings: Settings, kinesis: Service) -> str | None:
    """The ARN of the consumer that this application registers; one that is configured is somebody else's."""
    if settings.fanout_consumer_arn is not None:
        return None
    try:
        arn = (await app.streams.describe()).arn
    except StreamNotFoundError:
        return None
    params = {"StreamARN": arn, "ConsumerName": settings.fanout_consumer_name}
    try:
        answer = await kinesis.call("DescribeStreamConsumer", params)
    except AwsError as error:
        if error.code == GONE_CODE:
            return None
        raise
    return str(answer["ConsumerDescription"]["ConsumerARN"])


def require_unprotected(found: Possessions) -> None:
    """Raises ActRefusedError, with the remedy, for a table that DynamoDB would not delete."""
    for table in found.tables:
        if table.is_protected:
            raise ActRefusedError(
                f"table {table.name} has deletion protection: switch it off first, with `aws dynamodb update-table "
                f"--table-name {table.name} --no-deletion-protection-enabled`"
            )


async def take_down(found: Possessions, dynamo: Service, kinesis: Service) -> Sequence[tuple[str, str]]:
    """Delete all of it, the lease table last; what became of each. A failure does not stop the others."""
    outcomes = []
    if found.consumer is not None:
        outcomes.append((found.consumer, await _deregister(found.consumer, kinesis)))
    for table in reversed(found.tables):
        outcomes.append((table.name, await _delete(TableCalls(dynamo, table.name, 10.0))))
    return outcomes


async def _deregister(arn: str, kinesis: Service) -> str:
    try:
        await kinesis.call("DeregisterStreamConsumer", {"ConsumerARN": arn})
    except AwsError as error:
        return "gone already" if error.code == GONE_CODE else f"failed: {error}"
    except MldError as error:
        return f"failed: {error}"
    return "deregistered"


async def _delete(calls: TableCalls) -> str:
    try:
        await calls.send("DeleteTable", {}, refusals=(REFUSED_CODE, PROTECTED_CODE))
    except TableMissingError:
        return "gone already"
    except (RefusedError, MldError) as error:
        return f"failed: {error}"
    return "deleted"


def exported_tables(
    doors: Doors, path: Path | None, tables: Mapping[str, Sequence[Row]]
) -> list[tuple[str, Path, int]]:
    """Save each table in a file of its own: (table, file, rows). Raises BackupError."""
    app = doors.app
    first = path or free_name(Path(backup_name(app.name, app.clock.wall())))
    written = []
    for name, found in tables.items():
        file = first if name == app.table_name else first.with_name(f"{first.stem}-{name}{first.suffix}")
        save_rows("export", app.name, name, app.stream_name, found, app.clock.wall(), file)
        written.append((name, file, len(found)))
    return written
