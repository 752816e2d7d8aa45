"""`MldDataSource`: the shell between Spark's Python data sources and the plans and reads of this package.

Spark makes these objects in Python processes beside the driver, and sends the reader to the tasks. What needs the
network is opened where it is used, and never pickled. The spans of a read are planned on the driver.
"""

from __future__ import annotations

import os
import time
from base64 import b64decode
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from mld.core.errors import InvalidStreamArgumentError
from mld.core.streams import IteratorType, Shard, StartingPoint, StreamKind
from mld.operating.stream_access import SpanError
from mld.processors.spark.datasource.fetching import DataLossError, Fetcher, Fields
from mld.processors.spark.datasource.read_options import OnDataLoss, OptionsError, ReadOptions, options_of
from mld.processors.spark.datasource.spans import (
    ReadSpan,
    checkpoint_spans,
    missing_shards,
    spans_between,
    times_between,
)
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
