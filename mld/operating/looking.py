"""The commands that look: `mld leases`, `workers`, `lag` at a fleet, `peek` and `replay` at a stream and its processor,
`doctor` at all that a daemon needs. Options and printing only: a table on a terminal, plain lines where there is none.

They print a table for people or JSON for machines, and end with 0, with 1 if what was asked about is not so, or with 2
if the configuration cannot be used. None of them takes a lease, and none writes to a table.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import click
from rich.console import Console

from mld.aws.service_time import ServiceTime
from mld.core.clock import LoopClock
from mld.core.errors import MldError
from mld.core.terminal import (
    EXIT_FAILURE,
    EXIT_OK,
    FILE_VARIABLE,
    Duration,
    loaded_of,
    properties_file,
    say,
    settings_of,
)
from mld.core.turns import in_turns
from mld.leases.lease import Lease
from mld.operating import listings, record_view
from mld.operating.events import EventsTable, events_in
from mld.operating.faults import FleetFault, FleetSight, fault_value
from mld.operating.fleet_reader import dynamo_of, fleet_reader, look_at_account, with_stream
from mld.operating.fleet_status import LAG_MAX_S, FleetStatus, chosen
from mld.operating.listings import Listing
from mld.operating.naming import ChosenShard, chosen_shard, lease_of
from mld.operating.options import Asked, PointType, asks, finish, output_option, with_remedy
from mld.operating.points import LATEST_POINT, TRIM_HORIZON_POINT, Point, PointKind
from mld.operating.printing import WATCH_PERIOD_S, follow, print_listing, print_wide
from mld.operating.probes import listed_of, probed
from mld.operating.record_view import RecordView
from mld.operating.replayer import run_replay
from mld.operating.stream_access import SpanReader, peek_at, span_start, streams_of
from mld.operating.verdicts import faults_steps, general_faults, is_green
from mld.properties.printable import printable
from mld.retrieval.starting_points import initial_position

RECORDS_SHOWN = 10
NO_FILE = ("executableName=-", "applicationName=-", "streamName=-", "AwsCredentialsProvider=DefaultCredentialsProvider")
"""Stand for a properties file where none is needed."""

# --- a fleet ----------------------------------------------------------------------------------------------------------


FORMATS: dict[str, Callable[[Listing, Any, bool], None]] = {
    "table": lambda listing, value, watch: print_listing(listing),
    "wide": lambda listing, value, watch: print_wide(listing),
    "json": lambda listing, value, watch: click.echo(json.dumps(value, indent=None if watch else 2)),
}
"""How to print a look: its rows for people, with short ids on a narrow terminal or each as it is, or its values."""
_output = click.option(
    "-o", "--output", type=click.Choice([*FORMATS]), default="table", show_default=True, help="How to print."
)
_stream = click.option("--stream", "stream_name", metavar="NAME", help="Only this one of several streams.")
_watch = click.option("--watch", is_flag=True, help="Look again every few seconds, until Ctrl-C.")


@click.command()
@asks()
@click.option("--by", type=click.Choice(["stream"]), help="One row for each of several streams instead.")
@_stream
@click.option("--all", "show_all", is_flag=True, help="Show the rows of ended shards too.")
@_output
@_watch
def leases(asked: Asked, by: str | None, stream_name: str | None, show_all: bool, output: str, watch: bool) -> None:
    """Show every shard, the worst first: state, owner, how far behind, checkpoint; and what is wrong, with the remedy.

    The answer comes from one scan of the lease table, so it needs no access to the stream or to a daemon.

    Exit code 1 if something is wrong that should wake somebody.
    """

    def shown(status: FleetStatus, faults: Sequence[FleetFault]) -> tuple[Listing, Any]:
        shards = status.shards if show_all else status.open_shards
        value = listings.fleet_value(status, shards, faults)
        if by == "stream":
            return listings.streams_listing(status, faults), value
        return listings.leases_listing(status, shards, faults), value

    _look(asked, shown, output, watch=watch, stream_name=stream_name)


@click.command()
@asks()
@_output
@_watch
def workers(asked: Asked, output: str, watch: bool) -> None:
    """Show every worker: version, leases, CPU, when it was last heard, who leads.

    Exit code 1 if something is wrong that should wake somebody, but for single shards.
    """

    def shown(status: FleetStatus, faults: Sequence[FleetFault]) -> tuple[Listing, Any]:
        value = {
            "leader": status.leader,
            "faults": [fault_value(fault) for fault in faults],
            "workers": [listings.worker_value(worker) for worker in status.workers],
        }
        return listings.workers_listing(status, faults), value

    _look(asked, shown, output, watch=watch, of_shards=False)


@click.command()
@asks()
@click.option(
    "--max", "lag_max_s", type=Duration(), help="Exit with 1 if a shard is further behind, or anything is wrong."
)
@click.option(
    "--probe", is_flag=True, help="Ask Kinesis too: which shards there are, and the lag of those that do not tell it."
)
@_stream
@_output
@_watch
def lag(asked: Asked, lag_max_s: float | None, probe: bool, stream_name: str | None, output: str, watch: bool) -> None:
    """Show how far behind each shard is, the worst first, with a verdict and the reason.

    The verdicts: stopped, unreadable, parked, failing, stalled, unknown, lagging, paused or ok.

    Exit code 1 if something is wrong that should wake somebody: a shard that stands still or has no owner, a row that
    cannot be read, keys without a lease. With --max also if a shard is further behind, paused, or does not say how far
    it is: 0 is green.
    """

    def shown(status: FleetStatus, faults: Sequence[FleetFault]) -> tuple[Listing, Any]:
        value = {
            "behindSeconds": status.behind_s,
            "faults": [fault_value(fault) for fault in faults],
            "shards": listings.shard_values(status.open_shards, faults),
        }
        return listings.lag_listing(status, faults), value

    _look(asked, shown, output, watch=watch, lag_max_s=lag_max_s, probe=probe, stream_name=stream_name)


@click.command()
@asks()
@click.option("--since", "since_s", type=Duration(), help="Only those of the last hour (1h), of 3 days (3d), …")
@click.option("--worker", help="Only those about this worker.")
@_output
def events(asked: Asked, since_s: float | None, worker: str | None, output: str) -> None:
    """Show what happened to the fleet: starts, ends, deaths, moves, failures, acts of operators.

    The answer comes from one row of the lease table, which has the newest 200 events of the last 7 days at most. With
    -o json the last lines of record processors that failed, too.
    """
    settings = asked.settings()

    async def reading() -> int:
        async with fleet_reader(settings) as reader:
            row = await EventsTable(reader.calls, reader.clock, Random()).read()
            first_s = reader.clock.wall() - since_s if since_s is not None else 0.0
        found = [one for one in events_in(row) if one.at_s >= first_s and worker in (None, one.worker)]
        FORMATS[output](listings.events_listing(found), [listings.event_value(one) for one in found], False)
        if row is None:
            say(
                "this lease table has no history: it has one where all workers are in the mode of KCL 3.x, and no "
                "table is left from KCL 3.0 to 3.4"
            )
        return EXIT_OK

    finish(reading)


def _look(
    asked: Asked,
    shown: Callable[[FleetStatus, Sequence[FleetFault]], tuple[Listing, Any]],
    output: str,
    *,
    watch: bool,
    lag_max_s: float | None = None,
    probe: bool = False,
    stream_name: str | None = None,
    of_shards: bool = True,
) -> None:
    """Look at the fleet, or at one stream of it, print, and exit: with 0 if nothing is wrong (`is_green`), but for
    shards unless it is about these.
    """
    settings = asked.settings()
    bound_s = LAG_MAX_S if lag_max_s is None else lag_max_s

    async def looking() -> int:
        async with fleet_reader(settings, bound_s) as reader:

            async def look() -> tuple[FleetStatus, Sequence[FleetFault]]:
                status, listed = chosen(await reader.look(), stream_name), {}
                if probe:
                    status, listed = await probed(settings, status, bound_s), await listed_of(settings, status)
                sight = FleetSight(fleet=status, listed=listed, file=asked.shown_file)
                return status, await in_turns(faults_steps(sight)) if of_shards else general_faults(sight)

            async def listing() -> Listing:
                return shown(*await look())[0]

            if watch and output == "table" and sys.stdout.isatty():
                await follow(listing, Console(highlight=False, markup=False))
            while True:
                status, faults = await look()
                FORMATS[output](*shown(status, faults), watch)
                if not watch:
                    is_met = is_green(faults, strictly=lag_max_s is not None)
                    return EXIT_OK if is_met else EXIT_FAILURE
                await asyncio.sleep(WATCH_PERIOD_S)

    finish(looking, is_open_ended=watch)


@click.command()
@properties_file
@click.option("--region", metavar="NAME", help="Another region than that of the file, or of the environment.")
@_output
def apps(
    argument_file: str | None, option_file: str | None, overrides: Sequence[str], region: str | None, output: str
) -> None:
    """Show the applications of an account and region: streams, workers, shards, lag.

    Found by what their lease tables look like, whoever made them; the first 500 rows of each are read. The file is for
    region, credentials and endpoint; without one they are those of the environment.
    """
    file = option_file or argument_file or os.environ.get(FILE_VARIABLE)
    wanted = (*(() if file else NO_FILE), *overrides, *([f"regionName={region}"] if region else []))
    settings = settings_of(file or os.devnull, wanted)

    async def looking() -> int:
        service_time = ServiceTime()
        async with dynamo_of(settings, service_time) as service:
            account = await look_at_account(service, LoopClock(service_time.now))
        FORMATS[output](listings.apps_listing(account), account, False)
        return EXIT_OK

    finish(looking)


# --- a stream, and what a daemon needs --------------------------------------------------------------------------------


def _chosen(asked: Asked) -> ChosenShard:
    """Return the shard that is meant, for which the lease table may be asked; exits if there is none."""
    settings = asked.settings()
    try:
        return chosen_shard(settings, asyncio.run(with_stream(settings, asked.words[0])))
    except (MldError, OSError) as error:
        say(with_remedy(error))
        sys.exit(EXIT_FAILURE)


@click.command()
@asks("SHARD")
@click.option(
    "--at",
    type=PointType(),
    default=str(TRIM_HORIZON_POINT),
    show_default=True,
    help="trim-horizon, latest, checkpoint, now, a time (2h, 2026-01-31T12:00:00Z) or a sequence number.",
)
@click.option("-n", "--count", type=click.IntRange(min=1), default=RECORDS_SHOWN, show_default=True, help="How many.")
@click.option("-f", "--follow", is_flag=True, help="At the tip wait for more; so does --at latest.")
@output_option
def peek(asked: Asked, at: Point, count: int, follow: bool, output: str) -> None:
    """Show records of a shard: KPL aggregates and gzip opened, JSON laid out.

    SHARD is an id, or its number; STREAM:SHARD if the file names several streams. Takes no lease, and at most half of
    the reads that Kinesis allows a second. With -o json: one JSON document a line.
    """
    shard = _chosen(asked)

    def show(record: RecordView) -> None:
        if output == "json":
            click.echo(json.dumps(record_view.record_value(shard.shard_id, record)))
            return
        click.echo(record_view.headline(record))
        click.echo("".join(f"    {line}\n" for line in record_view.body(record.payload).split("\n")))

    async def peeking() -> int:
        lease = await _lease_of(shard) if at.kind is PointKind.CHECKPOINT else None
        start = span_start(at, shard.shard_id, lease, initial_position(shard.settings.initial_position))
        follows = follow or at.kind is PointKind.LATEST
        async with streams_of(shard.settings) as streams:
            reader = SpanReader(streams, LoopClock(), shard.shard_id, start.start)
            shown = await peek_at(reader, start, count, show, follow=follows)
        if reader.is_over:
            say(f"{shown} records; the shard has ended")
        elif shown < count:
            say(f"{shown} records; there are no more now (--follow waits for them)")
        return EXIT_OK

    finish(peeking, is_open_ended=True)


@click.command()
@asks("SHARD", more="[-- COMMAND ARGS…]")
@click.option(
    "--from",
    "start",
    type=PointType(frozenset(PointKind) - {PointKind.LATEST}),
    required=True,
    help="trim-horizon, checkpoint, now, a time (2h, 2026-01-31T12:00:00Z) or a sequence number.",
)
@click.option(
    "--to",
    "until",
    type=PointType({PointKind.LATEST, PointKind.TIME, PointKind.SEQUENCE}),
    default=str(LATEST_POINT),
    show_default=True,
    help="The tip (latest), now, a time, or the last sequence number.",
)
def replay(asked: Asked, start: Point, until: Point) -> None:
    """Give a span of a shard to a record processor, without a lease: to find an error, or with a debugger.

    A shard is named as for `mld peek`. COMMAND is the processor; without it executableName. It speaks the real
    protocol and has no time limits. Its checkpoints are accepted and shown, and stored nowhere; what it writes by
    itself, it writes. Its stderr is shown.

    Exit codes: 0 it has processed the span, 1 it failed or the span cannot be read, 2 bad configuration.
    """
    shard, file = _chosen(asked), str(Path(asked.file).absolute())

    async def replaying() -> int:
        needs_lease = start.kind is PointKind.CHECKPOINT or shard.stream is not None
        lease = await _lease_of(shard) if needs_lease else None
        return await run_replay(shard, start, until, lease, asked.more, file, asked.overrides)

    finish(replaying)


@click.command()
@asks()
@output_option
def doctor(asked: Asked, output: str) -> None:
    """Look at everything a daemon needs, and say what is wrong and what to do.

    Credentials, endpoints, clock, stream, table, each permission, the processor, this machine. Changes nothing. Exit
    codes: 0 the daemon can run, 1 something fails, 2 bad configuration.
    """
    loaded = loaded_of(asked.file, asked.overrides)

    async def examining() -> int:
        from mld.core.disks import places_of
        from mld.operating.doctor import Doctor
        from mld.operating.findings import finding_value, is_well

        found = await Doctor(loaded.settings, asked.file, places_of(loaded)).examine()
        if output == "json":
            value = {"isWell": is_well(found), "findings": [finding_value(one) for one in found]}
            click.echo(json.dumps(value, indent=2))
            return EXIT_OK if is_well(found) else EXIT_FAILURE
        for one in found:
            click.echo(printable(f"{one.health.value:<4}  {one.about}: {one.words}"))
            if one.remedy:
                click.echo(printable(f"      -> {one.remedy}"))
        return EXIT_OK if is_well(found) else EXIT_FAILURE

    finish(examining)


async def _lease_of(shard: ChosenShard) -> Lease | None:
    async with fleet_reader(shard.settings) as reader:
        if shard.stream is None:
            return await reader.lease(shard.shard_id)
        return lease_of(await reader.leases(), shard)
