"""`MldDataSource`: the shell between Spark's Python data sources and the plans and reads of this package.

Spark makes these objects in Python processes beside the driver, and sends the reader to the tasks. What needs the
network is opened where it is used, and never pickled.
"""

from __future__ import annotations

import os
import time
from base64 import b64decode
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition

from mld.core.streams import StreamKind
from mld.processors.spark.datasource.fetching import Fetcher, Fields
from mld.processors.spark.datasource.looking import Bounds, Scout, first_offset, plan
from mld.processors.spark.datasource.offsets import from_json, to_json, to_read
from mld.processors.spark.datasource.read_options import OnDataLoss, OptionsError, ReadOptions, options_of
from mld.processors.spark.datasource.spans import ReadSpan, span_of
from mld.properties.lines import ConfigurationError
from mld.properties.loader import load
from mld.properties.settings import Settings
from mld.retrieval.reader_factory import kind_of

if TYPE_CHECKING:
    import pyarrow

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
