"""The commands that look into a stream and at a processor: `mld peek`, `mld replay`, `mld doctor`. Printing only.

None of them takes a lease, and none writes to a table.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable, Coroutine, Sequence
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
from mld.operating.point_option import PointType
from mld.operating.points import LATEST_POINT, TRIM_HORIZON_POINT, Point, PointKind
from mld.properties.redaction import printable

if TYPE_CHECKING:
    from mld.leases.lease import Lease
    from mld.operating.findings import Diagnosis
    from mld.operating.record_views import RecordView
    from mld.operating.shard_choice import ChosenShard
    from mld.properties.settings import Settings


from collections.abc import Iterator
from dataclasses import dataclass, replace

from mld.core.clock import Clock
from mld.core.streams import Streams
from mld.operating.record_views import RecordView, view_of
from mld.operating.stream_access import SpanReader, SpanStart
from mld.retrieval.rawpage import RawPage

PAGE_RECORDS_MAX = 1_000


@dataclass(frozen=True, slots=True)
class Peek:
    """What to show: `count` records of a shard; `follow`: wait for more at the tip; `is_raw`: as they are stored."""

    shard_id: str
    start: SpanStart
    count: int
    follow: bool = False
    is_raw: bool = False


@dataclass(frozen=True, slots=True)
class Peeked:
    """How it ended: so many records, at the tip of the shard, or at its end."""

    count: int
    is_tip: bool
    is_over: bool


async def peek_at(streams: Streams, clock: Clock, peek: Peek, show: Callable[[RecordView], None]) -> Peeked:
    """Show the records in order. Raises StreamError."""
    reader = SpanReader(streams, clock, peek.shard_id, peek.start.start)
    shown = 0
    while shown < peek.count and not reader.is_over:
        page = await reader.page(min(peek.count - shown, PAGE_RECORDS_MAX))
        for record in _raw_views(page, peek.start) if peek.is_raw else _views(page, peek.start):
            if shown == peek.count:
                break
            show(record)
            shown += 1
        if page.millis_behind_latest == 0 and not peek.follow and shown < peek.count:
            return Peeked(shown, is_tip=True, is_over=reader.is_over)
    return Peeked(shown, is_tip=False, is_over=reader.is_over)


def _views(page: RawPage, start: SpanStart) -> Iterator[RecordView]:
    """User records, as a record processor would get them."""
    batch = page.after(start.after)
    for fields in json.loads(b"".join(batch.line()))["records"]:
        view = view_of(fields)
        why = batch.malformed.get(view.sequence)
        yield view if why is None else replace(view, payload=replace(view.payload, note=f"no KPL aggregate: {why}"))


def _raw_views(page: RawPage, start: SpanStart) -> Iterator[RecordView]:
    """Records as Kinesis keeps them: aggregates and compressed payloads stay closed."""
    number_before = -1 if start.after.number is None else start.after.number
    for place in page.places():
        columns = place.columns
        if int(columns.sequence) > number_before:
            yield view_of(
                {
                    "data": columns.data,
                    "partitionKey": json.loads(columns.key),
                    "sequenceNumber": columns.sequence.decode(),
                    "approximateArrivalTimestamp": int(columns.arrival_ms),
                },
                is_raw=True,
            )


RECORDS_SHOWN = 10

_output = click.option(
    "-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True, help="How to print."
)


def _file_and_shard(words: Sequence[str], option_file: str | None) -> tuple[str, str]:
    """`APP.properties SHARD`, or `SHARD` with -p. Raises click.UsageError."""
    if option_file is None and len(words) == 2:
        return words[0], words[1]
    if option_file is not None and len(words) == 1:
        return option_file, words[0]
    raise click.UsageError("give a properties file and a shard")


def _chosen(settings: Settings, text: str) -> ChosenShard:
    """The shard that `text` means, for which the lease table may be asked; exits if it means none."""
    from mld.operating.shard_choice import chosen_shard
    from mld.operating.shard_lookup import with_stream

    try:
        return chosen_shard(settings, asyncio.run(with_stream(settings, text)))
    except (MldError, OSError) as error:
        say(str(error))
        sys.exit(EXIT_FAILURE)


@click.command()
@click.argument("words", metavar="APP.properties SHARD", nargs=-1)
@file_option
@define_option
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
@_output
def peek(
    words: Sequence[str],
    option_file: str | None,
    overrides: Sequence[str],
    at: Point,
    count: int,
    raw: bool,
    follow: bool,
    output: str,
) -> None:
    """Show records of a shard: KPL aggregates and gzip opened, JSON laid out.

    SHARD is an id, or its number; STREAM:SHARD if the file names several streams. Takes no lease, and at most half of
    the reads that Kinesis allows a second. With -o json: one JSON document a line.
    """
    file, text = _file_and_shard(words, option_file)
    shard = _chosen(settings_of(file, overrides), text)
    settings, shard_id = shard.settings, shard.shard_id

    def show(record: RecordView) -> None:
        from mld.operating import record_views

        if output == "json":
            click.echo(json.dumps(record_views.record_value(shard_id, record)))
            return
        click.echo(record_views.headline(record))
        click.echo("".join(f"    {line}\n" for line in record_views.body(record.payload).split("\n")))

    async def peeking() -> int:
        from mld.core.clock import LoopClock
        from mld.operating.stream_access import initial_of, span_start, streams_of

        lease = await _lease_of(shard) if at.kind is PointKind.CHECKPOINT else None
        start = span_start(at, shard_id, lease, initial_of(settings))
        wanted = Peek(shard_id, start, count, follow or at.kind is PointKind.LATEST, raw)
        async with streams_of(settings) as streams:
            ended = await peek_at(streams, LoopClock(), wanted, show)
        if ended.is_over:
            say(f"{ended.count} records; the shard has ended")
        elif ended.is_tip:
            say(f"{ended.count} records; there are no more now (--follow waits for them)")
        return EXIT_OK

    sys.exit(_guarded(peeking, interrupted=EXIT_OK))


@click.command(context_settings={"ignore_unknown_options": False})
@click.argument("words", metavar="APP.properties SHARD [-- COMMAND ARGS…]", nargs=-1, type=click.UNPROCESSED)
@file_option
@define_option
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
def replay(words: Sequence[str], option_file: str | None, overrides: Sequence[str], start: Point, until: Point) -> None:
    """Give a span of a shard to a record processor, without a lease: to find an error, or with a debugger.

    A shard is named as for `mld peek`. COMMAND is the processor; without it executableName. It speaks the real
    protocol and has no time limits. Its checkpoints are accepted and shown, and stored nowhere; what it writes by
    itself, it writes. Its stderr is shown.

    Exit codes: 0 it has processed the span, 1 it failed or the span cannot be read, 2 bad configuration.
    """
    before = words if option_file is None else [option_file, *words]
    file, text = _file_and_shard(before[:2], None)
    shard = _chosen(settings_of(file, overrides), text)
    command, absolute = list(before[2:]), str(Path(file).absolute())

    async def replaying() -> int:
        from mld.operating.replay_run import run_replay

        needs_lease = start.kind is PointKind.CHECKPOINT or shard.stream is not None
        lease = await _lease_of(shard) if needs_lease else None
        return await run_replay(shard, start, until, lease, command, absolute, overrides)

    sys.exit(_guarded(replaying))


@click.command()
@properties_file
@_output
def doctor(argument_file: str | None, option_file: str | None, overrides: Sequence[str], output: str) -> None:
    """Look at everything a daemon needs, and say what is wrong and what to do.

    Credentials, endpoints, clock, stream, table, each permission, the processor, this machine. Changes nothing. Exit
    codes: 0 the daemon can run, 1 something fails, 2 bad configuration.
    """
    file = chosen_file(option_file, argument_file)
    settings = settings_of(file, overrides)

    async def examining() -> int:
        from mld.operating.doctor import Doctor
        from mld.operating.findings import finding_value, is_well

        found = await Doctor(settings, file).examine()
        if output == "json":
            value = {"isWell": is_well(found), "findings": [finding_value(one) for one in found]}
            click.echo(json.dumps(value, indent=2))
        else:
            _print_findings(found)
        return EXIT_OK if is_well(found) else EXIT_FAILURE

    sys.exit(_guarded(examining))


def _print_findings(found: Sequence[Diagnosis]) -> None:
    for one in found:
        click.echo(printable(f"{one.health.value:<4}  {one.about}: {one.words}"))
        if one.remedy:
            click.echo(printable(f"      -> {one.remedy}"))


async def _lease_of(shard: ChosenShard) -> Lease | None:
    from mld.operating.fleet_reader import fleet_reader
    from mld.operating.shard_choice import lease_of

    async with fleet_reader(shard.settings) as reader:
        if shard.stream is None:
            return await reader.lease(shard.shard_id)
        return lease_of(await reader.leases(), shard)


def _guarded(action: Callable[[], Coroutine[Any, Any, int]], interrupted: int = EXIT_FAILURE) -> int:
    try:
        return asyncio.run(action())
    except KeyboardInterrupt:
        return interrupted
    except BrokenPipeError:  # `mld peek … | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_OK
    except (MldError, OSError) as error:
        say(str(error))
        return EXIT_FAILURE
