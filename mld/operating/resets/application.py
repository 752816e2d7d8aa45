"""What acts on a whole application have at hand: its rows, its stream, and a hold on its leases while they write.

Each act runs alike: look, refuse what must not be done, print the plan; with --execute save the rows, take the leases
as an operator, look again, write, give the leases back.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from random import Random

from mld.aws.client_factory import client_factory
from mld.aws.service import Service
from mld.aws.table_calls import TableCalls
from mld.aws.wire_or_boto import service_of
from mld.core.clock import Clock, LoopClock
from mld.core.errors import TableError, TableMissingError
from mld.core.positions import AT_TIMESTAMP, LATEST, TRIM_HORIZON, InitialPosition
from mld.core.streams import Shard, ShardFilter, StreamKind, Streams
from mld.core.turns import in_turns
from mld.leases.dynamodb import DynamoLeaseTable
from mld.leases.lease import Lease
from mld.leases.table import LeaseTable
from mld.operating.acts.execution import read_table
from mld.operating.acts.plan import ActPlan, ActRefusedError, Change, Fate, Outcome, RawTable, Row
from mld.operating.fleet_reader import dynamo_of
from mld.operating.resets.one_stream_view import in_stream, of_stream, require_form, stream_id_in, within
from mld.operating.resets.operator_hold import OperatorHold, is_operator, operator_hold
from mld.operating.resets.owners import Observed, living, owners_of, refusal
from mld.operating.stream_choice import settings_of_one
from mld.properties.settings import Settings, StreamSetting
from mld.properties.values import InitialPositionKind
from mld.retrieval.stream_adapters import LABELS, kind_of, service_name, streams_port
from mld.shards.detector import NotListed, ShardDetector
from mld.shards.graph import oldest_generation, partition_fault
from mld.shards.identity import foreign_evidence

REQUEST_TIMEOUT_S = 10.0
CONNECT_TIMEOUT_S = 5.0
THREADS = 8
LISTINGS_MAX = 3
LISTING_SPACING_S = 1.0
LOOK_AGAIN_S = (0.5, 1.0, 2.0)
"""Pauses before a look at the table that failed is made again."""
ROUNDS_MAX = 4
"""How often the table is looked at again after writing, for rows that moved or came meanwhile."""

NOT_RECREATED = " (which this stream was not: nothing says that it is younger than the table)"

Report = Callable[[Outcome], None]
Planner = Callable[[RawTable, str], ActPlan]
"""(the table as it is now, the operator) -> what is left to write."""


@dataclass(frozen=True, slots=True)
class Application:
    """The application of a properties file. `legacy_reports` is the report table of KCL 3.0 to 3.4."""

    name: str
    stream_name: str
    lease_duration_s: float
    report_period_s: float
    calls: TableCalls
    legacy_reports: TableCalls
    leases: LeaseTable
    streams: Streams
    clock: Clock
    stream: str | None = None
    """The identifier of the one of several streams that this is about: of the leases only its own are seen."""
    kind: StreamKind = StreamKind.KINESIS
    stream_label: str | None = None
    """What the file calls that stream; None if the file is one of a single stream."""

    @property
    def table_name(self) -> str:
        return self.calls.table_name

    async def look(self) -> Observed:
        """The rows as they are now. Raises TableError, after some tries unless there is no table."""
        for pause_s in (*LOOK_AGAIN_S, None):
            try:
                return Observed(of_stream(await read_table(self.calls), self.stream), await self._reports())
            except TableMissingError:
                raise
            except TableError:
                if pause_s is None:
                    raise
                await self.clock.sleep(pause_s)
        raise AssertionError("unreachable")

    async def _reports(self) -> tuple[Row, ...]:
        try:
            return (await read_table(self.legacy_reports)).rows
        except TableMissingError:
            return ()

    def own(self, table: RawTable) -> RawTable:
        """The table with the shards' own names as keys, as acts on one stream plan it."""
        return within(table)

    async def require_table(self, *, any_form: bool = False) -> Observed:
        """The rows. Raises ActRefusedError if there is no table, a row cannot be read, or, unless `any_form`, the table
        is not of the form that the file has; TableError."""
        try:
            seen = await self.look()
        except TableMissingError as error:
            raise ActRefusedError(f"application {self.name} has no lease table: {error}") from error
        if seen.table.scan.corrupt:
            key, why = seen.table.scan.corrupt[0]
            raise ActRefusedError(f"lease row {key} cannot be read: {why}; repair or delete the row first")
        if not any_form:
            require_form(seen.table, is_several=self.stream_label is not None)
        return seen

    async def table_or_none(self) -> Observed | None:
        """The rows; None if there is no table. Raises ActRefusedError for a row that cannot be read; TableError."""
        try:
            await self.calls.send("DescribeTable", {})
        except TableMissingError:
            return None
        return await self.require_table()

    async def require_stream_of(self, seen: Observed) -> None:
        """Raises ActRefusedError if the rows are of another stream than the one that is configured, if there is one."""
        if await self.stream_exists():
            await self.shards(seen.table)

    async def require_no_operators(self, seen: Observed) -> None:
        """Raises ActRefusedError if another operator is at work, after one lease duration at most; TableError."""
        owners = owners_of(seen)
        alive = await living(self.look, seen, self.clock, self.lease_duration_s, whom=is_operator)
        if alive:
            raise ActRefusedError(refusal(alive, owners, ""))

    async def require_no_owners(self, seen: Observed, remedy: str) -> None:
        """Raises ActRefusedError if an owner is alive, after one lease duration at most. Raises TableError."""
        await self._require_nobody(seen, remedy, None)

    async def require_no_workers(self, seen: Observed, remedy: str) -> None:
        """As `require_no_owners`, of workers without a lease too: after the time between two reports at most."""
        await self._require_nobody(seen, remedy, self.report_period_s)

    async def _require_nobody(self, seen: Observed, remedy: str, idle_report_s: float | None) -> None:
        alive = await living(self.look, seen, self.clock, self.lease_duration_s, idle_report_s=idle_report_s)
        if alive:
            raise ActRefusedError(refusal(alive, owners_of(seen), remedy))

    # --- the stream ---------------------------------------------------------------------------------------------------

    def _detector(self) -> ShardDetector:
        return ShardDetector(self.streams, self.clock, Random(), kind=self.kind)

    async def shards(self, seen: RawTable | None = None, *, are_replaced: bool = False) -> tuple[Shard, ...]:
        """All shards, of a stream to which the rows belong. Raises ActRefusedError, StreamError and TableError.

        `are_replaced`: all rows are to be made anew, so they may be those of a stream that is gone. The stream that
        was made in its place is younger than the table; an older one is a stream that was named by mistake.
        """
        shards = await self._list(None)
        foreign = None if seen is None else await in_turns(foreign_evidence(shards, self.own(seen).scan.leases))
        if foreign is None or (are_replaced and await self._is_younger_than_table()):
            return shards
        raise ActRefusedError(foreign + (NOT_RECREATED if are_replaced else ""))

    async def _is_younger_than_table(self) -> bool:
        created_ms = (await self.streams.describe()).created_ms
        described = (await self.calls.send("DescribeTable", {}))["Table"].get("CreationDateTime")
        table_s = described.timestamp() if isinstance(described, datetime) else described
        return created_ms is not None and table_s is not None and created_ms > table_s * 1000

    async def open_at(self, place: ShardFilter) -> tuple[Shard, ...]:
        """The shards that were open at a place: a partition of all hash keys, where shards have such.

        Raises ActRefusedError and StreamError.
        """
        fault: str | None = None
        for attempt in range(LISTINGS_MAX):
            if attempt:
                await self.clock.sleep(LISTING_SPACING_S)
            shards = await in_turns(oldest_generation(await self._list(place)))
            fault = partition_fault(shards) if self.kind.has_hash_keys else None
            if fault is None:
                return shards
        raise ActRefusedError(f"ListShards shows no complete set of shards for this place: {fault}")

    async def _list(self, place: ShardFilter | None) -> tuple[Shard, ...]:
        listing = await self._detector().list_all(place)
        if isinstance(listing, NotListed):
            raise ActRefusedError(f"the shards of stream {self.stream_name} cannot be listed: {listing.reason}")
        if not listing.shards:
            raise ActRefusedError(f"ListShards names no shard of stream {self.stream_name}")
        return listing.shards

    async def stream_exists(self) -> bool:
        """Raises StreamError if that cannot be told."""
        listing = await self._detector().list_all(None)
        return not (isinstance(listing, NotListed) and listing.is_missing)

    def hold(self, seen: Observed) -> AbstractAsyncContextManager[OperatorHold]:
        """A hold on leases; operators that were seen, and did not move a lease while they were watched, are dead."""
        dead = frozenset(owner for owner in owners_of(seen) if is_operator(owner))
        return operator_hold(self.leases, self.calls, self.clock, self.lease_duration_s, dead=dead)

    # --- writing ------------------------------------------------------------------------------------------------------

    async def carry_out(
        self, planner: Planner, report: Report, seen: Observed, *, stop_fleet: bool = False
    ) -> list[Outcome]:
        """Take all leases, write what `planner` wants until it wants nothing more, and give the leases back.

        `seen` is what `require_no_owners`, or with `stop_fleet` `require_no_operators`, was asked about. Raises
        ActRefusedError if somebody else has been at work since; TableError, after which rows are as they were or as
        wanted.
        """
        async with self.hold(seen) as hold:
            now = await self.look() if stop_fleet else seen
            await hold.take(now.table.scan.leases, by_force=stop_fleet)
            # Until then a former owner may believe in its lease, and create the rows of its shard's children.
            await hold.until_noticed()
            return await self._write_rounds(planner, report, hold, stop_fleet=stop_fleet)

    async def _write_rounds(
        self, planner: Planner, report: Report, hold: OperatorHold, *, stop_fleet: bool
    ) -> list[Outcome]:
        outcomes: dict[str, Outcome] = {}
        for _ in range(ROUNDS_MAX):
            await self._take_newcomers(hold, stop_fleet=stop_fleet)
            plan = in_stream(planner(self.own((await self.look()).table), hold.me), self.stream)
            if not plan.changes:
                return list(outcomes.values())
            for change in plan.changes:
                outcome = await hold.write(change)
                outcomes[change.key] = outcome
                report(outcome)
                if outcome.fate is not Fate.DONE:
                    return [*outcomes.values(), *_not_tried(plan.changes, outcomes)]
        raise ActRefusedError(f"rows still change after {ROUNDS_MAX} rounds: somebody else is at work; ask again")

    async def _take_newcomers(self, hold: OperatorHold, *, stop_fleet: bool) -> None:
        """Take the leases that came since the table was looked at. Raises ActRefusedError if they have owners, unless
        these are to give way."""
        new = [lease for lease in (await self.look()).table.scan.leases if lease.key not in hold.keys]
        owned = next((lease for lease in new if lease.actual_owner is not None), None)
        if owned is not None and not stop_fleet:
            raise ActRefusedError(
                f"{owned.actual_owner} has taken lease {owned.key} meanwhile: somebody else is at work"
            )
        await hold.take(new, by_force=stop_fleet)


