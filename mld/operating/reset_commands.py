"""The commands that move a whole application: `reset`, `skip`, `export`, `restore`, `teardown`. Options and printing.

Without --execute each of them prints what it would do, and changes nothing. Exit codes: 0 done, or nothing to do; 1
refused or failed, with a sentence; 2 the configuration cannot be used.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mld.core.errors import MldError
from mld.core.terminal import (
    EXIT_FAILURE,
    EXIT_OK,
    chosen_file,
    define_option,
    file_option,
    properties_file,
    say,
    settings_of,
)
from mld.operating.acts.act_options import ActOptions, act, acting, perform
from mld.operating.point_option import PointType
from mld.operating.points import PointKind

if TYPE_CHECKING:
    from mld.operating.acts.act_options import ActTools, Planner, Report
    from mld.operating.acts.plan import ActPlan, Outcome, Row
    from mld.operating.points import Point
    from mld.operating.resets.application import Doors
    from mld.operating.resets.owners import Observed

PLACES = (PointKind.TRIM_HORIZON, PointKind.LATEST, PointKind.TIME, PointKind.SEQUENCE)
NEW_FILE = click.Path(dir_okay=False, path_type=Path)
_stream = click.option("--stream", "stream_name", metavar="NAME", help="Which one, if the file names several.")
_files = click.argument("files", metavar="[APP.properties]", nargs=-1)
STOP_REMEDY = "stop them, or let --stop-fleet take their leases while this works"


@click.command()
@properties_file
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
@_stream
@click.option("--stop-fleet", is_flag=True, help="Take the leases of living workers; they get them back at the end.")
@acting
def reset(
    argument_file: str | None,
    option_file: str | None,
    overrides: Sequence[str],
    point: Point,
    shard_name: str | None,
    stream_name: str | None,
    stop_fleet: bool,
    execute: bool,
    backup_file: str | None,
    output: str,
) -> None:
    """Let the application, or one shard, begin at another place.

    The rows become those with which an application would have begun there. Saved before in a file for `mld restore`.
    """

    stream_name, shard_name = stream_and_shard(stream_name, shard_name)

    async def work(doors: Doors) -> int:
        from mld.operating.resets.application import for_stream
        from mld.operating.resets.resetting import resolve

        doors = await for_stream(doors, stream_name)
        app = doors.app
        seen = await app.require_table()
        reset = await resolve(app, seen.table, point, shard_name)
        plan = reset.plan(app.own(seen.table), "")
        options = ActOptions(execute, backup_file, output)
        return await _carry_out(doors, plan, reset.plan, "reset", options, seen, stop_fleet=stop_fleet)

    file = chosen_file(option_file, argument_file)
    run_with_doors(file, overrides, work, stream_name, shard_name=shard_name)


@click.command()
@_files
@click.argument("shard_name", metavar="SHARD")
@file_option
@define_option
@click.option("--records", type=click.IntRange(min=1), metavar="N", help="Skip so many user records.")
@click.option("--past", metavar="SEQUENCE[/SUB]", help="Skip all records up to this one, and this one.")
@click.option(
    "--only", metavar="SEQUENCE[/SUB]", help="Leave this record out, and keep those before it; no lease is taken."
)
@click.option("--to", "path", type=NEW_FILE, required=True, metavar="FILE", help="New file for what is skipped.")
@acting
def skip(
    files: Sequence[str],
    shard_name: str,
    option_file: str | None,
    overrides: Sequence[str],
    records: int | None,
    past: str | None,
    only: str | None,
    path: Path,
    execute: bool,
    backup_file: str | None,
    output: str,
) -> None:
    """Move the checkpoint of a shard past records that cannot be processed, and save these in a file.

    The file has one record a line, in JSON, as the record processor would have got it. A worker that has the lease
    loses it, and begins after the skipped records when it has it back.
    """
    if [records, past, only].count(None) != 2:
        raise click.UsageError("give one of --records, --past and --only")
    if only is not None:
        file, options = _only(option_file, files), ActOptions(execute, backup_file, output)
        sys.exit(act("mld skip", file, overrides, options, _leaving_out(shard_name, only, path if execute else None)))
    stream_name, bare_name = stream_and_shard(None, shard_name)

    async def work(doors: Doors) -> int:
        from mld.operating.acts.backup import require_new
        from mld.operating.acts.plan import Fate, full_key
        from mld.operating.resets.application import for_stream, initial_of
        from mld.operating.resets.skipping import SkipRange, parse_past, pass_records, skip

        wanted = SkipRange(count=records) if past is None else parse_past(past)
        doors = await for_stream(doors, stream_name)
        app = doors.app
        seen = await app.require_table()
        leases = {lease.key: lease for lease in seen.table.scan.leases}
        lease = leases[full_key(leases, bare_name or shard_name)]
        await app.shards(seen.table)
        initial = initial_of(doors.settings)
        require_new(path)
        await app.require_no_operators(seen)
        found: list[str] = []
        passed = await pass_records(app, lease, wanted, initial, lambda one: found.append(_short(one)))
        if not execute:
            value = {"shard": lease.key, "records": passed.count, "first": str(passed.first), "last": str(passed.last)}
            lines = [f"{lease.key}: {passed.count} records after {lease.checkpoint} would be skipped:", *found[:20]]
            lines += [f"  … and {len(found) - 20} more"] if len(found) > 20 else []
            show(output, [*lines, "nothing was done; --execute does it"], value | {"outcome": "planned"})
            return EXIT_OK
        saved = save_before("skip", doors, seen.table.rows, backup_file)
        passed, outcome = await skip(app, seen, lease, wanted, initial, path)
        is_done = outcome.fate is Fate.DONE
        value = {"shard": lease.key, "records": passed.count, "first": str(passed.first), "last": str(passed.last)}
        lines = [
            f"the rows are saved in {saved}",
            f"{passed.count} records of {lease.key} are saved in {path}: {passed.first} to {passed.last}",
            f"checkpoint to {passed.last}: {outcome.fate.value}{f': {outcome.why}' if outcome.why else ''}",
        ]
        show(output, lines, value | {"outcome": outcome.fate.value, "saved": str(saved), "file": str(path)})
        return EXIT_OK if is_done else EXIT_FAILURE

    run_with_doors(_only(option_file, files), overrides, work, stream_name, shard_name=bare_name)


@click.command()
@properties_file
@click.option("--to", "path", type=NEW_FILE, metavar="FILE", help="New file; by default one in the working directory.")
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
def export(
    argument_file: str | None, option_file: str | None, overrides: Sequence[str], path: Path | None, output: str
) -> None:
    """Save all rows of the lease table in a file, unchanged; the two other tables of KCL 3.0 to 3.4 in files beside it.

    It is no snapshot: workers go on while the table is read. `mld restore` puts leases back.
    """

    async def work(doors: Doors) -> int:
        from mld.operating.acts.execution import read_table
        from mld.operating.resets.retiring import exported_tables

        app = doors.app
        table = await read_table(app.calls)
        written = exported_tables(doors, path, {app.table_name: table.rows, **await _legacy_rows(doors)})
        lines = [f"{count} rows of {name} are saved in {file}" for name, file, count in written]
        show(output, lines, [{"table": name, "file": str(file), "rows": count} for name, file, count in written])
        return EXIT_OK

    run_with_doors(chosen_file(option_file, argument_file), overrides, work, of_whole=True)


@click.command()
@_files
@click.argument("path", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path))
@file_option
@define_option
@click.option("--from-another", is_flag=True, help="The file may be of another application or table.")
@click.option("--skip-forward", is_flag=True, help="Also move checkpoints forward, and skip what is between.")
@_stream
@click.option("--stop-fleet", is_flag=True, help="Take the leases of living workers; they get them back at the end.")
@acting
def restore(
    files: Sequence[str],
    path: Path,
    option_file: str | None,
    overrides: Sequence[str],
    from_another: bool,
    skip_forward: bool,
    stop_fleet: bool,
    stream_name: str | None,
    execute: bool,
    backup_file: str | None,
    output: str,
) -> None:
    """Put the leases of a file of `mld export`, or of any act, back into the table.

    Leader, reports and states in the file are left out: the fleet makes them anew.
    """

    async def work(doors: Doors) -> int:
        from mld.core.steps import finish
        from mld.operating.acts.plan import ActRefusedError
        from mld.operating.resets.restoring import Restoration, read_saved, require_same_table, saved_of
        from mld.shards.graph import ShardGraph
        from mld.shards.identity import foreign_evidence

        app = doors.app
        saved = read_saved(path)
        if not from_another:
            require_same_table(saved, app.name, app.table_name)
        saved, id_ = saved_of(saved, doors.stream, stream_name)
        app = replace(app, stream=id_)
        doors = replace(doors, app=app)
        seen = await app.table_or_none()
        shards = await app.shards()  # rows of another stream in the table give way to those of the file
        foreign = finish(foreign_evidence(shards, saved.leases))
        if foreign is not None:
            raise ActRefusedError(foreign.replace("the lease table", f"the file {path}", 1))
        if seen is None:
            if not execute:
                raise ActRefusedError(f"table {app.table_name} does not exist; --execute creates it and restores there")
            await app.leases.ensure()
            seen = await app.require_table()
        restoration = Restoration(saved, ShardGraph(shards), skip_forward)
        plan = restoration.plan(app.own(seen.table), "")
        options = ActOptions(execute, backup_file, output)
        return await _carry_out(doors, plan, restoration.plan, "restore", options, seen, stop_fleet=stop_fleet)

    run_with_doors(_only(option_file, files), overrides, work, stream_name)


@click.command()
@properties_file
@acting
def teardown(
    argument_file: str | None,
    option_file: str | None,
    overrides: Sequence[str],
    execute: bool,
    backup_file: str | None,
    output: str,
) -> None:
    """Delete what the application has in AWS: its tables, and the fan-out consumer that it registered.

    Lists first. All rows are saved in files before anything is deleted. The stream and its records stay.
    """

    async def work(doors: Doors) -> int:
        from mld.operating.resets.retiring import (
            consumers_of_all,
            deregister_all,
            exported_tables,
            possessions,
            require_unprotected,
            take_down,
        )

        app = doors.app
        found = await possessions(app, doors.settings, doors.dynamo, doors.kinesis)
        if doors.settings.is_multi_stream:
            found = replace(found, more_consumers=await consumers_of_all(doors.settings))
        lines = [f"application {app.name} has:", *(f"  table {one.name}: {one.words}" for one in found.tables)]
        lines += [f"  fan-out consumer {arn}" for arn in found.consumers]
        value: dict[str, Any] = {
            "tables": [{"name": one.name, "what": one.what, "rows": len(one.rows)} for one in found.tables],
            "consumer": found.consumer,
            **({"consumers": list(found.consumers)} if doors.settings.is_multi_stream else {}),
        }
        if not found.tables and not found.consumers:
            show(output, [f"application {app.name} has no table and no consumer", "nothing to do"], value)
            return EXIT_OK
        require_unprotected(found)
        seen = await app.table_or_none()
        if seen is not None:
            if not doors.settings.is_multi_stream:
                await app.require_stream_of(seen)
            await app.require_no_workers(seen, "stop them first")
        if not execute:
            show(output, [*lines, "nothing was done; --execute deletes it"], value)
            return EXIT_OK
        backup = None if backup_file is None else Path(backup_file)
        written = exported_tables(doors, backup, {one.name: one.rows for one in found.tables})
        lines += [f"{count} rows of {name} are saved in {file}" for name, file, count in written]
        outcomes = [*await deregister_all(doors.settings, found.more_consumers)]
        outcomes += await take_down(found, doors.dynamo, doors.kinesis)
        lines += [f"{name}: {what}" for name, what in outcomes]
        value |= {"saved": [str(file) for _, file, _ in written], "outcomes": dict(outcomes)}
        show(output, lines, value)
        return EXIT_FAILURE if any(what.startswith("failed") for _, what in outcomes) else EXIT_OK

    run_with_doors(chosen_file(option_file, argument_file), overrides, work, of_whole=True)


def _leaving_out(shard_name: str, only: str, path: Path | None) -> Planner:
    """The plan of `skip --only`, which saves the record in `path` first."""

    async def plan(tools: ActTools) -> ActPlan:
        from mld.operating.acts.backup import saved_file
        from mld.operating.acts.plan import full_key
        from mld.operating.acts.steering import plan_leave_out
        from mld.operating.resets.application import application_of
        from mld.operating.resets.skipping import parse_past, records_at, saved_line
        from mld.operating.stream_choice import only_stream

        wanted, fleet = parse_past(only), await tools.reader.look()
        planned = plan_leave_out(fleet, shard_name, str(wanted).removeprefix("up to "))
        leases = {view.key: view.lease for view in fleet.shards}
        lease = leases[full_key(leases, shard_name, fleet.labels)]
        label = None if lease.stream is None else fleet.labels.get(lease.stream, lease.stream)
        async with application_of(tools.settings, only_stream(tools.settings, label)) as doors:
            found = await records_at(doors.app, lease, wanted)
        if path is not None and planned.changes:
            with saved_file(path) as file:
                file.writelines(saved_line(lease, record) for record in found)
        return replace(planned, notes=(*map(_short, found), *planned.notes))

    return plan


# --- what they share ------------------------------------------------------------------------------------------------


def stream_and_shard(stream: str | None, shard: str | None) -> tuple[str | None, str | None]:
    """The two parts of ``STREAM:SHARD``; `stream` may be given by itself. Raises click.UsageError for both."""
    if shard is None or ":" not in shard:
        return stream, shard
    named, _, shard_id = shard.rpartition(":")
    if stream not in (None, named):
        raise click.UsageError(f"--stream is {stream}, but the shard is one of {named}")
    return named, shard_id


def _only(option_file: str | None, files: Sequence[str]) -> str:
    if len(files) > 1:
        raise click.UsageError(f"too many arguments: {' '.join(files)}")
    return chosen_file(option_file, files[0] if files else None)


def run_with_doors(
    file: str,
    overrides: Sequence[str],
    work: Callable[[Doors], Awaitable[int]],
    stream_name: str | None = None,
    *,
    shard_name: str | None = None,
    of_whole: bool = False,
) -> None:
    """Run `work` on the application of a properties file, and exit with what it gives.

    If the file names several streams, `stream_name` says which one is meant, or `shard_name` if only one has such a
    shard; unless it is about the table as a whole.
    """
    settings = settings_of(file, overrides)

    async def running() -> int:
        from mld.operating.resets.application import application_of
        from mld.operating.shard_lookup import stream_of_shard
        from mld.operating.stream_choice import only_stream

        name = stream_name
        if settings.is_multi_stream and name is None and shard_name is not None:
            name = await stream_of_shard(settings, shard_name)
        async with application_of(settings, None if of_whole else only_stream(settings, name)) as doors:
            return await work(doors)

    try:
        sys.exit(asyncio.run(running()))
    except KeyboardInterrupt:
        say("interrupted: rows are as they were or as planned; the same command again does what is left")
        sys.exit(EXIT_FAILURE)
    except (MldError, OSError) as error:
        say(str(error))
        sys.exit(EXIT_FAILURE)


async def _carry_out(
    doors: Doors,
    plan: ActPlan,
    planner: Callable[..., ActPlan],
    command: str,
    options: ActOptions,
    seen: Observed,
    *,
    stop_fleet: bool,
) -> int:
    from mld.operating.acts.plan import Fate

    if doors.stream is not None:
        plan = replace(plan, title=f"stream {doors.stream.name}: {plan.title}")

    async def write(report: Report) -> tuple[Sequence[Outcome], bool]:
        outcomes = await doors.app.carry_out(planner, report, seen, stop_fleet=stop_fleet)
        return outcomes, all(one.fate is Fate.DONE for one in outcomes)

    return await perform(
        plan,
        options,
        lambda: save_before(command, doors, seen.table.rows, options.backup_file),
        write,
        lambda: _require_nobody(doors, seen, stop_fleet=stop_fleet),
    )


async def _require_nobody(doors: Doors, seen: Observed, *, stop_fleet: bool) -> None:
    if stop_fleet:
        await doors.app.require_no_operators(seen)
    else:
        await doors.app.require_no_owners(seen, STOP_REMEDY)


def save_before(command: str, doors: Doors, rows: Sequence[Row], backup_file: str | None) -> Path:
    """Save the rows before they are changed; the file."""
    from mld.operating.acts.backup import save_rows

    app, path = doors.app, None if backup_file is None else Path(backup_file)
    return save_rows(command, app.name, app.table_name, app.stream_name, rows, app.clock.wall(), path)


async def _legacy_rows(doors: Doors) -> dict[str, Sequence[Row]]:
    from mld.aws.table_calls import TableCalls
    from mld.core.errors import TableMissingError
    from mld.operating.acts.execution import read_table

    found: dict[str, Sequence[Row]] = {}
    for name in (doors.settings.coordinator_state_table_name, doors.settings.worker_metrics_table_name):
        try:
            found[name] = (await read_table(TableCalls(doors.dynamo, name, 10.0))).rows
        except TableMissingError:
            continue
    return found


def _short(record: Any) -> str:
    arrived = datetime.fromtimestamp(record.fields()["approximateArrivalTimestamp"] / 1000, UTC)
    sub = f"/{record.sub}" if record.sub else ""
    return f"  {record.sequence}{sub}  {arrived.isoformat(timespec='milliseconds')}  {record.data_bytes} bytes"


def show(output: str, lines: Sequence[str], value: Any) -> None:
    """Print the lines for people, or the value for machines, None for none."""
    from mld.properties.redaction import printable

    if output == "json":
        if value is not None:
            click.echo(json.dumps(value, indent=2))
        return
    for line in lines:
        click.echo(printable(line))
