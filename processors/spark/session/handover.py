"""Pages of a spool -> the `records` frame, which Spark decodes by itself, in parallel.

Columns: streamName, shardId, sequenceNumber, subSequenceNumber, partitionKey, approximateArrivalTimestamp, data; and
`payload`, the decoded data, where the settings name a format. A record that cannot be decoded has a null payload and a
reason. Such records are counted on the way, without a job of their own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from mld.processors.spark.session.computed_once import computed_once
from mld.processors.spark.session.decoding import PAYLOAD, ROW_NUMBER, decoding
from mld.processors.spark.session.failing_rows import FailingRows
from mld.processors.spark.session.jvm_classes import IS
from mld.processors.spark.settings import SparkSettings
from mld.processors.spark.writer_identity import WriterIdentity
from mld.properties.spark_values import Format

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Observation, SparkSession

log = logging.getLogger(__name__)
RAW = (
    "data BINARY, partitionKey STRING, sequenceNumber STRING, approximateArrivalTimestamp BIGINT, "
    "subSequenceNumber INT, s STRING, h STRING"
)
NAMED = (
    "s AS streamName",
    "h AS shardId",
    "sequenceNumber",
    "subSequenceNumber",
    "partitionKey",
    "timestamp_millis(approximateArrivalTimestamp) AS approximateArrivalTimestamp",
    "data",
)
"""The columns of the frame, from those of `RAW`."""
COLUMNS = tuple(text.split()[-1] for text in NAMED)
MUST_BE_THERE = {"ignoreMissingFiles": "false", "ignoreCorruptFiles": "false"}
"""Whatever a user has set for tables of theirs."""
REASON = "reason"
APPLICATION, PIPELINE_ID, SINKS = "application", "pipelineId", "sinks"
"""Of a dead letter: who wrote it, and the sinks that miss the record, null where all do."""
BITS = 1 << 15
"""What Spark's `bitmap_construct_agg` has."""
BIT = f'pmod(crc32(cast(concat_ws(":", sequenceNumber, subSequenceNumber, {{}}) AS BINARY)), {BITS})'
"""Of a record, by where it stands; its shard is in the column that takes the place of the braces."""
ROW_INDEX = "_metadata.row_index"
"""The number of a record within its page, from 0 on, as Spark reads it."""
NUMBER = "mld_row"
"""The same, of a page that is cut into slices."""
BAD, NAMES = "_mld_bad", "_mld_names"
"""Columns of a decoded record: whether it is malformed, and `Decoding.stray_names`."""
IN_ORDER = ("length(sequenceNumber)", "sequenceNumber", "subSequenceNumber")
"""Sequence numbers are decimal, without zeros before them."""
NOBODY = WriterIdentity()


class Counted(NamedTuple):
    """What the jobs over `Handed.records` have seen: records, and how many of them were malformed. The bitmap has a bit
    for each of these (`batch.jobs`). `stray` counts those with stray fields, and names fields of one of them, among
    all records where a column keeps them, else among a sample."""

    seen: int
    malformed: int
    bitmap: bytes | None = None
    stray: int = 0
    stray_names: str | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Handed:
    """The frames of a part of a batch. `records` is for the pipeline, and `malformed` makes that for the dead letter
    (None where the data is not decoded); `because` makes dead letters of all records of a page, with a reason for each
    and the sinks that miss them (none: all do).

    `counts` says what the jobs over `records` have seen; None if no job has run over it."""

    records: DataFrame
    malformed: Callable[[], DataFrame] | None
    because: Callable[[Sequence[str], Sequence[str]], DataFrame]
    counts: Callable[[], Counted | None]
    look: Callable[[], Counted]
    """As `counts`, by a job of its own, with a reason of the field that is wrong most often."""


class Slices(NamedTuple):
    """A page cut into so many slices, each of so many records, but for the last one."""

    number: int
    size: int


class Handover:
    """Pages of a spool -> frames of one session."""

    def __init__(self, session: SparkSession, settings: SparkSettings, *, divert: bool) -> None:
        """Prepare frames; `divert`: malformed records are not in `records`."""
        self._session = session
        self._settings = settings
        self._divert = divert
        self._failing_rows = FailingRows(session)
        self.functions_told = self._failing_rows.functions_told
        self.failing = self._failing_rows.failing

    def of_pages(self, pages: Sequence[str], slices: Slices | None = None, suspects: bytes | None = None) -> Handed:
        """Make frames of pages (`batch.page_file`), by their URIs. `slices`: how the only page is cut for `failing`.
        `suspects`: only of records whose `BIT` is set in it."""
        from pyspark.sql import functions as F

        settings = self._settings
        raw = self._session.read.schema(RAW).options(**MUST_BE_THERE).parquet(*pages)
        if suspects is not None:
            bits = (str(bit) for bit in range(BITS) if suspects[bit >> 3] >> (bit & 7) & 1)
            raw = raw.filter(f"{BIT.format('h')} IN ({', '.join(bits)})")
        elif slices is not None:
            numbered = raw.select("*", F.col(ROW_INDEX).alias(NUMBER))
            cut = numbered.repartitionById(slices.number, (F.col(NUMBER) / slices.size).cast("int"))
            raw = self._failing_rows.told(cut, NUMBER).drop(NUMBER)
        elif settings.in_order:
            raw = raw.sort("s", "h", *map(F.expr, IN_ORDER))
        return handed(
            raw,
            settings.format,
            settings.schema,
            divert=self._divert,
            letter=settings.writer or NOBODY,
            rescued=settings.rescued_column,
        )

    shared = staticmethod(computed_once)

    @staticmethod
    def compute(frame: DataFrame) -> None:
        """Run the job of a frame and write it nowhere."""
        frame.write.format("noop").mode("overwrite").save()


