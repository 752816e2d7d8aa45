"""Hands records over to Spark: makes the frame `records` from pages of a spool, which executors decode in parallel.

Its columns are streamName, shardId, sequenceNumber, subSequenceNumber, partitionKey, approximateArrivalTimestamp, data;
and `payload`, the decoded data, if the settings name a format. A record that cannot be decoded is malformed: its
payload is null, or it is left out for the dead letter. Jobs over the frame also count such records, so that no job of
its own is needed for that.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
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
"""The columns of a page (`batch.page_file`). `s` is the name of the stream, `h` the id of the shard."""
NAMED = (
    "s AS streamName",
    "h AS shardId",
    "sequenceNumber",
    "subSequenceNumber",
    "partitionKey",
    "timestamp_millis(approximateArrivalTimestamp) AS approximateArrivalTimestamp",
    "data",
)
"""Expressions that make the columns of the frame from the columns of `RAW`."""
COLUMNS = tuple(text.split()[-1] for text in NAMED)
READING_PAGES = {
    "ignoreMissingFiles": "false",
    "ignoreCorruptFiles": "false",
    "parquet.hadoop.vectored.io.enabled": "false",
}
"""Options for reading pages. They overrule settings of the user that are meant for other tables. Vectored IO would read
each row group by a request of its own, on other threads. A page is read as a whole, so one request is enough
(`s3a.PAGE_READ`).
"""
REASON = "reason"
APPLICATION, PIPELINE_ID, SINKS = "application", "pipelineId", "sinks"
"""Columns of a dead letter: the writer's application and pipeline, and the sinks that lack the record (null: all)."""
BITS = 1 << 15
"""The number of bits in a bitmap of Spark's `bitmap_construct_agg`."""
BIT = f'pmod(crc32(cast(concat_ws(":", sequenceNumber, subSequenceNumber, {{}}) AS BINARY)), {BITS})'
"""The number of a record's bit in the bitmap, computed from the record's position. The braces are replaced by the name
of the column with the shard.
"""
ROW_INDEX = "_metadata.row_index"
"""Spark's own column with the number of a record within its page, from 0."""
NUMBER = "mld_row"
"""Our column with the same number, while a page is cut into slices."""
BAD, NAMES = "_mld_bad", "_mld_names"
"""Columns of a decoded record: whether it is malformed, and `Decoding.stray_names`."""
IN_ORDER = ("length(sequenceNumber)", "sequenceNumber", "subSequenceNumber")
"""The columns by which records are sorted. Sequence numbers are decimal numbers without leading zeros, so a longer one
is greater.
"""
NOBODY = WriterIdentity()


class Counted(NamedTuple):
    """Counts of the jobs over `Handed.records`: all records (`seen`), and malformed ones. `bitmap` has the bits of the
    malformed records (`batch.jobs`). `stray` counts records with stray fields, and `stray_names` has the names of one
    of them. These two cover all records if a column keeps stray fields, otherwise a sample. `reason` is that of the
    field that is wrong most often; only `Handed.look` finds it.
    """

    seen: int
    malformed: int
    bitmap: bytes | None = None
    stray: int = 0
    stray_names: str | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Handed:
    """The frames of a part of a batch.

    `records` is for the pipeline. `malformed` makes a frame of the malformed records for the dead letter (None if data
    are not decoded). `because` makes a frame of dead letters from all records of a page: it gets a reason for each, and
    the sinks that lack them (none means all). `counts` returns the counts of the jobs over `records`; None if no job
    has run."""

    records: DataFrame
    malformed: Callable[[], DataFrame] | None
    because: Callable[[Sequence[str], Sequence[str]], DataFrame]
    counts: Callable[[], Counted | None]
    look: Callable[[], Counted]
    """Runs a job to count, and returns the counts with the reason for the field that is wrong most often."""


class Slices(NamedTuple):
    """How a page is cut: the number of slices, and the number of records in each slice except the last."""

    number: int
    size: int


class Handover:
    """Makes frames of pages, in one session."""

    def __init__(self, session: SparkSession, settings: SparkSettings, *, divert: bool) -> None:
        """Prepare to make frames. `divert`: leave malformed records out of `records`, because a
        dead letter gets them.
        """
        self._session = session
        self._settings = settings
        self._divert = divert
        self._failing_rows = FailingRows(session)
        self.reporting_functions = self._failing_rows.reporting_functions
        self.failing = self._failing_rows.failing

    def of_pages(self, pages: Sequence[str], slices: Slices | None = None, suspects: bytes | None = None) -> Handed:
        """Make frames of pages (`batch.page_file`), which are given by their URIs.

        With `suspects`, a bitmap, the frames have only the records whose `BIT` is set in it. With `slices`, there must
        be one page; its rows are cut into that many partitions, and their numbers are passed on, so that `failing` can
        return which rows fail."""
        from pyspark.sql import functions as F

        settings = self._settings
        raw = self._session.read.schema(RAW).options(**READING_PAGES).parquet(*pages)
        if suspects is not None:
            bits = (str(bit) for bit in range(BITS) if suspects[bit >> 3] >> (bit & 7) & 1)  # the numbers that are set
            raw = raw.filter(f"{BIT.format('h')} IN ({', '.join(bits)})")
        elif slices is not None:
            numbered = raw.select("*", F.col(ROW_INDEX).alias(NUMBER))
            cut = numbered.repartitionById(slices.number, (F.col(NUMBER) / slices.size).cast("int"))
            raw = self._failing_rows.pass_row_numbers(cut, NUMBER).drop(NUMBER)
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
        """Run the job of a frame without writing its rows."""
        frame.write.format("noop").mode("overwrite").save()


