"""Runs a command that changes a table: prints its plan, saves the rows, has the changes written, and reports each.

Every such command goes through `perform`. Without --execute the plan is printed, and nothing is done. With --execute
the rows are first saved in a file (`backup`); the exit code is 0 if every change is written, else 1.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from socket import gethostname
from typing import NoReturn, TypeAlias

import click

from mld.aws.table_calls import TableCalls
from mld.core.clock import Clock
from mld.core.error_boundary import survived
from mld.core.terminal import EXIT_FAILURE, EXIT_OK, say, scrubber
from mld.metrics.events import Event, EventKind
from mld.operating.backup import forget, save_rows, saved_file
from mld.operating.command_ends import finish
from mld.operating.events import EventsTable, fit
from mld.operating.fleet_reader import FleetReader, fleet_reader
from mld.operating.fleet_status import FleetStatus
from mld.operating.operator_id import user_name
from mld.operating.options import Invocation
from mld.operating.plan import ActPlan, Fate, Outcome, RawTable
from mld.operating.table_access import Report, carry_out, read_table
from mld.properties.printable import printable

DOUBT = "what was not reported as done may be done or not; the same command again does what is left"
"""Printed if a command with --execute is interrupted, or its output is closed."""

Writing: TypeAlias = Callable[[Report], Awaitable[Sequence[Outcome]]]
"""A function that writes the changes, reports the outcome of each as soon as it is known, and returns all outcomes."""


@dataclass(frozen=True, slots=True)
class PlanInput:
    """What a plan is made from: the lease table as it was when the command began, the fleet that it shows, and the
    reader of both.
    """

    reader: FleetReader
    table: RawTable
    fleet: FleetStatus


Planner: TypeAlias = Callable[[PlanInput], ActPlan | Awaitable[ActPlan]]


def act(command: str, invocation: Invocation, planner: Planner) -> NoReturn:
    """Make the plan, print it, and exit. With --execute save the rows first, and write the changes on condition that
    the rows are as they were read.
    """
    settings = invocation.settings()

    async def acting() -> int:
        """Read the table, make the plan, and show or execute it. Return the exit code."""
        async with fleet_reader(settings) as reader:
            table = await read_table(reader.calls, reader.clock)
            plan_input = PlanInput(reader, table, await reader.look(table.scan))
            planned = planner(plan_input)
            plan = planned if isinstance(planned, ActPlan) else await planned

            def save() -> Path:
                """Save the rows as they were read."""
                return save_rows(command, settings, table.rows, reader.clock.wall(), invocation.backup_file)

            async def write(report: Report) -> Sequence[Outcome]:
                """Write the changes, and add the act to the history."""
                outcomes = await carry_out(plan, reader.table_of, reader.clock, report=report)
                await note_act(reader.calls, reader.clock, plan, outcomes)
                return outcomes

            return await perform(plan, invocation, save, write)

    finish(acting, doubt=DOUBT if invocation.execute else "")


async def note_act(calls: TableCalls, clock: Clock, plan: ActPlan, outcomes: Sequence[Outcome]) -> None:
    """Add an event about the operator's command to the history of the fleet, if the lease table has a row for the
    history. Nothing is added if certainly no change was written. A failure to add the event is only logged.
    """
    if not _may_be_made(outcomes):
        return
    done = sum(one.fate is Fate.DONE for one in outcomes)
    text = plan.title if done == len(outcomes) else f"{plan.title} ({done} of {len(outcomes)} rows written)"
    event = Event(EventKind.ACT, text, worker=f"{user_name()}@{gethostname()}", at_s=int(clock.wall()))
    try:
        await EventsTable(calls, clock, Random()).append((fit(event, scrubber()),), makes=False)
    except Exception as error:
        survived(error, "noting an act")


async def _never_refuse() -> None:
    """Do nothing. This is used for plans that are always allowed."""
    return


async def perform(
    plan: ActPlan,
    invocation: Invocation,
    save: Callable[[], Path],
    write: Writing,
    refuse: Callable[[], Awaitable[None]] = _never_refuse,
) -> int:
    """Print the plan, and with --execute save the rows and write the changes; return the exit code.

    If the changes take records away from a shard, these are saved first, too (`ActPlan.kept`). Their file is removed
    again if certainly no change was written.

    `refuse` raises ActRefusedError if the plan must not be carried out. With --execute it is called before anything is
    printed. Without --execute it is called after the plan is printed, so that the operator sees the plan in any case.
    """
    is_done, executes = True, bool(invocation.execute and plan.changes)
    if executes:
        await refuse()
    for line in (plan.title, *(f"  {change.key}: {change.words}" for change in plan.changes), *plan.notes):
        tell(line)
    if executes:
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
    """Return whether at least one change is written, or may be written because its outcome is unknown."""
    return any(one.fate in (Fate.DONE, Fate.UNKNOWN) for one in outcomes)