def of_rows(session: SparkSession, rows: Iterable[tuple[object, ...]]) -> DataFrame:
    """Return raw columns of a few records, which travel with the plan."""
    # Without the last node Spark decodes them while it plans, on its driver alone.
    return session.createDataFrame(list(rows), RAW).coalesce(1)


def handed(
    raw: DataFrame,
    format: Format,
    schema: str | None,
    *,
    divert: bool,
    letter: WriterIdentity = NOBODY,
    rescued: str | None = None,
) -> Handed:
    """Return the frames of a batch. With `divert` malformed records are not in `records`, as they have letters."""
    from pyspark.sql import Observation
    from pyspark.sql import functions as F

    def letters(frame: DataFrame, reason: Column, sinks: Sequence[str]) -> DataFrame:
        missed = F.array(*map(F.lit, sinks)) if sinks else F.lit(None)
        return frame.select(
            *COLUMNS,
            reason.alias(REASON),
            F.lit(letter.application).alias(APPLICATION),
            F.lit(letter.pipeline).alias(PIPELINE_ID),
            missed.cast("array<string>").alias(SINKS),
        )

    def because(reasons: Sequence[str], sinks: Sequence[str]) -> DataFrame:
        reason = F.array(*map(F.lit, reasons))[F.col(ROW_INDEX).cast("int")]
        return letters(raw.select(*map(F.expr, NAMED), reason.alias(REASON)), F.col(REASON), sinks)

    if format is Format.BINARY:
        return Handed(raw.selectExpr(*NAMED), None, because, lambda: None, lambda: Counted(0, 0))
    found = decoding(raw.sparkSession, format, schema, rescued)
    # Each step below has the whole plan analysed anew, so there are few, and one sees what the others need. What is
    # counted is a column first: an expression in a count is interpreted.
    decoded = raw.select(*map(F.expr, NAMED), found.decoded.alias(PAYLOAD))
    parsed, bad = decoded.select("*", found.bad.alias(BAD), found.stray_names.alias(NAMES)), F.col(BAD)
    counts = Observation()
    observed = [F.count(F.lit(1)).alias("seen"), F.count_if(bad).alias("malformed")]
    observed += [F.count(NAMES).alias("stray"), F.max(NAMES).alias("stray_names")]
    if divert:
        observed.append(F.bitmap_construct_agg(F.when(bad, F.expr(BIT.format("shardId")))).alias("bitmap"))
    seen = parsed.observe(counts, *observed)
    good = seen.filter(~bad) if divert else seen
    clean = found.clean if divert else F.when(~bad, found.clean)
    if format is Format.JSON_LINES:
        # Without a dead letter, a record that is malformed is one row whose payload is null.
        records = good.select(*COLUMNS, F.inline_outer(clean).alias(PAYLOAD, ROW_NUMBER))
    else:
        records = good.select(*COLUMNS, clean.alias(PAYLOAD))

    def malformed() -> DataFrame:
        return letters(parsed.filter(bad), found.reason, ())

    def look() -> Counted:
        of_bad = parsed.select(bad.alias(BAD), F.when(bad, found.reason).alias(REASON))
        alike = of_bad.groupBy(BAD, F.substring_index(REASON, IS, 1)).agg(F.count("*").alias("n"), F.min(REASON))
        rows = [(row[0], row.n, row[3]) for row in alike.collect()]
        wrong = sorted((n, reason) for is_bad, n, reason in rows if is_bad)
        most = f"{wrong[-1][1]} ({wrong[-1][0]} of them)" if wrong else None
        return Counted(sum(n for _, n, _ in rows), sum(n for n, _ in wrong), reason=most)

    return Handed(records, malformed, because, lambda: _counted(counts), look)


def _counted(counts: Observation) -> Counted | None:
    """Return what was observed, by the first job that ran over it; None if none did, or it failed: asking Spark would
    wait, or raise. A first command without a job, such as that which makes a table, has observed nothing. PySpark's own
    `get` knows neither.
    """
    java: Any = counts._jo
    observed = java.future().value()
    if observed.isEmpty() or observed.get().isFailure() or not observed.get().get().size():
        return None
    found = dict(java.getAsJava())
    seen, malformed, stray = (int(found.get(name) or 0) for name in ("seen", "malformed", "stray"))
    bitmap = found.get("bitmap")
    return Counted(seen, malformed, None if bitmap is None else bytes(bitmap), stray, found.get("stray_names"))
