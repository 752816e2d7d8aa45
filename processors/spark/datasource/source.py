"""`MldDataSource`: the shell between Spark's Python data sources and the plans and reads of this package.

Spark makes these objects in Python processes beside the driver, and sends the reader to the tasks. What needs the
network is opened where it is used, and never pickled.

Plans on the driver: where the spans of a batch read begin and end, and how far the next batch of a query may go.

A query's end has to be known before its tasks read, and has to mean the same records whenever it is read again. Kinesis
tells no position without reading, so the driver reads first, keeps nothing but sequence numbers, and the tasks read
the same records again. Time would be cheaper and would not do: a record that arrives late may bear an earlier time.
"""

from __future__ import annotations

import os
import time
from base64 import b64decode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition

from mld.core.errors import InvalidStreamArgumentError, StreamNotFoundError
from mld.core.streams import ChildShard, IteratorType, Shard, StartingPoint, StreamKind
from mld.operating.points import PointKind
from mld.operating.stream_access import SpanError, SpanReader
from mld.processors.spark.datasource.fetching import DataLossError, Fetcher, Fields
from mld.processors.spark.datasource.offsets import (
    ReadSpan,
    ShardProgress,
    StreamOffset,
    admitted,
    advanced,
    checkpoint_spans,
    from_json,
    heirs_of_lost,
    initial_offset,
    missing_shards,
    pruned,
    span_of,
    spans_between,
    start_at,
    times_between,
    to_json,
    to_read,
)
from mld.processors.spark.datasource.read_options import OnDataLoss, OptionsError, ReadOptions, options_of
from mld.properties.lines import ConfigurationError
from mld.properties.loader import load
from mld.properties.settings import Settings
from mld.properties.values import InitialPositionKind
from mld.retrieval.rawpage import RawPage
from mld.retrieval.reader_factory import kind_of

if TYPE_CHECKING:
    import pyarrow


EMPTY_PAGES_MAX = 10
"""Answers without records, in stretches where nothing was written, after which a shard waits for the next trigger."""
PAGE_RECORDS_MAX = 10_000


# --- batch reads ------------------------------------------------------------------------------------------------------


def plan(fetcher: Fetcher, options: ReadOptions, now_s: float) -> list[ReadSpan]:
    """Return the spans of a batch read. Raises StreamError."""
    shards = fetcher.shards()
    until_s = options.until.time_s if options.until is not None and options.until.time_s is not None else now_s
    leases = fetcher.checkpoints() if options.start_leases or options.until_leases else {}
    after = leases if options.start_leases else options.start_checkpoints
    through = leases if options.until_leases else options.until_checkpoints
    if after is not None or through is not None:
        missing = missing_shards(after or {}, through or {}, (shard.shard_id for shard in shards))
        if missing and options.on_data_loss is OnDataLoss.FAIL:
            raise DataLossError(
                f"the stream has no shard {missing[0]}: it has left the retention, or the checkpoints are of another "
                "stream. Set the option onDataLoss to continue to go on without it"
            )
        return checkpoint_spans(shards, after, through, int(until_s * 1000))
    start_s = None if options.start is None else options.start.time_s
    planned = fetcher.beside_each_other(
        {
            shard.shard_id: _plan_shard(fetcher, shard, start_s, until_s, options.split_minutes * 60.0)
            for shard in shards
        }
    )
    return [span for spans in planned.values() for span in spans]


async def _plan_shard(
    fetcher: Fetcher, shard: Shard, start_s: float | None, until_s: float, step_s: float
) -> list[ReadSpan]:
    begin = StartingPoint(IteratorType.TRIM_HORIZON) if start_s is None else _at(start_s)
    first = await fetcher.first_record(shard.shard_id, begin)
    if first is None or first[1] >= until_s * 1000:
        return []
    found: list[str | None] = [first[0]]
    for time_s in times_between(first[1] / 1000, until_s, step_s)[1:]:
        record = await _first_after(fetcher, shard.shard_id, time_s)
        found.append(None if record is None else record[0])
        if record is None:
            break
    return spans_between(shard, found, int(until_s * 1000))


async def _first_after(fetcher: Fetcher, shard_id: str, time_s: float) -> tuple[str, int] | None:
    """Return the first record after a time, as `Fetcher.first_record`. Kinesis refuses a time that is in the future by
    its clock, where nothing is yet.
    """
    try:
        return await fetcher.first_record(shard_id, _at(time_s))
    except SpanError as error:
        if isinstance(error.__cause__, InvalidStreamArgumentError):
            return None
        raise


