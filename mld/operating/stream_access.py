"""Reading a shard from outside the fleet: without a lease, at a pace that leaves the shard to its consumers.

A `SpanReader` asks for one page at a time, in order, and lets half of Kinesis's five reads a second be; when Kinesis
throttles it waits longer and longer. It never skips: after an error it goes on behind the last record of the last page.

`mld replay` drives a record processor over a span. The child is started by the daemon's own host and spoken to by its
own conversation, so that it sees what it sees in production: the same lines, batches of the same size, the same answers
to its checkpoints, which are judged by the same rules, shown, and stored nowhere. It is given all the time it wants,
because somebody may be stepping through it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from itertools import islice

import click

from mld.consumer.child import PipeHost
from mld.consumer.lifecycle import CheckpointRange, Illegal, NoWrite, Write
from mld.consumer.parts import Part, PlacedRecord, records_of
from mld.consumer.ports import ChildStartError, ProcessorHost, ShardAddress
from mld.consumer.processor import Processor
from mld.core.clock import Clock, LoopClock
from mld.core.errors import (
    InvalidStreamArgumentError,
    IteratorExpiredError,
    PositionRefusedError,
    StreamError,
    StreamNotFoundError,
    StreamThrottledError,
    StreamUnavailableError,
)
from mld.core.positions import AT_TIMESTAMP, LATEST, SUB_MAX, TRIM_HORIZON, InitialPosition, Position, StreamId
from mld.core.streams import ChildBatch, HashRange, IteratorType, Page, Shard, StartingPoint, Streams
from mld.core.terminal import EXIT_FAILURE, EXIT_OK, find_executable, runnable, say
from mld.leases.lease import Lease, ShardStatus
from mld.operating.faults import Listed
from mld.operating.fleet_reader import opened
from mld.operating.fleet_status import FleetStatus, ShardView, Verdict, rejudged
from mld.operating.listings import RecordView, view_of
from mld.operating.naming import ChosenShard, is_meant, settings_of_one
from mld.operating.points import Point, PointKind
from mld.properties.redaction import printable
from mld.properties.settings import Settings
from mld.properties.spark import PREFIX
from mld.properties.values import ChildLog
from mld.protocol.codec import FramedRecord, Splitter
from mld.protocol.conversation import ProcessorError
from mld.protocol.messages import CheckpointErrorName, CheckpointRequest, Initialize, StreamLabel, split_command
from mld.retrieval.rawpage import RawPage
from mld.retrieval.reader_factory import LABELS, Placement, kind_of, service_name, streams_port
from mld.retrieval.starting_points import initial_position, starting_point
from mld.tracking.stream_list import account_and_name

READ_INTERVAL_S = 0.4
"""Kinesis allows five reads a second and shard, for all consumers together."""
BACKOFF_FIRST_S = 1.0
BACKOFF_MAX_S = 10.0
FAILURES_MAX = 5
"""Errors in a row, apart from throttling, after which reading is given up."""
EMPTY_PAGES_MAX = 2_000
"""In a row. Kinesis leads through a long time without records by empty pages."""
PAGE_RECORDS = 1_000
REQUEST_TIMEOUT_S = 30.0
PROBES_CONCURRENT_MAX = 4
PROBE_INTERVAL_S = 0.1
"""Between two probes of one of these, so that a table of 1,000 shards takes half a minute."""
PROBED = "probed"

WARN_AFTER_S = 86_400.0 * 365  # never: a debugger holds the child
STOP_TIMEOUT_S = 86_400.0
"""A debugger may hold the child at its end, too."""
WORKER_ID = "replay"
UNKNOWN_EPOCH = 1
"""Where neither the settings nor the table nor the service says when a stream was made."""
CHILD_STDERR, CHILD_STDOUT = "child_stderr", "child_stdout"


class SpanError(StreamError):
    """A place or a shard that cannot be read; the text says what to do."""


@dataclass(frozen=True, slots=True)
class SpanStart:
    """Where to begin: what to ask Kinesis for, and after which position records are wanted."""

    start: StartingPoint
    after: Position
    name: Position
    """What a record processor is told at `initialize`."""


def span_start(point: Point, shard_id: str, lease: Lease | None, initial: InitialPosition) -> SpanStart:
    """Return the place that `point` names; the shard's `lease` is for the checkpoint only. Raises SpanError."""
    match point.kind:
        case PointKind.TRIM_HORIZON:
            return SpanStart(StartingPoint(IteratorType.TRIM_HORIZON), TRIM_HORIZON, TRIM_HORIZON)
        case PointKind.LATEST:
            return SpanStart(StartingPoint(IteratorType.LATEST), TRIM_HORIZON, LATEST)
        case PointKind.TIME:
            start = StartingPoint(IteratorType.AT_TIMESTAMP, timestamp_s=point.time_s)
            return SpanStart(start, TRIM_HORIZON, AT_TIMESTAMP)
        case PointKind.SEQUENCE:
            assert point.position is not None
            start = StartingPoint(IteratorType.AT_SEQUENCE_NUMBER, sequence=point.position.sequence)
            return SpanStart(start, _before(point.position), point.position)
    if lease is None:
        raise SpanError(f"shard {shard_id} has no row in the lease table: name another place, such as trim-horizon")
    if lease.is_complete:
        raise SpanError(f"the checkpoint of shard {shard_id} is SHARD_END: name another place, such as trim-horizon")
    checkpoint = lease.checkpoint
    return SpanStart(starting_point(checkpoint, initial), checkpoint, checkpoint)


