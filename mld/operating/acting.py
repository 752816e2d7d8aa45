"""Carries out a plan: prints it, saves the rows, writes change after change, and reports what became of each.

`perform` is the way of every command that changes a table: without --execute the plan is printed and nothing is done;
with it the rows are saved first, and the exit code is 0 if every change is written, else 1. A refusal is final, because
the row is not what the plan saw. What was not applied for certain (throttling) is tried again; what may have been
applied is reported as unknown, never as done.

The file with the rows is written by every act before it changes anything, and by `mld export`: lines of JSON, a header,
then one row a line as DynamoDB writes rows, with binary values in base64. It is for its owner alone (0600), never
written over another file, and on the disk before it counts.
"""

from __future__ import annotations

import base64
import json
import os
import stat
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from socket import gethostname
from typing import IO, Any, NoReturn, TypeAlias

import click

from mld.aws.service import TableCalls
from mld.core.clock import Clock
from mld.core.error_boundary import survived
from mld.core.errors import TableError, TableMissingError, TableThrottledError
from mld.core.terminal import EXIT_FAILURE, EXIT_OK, say
from mld.leases.lease import Lease
from mld.leases.table import LeaseTable, Refusal
from mld.metrics.events import Event, EventKind
from mld.operating.events import EventsTable, fit
from mld.operating.fleet_reader import FleetReader, fleet_reader
from mld.operating.fleet_status import FleetStatus
from mld.operating.options import Asked, finish
from mld.operating.plan import ActPlan, ActRefusedError, Change, Fate, Outcome, RawTable, Row, raw_table
from mld.properties.redaction import Scrubber, printable
from mld.properties.settings import Settings

THROTTLED_TRIES_MAX = 8
THROTTLED_PAUSE_S = 0.2
SCAN_TIMEOUT_S = 20.0
READ_AGAIN_S = (0.5, 1.0, 2.0)
"""Pauses before a page of the table that could not be read is asked for again."""

DOUBT = "what was not reported as done may be done or not; the same command again does what is left"

Report: TypeAlias = Callable[[Outcome], None]
Writing: TypeAlias = Callable[[Report], Awaitable[Sequence[Outcome]]]
"""Writes, and reports what becomes of each change; all outcomes."""

FORMAT = "mld-rows"
VERSION = 1
LINE_CHARACTERS_MAX = 8 * 1024 * 1024
"""A row of DynamoDB has 400 KB; as JSON, escaped, a few times as much."""
MODE = 0o600
SCALARS = {"S": str, "N": str, "SS": str, "NS": str, "BOOL": bool, "NULL": bool}


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
    from mld.operating.operator_hold import user_name

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


# --- the file with the rows of a table --------------------------------------------------------------------------------


class BackupError(ActRefusedError):
    """A file cannot be written or read. The message names it and the reason."""


@dataclass(frozen=True, slots=True)
class BackupHeader:
    """What the rows are. `written_at` is ISO 8601 in UTC."""

    application: str
    table: str
    stream: str
    written_at: str
    by: str
    """The command that wrote the file."""
    format: str = FORMAT
    version: int = VERSION


def backup_name(application: str, now_s: float) -> str:
    """Return the file that an act writes in the working directory unless it is given another."""
    stamp = datetime.fromtimestamp(now_s, UTC).strftime("%Y%m%dT%H%M%SZ")
    plain = "".join(one if one.isalnum() or one in "-_." else "_" for one in application)
    return f"mld-{plain}-{stamp}.jsonl"


def require_new(path: Path) -> None:
    """Raise BackupError if something has that name already."""
    if path.exists():
        raise BackupError(f"{path} exists already; name another file")


@contextmanager
def saved_file(path: Path) -> Iterator[IO[str]]:
    """Open a new text file; it is on the disk when this ends well, and gone if it does not. Raises BackupError."""
    try:
        number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, MODE)
    except FileExistsError:
        raise BackupError(f"{path} exists already; name another file") from None
    except OSError as error:
        raise BackupError(f"cannot write {path}: {error.strerror}; nothing was changed") from error
    try:
        with os.fdopen(number, "w", encoding="ascii") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        _sync_directory(path)
    except OSError as error:
        forget(path)
        raise BackupError(f"cannot write {path}: {error.strerror}; nothing was changed") from error
    except BaseException:
        forget(path)
        raise


def forget(path: Path) -> None:
    """Remove a file that does not count."""
    path.unlink(missing_ok=True)


