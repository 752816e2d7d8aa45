"""`mld teardown`: what an application has in AWS, and taking it down: its tables, and its own consumer of fan-out."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mld.aws.table_calls import REFUSED_CODE, RefusedError, TableCalls
from mld.core.clock import Clock
from mld.core.errors import AwsError, MldError, StreamNotFoundError, TableMissingError
from mld.core.terminal import EXIT_FAILURE, EXIT_OK
from mld.fleet.values import COORDINATOR_TABLE_KEY, LEASE_TABLE_KEY, REPORTS_TABLE_KEY
from mld.leases import rows
from mld.operating.acting import read_table, teller
from mld.operating.application import Application, application_of
from mld.operating.backup import backup_name, free_name, save_rows
from mld.operating.options import Asked, show
from mld.operating.plan import ActRefusedError, RawTable, Row
from mld.properties.settings import StreamSetting
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
    """What there is: tables, and ARNs of the application's own fan-out consumers, each with its stream of several."""

    tables: tuple[FoundTable, ...]
    consumers: tuple[tuple[StreamSetting | None, str], ...] = ()

    @property
    def arns(self) -> tuple[str, ...]:
        return tuple(arn for _, arn in self.consumers)


async def possessions(app: Application) -> Possessions:
    """Look for everything. Raises ActRefusedError for a table of something else; TableError, StreamError, AwsError."""
    settings = app.settings
    wanted = (
        (settings.lease_table.name, LEASE_TABLE_KEY, "lease table"),
        (settings.coordinator_state_table.name, COORDINATOR_TABLE_KEY, "coordinator states of KCL 3.0 to 3.4"),
        (settings.worker_metrics_table.name, REPORTS_TABLE_KEY, "worker reports of KCL 3.0 to 3.4"),
    )
    found = [await _table(app.table(name), app.clock, key, what) for name, key, what in wanted]
    consumers = []
    for setting in settings.streams or (None,):
        async with _alone(app, setting) as one:
            if (arn := await own_consumer(one)) is not None:
                consumers.append((setting, arn))
    return Possessions(tuple(table for table in found if table is not None), tuple(consumers))


@asynccontextmanager
async def _alone(app: Application, setting: StreamSetting | None) -> AsyncIterator[Application]:
    """Open the application of one of several streams; it is `app` if the file names one."""
    if setting is None:
        yield app
    else:
        async with application_of(app.settings, setting) as one:
            yield one


async def _table(calls: TableCalls, clock: Clock, key: str, what: str) -> FoundTable | None:
    try:
        described = (await calls.send("DescribeTable", {}))["Table"]
    except TableMissingError:
        return None
    require_key(calls.table_name, described, key)
    table = await read_table(calls, clock)
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
    """Raise ActRefusedError for a table of another shape."""
    schema = [(one.get("AttributeName"), one.get("KeyType")) for one in described.get("KeySchema", ())]
    if schema != [(key, "HASH")]:
        shown = ", ".join(f"{attribute} {kind}" for attribute, kind in schema)
        raise ActRefusedError(
            f"table {name} is no table of KCL: its key is {shown}, not {key} HASH; check applicationName and tableName"
        )


def require_lease_rows(name: str, table: RawTable) -> None:
    """Raise ActRefusedError if a row is neither a lease nor anything else that KCL keeps there."""
    for row in table.rows:
        kind = row.get(rows.ENTITY_TYPE, {}).get("S")
        is_known = kind in ENTITIES if kind is not None else rows.COUNTER in row and rows.CHECKPOINT in row
        if not is_known:
            key = row.get(rows.KEY, {}).get("S", rows.UNKNOWN_KEY)
            raise ActRefusedError(
                f"table {name} holds a row that no lease table has ({key[:60]}): it serves something else too; delete "
                "it yourself if that is right"
            )


async def own_consumer(app: Application) -> str | None:
    """Return the ARN of the consumer that this application registers; one that is configured is somebody else's."""
    if app.settings.fanout.consumer_arn is not None:
        return None
    assert app.kinesis is not None, "opened with the application"
    try:
        arn = (await app.streams.describe()).arn
    except StreamNotFoundError:
        return None
    params = {"StreamARN": arn, "ConsumerName": app.settings.fanout.consumer_name}
    try:
        answer = await app.kinesis.call("DescribeStreamConsumer", params)
    except AwsError as error:
        if error.code == GONE_CODE:
            return None
        raise
    return str(answer["ConsumerDescription"]["ConsumerARN"])