def _before(position: Position) -> Position:
    """Return the last position before this one."""
    if position.sub:
        return Position(position.sequence, position.sub - 1)
    number = int(position.sequence)
    return Position(str(number - 1), SUB_MAX) if number else TRIM_HORIZON


@asynccontextmanager
async def streams_of(settings: Settings) -> AsyncIterator[Streams]:
    """Open the stream of a properties file, with its credentials and endpoint. Raises StartupError."""
    kind = kind_of(settings.stream_arn)
    async with opened(settings, service_name(kind), LABELS[kind], REQUEST_TIMEOUT_S) as service:
        yield streams_port(service, LoopClock(), settings.stream_name, settings.stream_arn)


class SpanReader:
    """Reads one shard from a starting point on."""

    def __init__(self, streams: Streams, clock: Clock, shard_id: str, start: StartingPoint) -> None:
        self._streams = streams
        self._clock = clock
        self._shard_id = shard_id
        self._start = start
        self._iterator: str | None = None
        self._last_sequence: str | None = None
        self._next_at = clock.monotonic()
        self.is_over = False
        """The shard has ended, and all its records were read."""
        self.is_at_tip = False
        """The last page was the newest."""
        self.throttled = 0

    async def page(self, limit: int) -> RawPage:
        """Read the next page, in due time; it may be empty. Raises StreamError."""
        assert not self.is_over, "nothing follows the end of a shard"
        failures = 0
        while True:
            await self._clock.sleep(max(0.0, self._next_at - self._clock.monotonic()))
            try:
                return await self._page(limit)
            except IteratorExpiredError:
                self._iterator = None
            except StreamThrottledError:
                self.throttled += 1
                wait_s = min(BACKOFF_MAX_S, BACKOFF_FIRST_S * 2.0 ** min(self.throttled - 1, 10))
                self._next_at = self._clock.monotonic() + wait_s
            except (PositionRefusedError, InvalidStreamArgumentError) as error:
                raise SpanError(f"shard {self._shard_id} has no such place: {error}") from error
            except StreamNotFoundError as error:
                raise SpanError(f"{error}; `mld leases` shows the shards") from error
            except StreamUnavailableError:
                failures += 1
                if failures >= FAILURES_MAX:
                    raise
                self._next_at = self._clock.monotonic() + BACKOFF_FIRST_S * failures

    async def _page(self, limit: int) -> RawPage:
        if self._iterator is None:
            self._iterator = await self._streams.shard_iterator(self._shard_id, self._point())
        page = await self._streams.get_records(self._iterator, limit)
        assert isinstance(page, RawPage)
        self.throttled = 0
        self._next_at = self._clock.monotonic() + READ_INTERVAL_S
        self._iterator = page.next_iterator
        self._last_sequence = page.last_sequence or self._last_sequence
        self.is_over = page.next_iterator is None
        self.is_at_tip = page.millis_behind_latest == 0
        return page

    async def page_with_records(self) -> RawPage | None:
        """Read the next page that is not empty; None at the tip or the end. Raises StreamError."""
        for _ in range(EMPTY_PAGES_MAX):
            if self.is_over or self.is_at_tip:
                return None
            page = await self.page(PAGE_RECORDS)
            if page.count:
                return page
        raise StreamUnavailableError(f"shard {self._shard_id}: {EMPTY_PAGES_MAX} empty pages in a row")

    def _point(self) -> StartingPoint:
        if self._last_sequence is None:
            return self._start
        return StartingPoint(IteratorType.AFTER_SEQUENCE_NUMBER, sequence=self._last_sequence)


