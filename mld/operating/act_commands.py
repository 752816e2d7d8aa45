"""The commands of operators that change a table: their options and help.

`mld move`, `release`, `drain`, `pause`, `resume` and `restart-child` steer a fleet; `reset`, `skip`, `export`,
`restore` and `leave-3x` are about a whole application. Without --execute each of them prints what it would do, and
changes nothing.
Exit codes: 0 done, or nothing to do; 1 refused or failed, with a sentence; 2 the configuration cannot be used.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from datetime import UTC, datetime
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar, cast

import click

from mld.core.terminal import say
from mld.leases.rows import LEASE_TABLE_KEY, REPORTS_TABLE_KEY, Place
from mld.operating.acting import PlanInput, act
from mld.operating.application import Application, run_on
from mld.operating.exporting import export_tables
from mld.operating.leaving import make_room_for_2x
from mld.operating.leaving_out import Unwanted, leave_out
from mld.operating.operator_id import user_name
from mld.operating.options import Invocation, PointType, stream_option, with_file
from mld.operating.plan import ActPlan
from mld.operating.points import Point, PointKind
from mld.operating.resetting import reset_to
from mld.operating.restoring import restore_from
from mld.operating.steering import (
    known_worker,
    plan_drain,
    plan_move,
    plan_pause,
    plan_release,
    plan_restart,
    plan_resume,
    plan_undrain,
)

F = TypeVar("F", bound=Callable[..., Any])
NOTE_CHARACTERS_MAX = 200
"""Longest note that an operator's command writes into a row; see `_note`."""
PLACES = (PointKind.TRIM_HORIZON, PointKind.LATEST, PointKind.TIME, PointKind.SEQUENCE)
"""The kinds of places to which `mld reset` can go."""
NEW_FILE = click.Path(dir_okay=False, path_type=Path)

_why = click.option(
    "--why", default="", metavar="TEXT", help="Reason, shown by `mld leases` and others with your name and the time."
)
_stop_fleet = click.option(
    "--stop-fleet", is_flag=True, help="Take the leases of living workers; they get them back at the end."
)


def _new_file(help_text: str, *, is_required: bool = False) -> Callable[[F], F]:
    """Return a decorator that gives a command the option --file, as its parameter `path`.

    In mld 0.2 this option was called --to, which is still accepted. Other commands have a --to that names a place.
    """

    def decorate(command: F) -> F:
        """Return the command with the options --file and --to."""

        @wraps(command)
        def called(invocation: Invocation, path: Path | None, former_path: Path | None, **rest: Any) -> Any:
            """Call the command with the path of --file, or else of the former --to."""
            if former_path is not None:
                say("--to is --file now; the next version of mld knows only that")
            if path is None and former_path is None and is_required:
                raise click.UsageError("Missing option '--file'.")
            return command(invocation, path=path or former_path, **rest)

        former = click.option("--to", "former_path", type=NEW_FILE, hidden=True)
        option = click.option("--file", "path", type=NEW_FILE, metavar="FILE", help=help_text)
        return cast("F", option(former(called)))

    return decorate


# --- a fleet ----------------------------------------------------------------------------------------------------------


@click.command()
@with_file("SHARD", "WORKER", acts=True)
def move(invocation: Invocation) -> None:
    """Move one shard to one worker, by a handoff.

    SHARD is a shard's id, or its number. The leader leaves the shard there for an hour. After that it evens out the
    load as usual.
    """
    shard, worker = invocation.arguments

    async def plan(plan_input: PlanInput) -> ActPlan:
        """Return the plan to move the shard to the worker."""
        is_3x, now_s = await plan_input.reader.is_3x(), plan_input.reader.clock.wall()
        return plan_move(plan_input.fleet, shard, worker, is_3x=is_3x, now_s=now_s)

    act("mld move", invocation, plan)


