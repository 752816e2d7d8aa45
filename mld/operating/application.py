"""`Application`: gives commands on a whole application its rows, its stream, and a hold on its leases.

All these commands run alike. They read the table, refuse what must not be done, and print the plan. With --execute they
then save the rows, take the leases as an operator, read the table again, write, and give the leases back.
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
from mld.operating.acting import DOUBT, note_act, perform
from mld.operating.backup import save_rows
from mld.operating.command_ends import finish
from mld.operating.fleet_reader import with_stream
from mld.operating.naming import only_stream, settings_of_one
from mld.operating.one_stream import in_stream, of_stream, require_form, stream_id_in, within
from mld.operating.open_services import REQUEST_TIMEOUT_S, dynamo_of, if_there
from mld.operating.operator_hold import OperatorHold, operator_hold
from mld.operating.operator_id import is_operator, operator_id
from mld.operating.options import Invocation
from mld.operating.owner_life import Observed, living, owners_of, refusal
from mld.operating.plan import ActPlan, ActRefusedError, Change, Fate, Outcome, RawTable, Row, raw_table
from mld.operating.stream_access import streams_of
from mld.operating.table_access import Report, read_table
from mld.properties.settings import Settings, StreamSetting
from mld.retrieval.reader_factory import kind_of
from mld.shards.detector import NotListed, ShardDetector
from mld.shards.graph import oldest_generation, partition_fault
from mld.shards.identity import foreign_evidence

LISTINGS_MAX = 3
LISTING_SPACING_S = 1.0
"""Attempts to list the shards, and the pause between two, until the list is complete (`Application.open_at`)."""
ROUNDS_MAX = 4
"""How many times the table is read and written again, if rows were added or changed meanwhile. After that the command
gives up.
"""

NOT_RECREATED = (
    " (but nothing shows that this stream was made again, after the table; `mld restore` puts saved rows back all the "
    "same)"
)
STOP_REMEDY = "stop them, or let --stop-fleet take their leases while this works"

Planner: TypeAlias = Callable[[RawTable, str], ActPlan]
"""A function that takes the present table and the operator's id, and returns the plan of what is left to write."""