def _sync_directory(path: Path) -> None:
    number = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def free_name(path: Path) -> Path:
    """Return the path, or one beside it that nothing has yet: two acts may be made within a second."""
    number = 2
    found = path
    while found.exists():
        found = path.with_stem(f"{path.stem}-{number}")
        number += 1
    return found


def save_rows(
    by: str, settings: Settings, rows: Iterable[Row], now_s: float, path: Path | str | None, table: str | None = None
) -> Path:
    """Save the rows of a table, by default the lease table, in a new file; the file. Raises BackupError."""
    application = settings.application_name
    file = free_name(Path(backup_name(application, now_s))) if path is None else Path(path)
    written_at = datetime.fromtimestamp(now_s, UTC).isoformat(timespec="seconds")
    header = BackupHeader(application, table or settings.lease_table.name, settings.stream_name, written_at, by)
    write_backup(file, header, rows)
    return file


def write_backup(path: Path, header: BackupHeader, rows: Iterable[Row]) -> int:
    """Write the file and make sure that it is on the disk; returns the number of rows. Raises BackupError.

    A file that cannot be written to its end is removed.
    """
    count = 0
    with saved_file(path) as file:
        file.write(json.dumps(asdict(header)) + "\n")
        for row in rows:
            file.write(json.dumps({name: _mapped(value, _to_json) for name, value in row.items()}) + "\n")
            count += 1
    return count


def read_backup(path: Path) -> tuple[BackupHeader, Iterator[Row]]:
    """Return the header, and the rows one by one. Raises BackupError, also while the rows are read."""
    lines = _lines(path)
    first = next(lines, None)
    try:
        value = json.loads(first or "")
        header = BackupHeader(**value)
        if not all(isinstance(one, str) for name, one in value.items() if name != "version"):
            raise TypeError
    except (ValueError, TypeError, RecursionError):
        raise BackupError(f"{path} is no file of `mld export`: its first line is no header") from None
    if header.format != FORMAT or header.version != VERSION:
        raise BackupError(f"{path}: format {header.format} {header.version} is not known to this version of mld")
    return header, _rows(path, lines)


def _lines(path: Path) -> Iterator[str]:
    try:
        with open(path, encoding="ascii", opener=_without_waiting) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise BackupError(f"{path} is no file of `mld export`: it is no regular file")
            while line := file.readline(LINE_CHARACTERS_MAX):
                if len(line) == LINE_CHARACTERS_MAX and not line.endswith("\n"):
                    raise BackupError(f"{path} is no file of `mld export`: no row is so long")
                yield line
    except UnicodeDecodeError:
        raise BackupError(f"{path} is no file of `mld export`: it is not text") from None
    except OSError as error:
        raise BackupError(f"cannot read {path}: {error.strerror}") from error


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # of a pipe, for who writes into it


def _rows(path: Path, lines: Iterator[str]) -> Iterator[Row]:
    for number, line in enumerate(lines, start=2):
        try:
            value = json.loads(line)
            yield {name: _mapped(one, _from_json) for name, one in value.items()}
        except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
            raise BackupError(f"{path}, line {number}: no row") from None


def _mapped(value: Mapping[str, Any], scalar: Callable[[str, Any], Any]) -> dict[str, Any]:
    """Return a typed value of DynamoDB with `scalar` of each kind and value that holds no others."""
    if len(value) != 1:
        raise ValueError("a value of DynamoDB has one type")
    ((kind, inner),) = value.items()
    match kind:
        case "M":
            return {kind: {name: _mapped(one, scalar) for name, one in inner.items()}}
        case "L":
            return {kind: [_mapped(one, scalar) for one in inner]}
    return {kind: scalar(kind, inner)}


def _to_json(kind: str, inner: Any) -> Any:
    match kind:
        case "B":
            return base64.b64encode(bytes(inner)).decode()
        case "BS":
            return [base64.b64encode(bytes(one)).decode() for one in inner]
    return sorted(inner) if kind in ("SS", "NS") else inner


def _from_json(kind: str, inner: Any) -> Any:
    match kind:
        case "B":
            return base64.b64decode(inner, validate=True)
        case "BS":
            return [base64.b64decode(one, validate=True) for one in inner]
    flat = inner if kind in ("SS", "NS") else [inner]
    if not isinstance(flat, list) or not all(isinstance(one, SCALARS[kind]) for one in flat):
        raise TypeError(f"no {kind} of DynamoDB")
    return inner
