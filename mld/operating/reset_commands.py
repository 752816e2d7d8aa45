"""The commands that move a whole application: `reset`, `skip`, `export`, `restore`, `teardown`, `migrate-streams`.

Options only. Without --execute each of them prints what it would do, and changes nothing. Exit codes: 0 done, or
nothing to do; 1 refused or failed, with a sentence; 2 the configuration cannot be used.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mld.operating.options import Asked, PointType, asks, output_option, stream_option
from mld.operating.points import PointKind

if TYPE_CHECKING:
    from mld.operating.acting import PlanInput
    from mld.operating.application import Application
    from mld.operating.plan import ActPlan
    from mld.operating.points import Point

PLACES = (PointKind.TRIM_HORIZON, PointKind.LATEST, PointKind.TIME, PointKind.SEQUENCE)
NEW_FILE = click.Path(dir_okay=False, path_type=Path)
_stop_fleet = click.option(
    "--stop-fleet", is_flag=True, help="Take the leases of living workers; they get them back at the end."
)


@click.command()
@asks(acts=True)
@click.option(
    "--to",
    "point",
    type=PointType(PLACES),
    required=True,
    metavar="PLACE",
    help="trim-horizon, latest, a time (2026-01-31T12:00:00Z, epoch seconds, or 2h for two hours ago), or, with "
    "--shard, the sequence number of the first record to be read.",
)
@click.option("--shard", "shard_name", metavar="SHARD", help="Only this shard (its id, its number, STREAM:SHARD).")
@stream_option
@_stop_fleet
def reset(asked: Asked, point: Point, shard_name: str | None, stream_name: str | None, stop_fleet: bool) -> None:
    """Let the application, or one shard, begin at another place.

    The rows become those with which an application would have begun there. Saved before in a file for `mld restore`.
    """
    from mld.operating.resetting import reset_to

    stream, shard = stream_and_shard(stream_name, shard_name)
    _run_on(
        asked, lambda app: reset_to(app, asked, point, stream, shard, stop_fleet=stop_fleet), stream=stream, shard=shard
    )


@click.command()
@asks("SHARD", acts=True)
@click.option("--records", type=click.IntRange(min=1), metavar="N", help="Skip so many user records.")
@click.option("--past", metavar="SEQUENCE[/SUB]", help="Skip all records up to this one, and this one.")
@click.option(
    "--only", metavar="SEQUENCE[/SUB]", help="Leave this record out, and keep those before it; no lease is taken."
)
@click.option("--to", "path", type=NEW_FILE, required=True, metavar="FILE", help="New file for what is skipped.")
def skip(asked: Asked, records: int | None, past: str | None, only: str | None, path: Path) -> None:
    """Move the checkpoint of a shard past records that cannot be processed, and save these in a file.

    The file has one record a line, in JSON, as the record processor would have got it. A worker that has the lease
    loses it, and begins after the skipped records when it has it back.
    """
    if [records, past, only].count(None) != 2:
        raise click.UsageError("give one of --records, --past and --only")
    from mld.operating.acting import act
    from mld.operating.skipping import SkipRange, leave_out, parse_past, skip_in

    (name,) = asked.words
    if only is not None:
        record = only

        async def plan(seen: PlanInput) -> ActPlan:
            return await leave_out(seen, name, record, path if asked.execute else None)

        act("mld skip", asked, plan)
    stream, shard = stream_and_shard(None, name)

    async def work(app: Application) -> int:
        wanted = SkipRange(count=records) if past is None else parse_past(past)
        return await skip_in(app, asked, wanted, stream, shard or name, path)

    _run_on(asked, work, stream=stream, shard=shard)


@click.command()
@asks()
@click.option("--to", "path", type=NEW_FILE, metavar="FILE", help="New file; by default one in the working directory.")
@output_option
def export(asked: Asked, path: Path | None, output: str) -> None:
    """Save all rows of the lease table in a file, unchanged; the two other tables of KCL 3.0 to 3.4 in files beside it.

    It is no snapshot: workers go on while the table is read. `mld restore` puts leases back.
    """
    from mld.operating.retiring import export_tables

    _run_on(asked, lambda app: export_tables(app, output, path), of_whole=True)


@click.command()
@asks("FILE", acts=True)
@click.option("--from-another", is_flag=True, help="The file may be of another application or table.")
@click.option("--skip-forward", is_flag=True, help="Also move checkpoints forward, and skip what is between.")
@stream_option
@_stop_fleet
def restore(asked: Asked, from_another: bool, skip_forward: bool, stream_name: str | None, stop_fleet: bool) -> None:
    """Put the leases of a file of `mld export`, or of any act, back into the table.

    Leader, reports and states in the file are left out: the fleet makes them anew.
    """
    from mld.operating.restoring import restore_from

    async def work(app: Application) -> int:
        path = Path(*asked.words)
        return await restore_from(
            app, asked, path, stream_name, from_another=from_another, may_skip=skip_forward, stop_fleet=stop_fleet
        )

    _run_on(asked, work, stream=stream_name)


@click.command()
@asks(acts=True)
def teardown(asked: Asked) -> None:
    """Delete what the application has in AWS: its tables, and the fan-out consumer that it registered.

    Lists first. All rows are saved in files before anything is deleted. The stream and its records stay.
    """
    from mld.operating.retiring import tear_down

    _run_on(asked, lambda app: tear_down(app, asked), of_whole=True)


@click.command("migrate-streams")
@asks(acts=True)
@click.option(
    "--to",
    "form",
    type=click.Choice(["several", "one"]),
    required=True,
    help="The form of the table: for several streams (mld.streams), or for one (streamName).",
)
@click.option("--stream", "stream_name", metavar="NAME", help="Whose leases they are, if the file names several.")
def migrate_streams(asked: Asked, form: str, stream_name: str | None) -> None:
    """Turn the leases of one stream into the form of several streams, or back; all checkpoints are kept.

    The file may be that of before or that of after. All workers must be stopped. If it breaks off, the same command
    again does what is left; until then workers refuse the table.
    """
    from mld.operating.reshaping import migrate
    from mld.operating.table_forms import TableForm

    _run_on(asked, lambda app: migrate(app, asked, TableForm(form)), stream=stream_name)


def stream_and_shard(stream: str | None, shard: str | None) -> tuple[str | None, str | None]:
    """Return the two parts of ``STREAM:SHARD``; `stream` may be given by itself. Raises click.UsageError for both."""
    if shard is None or ":" not in shard:
        return stream, shard
    named, _, shard_id = shard.rpartition(":")
    if stream not in (None, named):
        raise click.UsageError(f"--stream is {stream}, but the shard is one of {named}")
    return named, shard_id


def _run_on(asked: Asked, work: Callable[[Application], Awaitable[int]], **about: Any) -> None:
    from mld.operating.application import run_on

    run_on(asked, work, **about)