async def all_shards(streams: Streams) -> dict[str, Shard]:
    """List the shards of a stream, by their ids. Raises StreamError."""
    found: dict[str, Shard] = {}
    token = None
    while True:
        page = await streams.list_shards(None, token)
        found |= {shard.shard_id: shard for shard in page.shards}
        if (token := page.next_token) is None:
            return found


def arrival_ms(record: FramedRecord) -> int:
    """Return when it reached Kinesis, in epoch milliseconds."""
    value = record.fields()["approximateArrivalTimestamp"]
    assert isinstance(value, int)
    return value


def framed_records(page: Page, after: Position, hash_range: HashRange | None = None) -> list[FramedRecord]:
    """Return the user records of a page after a position, with aggregates opened; of `hash_range` only, if given."""
    splitter = Splitter()
    return [record for piece in page.after(after, hash_range).line() for record in splitter.feed(piece)]


# --- showing records --------------------------------------------------------------------------------------------------


async def peek_at(
    reader: SpanReader,
    start: SpanStart,
    count: int,
    show: Callable[[RecordView], None],
    *,
    follow: bool = False,
) -> int:
    """Show so many records in order, up to the tip unless to `follow`; how many there were. Raises StreamError."""
    shown = 0
    while shown < count and not reader.is_over and (follow or not reader.is_at_tip):
        page = await reader.page(min(count - shown, PAGE_RECORDS))
        for record in islice(_views(page, start), count - shown):
            show(record)
            shown += 1
    return shown


def _views(page: RawPage, start: SpanStart) -> Iterator[RecordView]:
    """Yield user records, as a record processor would get them."""
    batch = page.after(start.after)
    for fields in json.loads(b"".join(batch.line()))["records"]:
        view = view_of(fields)
        why = batch.malformed.get(view.sequence)
        yield view if why is None else replace(view, payload=replace(view.payload, note=f"no KPL aggregate: {why}"))


# --- how far behind ---------------------------------------------------------------------------------------------------
# `mld lag --probe` asks Kinesis about shards whose rows do not say it: one iterator and one record a shard, from its
# checkpoint, and few shards at a time, because the shard's consumers share the five reads a second. What cannot be
# asked stays unknown.


async def probed(settings: Settings, status: FleetStatus, lag_max_s: float) -> FleetStatus:
    """Return the fleet's status, completed by what Kinesis says of shards whose rows do not."""
    answers: dict[str, int] = {}
    refused: dict[str, StreamError] = {}
    for one, leases in by_stream(settings, silent(status)):
        async with streams_of(one) as streams:
            found, why = await probe(streams, leases, initial_position(one.initial_position))
        answers |= found
        refused |= why
    if refused:
        key = min(refused)
        say(f"{len(refused)} shards could not be asked about, among them {key}: {refused[key]}")
    return with_probed(status, answers, lag_max_s)