def require_unprotected(found: Possessions) -> None:
    """Raise ActRefusedError, with the remedy, for a table that DynamoDB would not delete."""
    for table in found.tables:
        if table.is_protected:
            raise ActRefusedError(
                f"table {table.name} has deletion protection: switch it off first, with `aws dynamodb update-table "
                f"--table-name {table.name} --no-deletion-protection-enabled`"
            )


async def take_down(found: Possessions, app: Application) -> AsyncIterator[tuple[str, str]]:
    """Delete all of it, the lease table last; what became of each. A failure does not stop the others."""
    for setting, arn in found.consumers:
        async with _alone(app, setting) as one:
            yield arn, await _deregister(arn, one)
    for table in reversed(found.tables):
        yield table.name, await _delete(app.table(table.name))


async def _deregister(arn: str, app: Application) -> str:
    assert app.kinesis is not None, "opened with the application"
    try:
        await app.kinesis.call("DeregisterStreamConsumer", {"ConsumerARN": arn})
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


# --- the commands -----------------------------------------------------------------------------------------------------


async def export_tables(app: Application, output: str, path: Path | None) -> int:
    """Save all rows, also those of the tables of KCL 3.0 to 3.4; the exit code. Raises BackupError, TableError."""
    settings = app.settings
    tables: dict[str, Sequence[Row]] = {settings.lease_table.name: (await read_table(app.calls, app.clock)).rows}
    for name in (settings.coordinator_state_table.name, settings.worker_metrics_table.name):
        if found := await app.rows_of(name):
            tables[name] = found
    written = exported_tables(app, path, tables)
    lines = [f"{count} rows of {name} are saved in {file}" for name, file, count in written]
    show(output, lines, [{"table": name, "file": str(file), "rows": count} for name, file, count in written])
    return EXIT_OK


def exported_tables(
    app: Application, path: Path | None, tables: Mapping[str, Sequence[Row]]
) -> list[tuple[str, Path, int]]:
    """Save each table in a file of its own: (table, file, rows). Raises BackupError."""
    settings, now_s = app.settings, app.clock.wall()
    first = path or free_name(Path(backup_name(settings.application_name, now_s)))
    written = []
    for name, found in tables.items():
        file = first if name == settings.lease_table.name else first.with_name(f"{first.stem}-{name}{first.suffix}")
        written.append((name, save_rows("export", settings, found, now_s, file, name), len(found)))
    return written


async def tear_down(app: Application, asked: Asked) -> int:
    """Delete what the application has, or list it; the exit code. Raises ActRefusedError, BackupError, MldError."""
    settings, found = app.settings, await possessions(app)
    lines = [f"application {settings.application_name} has:"]
    lines += [f"  table {one.name}: {one.words}" for one in found.tables]
    lines += [f"  fan-out consumer {arn}" for arn in found.arns]
    value: dict[str, Any] = {
        "tables": [{"name": one.name, "what": one.what, "rows": len(one.rows)} for one in found.tables],
        "consumer": None if settings.is_multi_stream else next(iter(found.arns), None),
        **({"consumers": list(found.arns)} if settings.is_multi_stream else {}),
    }
    if not found.tables and not found.consumers:
        lines = [f"application {settings.application_name} has no table and no consumer", "nothing to do"]
        show(asked.output, lines, value)
        return EXIT_OK
    require_unprotected(found)
    seen = await app.table_or_none()
    if seen is not None:
        if not settings.is_multi_stream:
            await app.require_stream_of(seen)
        await app.require_no_workers(seen, "stop them first")
    if not asked.execute:
        show(asked.output, [*lines, "nothing was done; --execute deletes it"], value)
        return EXIT_OK
    backup = None if asked.backup_file is None else Path(asked.backup_file)
    written = exported_tables(app, backup, {one.name: one.rows for one in found.tables})
    lines += [f"{count} rows of {name} are saved in {file}" for name, file, count in written]
    echo, outcomes = teller(asked), dict[str, str]()
    for line in lines:
        echo(line)
    try:
        async for name, what in take_down(found, app):
            outcomes[name] = what
            echo(f"{name}: {what}")
    finally:
        show(asked.output, [], value | {"saved": [str(file) for _, file, _ in written], "outcomes": outcomes})
    return EXIT_FAILURE if any(what.startswith("failed") for what in outcomes.values()) else EXIT_OK