@click.command()
@with_file("SHARD", acts=True)
def release(invocation: Invocation) -> None:
    """Move one shard to the worker with the fewest leases.

    SHARD is a shard's id, or its number.
    """

    async def plan(plan_input: PlanInput) -> ActPlan:
        """Return the plan to move the shard to the worker with the fewest leases."""
        reader = plan_input.reader
        return plan_release(
            plan_input.fleet, invocation.arguments, reader.settings.leases.held_max, is_3x=await reader.is_3x()
        )

    act("mld release", invocation, plan)


@click.command()
@with_file("WORKER", acts=True)
@click.option("--undo", is_flag=True, help="End the drain: the worker may have leases again.")
@_why
def drain(invocation: Invocation, undo: bool, why: str) -> None:
    """Empty a worker: its leases go to other workers, and it gets new ones only if no other worker has room for them.

    The drain lasts until --undo, or until the worker stops.
    """
    (name,) = invocation.arguments

    async def plan(plan_input: PlanInput) -> ActPlan:
        """Return the plan to drain the worker, or to end the draining, in the table that has its report."""
        worker = known_worker(plan_input.fleet, name).worker
        reader, settings = plan_input.reader, plan_input.reader.settings
        place = Place(settings.lease_table.name, LEASE_TABLE_KEY)
        if plan_input.table.row(worker) is None:  # its report is in the table of KCL 3.0 to 3.4
            place = Place(settings.worker_metrics_table.name, REPORTS_TABLE_KEY)
        if undo:
            return plan_undrain(plan_input.fleet, worker, place)
        note, leases_max = _note(plan_input, why), settings.leases.held_max
        return plan_drain(plan_input.fleet, worker, place, note, leases_max, is_3x=await reader.is_3x())

    act("mld drain", invocation, plan)


@click.command()
@with_file("SHARD", acts=True)
@_why
def pause(invocation: Invocation, why: str) -> None:
    """Pause a shard: its worker keeps the lease and the child, but delivers no records until `mld resume`.

    SHARD is a shard's id, or its number.
    """
    act(
        "mld pause",
        invocation,
        lambda plan_input: plan_pause(plan_input.fleet, invocation.arguments[0], _note(plan_input, why)),
    )


@click.command("restart-child")
@with_file("SHARD", acts=True)
@_why
def restart_child(invocation: Invocation, why: str) -> None:
    """Kill the record processor of a shard, whichever worker runs it, and start it again at the checkpoint.

    It starts at once, without the pause that follows failures, and the restart does not count as a failure. SHARD is a
    shard's id, or its number.
    """
    act(
        "mld restart-child",
        invocation,
        lambda plan_input: plan_restart(plan_input.fleet, invocation.arguments[0], _note(plan_input, why)),
    )


@click.command()
@with_file("SHARD", acts=True)
def resume(invocation: Invocation) -> None:
    """Resume a paused shard. SHARD is a shard's id, or its number."""
    act("mld resume", invocation, lambda plan_input: plan_resume(plan_input.fleet, invocation.arguments[0]))


def _note(plan_input: PlanInput, why: str) -> str:
    """Return a note for the row: which operator acts, when, and why. It is cut to `NOTE_CHARACTERS_MAX`."""
    when = datetime.fromtimestamp(plan_input.reader.clock.wall(), UTC).isoformat(timespec="seconds")
    note = f"by {user_name()}@{socket.gethostname()} at {when}" + (f": {why}" if why else "")
    return note[:NOTE_CHARACTERS_MAX]


# --- an application ---------------------------------------------------------------------------------------------------