def _at(time_s: float) -> StartingPoint:
    return StartingPoint(IteratorType.AT_TIMESTAMP, timestamp_s=time_s)


# --- queries ----------------------------------------------------------------------------------------------------------


def first_offset(fetcher: Fetcher, options: ReadOptions, settings: Settings, now_s: float) -> StreamOffset:
    """Return where a new query starts: the option `from`, else `initialPositionInStream`."""
    shards = fetcher.shards()
    start_s: float | None = None
    is_oldest = False
    if options.start is not None:
        is_oldest = options.start.kind is PointKind.TRIM_HORIZON
        start_s = now_s if options.start.kind is PointKind.LATEST else options.start.time_s
    else:
        kind = settings.initial_position.kind
        is_oldest = kind is InitialPositionKind.TRIM_HORIZON
        start_s = now_s if kind is InitialPositionKind.LATEST else settings.initial_position.timestamp_s
    if is_oldest or start_s is None:
        return initial_offset(fetcher.identity(), shards, "TRIM_HORIZON")
    return initial_offset(fetcher.identity(), shards, start_at(start_s))


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much of each shard a batch may have; None: all there is."""

    records_max: int | None
    bytes_max: int | None


@dataclass(frozen=True, slots=True)
class Look:
    """What follows in one shard: `count` Kinesis records from `first` to `last`; `ended` names the children."""

    first: str | None = None
    last: str | None = None
    count: int = 0
    ended: tuple[ChildShard, ...] | None = None
    is_tip: bool = False
    is_lost: bool = False
    """The stream does not have the shard any more."""


class Scout:
    """Looks at what follows an offset. Iterators are kept from trigger to trigger, as long as they fit."""

    def __init__(self, fetcher: Fetcher, on_data_loss: OnDataLoss) -> None:
        self._fetcher = fetcher
        self._on_data_loss = on_data_loss
        self._readers: dict[str, tuple[str | None, SpanReader]] = {}
        self._at_tip: set[str] | None = None
        """Shards that a query of what is available now has read up to the tip; None for other queries."""

    def stop_at_the_tip(self) -> None:
        """Read no shard further than to its tip from now on."""
        self._at_tip = set()

    def advance(self, start: StreamOffset, bounds: Bounds) -> StreamOffset:
        """Return the end of the next batch; `start` itself if nothing follows. Raises StreamError, DataLossError."""
        kept = pruned(start)
        works = {
            name: self._look(name, progress, bounds)
            for name, progress in kept.shards.items()
            if not progress.is_ended and not (self._at_tip is not None and name in self._at_tip)
        }
        looks = self._fetcher.beside_each_other(works)
        listed = self._fetcher.shards() if any(look.ended is not None for look in looks.values()) else []
        shards = dict(kept.shards)
        for name, look in looks.items():
            if self._at_tip is not None and look.is_tip:
                self._at_tip.add(name)
            heirs = None if look.ended is None else self._heirs(name, shards[name], look, listed, kept)
            ended = heirs or None  # without any it is looked at again: forgotten, it would take its descendants along
            shards[name] = advanced(shards[name], look.first, look.last, look.count, ended)
        end = replace(kept, shards=shards)
        if listed:
            end = admitted(end, listed)
        return start if end.shards == kept.shards else end

    def _heirs(
        self, name: str, progress: ShardProgress, look: Look, listed: list[Shard], offset: StreamOffset
    ) -> list[ChildShard]:
        heirs = {child.shard_id: child for child in look.ended or ()}
        heirs |= {s.shard_id: ChildShard(s.shard_id, s.parents, s.hash_range) for s in listed if name in s.parents}
        if not heirs and look.is_lost:
            return heirs_of_lost(name, progress, listed, offset.shards)
        return list(heirs.values())

    async def _look(self, name: str, progress: ShardProgress, bounds: Bounds) -> Look:
        kept = self._readers.pop(name, None)
        is_kept = kept is not None and kept[0] == progress.last
        reader = kept[1] if kept is not None and is_kept else await self._new_reader(name, progress)
        expected = None if is_kept else progress.last
        try:
            look, is_whole = await self._read(name, reader, progress.last, expected, bounds)
        except (SpanError, StreamNotFoundError) as error:
            if not isinstance(error.__cause__, StreamNotFoundError) and not isinstance(error, StreamNotFoundError):
                raise
            if self._on_data_loss is OnDataLoss.FAIL:
                raise DataLossError(
                    f"{name} is not in the stream any more, with what followed {progress.last or progress.start} "
                    "in it. Set the option onDataLoss to continue to go on with the shards that follow it"
                ) from error
            return Look(ended=(), is_lost=True)
        if is_whole and not reader.is_over:
            self._readers[name] = (look.last or progress.last, reader)
        return look

    async def _new_reader(self, name: str, progress: ShardProgress) -> SpanReader:
        if progress.last is not None:
            start = StartingPoint(IteratorType.AT_SEQUENCE_NUMBER, sequence=progress.last)
        elif progress.start_s is not None:
            start = _at(progress.start_s)
        else:
            start = StartingPoint(IteratorType.TRIM_HORIZON)
        return await self._fetcher.reader(name, start)

    async def _read(
        self, name: str, reader: SpanReader, last: str | None, expected: str | None, bounds: Bounds
    ) -> tuple[Look, bool]:
        """Return (what follows, whether the reader stands right after it)."""
        look, size, empty = Look(), 0, 0
        floor = -1 if last is None else int(last)
        while True:
            left = None if bounds.records_max is None else bounds.records_max - look.count + (expected is not None)
            page = await reader.page(None if left is None else min(left, PAGE_RECORDS_MAX))
            if page.first_sequence is not None and expected is not None:
                if page.first_sequence != expected and self._on_data_loss is OnDataLoss.FAIL:
                    raise DataLossError(
                        f"{name} begins at {page.first_sequence} now, and the query stands at {expected}: what lies "
                        "between may have left the stream's retention. Set the option onDataLoss to continue to go on"
                    )
                expected = None
            taken, size, is_whole = _taken(page, floor, size, bounds.bytes_max)
            if taken:
                look = replace(look, first=look.first or taken[0], last=taken[-1], count=look.count + len(taken))
                floor = int(taken[-1])
            empty = 0 if page.count else empty + 1
            is_full = look.count == bounds.records_max or (bounds.bytes_max is not None and size >= bounds.bytes_max)
            if is_whole and reader.is_over:
                return replace(look, ended=page.child_shards), True
            if page.millis_behind_latest == 0 and is_whole:
                return replace(look, is_tip=True), True
            if is_full or not is_whole or empty == EMPTY_PAGES_MAX:
                return look, is_whole


def _taken(page: RawPage, floor: int, size: int, bytes_max: int | None) -> tuple[list[str], int, bool]:
    """Return (sequence numbers of the page above `floor` that still fit, bytes with them, whether that is all of the
    page).
    """
    records = [(int(place.sequence), place.sequence.decode(), place.data_bytes) for place in page.places()]
    records.sort(key=lambda record: record[0])
    taken: list[str] = []
    for value, text, data_bytes in records:
        if value <= floor:
            continue
        if bytes_max is not None and size >= bytes_max:
            return taken, size, False
        size += data_bytes
        taken.append(text)
    return taken, size, True


try:
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, SupportsTriggerAvailableNow
except ImportError:  # before PySpark 4.2, which cannot tell a source where a query stands
    SupportsTriggerAvailableNow = object  # type: ignore[assignment,misc]

COLUMNS = (
    "streamName STRING, shardId STRING, sequenceNumber STRING, subSequenceNumber INT, partitionKey STRING, "
    "approximateArrivalTimestamp TIMESTAMP, data BINARY"
)
_DEFAULTS = ("executableName=spark", "applicationName=spark")


class ShardPartition(InputPartition):
    """What one task reads."""

    def __init__(self, span: ReadSpan) -> None:
        super().__init__(span)
        self.span = span


def settings_of(options: ReadOptions) -> Settings:
    """Return the daemon's settings that the options and the file in them make. Raises OptionsError."""
    defaults = () if options.properties else _DEFAULTS
    if not options.properties and not any(line.startswith("AwsCredentialsProvider=") for line in options.overrides):
        defaults = (*defaults, "AwsCredentialsProvider=DefaultCredentialsProvider")
    try:
        settings = load(options.properties or os.devnull, (*defaults, *options.overrides), os.environ).settings
    except ConfigurationError as error:
        said = "; ".join(str(problem) for problem in error.problems)
        raise OptionsError("mld: " + said.replace(os.devnull, "options")) from None
    if settings.is_multi_stream:
        raise OptionsError("mld: the properties name several streams: name one by the option stream")
    if kind_of(settings.stream_arn) is StreamKind.DYNAMODB:
        raise OptionsError("mld: streams of DynamoDB tables are not read by this source: run mld with mld-spark")
    return settings


