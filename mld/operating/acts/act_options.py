"""What the commands that act share: options, the plan on the screen, the saved rows, outcomes, exit codes.

`act` runs one that writes rows as they were seen; `perform` is what those that hold the leases meanwhile have in common
with it. A dry run prints the plan and ends with 0. With --execute the rows are saved first; then the exit code is 0 if
every change is written, else 1.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from mld.core.errors import MldError, TableMissingError
from mld.core.terminal import EXIT_FAILURE, EXIT_OK, chosen_file, say, settings_of

if TYPE_CHECKING:
    from mld.aws.service import Service
    from mld.aws.table_calls import TableCalls
    from mld.core.clock import Clock
    from mld.operating.acts.plan import ActPlan, Outcome, RawTable
    from mld.operating.fleet_reader import FleetReader
    from mld.properties.settings import Settings

F = TypeVar("F", bound=Callable[..., Any])
REQUEST_TIMEOUT_S = 10.0
FILE_SUFFIX = ".properties"

_execute = click.option("--execute", is_flag=True, help="Do it. Without this the plan is printed, and nothing is done.")
_backup = click.option(
    "--backup",
    "backup_file",
    metavar="FILE",
    help="Where the rows are saved before anything is changed, instead of a file in the working directory.",
)
_output = click.option(
    "-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True, help="How to print."
)


def acting(command: F) -> F:
    """Adds the parameters `execute`, `backup_file` and `output`."""
    return _execute(_backup(_output(command)))


def file_and_words(words: Sequence[str], option_file: str | None, *names: str) -> tuple[str, tuple[str, ...]]:
    """The properties file, and a word for each name, from words that may have the file at their beginning or end.

    Raises click.UsageError.
    """
    if len(words) < len(names):
        raise click.UsageError(f"missing argument: {' '.join(names[len(words) :])}")
    if len(words) > len(names) + 1:
        raise click.UsageError(f"too many arguments: {' '.join(words)}")
    rest, file = tuple(words), None
    if len(words) > len(names):
        is_last = bool(names) and words[-1].endswith(FILE_SUFFIX) and not words[0].endswith(FILE_SUFFIX)
        file, rest = (words[-1], rest[:-1]) if is_last else (words[0], rest[1:])
    return chosen_file(option_file, file), rest


@dataclass(frozen=True, slots=True)
class ActOptions:
    """How an act was asked for."""

    execute: bool
    backup_file: str | None
    output: str


@dataclass(frozen=True, slots=True)
class ActTools:
    """What an act has at hand: the lease table as a place to write to, and as it was when the act began."""

    settings: Settings
    service: Service
    calls: TableCalls
    reader: FleetReader
    clock: Clock
    table: RawTable

    async def is_3x(self) -> bool:
        """Whether leaders give leases to workers; in the modes of KCL 2.x workers take them. Raises TableError."""
        from mld.fleet.migrate.states import CLIENT_VERSION
        from mld.fleet.migrate.states_table import StatesTable
        from mld.fleet.values import COORDINATOR_TABLE_KEY, LEASE_TABLE_KEY, ClientVersion, Place

        states, row = StatesTable(self.service), None
        for place in (
            Place(self.settings.table_name, LEASE_TABLE_KEY),
            Place(self.settings.coordinator_state_table_name, COORDINATOR_TABLE_KEY),
        ):
            try:
                row = row or await states.get(CLIENT_VERSION, place)
            except TableMissingError:
                continue
        return row is not None and row.state in (ClientVersion.V3X, ClientVersion.V3X_WITH_ROLLBACK)

    def calls_of(self, table: str | None) -> TableCalls:
        """A table as a place to write to; None: the lease table."""
        from mld.aws.table_calls import TableCalls

        return self.calls if table is None else TableCalls(self.service, table, REQUEST_TIMEOUT_S)


Planner = Callable[["ActTools"], Awaitable["ActPlan"]]
Waiting = Callable[["ActTools"], Awaitable[bool]]
"""Waits for what an act was for; False if the time is over before."""
Report = Callable[["Outcome"], None]
Writing = Callable[[Report], Awaitable[tuple[Sequence["Outcome"], bool]]]
"""Writes, and says what becomes of each change; all outcomes, and whether all is as it was to be."""


def act(
    command: str,
    file: str,
    overrides: Sequence[str],
    options: ActOptions,
    plan: Planner,
    waiting: Waiting | None = None,
) -> int:
    """Plan, print, and with --execute save and write, and maybe wait for the effect; the exit code."""
    settings = settings_of(file, overrides)
    try:
        return asyncio.run(_act(command, settings, options, plan, waiting))
    except KeyboardInterrupt:
        say("interrupted: what was not reported as done may be done or not; ask again")
        return EXIT_FAILURE
    except (MldError, OSError) as error:
        say(str(error))
        return EXIT_FAILURE


@asynccontextmanager
async def act_tools(settings: Settings) -> AsyncIterator[ActTools]:
    """The tools for the fleet that a properties file names. Raises errors of `mld.core.errors`."""
    from mld.aws.table_calls import TableCalls
    from mld.core.clock import LoopClock
    from mld.leases.dynamodb import DynamoLeaseTable
    from mld.operating.acts.execution import read_table
    from mld.operating.fleet_reader import FleetReader, dynamo_of, view_rules

    clock = LoopClock()
    async with dynamo_of(settings) as service:
        calls = TableCalls(service, settings.table_name, REQUEST_TIMEOUT_S)
        leases = DynamoLeaseTable(service, clock, table_name=settings.table_name, request_timeout_s=REQUEST_TIMEOUT_S)
        reader = FleetReader(settings, service, leases, clock, view_rules(settings))
        yield ActTools(settings, service, calls, reader, clock, await read_table(calls))


async def _act(command: str, settings: Settings, options: ActOptions, planner: Planner, waiting: Waiting | None) -> int:
    from mld.operating.acts.backup import save_rows
    from mld.operating.acts.execution import carry_out
    from mld.operating.acts.plan import Fate

    async with act_tools(settings) as tools:
        plan = await planner(tools)

        def save() -> Path:
            path = None if options.backup_file is None else Path(options.backup_file)
            name, table, stream = settings.application_name, settings.table_name, settings.stream_name
            return save_rows(command, name, table, stream, tools.table.rows, tools.clock.wall(), path)

        async def write(report: Report) -> tuple[Sequence[Outcome], bool]:
            outcomes = await carry_out(plan, tools.calls_of, tools.clock, on_outcome=report)
            return outcomes, all(one.fate is Fate.DONE for one in outcomes)

        code = await perform(plan, options, save, write)
        if code == EXIT_OK and options.execute and plan.changes and waiting is not None and not await waiting(tools):
            say("it is written, and has not taken effect within the time: look again")
            return EXIT_FAILURE
        return code


async def _nobody_minds() -> None:
    return


async def perform(
    plan: ActPlan,
    options: ActOptions,
    save: Callable[[], Path],
    write: Writing,
    refuse: Callable[[], Awaitable[None]] = _nobody_minds,
) -> int:
    """Print the plan, and with --execute save the rows and write; the exit code.

    `refuse` raises ActRefusedError if it must not be done: before anything is printed with --execute, else at the end.
    """
    is_json = options.output == "json"
    if options.execute and plan.changes:
        await refuse()
    if not is_json:
        _print_plan(plan)
    if not options.execute or not plan.changes:
        if is_json:
            _print_json(plan, (), None)
        if plan.changes:
            await refuse()
        if not is_json:
            click.echo("nothing was done; --execute does it" if plan.changes else "nothing to do")
        return EXIT_OK
    saved = save()
    if not is_json:
        click.echo(f"the rows are saved in {saved}")
    outcomes, is_done = await write(_silent if is_json else _print_outcome)
    if is_json:
        _print_json(plan, outcomes, saved)
    if not is_done:
        say("not all rows were written; the same command again does what is left")
    return EXIT_OK if is_done else EXIT_FAILURE


def _print_plan(plan: ActPlan) -> None:
    from mld.properties.redaction import printable

    click.echo(printable(plan.title))
    for change in plan.changes:
        click.echo(printable(f"  {change.key}: {change.words}"))
    for note in plan.notes:
        click.echo(printable(note))


def _print_outcome(outcome: Outcome) -> None:
    from mld.properties.redaction import printable

    why = f": {outcome.why}" if outcome.why else ""
    click.echo(printable(f"  {outcome.change.key}: {outcome.fate.value}{why}"))


def _silent(_: Outcome) -> None:
    return


def _print_json(plan: ActPlan, outcomes: Sequence[Outcome], saved: Path | None) -> None:
    changes = [{"key": one.key, "change": one.words, "outcome": "planned"} for one in plan.changes]
    if saved is not None:
        changes = [
            {"key": one.change.key, "change": one.change.words, "outcome": one.fate.value}
            | ({"why": one.why} if one.why else {})
            for one in outcomes
        ]
    document = {"plan": plan.title, "changes": changes, "notes": list(plan.notes)}
    click.echo(json.dumps(document | ({} if saved is None else {"saved": str(saved)}), indent=2))
