"""`MldDataSource`: the shell between Spark's Python data sources and the plans and reads of this package.

Spark makes these objects in Python processes beside the driver, and sends the reader to the tasks. What needs the
network is opened where it is used, and never pickled. The spans of a read are planned on the driver.
"""

from __future__ import annotations

import os
import time
from base64 import b64decode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NoReturn

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from mld.core.errors import InvalidStreamArgumentError
from mld.core.positions import SUB_MAX, TRIM_HORIZON, Position
from mld.core.streams import IteratorType, Shard, StartingPoint, StreamKind
from mld.operating.stream_access import SpanError
from mld.processors.spark.datasource.fetching import DataLossError, Fetcher, Fields, ReadSpan
from mld.processors.spark.datasource.read_options import OnDataLoss, OptionsError, ReadOptions, options_of
from mld.properties.lines import ConfigurationError
from mld.properties.loader import load
from mld.properties.settings import Settings
from mld.retrieval.reader_factory import kind_of

if TYPE_CHECKING:
    import pyarrow


COLUMNS = (
    "streamName STRING, shardId STRING, sequenceNumber STRING, subSequenceNumber INT, partitionKey STRING, "
    "approximateArrivalTimestamp TIMESTAMP, data BINARY"
)
NO_QUERIES = (
    "mld: this source is for batch reads; for a query that goes on run mld-spark, with mld.spark.mode = streaming if "
    "it has windows or state"
)
SPLIT_S = 3_600.0
"""A shard is read by one task for so long, unless that made more than `PIECES_MAX` tasks."""
PIECES_MAX = 24
"""Spans of one shard. They share its five reads a second, so more of them do not read faster."""
_DEFAULTS = ("executableName=spark", "applicationName=spark")


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
        {shard.shard_id: _plan_shard(fetcher, shard, start_s, until_s) for shard in shards}
    )
    return [span for spans in planned.values() for span in spans]


async def _plan_shard(fetcher: Fetcher, shard: Shard, start_s: float | None, until_s: float) -> list[ReadSpan]:
    begin = StartingPoint(IteratorType.TRIM_HORIZON) if start_s is None else _at(start_s)
    first = await fetcher.first_record(shard.shard_id, begin)
    if first is None or first[1] >= until_s * 1000:
        return []
    found: list[str | None] = [first[0]]
    for time_s in times_between(first[1] / 1000, until_s)[1:]:
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


def last_before(sequence: str) -> Position:
    """Return the last position that may be taken by a record before this one."""
    return Position(str(int(sequence) - 1), SUB_MAX)


def spans_between(shard: Shard, found: Sequence[str | None], before_ms: int | None) -> list[ReadSpan]:
    """Return spans between the first records at several times: `found[n]` is the sequence number of the first record
    that arrived at the n-th time or later, None if there is none yet. The last one is the end of the read.

    Each bound is one record that exists, so every record lies in exactly one span, whatever arrives meanwhile. Where
    the end is not known by a record, `before_ms` decides.
    """
    spans = []
    for begin, end in pairwise(found):
        if begin is None or begin == end:
            continue
        start = StartingPoint(IteratorType.AT_SEQUENCE_NUMBER, sequence=begin)
        through = None if end is None else last_before(end)
        spans.append(
            ReadSpan(
                shard.shard_id,
                shard.hash_range,
                start,
                through=through,
                before_ms=before_ms if end is None else None,
                first=begin,
            )
        )
        if end is None:
            break
    return spans


def times_between(start_s: float, end_s: float) -> list[float]:
    """Return times from start to end, `SPLIT_S` apart, or further so that there are at most `PIECES_MAX` spans."""
    step_s = max(SPLIT_S, (end_s - start_s) / PIECES_MAX)
    times = [start_s]
    while times[-1] + step_s < end_s:
        times.append(times[-1] + step_s)
    return [*times, end_s]


def checkpoint_spans(
    shards: Sequence[Shard],
    start: Mapping[str, Position] | None,
    until: Mapping[str, Position] | None,
    before_ms: int,
) -> list[ReadSpan]:
    """Return spans after one set of positions through another one.

    With `start`, a shard that is not in it is read from its beginning if it descends from one that is, otherwise not
    at all. With `until`, a shard that is not in it is not read. Without `until` the span ends at `before_ms`.
    """
    listed = {shard.shard_id: shard for shard in shards}
    wanted = set(listed if start is None else _descending(listed, start))
    if until is not None:
        wanted &= until.keys()
    spans = []
    for name in sorted(wanted):
        after = TRIM_HORIZON if start is None else start.get(name, TRIM_HORIZON)
        through = None if until is None else until[name]
        if after.is_shard_end or (through is not None and (through <= after or _is_nothing(through))):
            continue
        number = after.number
        point = (
            StartingPoint(IteratorType.TRIM_HORIZON)
            if number is None
            else StartingPoint(IteratorType.AT_SEQUENCE_NUMBER, sequence=after.sequence)
        )
        through = None if through is not None and through.is_shard_end else through
        spans.append(
            ReadSpan(
                name, listed[name].hash_range, point, after, through,
                before_ms if until is None else None,
                None if number is None else after.sequence,
            )
        )  # fmt: skip
    return spans


def _is_nothing(through: Position) -> bool:
    """Return whether it is the checkpoint of a lease that has not been read from."""
    return through.is_sentinel and not through.is_shard_end


def missing_shards(after: Mapping[str, Position], through: Mapping[str, Position], listed: Iterable[str]) -> list[str]:
    """Return shards with records between the positions that the stream does not have any more."""
    done = {name for name, position in after.items() if position.is_shard_end}
    return sorted((after.keys() | through.keys()) - done - set(listed))


def _descending(listed: Mapping[str, Shard], start: Mapping[str, Position]) -> set[str]:
    found = {name for name in listed if name in start}
    is_growing = True
    while is_growing:
        more = {name for name, shard in listed.items() if name not in found and shard.parents & (found | start.keys())}
        found |= more
        is_growing = bool(more)
    return found


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
        return MldReader(options_of(self.options, time.time()))

    def streamReader(self, schema: Any) -> NoReturn:
        raise OptionsError(NO_QUERIES)


class MldReader(DataSourceReader):
    """`spark.read.format("mld")`."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._settings = settings_of(options)

    def partitions(self) -> list[InputPartition]:
        with Fetcher(self._settings) as fetcher:
            return [ShardPartition(span) for span in plan(fetcher, self._options, time.time())]

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        if not isinstance(partition, ShardPartition):  # Spark's own, where nothing is to be read
            return
        stream, span = self._settings.stream_name, partition.span
        with Fetcher(self._settings) as fetcher:
            for records in fetcher.records(span, goes_on=self._options.on_data_loss is OnDataLoss.CONTINUE):
                yield arrow_of(stream, span.shard_id, records)


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