class MldDataSource(DataSource):
    """The format `mld`."""

    @classmethod
    def name(cls) -> str:
        return "mld"

    def schema(self) -> str:
        return COLUMNS

    def reader(self, schema: Any) -> MldReader:
        return MldReader(options_of(self.options, time.time(), is_stream=False))

    def streamReader(self, schema: Any) -> MldStreamReader:
        return MldStreamReader(options_of(self.options, time.time(), is_stream=True))


class _TaskReader:
    """What tasks do, for both readers."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._settings = settings_of(options)

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        if not isinstance(partition, ShardPartition):  # Spark's own, where nothing is to be read
            return
        stream, span = self._settings.stream_name, partition.span
        with Fetcher(self._settings) as fetcher:
            for records in fetcher.records(span, goes_on=self._options.on_data_loss is OnDataLoss.CONTINUE):
                yield arrow_of(stream, span.shard_id, records)


class MldReader(_TaskReader, DataSourceReader):
    """`spark.read.format("mld")`."""

    def partitions(self) -> list[InputPartition]:
        with Fetcher(self._settings) as fetcher:
            return [ShardPartition(span) for span in plan(fetcher, self._options, time.time())]


class MldStreamReader(_TaskReader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """`spark.readStream.format("mld")`."""

    def __init__(self, options: ReadOptions) -> None:
        super().__init__(options)
        self._fetcher: Fetcher | None = None
        self._scout: Scout | None = None
        self._stream: str | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Leave the stream out: tasks open it for themselves."""
        return {**self.__dict__, "_fetcher": None, "_scout": None}

    def initialOffset(self) -> dict[str, Any]:
        fetcher, _ = self._opened()
        return to_json(first_offset(fetcher, self._options, self._settings, time.time()))

    def getDefaultReadLimit(self) -> Any:
        """Return the bounds of the options; they count for each shard."""
        return ReadMaxRows(self._options.records_max)

    def latestOffset(self, start: Mapping[str, Any] | None = None, limit: Any = None) -> dict[str, Any]:
        if start is None:
            raise OptionsError("mld: readStream needs PySpark 4.2 or later, which tells a source where a query stands")
        fetcher, scout = self._opened()
        if self._stream is None:
            self._stream = fetcher.identity()
        everything = isinstance(limit, ReadAllAvailable)
        bounds = Bounds(None, None) if everything else Bounds(self._options.records_max, self._options.bytes_max)
        return to_json(scout.advance(from_json(start, self._stream), bounds))

    def prepareForTriggerAvailableNow(self) -> None:
        self._opened()[1].stop_at_the_tip()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        ranges = to_read(from_json(start), from_json(end))
        return [ShardPartition(span_of(name, progress)) for name, progress in ranges]

    def stop(self) -> None:
        if self._fetcher is not None:
            self._fetcher.close()
        self._fetcher = self._scout = None

    def _opened(self) -> tuple[Fetcher, Scout]:
        if self._fetcher is None or self._scout is None:
            fetcher = Fetcher(self._settings)
            fetcher.__enter__()
            self._fetcher, self._scout = fetcher, Scout(fetcher, self._options.on_data_loss)
        return self._fetcher, self._scout


def arrow_of(stream: str, shard_id: str, records: Sequence[Fields]) -> pyarrow.RecordBatch:
    """Return the rows of some records, in the columns of `COLUMNS`."""
    import pyarrow as pa

    number = len(records)
    columns = {
        "streamName": pa.array([stream] * number, pa.string()),
        "shardId": pa.array([shard_id] * number, pa.string()),
        "sequenceNumber": pa.array([record["sequenceNumber"] for record in records], pa.string()),
        "subSequenceNumber": pa.array([record["subSequenceNumber"] for record in records], pa.int32()),
        "partitionKey": pa.array([record["partitionKey"] for record in records], pa.string()),
        "approximateArrivalTimestamp": pa.array(
            [record["approximateArrivalTimestamp"] * 1000 for record in records], pa.timestamp("us", tz="UTC")
        ),
        "data": pa.array([b64decode(record["data"]) for record in records], pa.binary()),
    }
    return pa.RecordBatch.from_pydict(columns)
