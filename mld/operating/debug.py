"""The commands that look into a stream and at a processor: `mld peek`, `mld replay`, `mld doctor`. Printing only.

None of them takes a lease, and none writes to a table.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mld.core.errors import MldError
from mld.core.terminal import EXIT_FAILURE, EXIT_OK, say
from mld.operating.options import Asked, PointType, asks, finish, output_option
from mld.operating.points import LATEST_POINT, TRIM_HORIZON_POINT, Point, PointKind
from mld.properties.redaction import printable

if TYPE_CHECKING:
    from mld.leases.lease import Lease
    from mld.operating.naming import ChosenShard
    from mld.operating.record_views import RecordView

RECORDS_SHOWN = 10


def _chosen(asked: Asked) -> ChosenShard:
    """Return the shard that is meant, for which the lease table may be asked; exits if there is none."""
    from mld.operating.fleet_reader import with_stream
    from mld.operating.naming import chosen_shard

    settings = asked.settings()
    try:
        return chosen_shard(settings, asyncio.run(with_stream(settings, asked.words[0])))
    except (MldError, OSError) as error:
        say(str(error))
        sys.exit(EXIT_FAILURE)


@click.command()
@asks("SHARD")
@click.option(
    "--at",
    type=PointType(),
    default=str(TRIM_HORIZON_POINT),
    show_default=True,
    help="trim-horizon, latest, checkpoint, a time (2h, 2026-01-31T12:00:00Z) or a sequence number.",
)
@click.option("-n", "--count", type=click.IntRange(min=1), default=RECORDS_SHOWN, show_default=True, help="How many.")
@click.option("--raw", is_flag=True, help="Leave KPL aggregates and compressed payloads closed.")
@click.option("-f", "--follow", is_flag=True, help="At the tip wait for more; so does --at latest.")
@output_option
def peek(asked: Asked, at: Point, count: int, raw: bool, follow: bool, output: str) -> None:
    """Show records of a shard: KPL aggregates and gzip opened, JSON laid out.

    SHARD is an id, or its number; STREAM:SHARD if the file names several streams. Takes no lease, and at most half of
    the reads that Kinesis allows a second. With -o json: one JSON document a line.
    """
    from mld.core.clock import LoopClock
    from mld.operating import record_views
    from mld.operating.stream_access import SpanReader, initial_of, peek_at, span_start, streams_of

    shard = _chosen(asked)

    def show(record: RecordView) -> None:
        if output == "json":
            click.echo(json.dumps(record_views.record_value(shard.shard_id, record)))
            return
        click.echo(record_views.headline(record))
        click.echo("".join(f"    {line}\n" for line in record_views.body(record.payload).split("\n")))

    async def peeking() -> int:
        lease = await _lease_of(shard) if at.kind is PointKind.CHECKPOINT else None
        start = span_start(at, shard.shard_id, lease, initial_of(shard.settings))
        follows = follow or at.kind is PointKind.LATEST
        async with streams_of(shard.settings) as streams:
            reader = SpanReader(streams, LoopClock(), shard.shard_id, start.start)
            shown = await peek_at(reader, start, count, show, follow=follows, is_raw=raw)
        if reader.is_over:
            say(f"{shown} records; the shard has ended")
        elif shown < count:
            say(f"{shown} records; there are no more now (--follow waits for them)")
        return EXIT_OK

    finish(peeking)


@click.command()
@asks("SHARD", more="[-- COMMAND ARGS…]")
@click.option(
    "--from",
    "start",
    type=PointType(frozenset(PointKind) - {PointKind.LATEST}),
    required=True,
    help="trim-horizon, checkpoint, a time (2h, 2026-01-31T12:00:00Z) or a sequence number.",
)
@click.option(
    "--to",
    "until",
    type=PointType({PointKind.LATEST, PointKind.TIME, PointKind.SEQUENCE}),
    default=str(LATEST_POINT),
    show_default=True,
    help="The tip (latest), a time, or the last sequence number.",
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
        from mld.operating.replaying import run_replay

        needs_lease = start.kind is PointKind.CHECKPOINT or shard.stream is not None
        lease = await _lease_of(shard) if needs_lease else None
        return await run_replay(shard, start, until, lease, asked.more, file, asked.overrides)

    finish(replaying, interrupted="interrupted")


@click.command()
@asks()
@output_option
def doctor(asked: Asked, output: str) -> None:
    """Look at everything a daemon needs, and say what is wrong and what to do.

    Credentials, endpoints, clock, stream, table, each permission, the processor, this machine. Changes nothing. Exit
    codes: 0 the daemon can run, 1 something fails, 2 bad configuration.
    """
    settings = asked.settings()

    async def examining() -> int:
        from mld.operating.doctor import Doctor
        from mld.operating.findings import finding_value, is_well

        found = await Doctor(settings, asked.file).examine()
        if output == "json":
            value = {"isWell": is_well(found), "findings": [finding_value(one) for one in found]}
            click.echo(json.dumps(value, indent=2))
            return EXIT_OK if is_well(found) else EXIT_FAILURE
        for one in found:
            click.echo(printable(f"{one.health.value:<4}  {one.about}: {one.words}"))
            if one.remedy:
                click.echo(printable(f"      -> {one.remedy}"))
        return EXIT_OK if is_well(found) else EXIT_FAILURE

    finish(examining, interrupted="interrupted")


async def _lease_of(shard: ChosenShard) -> Lease | None:
    from mld.operating.fleet_reader import fleet_reader
    from mld.operating.naming import lease_of

    async with fleet_reader(shard.settings) as reader:
        if shard.stream is None:
            return await reader.lease(shard.shard_id)
        return lease_of(await reader.leases(), shard)
