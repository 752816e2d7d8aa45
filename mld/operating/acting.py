"""Carries out a plan: prints it, saves the rows, writes change after change, and reports what became of each.

`perform` is the way of every command that changes a table: without --execute the plan is printed and nothing is done;
with it the rows are saved first (`backup`), and the exit code is 0 if every change is written, else 1. A refusal is
final, because the row is not what the plan saw. A write that was certainly not applied (throttling) is tried again; one
that may have been applied is reported as unknown, never as done.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from socket import gethostname
from typing import Any, NoReturn, TypeAlias

import click

from mld.aws.table_calls import TableCalls
from mld.core.clock import Clock
from mld.core.error_boundary import survived
from mld.core.errors import TableError, TableMissingError, TableThrottledError
from mld.core.terminal import EXIT_FAILURE, EXIT_OK, say
from mld.leases.lease import Lease
from mld.leases.table import LeaseTable, Refusal
from mld.metrics.events import Event, EventKind
from mld.operating.backup import forget, save_rows, saved_file
from mld.operating.command_ends import finish
from mld.operating.events import EventsTable, fit
from mld.operating.fleet_reader import FleetReader, fleet_reader
from mld.operating.fleet_status import FleetStatus
from mld.operating.operator_id import user_name
from mld.operating.options import Asked
from mld.operating.plan import ActPlan, Change, Fate, Outcome, RawTable, Row, raw_table
from mld.properties.printable import printable
from mld.properties.scrubber import Scrubber

THROTTLED_TRIES_MAX = 8
THROTTLED_PAUSE_S = 0.2
SCAN_TIMEOUT_S = 20.0
READ_AGAIN_S = (0.5, 1.0, 2.0)
"""Pauses before a page of the table that could not be read is asked for again."""

DOUBT = "what was not reported as done may be done or not; the same command again does what is left"

Report: TypeAlias = Callable[[Outcome], None]
Writing: TypeAlias = Callable[[Report], Awaitable[Sequence[Outcome]]]
"""Writes, and reports what becomes of each change; all outcomes."""


async def read_table(calls: TableCalls, clock: Clock) -> RawTable:
    """Read every row. Raises TableError, after some tries; TableMissingError if there is no such table."""
    found: list[Row] = []
    params: dict[str, Any] = {"ConsistentRead": True}
    while True:
        answer = await _page(calls, clock, params)
        found.extend(answer.get("Items", ()))
        if not answer.get("LastEvaluatedKey"):
            return raw_table(found)
        params = params | {"ExclusiveStartKey": answer["LastEvaluatedKey"]}


async def _page(calls: TableCalls, clock: Clock, params: dict[str, Any]) -> Mapping[str, Any]:
    for pause_s in READ_AGAIN_S:
        try:
            return await calls.send("Scan", params, timeout_s=SCAN_TIMEOUT_S)
        except TableMissingError:
            raise
        except TableError:
            await clock.sleep(pause_s)
    return await calls.send("Scan", params, timeout_s=SCAN_TIMEOUT_S)


async def carry_out(
    plan: ActPlan, table_of: Callable[[Change], LeaseTable], clock: Clock, *, report: Report = lambda _: None
) -> Sequence[Outcome]:
    """Write every change of the plan, in its order; what became of each. A failure does not stop the others."""
    outcomes = []
    for change in plan.changes:
        outcome = await write_change(change, table_of(change), clock)
        report(outcome)
        outcomes.append(outcome)
    return outcomes


async def write_change(change: Change, table: LeaseTable, clock: Clock) -> Outcome:
    """Send one change; what became of it."""
    pause_s = THROTTLED_PAUSE_S
    for attempt in range(1, THROTTLED_TRIES_MAX + 1):
        try:
            answer = await table.apply(change.write)
        except TableThrottledError as error:
            if attempt == THROTTLED_TRIES_MAX:
                return Outcome(change, Fate.REFUSED, str(error))
            await clock.sleep(pause_s)
            pause_s *= 2
        except TableError as error:
            return Outcome(change, Fate.UNKNOWN, f"{error}; look at the row before you ask again")
        else:
            if answer is False or isinstance(answer, Refusal):
                return Outcome(change, Fate.REFUSED, "the row has changed since it was read; ask again")
            return Outcome(change, Fate.DONE, row=answer if isinstance(answer, Lease) else change.write.creates)
    raise AssertionError("unreachable")


# --- commands ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PlanInput:
    """What a plan of steering is made from: the lease table when the command began, what it shows of the fleet, and
    who reads it."""

    reader: FleetReader
    table: RawTable
    fleet: FleetStatus


Planner: TypeAlias = Callable[[PlanInput], ActPlan | Awaitable[ActPlan]]


def act(command: str, asked: Asked, planner: Planner) -> NoReturn:
    """Plan, print, and with --execute save and write rows as they were seen, and exit."""
    settings = asked.settings()

    async def acting() -> int:
        async with fleet_reader(settings) as reader:
            table = await read_table(reader.calls, reader.clock)
            seen = PlanInput(reader, table, await reader.look(table.scan))
            planned = planner(seen)
            plan = planned if isinstance(planned, ActPlan) else await planned

            def save() -> Path:
                return save_rows(command, settings, table.rows, reader.clock.wall(), asked.backup_file)

            async def write(report: Report) -> Sequence[Outcome]:
                outcomes = await carry_out(plan, reader.table_of, reader.clock, report=report)
                await note_act(reader.calls, reader.clock, plan, outcomes)
                return outcomes

            return await perform(plan, asked, save, write)

    finish(acting, doubt=DOUBT if asked.execute else "")


async def note_act(calls: TableCalls, clock: Clock, plan: ActPlan, outcomes: Sequence[Outcome]) -> None:
    """Add what an operator did to the history of the fleet, if it has one. It costs the act nothing if that fails."""
    if not _may_be_made(outcomes):
        return
    done = sum(one.fate is Fate.DONE for one in outcomes)
    text = plan.title if done == len(outcomes) else f"{plan.title} ({done} of {len(outcomes)} rows written)"
    event = Event(EventKind.ACT, text, worker=f"{user_name()}@{gethostname()}", at_s=int(clock.wall()))
    try:
        await EventsTable(calls, clock, Random()).append((fit(event, Scrubber()),), makes=False)
    except Exception as error:
        survived(error, "noting an act")


async def _nobody_minds() -> None:
    return


async def perform(
    plan: ActPlan,
    asked: Asked,
    save: Callable[[], Path],
    write: Writing,
    refuse: Callable[[], Awaitable[None]] = _nobody_minds,
) -> int:
    """Print the plan, and with --execute save the rows and write; the exit code.

    `refuse` raises ActRefusedError if it must not be done: before anything is printed with --execute, else at the end.
    """
    is_done, is_written = True, bool(asked.execute and plan.changes)
    if is_written:
        await refuse()
    for line in (plan.title, *(f"  {change.key}: {change.words}" for change in plan.changes), *plan.notes):
        tell(line)
    if is_written:
        tell(f"the rows are saved in {save()}")
        if plan.kept is not None:
            with saved_file(plan.kept.path) as file:
                file.writelines(plan.kept.lines)
            tell(f"what is taken away is saved in {plan.kept.path}")
        outcomes = await write(lambda outcome: tell(f"  {outcome.change.key}: {outcome.words}"))
        is_done = all(one.fate is Fate.DONE for one in outcomes)
        if plan.kept is not None and not _may_be_made(outcomes):
            forget(plan.kept.path)
            tell(f"nothing was taken away, and {plan.kept.path} is gone again")
    elif plan.changes:
        await refuse()
        tell("nothing was done; --execute does it")
    else:
        tell("nothing to do")
    if not is_done:
        say("not all rows were written; the same command again does what is left")
    return EXIT_OK if is_done else EXIT_FAILURE


def tell(text: str) -> None:
    """Print a line for people, at once."""
    click.echo(printable(text))


def _may_be_made(outcomes: Sequence[Outcome]) -> bool:
    return any(one.fate in (Fate.DONE, Fate.UNKNOWN) for one in outcomes)