def _not_tried(changes: Sequence[Change], outcomes: dict[str, Outcome]) -> Iterable[Outcome]:
    """The writes are in a safe order, so none is made after one that failed."""
    return [Outcome(one, Fate.SKIPPED, "an earlier write failed") for one in changes if one.key not in outcomes]


def is_like(row: Lease, target: Lease) -> bool:
    """Whether the row is as a reset wants it, whoever owns it."""
    return (
        row.checkpoint == target.checkpoint
        and row.pending is None
        and row.children == target.children
        and row.parents == target.parents
        and not is_of_another_shard(row, target)
        and row.failing is None
    )


def is_of_another_shard(row: Lease, target: Lease) -> bool:
    """Whether the row is of a shard of the same name in a stream that is gone; rows of old versions have no range."""
    return row.hash_range not in (None, target.hash_range)


@dataclass(frozen=True, slots=True)
class Doors:
    """The application, and the services behind it."""

    app: Application
    settings: Settings
    dynamo: Service
    kinesis: Service
    stream: StreamSetting | None = None
    """The one of several streams that this is about; then the settings are those of it alone."""


@asynccontextmanager
async def application_of(settings: Settings, stream: StreamSetting | None = None) -> AsyncIterator[Doors]:
    """The application of a properties file, with its credentials and endpoints. Of a file with several streams it is
    one for acts on the table only, or for one `stream`.

    Raises errors of `mld.core.errors`.
    """
    clock = LoopClock()
    label = stream.name if stream is not None else "" if settings.is_multi_stream else None
    if stream is not None:
        settings = settings_of_one(settings, stream)
    async with AsyncExitStack() as stack:
        dynamo = await stack.enter_async_context(dynamo_of(settings))
        kind = kind_of(settings.stream_arn)
        kinesis = service_of(
            client_factory(settings),
            service_name(kind),
            label=LABELS[kind],
            lean=False,
            threads_max=THREADS,
            calls_max=THREADS,
            read_timeout_s=REQUEST_TIMEOUT_S,
            connect_timeout_s=CONNECT_TIMEOUT_S,
        )
        await kinesis.open()
        stack.push_async_callback(kinesis.close)
        streams = streams_port(kinesis, clock, settings.stream_name, settings.stream_arn)
        app = replace(application_with(settings, dynamo, streams, clock), kind=kind, stream_label=label)
        yield Doors(app, settings, dynamo, kinesis, stream)


