"""Lines of a spool -> the `records` frame: Spark parses the JSON and decodes base64 by itself, in parallel.

Columns: streamName, shardId, sequenceNumber, subSequenceNumber, partitionKey, approximateArrivalTimestamp, data; and
`payload`, the decoded data, where the settings name a format. A record that cannot be decoded has a null payload and a
reason; how many there are is counted on the way, without a job of its own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

from processors.spark.spark_errors import SessionError
from properties.spark import Format

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Observation, SparkSession

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
PAYLOAD, REASON = "payload", "reason"
OBSERVED = "mld"
PART_BYTES = 4 << 20
"""As `spark.sql.files.openCostInBytes`."""
_CORRUPT = "_mld_corrupt"
_AVRO_END = b"\x8f mld \x8f\n"
"""Avro does not say where a record ends, and reads any bytes as something. So this is put after each record, and a
record is valid only if what the schema describes ends right before it."""
_AVRO_VALUE, _AVRO_TAIL = "value", "end"
AVRO_PACKAGE = "org.apache.spark:spark-avro_2.13"
AVRO_NOT_THERE = ("AVRO_NOT_LOADED", "spark-avro")
"""Words by which Spark says that it lacks that package."""
NOT_DECODED = {
    Format.JSON: "not JSON of mld.spark.schema",
    Format.CSV: "not CSV of mld.spark.schema",
    Format.AVRO: "not Avro of mld.spark.schema",
    Format.TEXT: "not UTF-8",
}


@dataclass(frozen=True, slots=True)
class Handed:
    """The frames of a part of a batch. `records` is for the pipeline, and `malformed` makes that for the dead letter
    (None where the data is not decoded); `because` makes dead letters of all records, with a reason.

    `counts` says how many records the jobs over `records` have seen, and how many of them were malformed; None if no
    job has run over it."""

    records: DataFrame
    malformed: Callable[[], DataFrame] | None
    because: Callable[[str], DataFrame]
    counts: Callable[[], tuple[int, int] | None]


class Way(Enum):
    """How a batch gets to the executors."""

    FILES = "they read its file"
    JVM = "our JVM reads its file and sends the lines with the tasks"
    CLIENT = "its lines travel with the plan, to a Connect server"


class Handover:
    """Files or lines of a spool -> frames of one session."""

    def __init__(
        self, session: SparkSession, format: Format, schema: str | None, *, divert: bool, way: Way = Way.FILES
    ) -> None:
        """`divert`: malformed records are not in `records`."""
        self._session = session
        self._format = format
        self._schema = schema
        self._divert = divert
        self._way = way

    @property
    def reads_files(self) -> bool:
        return self._way is not Way.CLIENT

    def of_file(self, path: Path) -> Handed:
        if self._way is Way.FILES:
            raw = self._session.read.schema(RAW).options(mode="FAILFAST", lineSep="\n").json(path.as_uri())
        else:
            raw = through_jvm(self._session, path)
        return handed(raw, self._format, self._schema, divert=self._divert)

    def of_lines(self, texts: Iterable[bytes]) -> Handed:
        return handed(through_session(self._session, texts), self._format, self._schema, divert=self._divert)

    @staticmethod
    def compute(frame: DataFrame) -> None:
        """Run the job of a frame and write it nowhere."""
        frame.write.format("noop").mode("overwrite").save()


def through_jvm(session: SparkSession, path: Path) -> DataFrame:
    """Raw columns where executors cannot read our files, but our JVM can. No line passes through Python."""
    from pyspark.sql import DataFrame

    java = session._jvm
    assert java is not None
    lines = java.java.nio.file.Files.readAllLines(java.java.io.File(str(path)).toPath())
    rdd = session.sparkContext._jsc.parallelize(lines, parts_of(path.stat().st_size))
    texts = session._jsparkSession.createDataset(rdd.rdd(), java.org.apache.spark.sql.Encoders.STRING())
    return _parsed(DataFrame(texts.toDF(), session))


def through_session(session: SparkSession, lines: Iterable[bytes]) -> DataFrame:
    """Raw columns where nobody else can read our files: the lines travel with the plan."""
    texts = [(line.decode(),) for line in lines]
    frame = session.createDataFrame(texts, "value STRING")
    # Without this node Spark parses local lines while it plans, on its driver alone.
    return _parsed(frame.coalesce(parts_of(sum(len(text) for (text,) in texts))))


def parts_of(size: int) -> int:
    """Into how many tasks so many bytes go, as with files; each writes a file of its own."""
    return max(1, -(-size // PART_BYTES))


def _parsed(frame: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    return frame.select(F.from_json("value", RAW, {"mode": "FAILFAST"}).alias("r")).select("r.*")


def handed(raw: DataFrame, format: Format, schema: str | None, *, divert: bool, streaming: bool = False) -> Handed:
    """The frames of a batch. With `divert` malformed records are not in `records`; they go to the dead letter.

    If it is `streaming`, the progress of a query has the counts, as `OBSERVED`."""
    from pyspark.sql import Observation
    from pyspark.sql import functions as F

    def because(reason: str) -> DataFrame:
        return raw.selectExpr(*NAMED).withColumn(REASON, F.lit(reason))

    if format is Format.BINARY:
        return Handed(raw.selectExpr(*NAMED), None, because, lambda: None)
    decoded, bad = _decoded(format, schema)
    # Each step below has the whole plan analysed anew, so there are few, and one sees what the others need.
    parsed = raw.select(*(F.expr(text) for text in NAMED), decoded.alias(PAYLOAD))
    counts = Observation()
    observed = F.count(F.lit(1)).alias("seen"), F.count_if(bad).alias("malformed")
    seen = parsed.observe(OBSERVED if streaming else counts, *observed)
    if divert:
        records = seen.filter(~bad).select(*COLUMNS, _clean(format).alias(PAYLOAD))
    else:
        records = seen.select(*COLUMNS, F.when(~bad, _clean(format)).alias(PAYLOAD))

    def malformed() -> DataFrame:
        return parsed.filter(bad).select(*COLUMNS, F.lit(NOT_DECODED[format]).alias(REASON))

    return Handed(records, malformed, because, lambda: _counted(counts))


def _counted(counts: Observation) -> tuple[int, int] | None:
    """What was observed. Where no job has run, asking Spark for it would wait for ever."""
    java = getattr(counts, "_jo", None)
    if java is not None and not java.future().isCompleted():
        return None
    found = counts.get
    if "seen" not in found:  # Spark Connect does not wait
        return None
    return int(found["seen"]), int(found["malformed"])


def check_schema(session: SparkSession, format: Format, schema: str | None) -> None:
    """Find out before the first record whether the schema is one, and can be used. Raises SessionError."""
    from pyspark.sql import functions as F

    if format in (Format.BINARY, Format.TEXT):
        return
    try:
        decoded, _ = _decoded(format, schema)
        assert session.range(0).select(F.lit(b"").alias("data")).select(decoded).schema
    except Exception as error:
        text = str(error)
        if format is Format.AVRO and any(words in text for words in AVRO_NOT_THERE):
            raise SessionError(
                "mld.spark.format is avro, and Spark has no Avro module; write mld.spark.packages = "
                f"{AVRO_PACKAGE}:{session.version}, which Spark fetches from Maven Central when it starts (a Connect "
                "server needs it among its own packages)"
            ) from error
        said = next((line.strip() for line in text.splitlines() if line.strip()), type(error).__name__)
        raise SessionError(f"mld.spark.schema does not fit mld.spark.format = {format.value}: {said}") from error


def _decoded(format: Format, schema: str | None) -> tuple[Column, Column]:
    """The payload as Spark makes it, and whether it is malformed."""
    from pyspark.sql import functions as F

    text = F.col("data").cast("string")
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
    payload = F.col(PAYLOAD)
    match format:
        case Format.JSON:
            return F.from_json(text, f"{schema}, {_CORRUPT} STRING", options), _is_bad(payload)
        case Format.CSV:
            return F.from_csv(text, f"{schema}, {_CORRUPT} STRING", options), _is_bad(payload)
        case Format.AVRO:
            from pyspark.sql.avro.functions import from_avro

            framed = F.concat("data", F.lit(_AVRO_END))
            tail = payload[_AVRO_TAIL]
            # Spark makes a struct of nulls of what it cannot read.
            return from_avro(framed, _framed(str(schema)), {"mode": "PERMISSIVE"}), (
                tail.isNull() | (tail != F.lit(_AVRO_END))
            )
        case Format.TEXT:
            return F.when(F.is_valid_utf8(text), text), payload.isNull()
        case Format.BINARY:
            raise AssertionError("binary has no payload")


def _framed(schema: str) -> str:
    """The schema of a record followed by `_AVRO_END`: an Avro record is its fields, one after the other."""
    try:
        value = json.loads(schema)
    except ValueError as error:
        raise ValueError(f"it is not JSON ({error}); write the Avro schema of the records") from error
    end = {"type": "fixed", "name": "mld_end", "size": len(_AVRO_END)}
    fields = [{"name": _AVRO_VALUE, "type": value}, {"name": _AVRO_TAIL, "type": end}]
    return json.dumps({"type": "record", "name": "mld_framed", "fields": fields})


def _is_bad(payload: Column) -> Column:
    return payload.isNull() | payload[_CORRUPT].isNotNull()


def _clean(format: Format) -> Column:
    from pyspark.sql import functions as F

    payload = F.col(PAYLOAD)
    if format is Format.AVRO:
        return payload[_AVRO_VALUE]
    return payload.dropFields(_CORRUPT) if format in (Format.JSON, Format.CSV) else payload