async def listed_of(settings: Settings, status: FleetStatus) -> dict[str | None, Listed]:
    """Return what the service says of each stream of the file, by label; without those that cannot be asked."""
    found: dict[str | None, Listed] = {}
    each: list[tuple[str | None, Settings]] = [(one.name, settings_of_one(settings, one)) for one in settings.streams]
    for label, one in each or [(None, settings)]:
        try:
            async with streams_of(one) as streams:
                summary = await streams.describe()
                found[label] = Listed(tuple((await all_shards(streams)).values()), summary.status)
        except StreamError as error:
            say(f"the shards of {label or settings.stream_title} could not be listed: {error}")
    return found


def by_stream(settings: Settings, leases: Sequence[Lease]) -> Iterator[tuple[Settings, list[Lease]]]:
    """Yield the leases by stream, with the settings of that alone; without those of streams that the file lacks."""
    if not settings.is_multi_stream:
        yield settings, list(leases)
        return
    for stream in dict.fromkeys(lease.stream for lease in leases):
        setting = next((one for one in settings.streams if stream is not None and is_meant(one, stream)), None)
        if setting is not None:
            yield settings_of_one(settings, setting), [lease for lease in leases if lease.stream == stream]


def silent(status: FleetStatus) -> list[Lease]:
    """Return the leases of shards whose lag nobody tells and Kinesis can be asked for.

    At LATEST there is no place to ask from.
    """
    return [
        shard.lease
        for shard in status.open_shards
        if shard.behind_s is None and shard.lease.checkpoint.sequence != LATEST.sequence
    ]


async def probe(
    streams: Streams, leases: list[Lease], initial: InitialPosition
) -> tuple[dict[str, int], dict[str, StreamError]]:
    """Ask about shards: (milliseconds behind, why it could not be asked), each by shard."""
    answers: dict[str, int] = {}
    refused: dict[str, StreamError] = {}
    waiting = iter(leases)

    async def ask() -> None:
        for lease in waiting:
            try:
                iterator = await streams.shard_iterator(lease.shard_id, _after(lease, initial))
                behind_ms = (await streams.get_records(iterator, 1)).millis_behind_latest
                if behind_ms is not None:
                    answers[lease.key] = behind_ms
            except StreamError as error:
                refused[lease.key] = error
            await asyncio.sleep(PROBE_INTERVAL_S)

    await asyncio.gather(*(ask() for _ in range(min(PROBES_CONCURRENT_MAX, len(leases)))))
    return answers, refused


def _after(lease: Lease, initial: InitialPosition) -> StartingPoint:
    if lease.checkpoint.number is None:
        return starting_point(lease.checkpoint, initial)
    return StartingPoint(IteratorType.AFTER_SEQUENCE_NUMBER, sequence=lease.checkpoint.sequence)


def with_probed(status: FleetStatus, answers: Mapping[str, int], lag_max_s: float) -> FleetStatus:
    """Return the status with what Kinesis said, marked as such. Only an unknown verdict changes."""

    def view(shard: ShardView) -> ShardView:
        behind_ms = answers.get(shard.key)
        if behind_ms is None:
            return shard
        told = ShardStatus(PROBED, int(status.taken_s), behind_ms)
        if shard.verdict is Verdict.UNKNOWN:
            return rejudged(shard, told, lag_max_s, is_probed=True)
        return replace(shard, status=told, age_s=0.0, is_probed=True)

    return replace(status, shards=tuple(map(view, status.shards)))


# --- a record processor over a span of a shard ------------------------------------------------------------------------