async def for_stream(doors: Doors, name: str | None = None) -> Doors:
    """The doors for acts that see and write the leases of that one of several streams only; as they are without one.

    Raises ActRefusedError if the stream has no leases.
    """
    if doors.stream is None:
        return doors
    seen = await doors.app.require_table()
    return replace(doors, app=replace(doors.app, stream=stream_id_in(seen.table, doors.stream, name)))


def initial_of(settings: Settings) -> InitialPosition:
    """Where leases without a number begin."""
    configured = settings.initial_position
    sentinel = {
        InitialPositionKind.LATEST: LATEST,
        InitialPositionKind.TRIM_HORIZON: TRIM_HORIZON,
        InitialPositionKind.AT_TIMESTAMP: AT_TIMESTAMP,
    }[configured.kind]
    return InitialPosition(sentinel, configured.timestamp_s)


def application_with(settings: Settings, dynamo: Service, streams: Streams, clock: Clock) -> Application:
    """The application behind these ports."""
    return Application(
        name=settings.application_name,
        stream_name=settings.stream_name,
        lease_duration_s=settings.failover_time_millis / 1000,
        report_period_s=settings.worker_metrics_reporter_freq_in_millis / 1000,
        calls=TableCalls(dynamo, settings.table_name, REQUEST_TIMEOUT_S),
        legacy_reports=TableCalls(dynamo, settings.worker_metrics_table_name, REQUEST_TIMEOUT_S),
        leases=DynamoLeaseTable(dynamo, clock, table_name=settings.table_name, request_timeout_s=REQUEST_TIMEOUT_S),
        streams=streams,
        clock=clock,
        kind=kind_of(settings.stream_arn),
    )