def of_rows(session: SparkSession, rows: Iterable[tuple[object, ...]]) -> DataFrame:
    """Return a frame with the columns `RAW` of a few records. The records themselves are part of Spark's plan."""
    # Without `coalesce` Spark would decode them on the driver while it plans.
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
    """Return the frames of a batch, made from the frame `raw` of undecoded records. With `divert`, malformed records
    are not in `records`, because the dead letter gets them. Spark counts the records while the pipeline's jobs run (an
    `Observation`). `letter` is the writer that dead letters name."""
    from pyspark.sql import Observation
    from pyspark.sql import functions as F

    because = partial(_because, raw, letter)
    if format is Format.BINARY:
        return Handed(raw.selectExpr(*NAMED), None, because, lambda: None, lambda: Counted(0, 0))
    found = decoding(raw.sparkSession, format, schema, rescued)
    # Spark analyses the whole plan again for each step below, so there are few steps. Values become columns before they
    # are counted, because Spark interprets an expression inside a count instead of compiling it.
    decoded = raw.select(*map(F.expr, NAMED), found.decoded.alias(PAYLOAD))
    parsed = decoded.select("*", found.bad.alias(BAD), found.stray_names.alias(NAMES))
    counts, is_good = Observation(), ~F.col(BAD)
    seen = parsed.observe(counts, *_figures(with_bitmap=divert))
    if divert:
        records = _with_payloads(seen.filter(is_good), found.clean, format)
    else:
        records = _with_payloads(seen, F.when(is_good, found.clean), format)
    return Handed(
        records,
        lambda: _letters(parsed.filter(BAD), found.reason, letter),
        because,
        lambda: _counted(counts),
        lambda: _look(parsed, found.reason),
    )


def _letters(frame: DataFrame, reason: Column, letter: WriterIdentity, sinks: Sequence[str] = ()) -> DataFrame:
    """Return dead letters of the records of a frame. `sinks` are the sinks that lack the records (none means all)."""
    from pyspark.sql import functions as F

    missed = F.array(*map(F.lit, sinks)) if sinks else F.lit(None)
    return frame.select(
        *COLUMNS,
        reason.alias(REASON),
        F.lit(letter.application).alias(APPLICATION),
        F.lit(letter.pipeline).alias(PIPELINE_ID),
        missed.cast("array<string>").alias(SINKS),
    )


def _because(raw: DataFrame, letter: WriterIdentity, reasons: Sequence[str], sinks: Sequence[str]) -> DataFrame:
    """Return dead letters of all records of the page `raw`, each with the reason for which it could not be processed.

    `reasons` has the reason for each record, in the page's order: a record finds its own by its number within the page.
    `letter` is the writer that the letters name. `sinks` are the sinks that lack the records (none means all).
    """
    from pyspark.sql import functions as F

    reason = F.array(*map(F.lit, reasons))[F.col(ROW_INDEX).cast("int")]
    return _letters(raw.select(*map(F.expr, NAMED), reason.alias(REASON)), F.col(REASON), letter, sinks)


def _figures(*, with_bitmap: bool) -> list[Column]:
    """Return the expressions that the jobs over decoded records count: one for each field of
    `Counted` but the reason.
    """
    from pyspark.sql import functions as F

    figures = [F.count(F.lit(1)).alias("seen"), F.count_if(BAD).alias("malformed")]
    figures += [F.count(NAMES).alias("stray"), F.max(NAMES).alias("stray_names")]
    if with_bitmap:
        bit = F.when(F.col(BAD), F.expr(BIT.format("shardId")))
        figures.append(F.bitmap_construct_agg(bit).alias("bitmap"))
    return figures


def _with_payloads(frame: DataFrame, clean: Column, format: Format) -> DataFrame:
    """Return the `records` of a pipeline. Without a dead letter, a malformed record of `Format.JSON_LINES` becomes one
    row whose payload is null."""
    from pyspark.sql import functions as F

    if format is Format.JSON_LINES:
        return frame.select(*COLUMNS, F.inline_outer(clean).alias(PAYLOAD, ROW_NUMBER))
    return frame.select(*COLUMNS, clean.alias(PAYLOAD))


def _look(parsed: DataFrame, reason: Column) -> Counted:
    """Run a job to count, and return the counts with the reason for the field that is wrong most often."""
    from pyspark.sql import functions as F

    # A reason is `<field> is …`, so the part before IS names the field.
    of_bad = parsed.select(BAD, F.when(F.col(BAD), reason).alias(REASON))
    by_field = of_bad.groupBy(BAD, F.substring_index(REASON, IS, 1)).agg(F.count("*").alias("n"), F.min(REASON))
    rows = [(row[0], row.n, row[3]) for row in by_field.collect()]  # is it bad, how many, and one of their reasons
    wrong = sorted((n, reason) for is_bad, n, reason in rows if is_bad)
    most = f"{wrong[-1][1]} ({wrong[-1][0]} of them)" if wrong else None
    return Counted(sum(n for _, n, _ in rows), sum(n for n, _ in wrong), reason=most)


def _counted(counts: Observation) -> Counted | None:
    """Return the counts of the first job over the frame; None if no job has run, or it failed.

    In these cases PySpark's own `get` would wait or raise. A command that runs no job, such as one that makes a table,
    has counted nothing."""
    java: Any = counts._jo
    observed = java.future().value()
    if observed.isEmpty() or observed.get().isFailure() or not observed.get().get().size():
        return None
    found = dict(java.getAsJava())
    seen, malformed, stray = (int(found.get(name) or 0) for name in ("seen", "malformed", "stray"))
    bitmap = found.get("bitmap")
    return Counted(seen, malformed, None if bitmap is None else bytes(bitmap), stray, found.get("stray_names"))
