"""The commands on one shard of a stream: `mld peek` shows records, `mld replay` gives them to a record processor.

Neither of them takes a lease or writes to a table.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import click

from mld.core.clock import LoopClock
from mld.core.errors import MldError
from mld.core.terminal import (
    EXIT_FAILURE,
    EXIT_OK,
    say,
)
from mld.leases.lease import Lease
from mld.operating import record_view
from mld.operating.command_ends import finish
from mld.operating.error_remedies import with_remedy
from mld.operating.fleet_reader import fleet_reader, with_stream
from mld.operating.naming import ChosenShard, chosen_shard, lease_of
from mld.operating.options import (
    Invocation,
    PointType,
    output_option,
    with_file,
)
from mld.operating.points import LATEST_POINT, TRIM_HORIZON_POINT, Point, PointKind
from mld.operating.record_view import RecordView
from mld.operating.replayer import run_replay
from mld.operating.stream_access import SpanReader, peek_at, span_start, streams_of
from mld.retrieval.starting_points import initial_position

RECORDS_SHOWN = 10


def _chosen(invocation: Invocation) -> ChosenShard:
    """Return the shard that the first argument means; the lease table is read if the argument fits several streams.
    Exit with 1 if there is no such shard.
    """
    settings = invocation.settings()
    try:
        return chosen_shard(settings, asyncio.run(with_stream(settings, invocation.arguments[0])))
    except (MldError, OSError) as error:
        say(with_remedy(error))
        sys.exit(EXIT_FAILURE)


@click.command()
@with_file("SHARD")
@click.option(
    "--at",
    type=PointType(),
    default=str(TRIM_HORIZON_POINT),
    show_default=True,
    help="trim-horizon, latest, checkpoint, now, a time (2h, 2026-01-31T12:00:00Z) or a sequence number.",
)
@click.option("-n", "--count", type=click.IntRange(min=1), default=RECORDS_SHOWN, show_default=True, help="Records.")
@click.option("-f", "--follow", is_flag=True, help="Wait for more records at the tip; --at latest implies this.")
@output_option
def peek(invocation: Invocation, at: Point, count: int, follow: bool, output: str) -> None:
    """Show records of a shard. KPL aggregates and gzip are opened, JSON is laid out.

    SHARD is a shard's id, or its number; STREAM:SHARD if the file names several streams. The command takes no lease,
    and uses at most half of the reads that Kinesis allows a second. With -o json it prints one JSON document a line.
    """
    shard = _chosen(invocation)

    def show(record: RecordView) -> None:
        """Print one record."""
        if output == "json":
            click.echo(json.dumps(record_view.record_value(shard.shard_id, record)))
            return
        click.echo(record_view.headline(record))
        click.echo("".join(f"    {line}\n" for line in record_view.body(record.payload).split("\n")))

    async def peeking() -> int:
        """Print the records from the chosen place on, and return the exit code."""
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
@with_file("SHARD", more="[-- COMMAND ARGS…]")
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
def replay(invocation: Invocation, start: Point, until: Point) -> None:
    """Give a span of a shard to a record processor, without a lease: to find an error, or with a debugger.

    SHARD is named as for `mld peek`. COMMAND is the processor, by default executableName. The processor speaks the real
    protocol and has no time limits. Its checkpoints are accepted and shown, but not stored. Anything else that it
    writes is really written. Its stderr is shown.

    Exit codes: 0 the span was processed, 1 the processor failed or the span cannot be read, 2 bad configuration.
    """
    shard, file = _chosen(invocation), str(Path(invocation.file).absolute())

    async def replaying() -> int:
        """Replay the span, and return the exit code."""
        needs_lease = start.kind is PointKind.CHECKPOINT or shard.stream is not None
        lease = await _lease_of(shard) if needs_lease else None
        return await run_replay(shard, start, until, lease, invocation.more, file, invocation.overrides)

    finish(replaying)


async def _lease_of(shard: ChosenShard) -> Lease | None:
    """Return the lease of the chosen shard; None if its row is missing."""
    async with fleet_reader(shard.settings) as reader:
        if shard.stream is None:
            return await reader.lease(shard.shard_id)
        return lease_of(await reader.leases(), shard)