@dataclass(slots=True)
class Replayer:
    """One replay, and how far it has come.

    `until` is inclusive for a sequence number; a time ends before the first record that arrived then or later. The tip
    of the shard ends any span.
    """

    settings: Settings
    shard_id: str
    start: SpanStart
    until: Point
    streams: Streams
    host: ProcessorHost
    clock: Clock
    hash_range: HashRange | None = None
    stream: StreamLabel | None = None
    """The shard's, if the application reads several."""

    records: int = 0
    batches: int = 0
    last: Position | None = None
    checkpoint: Position | None = None
    in_hand: str = ""
    """What the processor was doing last."""
    failure: str | None = None
    """None: it has done all that was asked of it."""
    ended: str = ""
    """How the child's process ended."""
    _range: CheckpointRange = field(init=False)
    _processor: Processor | None = None

    def __post_init__(self) -> None:
        self._range = CheckpointRange.starting_at(self.start.after)

    async def run(self) -> None:
        """Drive the processor from the start of the span to its end. Raises StreamError and ChildStartError; the child
        is gone then."""
        try:
            await self._drive()
        except ProcessorError as error:
            self.failure = str(error)
        finally:
            processor, self._processor = self._processor, None
            if processor is not None:
                self.ended = await processor.kill()

    async def _drive(self) -> None:
        key = self.shard_id if self.stream is None else f"{self.stream.id}:{self.shard_id}"
        most = self.settings.reader.records_max
        treated = replace(self.settings.child, reply_timeout_s=None, warn_after_s=WARN_AFTER_S, log=ChildLog.RAW)
        reader = SpanReader(self.streams, self.clock, self.shard_id, self.start.start)
        page = await reader.page(most)  # what cannot be read needs no child
        child = await self.host.start(ShardAddress(key, self.shard_id, self.stream))
        self._processor = processor = Processor(child, self.shard_id, self.clock, treated, self._checkpoint)
        name = self.start.name
        self.in_hand = "initialize"
        await processor.initialize(Initialize(self.shard_id, name.sequence, name.sub, self.stream))
        while True:
            batch, is_last = await self._cut(page)
            if batch.largest is not None or self.settings.child.deliver_empty_batches:
                await self._deliver(processor, batch, page.first_sequence)
            if is_last or reader.is_over or page.millis_behind_latest == 0:
                break
            page = await reader.page(most)
        if reader.is_over and not is_last:
            await self._end_shard(processor)
        else:
            self.in_hand = "shutdownRequested"
            await processor.shutdown_requested(self._range.last.sequence)
            await processor.lease_lost()
        self._processor = None
        self.ended = await processor.end()

    async def _deliver(self, processor: Processor, batch: ChildBatch, first: str | None) -> None:
        def written() -> None:
            if first is not None and batch.largest is not None:
                self._range = self._range.deliver(Position(first), batch.largest)

        self.in_hand = f"the batch up to {batch.largest}"
        await processor.process_records(batch.line(), written=written)
        self.batches += 1
        self.records += batch.count
        self.last = batch.largest or self.last

    async def _end_shard(self, processor: Processor) -> None:
        def written() -> None:
            self._range = self._range.at_shard_end()

        self.in_hand = "shardEnded"
        await processor.shard_ended(written)
        if not self._range.is_complete:
            raise ProcessorError("answered shardEnded without a successful checkpoint")

    async def _cut(self, page: RawPage) -> tuple[ChildBatch, bool]:
        """Return (what of the page lies in the span, whether the span ends in it)."""
        batch = page.after(self.start.after, self.hash_range)
        until = self.until
        if until.kind not in (PointKind.TIME, PointKind.SEQUENCE) or batch.largest is None:
            return batch, False
        records = await records_of(batch)
        wanted = [record for record in records if _is_wanted(record, until)]
        if len(wanted) == len(records):
            is_last = until.position is not None and records[-1].position == until.position
            return batch, is_last
        return (Part(wanted, page.millis_behind_latest) if wanted else page.after(batch.largest)), True

    async def _checkpoint(self, request: CheckpointRequest) -> CheckpointErrorName | None:
        """Judge it as a consumer does; what would be stored is shown instead."""
        match self._range.resolve(request.sequence_number, request.sub_sequence_number):
            case Illegal(reason):
                say(f"checkpoint refused: {reason}")
                return CheckpointErrorName.ILLEGAL_ARGUMENT
            case Write(position):
                self._range = self._range.written(position)
                self.checkpoint = position
                say(f"checkpoint {position} (not stored)")
            case NoWrite():
                say(f"checkpoint {self._range.last} again (not stored)")
        return None


