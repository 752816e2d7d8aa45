"""What commands on a whole application have at hand: its rows, its stream, and a hold on its leases while they write.

Each runs alike: look, refuse what must not be done, print the plan; with --execute save the rows, take the leases as an
operator, look again, write, give the leases back.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, NoReturn, TypeAlias

from mld.aws.service import Service
from mld.aws.service_time import ServiceTime
from mld.aws.table_calls import TableCalls
from mld.core.clock import Clock, LoopClock
from mld.core.errors import TableMissingError
from mld.core.stream_ids import stream_of_key
from mld.core.streams import Shard, ShardFilter, StreamKind, Streams
from mld.core.turns import in_turns
from mld.fleet.migrate.bare_table import outline
from mld.leases.dynamodb import DynamoLeaseTable
from mld.leases.table import StoredTable
from mld.operating.acting import DOUBT, Report, note_act, perform, read_table
from mld.operating.backup import save_rows
from mld.operating.command_ends import finish
from mld.operating.fleet_reader import with_stream
from mld.operating.naming import only_stream, settings_of_one
from mld.operating.one_stream import in_stream, of_stream, require_form, stream_id_in, within
from mld.operating.open_services import REQUEST_TIMEOUT_S, dynamo_of, if_there
from mld.operating.operator_hold import OperatorHold, operator_hold
from mld.operating.operator_id import is_operator, operator_id
from mld.operating.options import Asked
from mld.operating.owner_life import Observed, living, owners_of, refusal
from mld.operating.plan import ActPlan, ActRefusedError, Change, Fate, Outcome, RawTable, Row, raw_table
from mld.operating.stream_access import streams_of
from mld.properties.settings import Settings, StreamSetting
from mld.retrieval.reader_factory import kind_of
from mld.shards.detector import NotListed, ShardDetector
from mld.shards.graph import oldest_generation, partition_fault
from mld.shards.identity import foreign_evidence

LISTINGS_MAX = 3
LISTING_SPACING_S = 1.0
ROUNDS_MAX = 4
"""How often the table is looked at again after writing, for rows that moved or came meanwhile."""

NOT_RECREATED = (
    " (which this stream was not: nothing says that it is younger than the table; `mld restore` puts saved rows back "
    "all the same)"
)
STOP_REMEDY = "stop them, or let --stop-fleet take their leases while this works"

Planner: TypeAlias = Callable[[RawTable, str], ActPlan]
"""(the table as it is now, the operator) -> what is left to write."""


@dataclass(frozen=True, slots=True)
class Application:
    """The application of a properties file, and the services behind it."""

    settings: Settings
    dynamo: Service
    leases: StoredTable
    streams: Streams
    clock: Clock
    setting: StreamSetting | None = None
    """The one of several streams that this is about; then the settings are those of it alone."""
    stream: str | None = None
    """Its identifier: of the leases only its own are seen."""
    is_several: bool = False
    """Whether the file names several streams."""
    kind: StreamKind = StreamKind.KINESIS
    me: str = field(default_factory=operator_id)
    """The operator that the command is, in the plan that is shown and in the rows that it holds."""

    @property
    def calls(self) -> TableCalls:
        """The lease table, for raw requests."""
        return self.table(self.settings.lease_table.name)

    @property
    def lease_duration_s(self) -> float:
        return self.settings.leases.duration_s

    def table(self, name: str) -> TableCalls:
        """Return a table of the application, for raw requests."""
        return TableCalls(self.dynamo, name, REQUEST_TIMEOUT_S)

    async def of_stream(self, name: str | None = None) -> Application:
        """Return the application that sees and writes the leases of one stream only; this one if the file names one.

        Raises ActRefusedError if the stream has no leases, TableError.
        """
        if self.setting is None:
            return self
        seen = await self.require_table()
        return replace(self, stream=stream_id_in(seen.table, self.setting, name))

    async def look(self) -> Observed:
        """Look at the rows as they are now. Raises TableError."""
        table = of_stream(await read_table(self.calls, self.clock), self.stream)
        return Observed(table, await self.rows_of(self.settings.worker_metrics_table.name))

    async def rows_of(self, table: str) -> tuple[Row, ...]:
        """Return the rows of a table that only fleets of KCL 3.0 to 3.4 have. Raises TableError."""
        return (await if_there(read_table(self.table(table), self.clock), raw_table(()))).rows

    async def require_table(self) -> Observed:
        """Return the rows. Raises ActRefusedError if there is no table, a row cannot be read, or the table is not of
        the form that the file has; TableError."""
        try:
            seen = await self.look()
        except TableMissingError as error:
            raise ActRefusedError(
                f"application {self.settings.application_name} has no lease table: {error}"
            ) from error
        if seen.table.scan.corrupt:
            key, why = seen.table.scan.corrupt[0]
            raise ActRefusedError(f"lease row {key} cannot be read: {why}; repair or delete the row first")
        require_form(seen.table, is_several=self.is_several)
        return seen

    async def table_or_none(self) -> Observed | None:
        """Return the rows; None if there is no table. Raises ActRefusedError for an unreadable row; TableError."""
        table = await if_there(self.calls.send("DescribeTable", {}), None)
        return None if table is None else await self.require_table()

    async def require_nobody(self, seen: Observed, *, stop_fleet: bool) -> None:
        """Raise ActRefusedError if an owner is alive, with `stop_fleet` if it is another operator; TableError.

        It takes one lease duration at most.
        """
        if stop_fleet:
            await self._refuse_living(seen, "", whom=is_operator)
        else:
            await self._refuse_living(seen, STOP_REMEDY)

    async def require_no_workers(
        self, seen: Observed, remedy: str, whom: Callable[[str], bool] = lambda _: True
    ) -> None:
        """Raise ActRefusedError if one of the workers `whom` is alive, one without a lease too: after the time between
        two reports at most. Raises TableError."""
        await self._refuse_living(seen, remedy, idle_report_s=self.settings.fleet.report_period_s, whom=whom)

    async def _refuse_living(self, seen: Observed, remedy: str, **which: Any) -> None:
        if alive := await living(self.look, seen, self.clock, self.lease_duration_s, **which):
            raise ActRefusedError(refusal(alive, owners_of(seen), remedy))

    # --- the stream ---------------------------------------------------------------------------------------------------

    async def shards(self, seen: RawTable | None = None, *, are_replaced: bool = False) -> tuple[Shard, ...]:
        """Return all shards, of a stream to which the rows belong. Raises ActRefusedError, StreamError and TableError.

        `are_replaced`: all rows are to be made anew, so they may be those of a stream that is gone. The stream that
        was made in its place is younger than the table; an older one is a stream that was named by mistake.
        """
        shards = await self._list(None)
        foreign = None if seen is None else await in_turns(foreign_evidence(shards, within(seen).scan.leases))
        if foreign is None or (are_replaced and await self._is_younger_than_table()):
            return shards
        raise ActRefusedError(foreign + (NOT_RECREATED if are_replaced else ""))

    async def _is_younger_than_table(self) -> bool:
        created_ms = (await self.streams.describe()).created_ms
        described = (await self.calls.send("DescribeTable", {}))["Table"].get("CreationDateTime")
        table_s = described.timestamp() if isinstance(described, datetime) else described
        return created_ms is not None and table_s is not None and created_ms > table_s * 1000

    async def open_at(self, place: ShardFilter) -> tuple[Shard, ...]:
        """Return the shards that were open at a place: a partition of all hash keys, where shards have such.

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
        listing = await ShardDetector(self.streams, self.clock, Random(), kind=self.kind).list_all(place)
        if isinstance(listing, NotListed):
            raise ActRefusedError(
                f"the shards of stream {self.settings.stream_name} cannot be listed: {listing.reason}"
            )
        if not listing.shards:
            raise ActRefusedError(f"ListShards names no shard of stream {self.settings.stream_name}")
        return listing.shards

    def hold(self, seen: Observed) -> AbstractAsyncContextManager[OperatorHold]:
        """Open a hold on leases; operators that were seen, and moved no lease while they were watched, are dead."""
        dead = frozenset(owner for owner in owners_of(seen) if is_operator(owner))
        return operator_hold(self.leases, self.clock, self.me, self.lease_duration_s, dead=dead)

    # --- writing ------------------------------------------------------------------------------------------------------

    def plan(self, planner: Planner, seen: RawTable) -> ActPlan:
        """Return what is left to write: what is shown is what is done. Raises ActRefusedError."""
        return in_stream(planner(within(seen), self.me), self.stream)

    async def carry_out(
        self, planner: Planner, report: Report, seen: Observed, *, stop_fleet: bool = False
    ) -> list[Outcome]:
        """Take all leases, write what `planner` wants until it wants nothing more, and give the leases back.

        `seen` is what `require_nobody` was asked about. Raises ActRefusedError if somebody else has been at work since;
        TableError, after which rows are as they were or as wanted.
        """
        self.leases.types_rows = not outline(seen.table.rows).is_of_2x
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
            plan = self.plan(planner, (await self.look()).table)
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
    """Return what was not tried: the writes are in a safe order, so none is made after one that failed."""
    return [Outcome(one, Fate.SKIPPED, "an earlier write failed") for one in changes if one.key not in outcomes]