@click.command()
@with_file(acts=True)
@click.option(
    "--to",
    "point",
    type=PointType(PLACES),
    required=True,
    metavar="PLACE",
    help="trim-horizon, latest, now, a time (2026-01-31T12:00:00Z, epoch seconds, or 2h for two hours ago), or, with "
    "--shard, the sequence number of the first record to be read.",
)
@click.option("--shard", "shard_name", metavar="SHARD", help="Only this shard (its id, its number, STREAM:SHARD).")
@stream_option
@_stop_fleet
def reset(
    invocation: Invocation, point: Point, shard_name: str | None, stream_name: str | None, stop_fleet: bool
) -> None:
    """Make the application, or one shard, start at another place.

    The lease rows become those of an application that starts there. The old rows are saved first, in a file for
    `mld restore`.
    """
    stream, shard = stream_and_shard(stream_name, shard_name)
    run_on(
        invocation,
        lambda app: reset_to(app, invocation, point, stream, shard, stop_fleet=stop_fleet),
        stream=stream,
        shard=shard,
    )


@click.command()
@with_file("SHARD", acts=True)
@click.option("--only", metavar="SEQUENCE[/SUB]", help="The record, or one user record of an aggregate.")
@click.option("--records", "count", type=click.IntRange(min=1), metavar="N", help="The first N after the checkpoint.")
@click.option("--past", metavar="SEQUENCE[/SUB]", help="All after the checkpoint up to this record.")
@_new_file("New file for the skipped records.", is_required=True)
def skip(invocation: Invocation, only: str | None, count: int | None, past: str | None, path: Path) -> None:
    """Skip records that cannot be processed, and save them in a file. Records before and after them are delivered.

    The file has one record a line, in JSON, as the record processor would have received it. The lease stays with its
    worker.
    """
    if [only, count, past].count(None) != 2:
        raise click.UsageError("give one of --only, --records and --past")
    act(
        "mld skip",
        invocation,
        lambda plan_input: leave_out(plan_input, invocation.arguments[0], Unwanted(only, past, count), path),
    )


@click.command()
@with_file()
@_new_file("New file; by default one in the working directory.")
def export(invocation: Invocation, path: Path | None) -> None:
    """Save all rows of the lease table in a file, and those of the two other tables of KCL 3.0 to 3.4 in files beside
    it.

    The file is no snapshot, because workers go on while the table is read. `mld restore` puts leases back.
    """
    run_on(invocation, lambda app: export_tables(app, path), of_whole=True)


@click.command("leave-3x")
@with_file(acts=True)
def leave_3x(invocation: Invocation) -> None:
    """Remove from the lease table what KCL 2.x cannot read, so that Java 2.x can use the table again.

    Stop all workers of KCL 3.x first, those of mld included. Leases and checkpoints stay; the removed rows are saved
    first, in a file like that of `mld export`. Afterwards mld works by the rules of 2.x in this table.
    """
    run_on(invocation, lambda app: make_room_for_2x(app, invocation), of_whole=True)


@click.command()
@with_file("FILE", acts=True)
@click.option("--from-another", is_flag=True, help="Accept a file of another application or table.")
@click.option("--skip-forward", is_flag=True, help="Move checkpoints forward too, which skips the records between.")
@stream_option
@_stop_fleet
def restore(
    invocation: Invocation, from_another: bool, skip_forward: bool, stream_name: str | None, stop_fleet: bool
) -> None:
    """Put leases back into the table, from a file of `mld export` or from the file that any act saves.

    Other rows in the file (leader, reports, states) are not restored: the fleet makes new ones.
    """

    async def work(app: Application) -> int:
        """Restore the rows from the file."""
        path = Path(*invocation.arguments)
        return await restore_from(
            app, invocation, path, stream_name, from_another=from_another, may_skip=skip_forward, stop_fleet=stop_fleet
        )

    run_on(invocation, work, stream=stream_name)


def stream_and_shard(stream: str | None, shard: str | None) -> tuple[str | None, str | None]:
    """Return stream and shard, each None if it was not given. `shard` may be ``STREAM:SHARD``.

    Raises click.UsageError if `stream` and `shard` name different streams.
    """
    if shard is None or ":" not in shard:
        return stream, shard
    named, _, shard_id = shard.rpartition(":")
    if stream not in (None, named):
        raise click.UsageError(f"--stream is {stream}, but the shard is one of {named}")
    return named, shard_id