def _is_wanted(record: PlacedRecord, until: Point) -> bool:
    if until.position is not None:
        return record.position <= until.position
    assert until.time_s is not None
    return arrival_ms(record.framed) < until.time_s * 1000


# --- the command ------------------------------------------------------------------------------------------------------


async def run_replay(
    shard: ChosenShard,
    start: Point,
    until: Point,
    lease: Lease | None,
    command: Sequence[str],
    properties_file: str,
    overrides: Sequence[str],
) -> int:
    """Replay, tell, and return the exit code. Raises MldError if the span cannot be read."""
    settings, shard_id = shard.settings, shard.shard_id
    words = list(command) or split_command(settings.child.command)
    if find_executable(words) is None:
        raise ChildStartError(f"no executable file {words[0]!r} is found; name the processor after --")
    clock = LoopClock()
    host = PipeHost(
        runnable(words),
        clock,
        stop_timeout_s=STOP_TIMEOUT_S,
        logs_fields=False,
        environment={
            "MLD_STREAM_NAME": settings.stream_name,
            "MLD_APPLICATION_NAME": settings.application_name,
            "MLD_WORKER_ID": WORKER_ID,
            "MLD_PROPERTIES_FILE": properties_file,
            "MLD_OVERRIDES": "\n".join(text for text in overrides if text.startswith(PREFIX)),
            "MLD_DAEMON_PID": str(os.getpid()),
        },
    )
    with _ChildWords():
        async with streams_of(settings) as streams:
            listed = await all_shards(streams)
            if shard_id not in listed:
                raise SpanError(f"the stream has no shard {shard_id}; `mld leases` shows the shards")
            replay = Replayer(
                settings,
                shard_id,
                span_start(start, shard_id, lease, initial_position(settings.initial_position)),
                until,
                streams,
                host,
                clock,
                await Placement(streams, clock).range_of(listed[shard_id].hash_range),
                None if shard.stream is None else await _label(streams, shard, lease),
            )
            await replay.run()
    return _tell(replay)


async def _label(streams: Streams, shard: ChosenShard, lease: Lease | None) -> StreamLabel:
    """Return the label of the stream that the processor gets: as the lease table has it, else by the service."""
    summary = await streams.describe()
    if lease is not None and lease.stream is not None:
        return StreamLabel(shard.settings.stream_name, summary.arn, lease.stream)
    account, name = account_and_name(summary.arn)
    configured = None if shard.stream is None else shard.stream.epoch
    epoch = configured or (summary.created_ms or 0) // 1000 or UNKNOWN_EPOCH
    return StreamLabel(name, summary.arn, str(StreamId(account, name, epoch)))


def _tell(done: Replayer) -> int:
    last = f", the last one {done.last}" if done.last is not None else ""
    say(f"{done.records} records in {done.batches} batches of {done.shard_id} were processed{last}")
    if done.failure is None:
        say(f"the last checkpoint would have been {done.checkpoint or 'none'}; {done.ended}")
        return EXIT_OK
    say(f"the processor failed at {done.in_hand}: {done.failure} ({done.ended})")
    return EXIT_FAILURE


class _ChildWords(logging.Handler):
    """What the child writes to stderr goes to ours as it is. Of our own log warnings do, and what it writes to stdout
    that is no answer."""

    def __enter__(self) -> None:
        root = logging.getLogger("mld")
        root.addHandler(self)
        self._before = root.level, root.propagate
        root.setLevel(logging.INFO)
        root.propagate = False

    def __exit__(self, *_: object) -> None:
        root = logging.getLogger("mld")
        root.removeHandler(self)
        root.level, root.propagate = self._before

    def emit(self, record: logging.LogRecord) -> None:
        if getattr(record, "action", "") == CHILD_STDERR:
            click.echo(record.getMessage(), err=True)
        elif record.levelno >= logging.WARNING or getattr(record, "action", "") == CHILD_STDOUT:
            click.echo(f"mld: {printable(record.getMessage())}", err=True)