@dataclass(frozen=True, slots=True)
class Application:
    """The application of a properties file, and its connections to AWS."""

    settings: Settings
    dynamo: Service
    leases: StoredTable
    streams: Streams
    clock: Clock
    setting: StreamSetting | None = None
    """The stream that the command is about, if the file names several; `settings` are then those of this stream
    alone.
    """
    stream: str | None = None
    """Identifier of that stream. If set, only its leases are read and written."""
    is_several: bool = False
    """Whether the file names several streams."""
    kind: StreamKind = StreamKind.KINESIS
    me: str = field(default_factory=operator_id)
    """Id of this command as an operator. Rows that it holds have this owner."""

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
        """Return the application limited to the leases of one stream; unchanged if the command is about the whole
        table, or if the file names only one stream.

        A stream that was deleted and made again may have leases under several identifiers. Then `name`, the stream as
        the operator wrote it, may be the identifier that is meant (see `stream_id_in`). Raises ActRefusedError if the
        stream has no leases; TableError.
        """
        if self.setting is None:
            return self
        observed = await self.require_table()
        return replace(self, stream=stream_id_in(observed.table, self.setting, name))

    async def look(self) -> Observed:
        """Return the present rows of the lease table, and the worker reports that fleets of KCL 3.0 to 3.4 keep in
        another table. Raises TableError.
        """
        table = of_stream(await read_table(self.calls, self.clock), self.stream)
        return Observed(table, await self.rows_of(self.settings.worker_metrics_table.name))

    async def rows_of(self, table: str) -> tuple[Row, ...]:
        """Return the rows of a table that only fleets of KCL 3.0 to 3.4 have; none if it does not exist. Raises
        TableError.
        """
        return (await if_there(read_table(self.table(table), self.clock), raw_table(()))).rows

    async def require_table(self) -> Observed:
        """Return the rows.

        Raises ActRefusedError if there is no table, if a row cannot be read, or if the table is for one stream and the
        file for several, or the reverse. Raises TableError.
        """
        try:
            observed = await self.look()
        except TableMissingError as error:
            raise ActRefusedError(
                f"application {self.settings.application_name} has no lease table: {error}"
            ) from error
        if observed.table.scan.corrupt:
            key, why = observed.table.scan.corrupt[0]
            raise ActRefusedError(f"lease row {key} cannot be read: {why}; repair or delete the row first")
        require_form(observed.table, is_several=self.is_several)
        return observed

    async def table_or_none(self) -> Observed | None:
        """Return the rows; None if there is no table. Raises ActRefusedError if a row cannot be read; TableError."""
        table = await if_there(self.calls.send("DescribeTable", {}), None)
        return None if table is None else await self.require_table()

    async def require_nobody(self, observed: Observed, *, stop_fleet: bool) -> None:
        """Raise ActRefusedError if the owner of a lease is alive. With `stop_fleet` workers may be alive, because their
        leases are taken by force; then only another living operator is refused.

        It watches the rows for one lease duration at most. Raises TableError.
        """
        if stop_fleet:
            await self._refuse_living(observed, "", whom=is_operator)
        else:
            await self._refuse_living(observed, STOP_REMEDY)

    async def require_no_workers(
        self, observed: Observed, remedy: str, whom: Callable[[str], bool] = lambda _: True
    ) -> None:
        """Raise ActRefusedError if a worker is alive, even one without a lease. `whom` selects the workers that count.

        It watches the rows and reports for the time between two reports at most. Raises TableError.
        """
        await self._refuse_living(observed, remedy, idle_report_s=self.settings.fleet.report_period_s, whom=whom)

    async def _refuse_living(self, observed: Observed, remedy: str, **which: Any) -> None:
        """Raise ActRefusedError if a worker is alive. `which` is passed to `owner_life.living`."""
        if alive := await living(self.look, observed, self.clock, self.lease_duration_s, **which):
            raise ActRefusedError(refusal(alive, owners_of(observed), remedy))

    # --- the stream ---------------------------------------------------------------------------------------------------

    async def shards(self, table: RawTable | None = None, *, are_replaced: bool = False) -> tuple[Shard, ...]:
        """Return all shards of the stream. Raises ActRefusedError if the rows belong to another stream.

        `are_replaced` means that the command replaces all rows. Then they may belong to a deleted stream of the same
        name, but only if the present stream is younger than the table; otherwise the file names the wrong stream.
        Raises StreamError and TableError, too.
        """
        shards = await self._list(None)
        foreign = None if table is None else await in_turns(foreign_evidence(shards, within(table).scan.leases))
        if foreign is None or (are_replaced and await self._is_younger_than_table()):
            return shards
        raise ActRefusedError(foreign + (NOT_RECREATED if are_replaced else ""))

    async def _is_younger_than_table(self) -> bool:
        """Return whether the stream was created after the lease table; False if either time is unknown."""
        created_ms = (await self.streams.describe()).created_ms
        described = (await self.calls.send("DescribeTable", {}))["Table"].get("CreationDateTime")
        table_s = described.timestamp() if isinstance(described, datetime) else described
        return created_ms is not None and table_s is not None and created_ms > table_s * 1000

    async def open_at(self, place: ShardFilter) -> tuple[Shard, ...]:
        """Return the shards that were open at a place in the stream. If the list has both a parent and its children,
        only the parent is returned. Shards of Kinesis must cover all hash keys, without overlaps; if they do not, they
        are listed again, up to LISTINGS_MAX times.

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
        """List the shards of the stream that `place` selects; None selects all. Raises ActRefusedError if the list is
        empty or incomplete.
        """
        listing = await ShardDetector(self.streams, self.clock, Random(), kind=self.kind).list_all(place)
        if isinstance(listing, NotListed):
            raise ActRefusedError(
                f"the shards of stream {self.settings.stream_name} cannot be listed: {listing.reason}"
            )
        if not listing.shards:
            raise ActRefusedError(f"ListShards names no shard of stream {self.settings.stream_name}")
        return listing.shards

    def hold(self, observed: Observed) -> AbstractAsyncContextManager[OperatorHold]:
        """Open a hold, with which this command owns leases until the context ends. Call `require_nobody` first, which
        makes sure that no other operator is alive: the hold assumes that all operators in `observed` are dead.
        """
        dead = frozenset(owner for owner in owners_of(observed) if is_operator(owner))
        return operator_hold(self.leases, self.clock, self.me, self.lease_duration_s, dead=dead)

    # --- writing ------------------------------------------------------------------------------------------------------

    def plan(self, planner: Planner, table: RawTable) -> ActPlan:
        """Return the changes that `planner` has left to make in the present `table`, as writes to rows of this stream.
        The first such plan is printed; later ones are carried out. Raises ActRefusedError.
        """
        return in_stream(planner(within(table), self.me), self.stream)

    async def carry_out(
        self, planner: Planner, report: Report, observed: Observed, *, stop_fleet: bool = False
    ) -> list[Outcome]:
        """Take all leases, write the changes of `planner` until it plans no more, and give the leases back.

        `observed` is the table that was given to `require_nobody`. Raises ActRefusedError if another worker or operator
        has written since. Raises TableError; then each row is either as before or as planned.
        """
        # KCL 2.x cannot read rows with an `entityType`, so new rows get none while it may use the table.
        self.leases.types_rows = not outline(observed.table.rows).is_of_2x
        async with self.hold(observed) as hold:
            # Living workers have renewed their rows since. Without workers, a row that has changed since is refused.
            now = await self.look() if stop_fleet else observed
            await hold.take(now.table.scan.leases, by_force=stop_fleet)
            # Until a former owner notices the loss, it believes that it holds the lease, and may create rows of child
            # shards.
            await hold.until_noticed()
            return await self._write_rounds(planner, report, hold, stop_fleet=stop_fleet)

    async def _write_rounds(
        self, planner: Planner, report: Report, hold: OperatorHold, *, stop_fleet: bool
    ) -> list[Outcome]:
        """Write what `planner` plans, and plan again from the rows as they are then, until the plan has no changes.
        Stop at the first write that is not done. Return the outcome of each change, also of those that were not tried.
        """
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
        raise ActRefusedError(f"rows still change after {ROUNDS_MAX} rounds: somebody else is at work; try again")

    async def _take_newcomers(self, hold: OperatorHold, *, stop_fleet: bool) -> None:
        """Take the leases that were added since the last read. Raises ActRefusedError if one has an owner, unless
        `stop_fleet` is set.
        """
        new = [lease for lease in (await self.look()).table.scan.leases if lease.key not in hold.keys]
        owned = next((lease for lease in new if lease.actual_owner is not None), None)
        if owned is not None and not stop_fleet:
            raise ActRefusedError(
                f"{owned.actual_owner} has taken lease {owned.key} meanwhile: somebody else is at work"
            )
        await hold.take(new, by_force=stop_fleet)


def _not_tried(changes: Sequence[Change], outcomes: dict[str, Outcome]) -> Iterable[Outcome]:
    """Return outcomes for the changes that were not tried after one had failed, because their order matters."""
    return [Outcome(one, Fate.SKIPPED, "an earlier write failed") for one in changes if one.key not in outcomes]


async def act_on(
    app: Application, command: str, invocation: Invocation, planner: Planner, observed: Observed, *, stop_fleet: bool
) -> int:
    """Print the plan that `planner` makes from the rows as `observed`, and with --execute carry it out; return the exit
    code. With --execute, raises ActRefusedError if an owner of a lease is alive (`require_nobody`, which describes
    `stop_fleet`).
    """
    plan = app.plan(planner, observed.table)
    if app.setting is not None:
        plan = replace(plan, title=f"stream {app.setting.name}: {plan.title}")

    def save() -> Path:
        """Save the rows as they were read."""
        return save_rows(command, app.settings, observed.table.rows, app.clock.wall(), invocation.backup_file)

    async def write(report: Report) -> Sequence[Outcome]:
        """Take the leases, write the changes, give the leases back, and add the act to the history."""
        outcomes = await app.carry_out(planner, report, observed, stop_fleet=stop_fleet)
        await note_act(app.calls, app.clock, plan, outcomes)
        return outcomes

    return await perform(plan, invocation, save, write, partial(app.require_nobody, observed, stop_fleet=stop_fleet))


@asynccontextmanager
async def application_of(settings: Settings, setting: StreamSetting | None = None) -> AsyncIterator[Application]:
    """Open the application of a properties file, with its credentials and endpoints.

    `setting` is the stream that the command is about, if the file names several. Without it, such a file serves only
    commands on the whole table. Raises errors of `mld.core.errors`.
    """
    service_time, is_several = ServiceTime(), settings.is_multi_stream
    if setting is not None:
        settings = settings_of_one(settings, setting)
    async with dynamo_of(settings, service_time) as dynamo, streams_of(settings) as streams:
        app = application_with(settings, dynamo, streams, LoopClock(service_time.now))
        yield replace(app, setting=setting, is_several=is_several)


def application_with(settings: Settings, dynamo: Service, streams: Streams, clock: Clock) -> Application:
    """Return the application that reaches AWS by these clients."""
    leases = DynamoLeaseTable(dynamo, clock, table_name=settings.lease_table.name, request_timeout_s=REQUEST_TIMEOUT_S)
    return Application(settings, dynamo, leases, streams, clock, kind=kind_of(settings.stream_arn))


def run_on(
    invocation: Invocation,
    work: Callable[[Application], Awaitable[int]],
    *,
    stream: str | None = None,
    shard: str | None = None,
    of_whole: bool = False,
) -> NoReturn:
    """Run `work` on the application of a properties file, and exit with the code that it returns.

    If the file names several streams, `stream` selects one. So does `shard`, if only one of the streams has such a
    shard. `of_whole`: the command is about the whole table.
    """
    settings = invocation.settings()

    async def running() -> int:
        """Open the application, do the work on it, and return the exit code. If several streams are configured and only
        a shard is named, its stream is found by the shard's lease key.
        """
        name = stream
        if settings.is_multi_stream and name is None and shard is not None:
            name = stream_of_key(await with_stream(settings, shard))
        async with application_of(settings, None if of_whole else only_stream(settings, name)) as app:
            return await work(app)

    finish(running, doubt=DOUBT if invocation.execute else "")