async def act_on(
    app: Application, command: str, asked: Asked, planner: Planner, seen: Observed, *, stop_fleet: bool
) -> int:
    """Do what `planner` wants, or only show it; the exit code."""
    plan = app.plan(planner, seen.table)
    if app.setting is not None:
        plan = replace(plan, title=f"stream {app.setting.name}: {plan.title}")

    def save() -> Path:
        return save_rows(command, app.settings, seen.table.rows, app.clock.wall(), asked.backup_file)

    async def write(report: Report) -> Sequence[Outcome]:
        outcomes = await app.carry_out(planner, report, seen, stop_fleet=stop_fleet)
        await note_act(app.calls, app.clock, plan, outcomes)
        return outcomes

    return await perform(plan, asked, save, write, partial(app.require_nobody, seen, stop_fleet=stop_fleet))


@asynccontextmanager
async def application_of(settings: Settings, setting: StreamSetting | None = None) -> AsyncIterator[Application]:
    """Open the application of a properties file, with its credentials and endpoints. Of a file with several streams it
    is one for commands on the table only, or for one of them.

    Raises errors of `mld.core.errors`.
    """
    service_time, is_several = ServiceTime(), settings.is_multi_stream
    if setting is not None:
        settings = settings_of_one(settings, setting)
    async with dynamo_of(settings, service_time) as dynamo, streams_of(settings) as streams:
        app = application_with(settings, dynamo, streams, LoopClock(service_time.now))
        yield replace(app, setting=setting, is_several=is_several)


def application_with(settings: Settings, dynamo: Service, streams: Streams, clock: Clock) -> Application:
    """Return the application behind these ports."""
    leases = DynamoLeaseTable(dynamo, clock, table_name=settings.lease_table.name, request_timeout_s=REQUEST_TIMEOUT_S)
    return Application(settings, dynamo, leases, streams, clock, kind=kind_of(settings.stream_arn))


def run_on(
    asked: Asked,
    work: Callable[[Application], Awaitable[int]],
    *,
    stream: str | None = None,
    shard: str | None = None,
    of_whole: bool = False,
) -> NoReturn:
    """Run `work` on the application of a properties file, and exit with what it gives.

    If the file names several streams, `stream` says which one is meant, or `shard` if only one has such a shard; unless
    it is about the table as a whole.
    """
    settings = asked.settings()

    async def running() -> int:
        name = stream
        if settings.is_multi_stream and name is None and shard is not None:
            name = stream_of_key(await with_stream(settings, shard))
        async with application_of(settings, None if of_whole else only_stream(settings, name)) as app:
            return await work(app)

    finish(running, doubt=DOUBT if asked.execute else "")
