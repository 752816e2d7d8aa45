"""Makes expressions of Spark that decode the data of records into payloads, and find data that do not fit the schema.

The data are parsed once, which yields the payload and shows whether the data fit. JSON is parsed by a class in the JVM
(`MldJson.java`), which runs Spark's own reader of JSON files over the bytes of each record. The class also reports what
that reader ignores: text after the value; fields that the schema does not name (the case of letters counts); and times
after the year 9999, such as a number of milliseconds that was taken for seconds, which make their record malformed.
Only malformed records are read a second time, to name the wrong field. If this Spark lacks a method that the class
calls, `from_json` is used, which costs twice as much.
"""

from __future__ import annotations

import json
import logging
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from mld.processors.spark.sentences import first_line
from mld.processors.spark.session import jvm_classes
from mld.processors.spark.session_errors import SessionError
from mld.properties.spark_values import Format

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession
    from pyspark.sql.types import StructType

log = logging.getLogger("mld.spark")
_warn = lru_cache(maxsize=8)(log.warning)
"""Logs a warning, each text only once."""
PAYLOAD = "payload"
ROW_NUMBER = "rowNumber"
"""Column of `Format.JSON_LINES`: the number of an event within its record, from 0."""
_VALUE, _END, _MALFORMED, _STRAYS = "_mld_value", "_mld_end", "_mld_malformed", "_mld_strays"
"""Names of columns that decoding adds. `_END` is for Avro, whose decoder takes almost any bytes and may leave some of
them unread. So the marker `_AVRO_END` is appended to the data of each record, and is decoded as a last field, `_END`:
the data fit the schema only if this field has the marker.
"""
_AVRO_END = b"\x8f mld \x8f\n"
AVRO_PACKAGE = "org.apache.spark:spark-avro_2.13"
AVRO_NOT_THERE = ("AVRO_NOT_LOADED", "spark-avro")
"""Words in Spark's exception if this package is missing."""
UTF8 = "CASE WHEN split(cast(data AS STRING), ',', 1)[0] = cast(data AS STRING) THEN cast(data AS STRING) END"
"""An expression that returns bytes as a text, or null if they are not UTF-8. With the limit 1, `split` does not divide
the text, but returns a copy that the JVM has decoded and encoded again. This changes bytes that are not UTF-8, so the
copy then differs from the text. The JVM uses vector instructions: the expression costs a third of `try_validate_utf8`.
"""
NOT_DECODED = {
    Format.JSON: "not JSON of mld.spark.schema",
    Format.JSON_LINES: "not lines of JSON of mld.spark.schema",
    Format.AVRO: "not Avro of mld.spark.schema",
    Format.TEXT: "not UTF-8",
}
"""By format, the reason for a malformed record if no field is known to be wrong."""


class Decoding(NamedTuple):
    """Expressions that decode a record. `decoded` makes the column `PAYLOAD`; the others are computed from that column.

    `bad` is whether the record is malformed; `clean` is the payload for the pipeline, if it is not malformed."""

    decoded: Column
    bad: Column
    clean: Column
    reason: Column
    """Why the record is malformed."""
    stray_names: Column
    """Names of the record's stray fields, or of the first ones. Null if it has none, or was not checked for any."""


def check_schema(session: SparkSession, format: Format, schema: str | None, rescued: str | None = None) -> None:
    """Check before the first record that the schema can be parsed and used. Raises SessionError."""
    from pyspark.sql import functions as F

    if format in (Format.BINARY, Format.TEXT):
        return
    try:
        named = [] if format is Format.AVRO else [field.name.lower() for field in fields_of(str(schema))]
        if rescued is not None and rescued.lower() in named:
            raise SessionError(f"mld.spark.rescuedColumn = {rescued} is a field of mld.spark.schema; name another one")
        decoded = decoding(session, format, schema, rescued).decoded
        # To get the schema of a frame, Spark analyses its expressions, and raises an error if one is wrong.
        assert session.range(0).select(F.lit(b"").alias("data")).select(decoded).schema
    except SessionError:
        raise
    except Exception as error:
        text = str(error)
        if format is Format.AVRO and any(words in text for words in AVRO_NOT_THERE):
            raise SessionError(
                "mld.spark.format is avro, and Spark has no Avro module; write mld.spark.packages = "
                f"{AVRO_PACKAGE}:{session.version}, which Spark fetches from Maven Central when it starts"
            ) from error
        why = next((line.strip() for line in text.splitlines() if line.strip()), type(error).__name__)
        raise SessionError(f"mld.spark.schema does not fit mld.spark.format = {format.value}: {why}") from error


def decoding(session: SparkSession, format: Format, schema: str | None, rescued: str | None = None) -> Decoding:
    """Return the expressions that decode data. `rescued` is the field of the payload that gets the stray fields, as
    JSON. Raises SessionError.

    From JSON, a struct is decoded: the events of the record with their numbers, why the record is malformed (null if it
    is not), and the names of its stray fields. A record of Format.JSON has one event. From Avro, a struct of payload
    and marker is decoded (see `_END`). A text is decoded to itself, or to null if it is not UTF-8."""
    from pyspark.sql import functions as F

    payload, generic, none = F.col(PAYLOAD), F.lit(NOT_DECODED[format]), F.lit(None).cast("string")
    match format:
        case Format.JSON | Format.JSON_LINES:
            whole = f"{schema}, {quoted(rescued)}: STRING" if rescued else schema
            events = f"ARRAY<STRUCT<{_VALUE}: STRUCT<{whole}>, {ROW_NUMBER}: INT>>"
            type = f"STRUCT<{_VALUE}: {events}, {_MALFORMED}: STRING, {_STRAYS}: STRING>"
            of_lines = format is Format.JSON_LINES
            try:
                decoded = jvm_classes.json_column(session, "data", type, of_lines=of_lines, rescues=bool(rescued))
            except Exception as error:  # a future Spark may have changed anything
                if rescued:
                    raise
                _warn(
                    "JSON is decoded by from_json, which costs twice as much, has no bounds for a record, and names no "
                    f"field, stray or wrong; install the PySpark that mld[spark] names: {first_line(error)}"
                )
                decoded = F.expr(_from_json(format, str(schema)))
            clean = payload[_VALUE] if of_lines else F.get(payload[_VALUE], F.lit(0))[_VALUE]
            reason = F.coalesce(F.nullif(payload[_MALFORMED], F.lit("")), generic)
            return Decoding(decoded, payload[_MALFORMED].isNotNull(), clean, reason, payload[_STRAYS])
        case Format.AVRO:
            from pyspark.sql.avro.functions import from_avro

            framed = F.concat("data", F.lit(_AVRO_END))
            # From data that it cannot read, Spark makes a struct of nulls.
            bad = ~F.equal_null(payload[_END], F.lit(_AVRO_END))
            decoded = from_avro(framed, _framed(str(schema)), {"mode": "PERMISSIVE"})
            return Decoding(decoded, bad, payload[_VALUE], generic, none)
        case Format.TEXT:
            return Decoding(F.expr(UTF8), payload.isNull(), payload, generic, none)
    raise AssertionError("binary has no payload")


def quoted(name: str) -> str:
    """Return the name of a column or table as an identifier of Spark's SQL."""
    return f"`{name.replace('`', '``')}`"


@lru_cache(maxsize=8)
def fields_of(schema: str) -> StructType:
    """Parse `mld.spark.schema`, in Spark's DDL. This needs a session."""
    from pyspark.sql.types import DataType, StructType

    type = DataType.fromDDL(f"STRUCT<{schema}>")
    assert isinstance(type, StructType)
    return type


def _framed(schema: str) -> str:
    """Return the Avro schema of the data with `_AVRO_END` appended: a record whose first field has `schema`, and whose
    second field is `_AVRO_END`, by which unread data are noticed (`_END`). Avro encodes a record as its fields, one
    after the other.
    """
    try:
        value = json.loads(schema)
    except ValueError as error:
        raise ValueError(f"it is not JSON ({error}); write the Avro schema of the records") from error
    end = {"type": "fixed", "name": "mld_end", "size": len(_AVRO_END)}
    fields = [{"name": _VALUE, "type": value}, {"name": _END, "type": end}]
    return json.dumps({"type": "record", "name": "mld_framed", "fields": fields})


def _from_json(format: Format, schema: str) -> str:
    """Return SQL that makes the same columns as `jvm_classes.json_column`, without stray fields and names of wrong
    fields.

    Each text is put into an object, as the first of two fields. `from_json` would ignore text after a value; within the
    object such text is an error, or the second field is missing."""
    lines = f"split({UTF8}, '\\n')" if format is Format.JSON_LINES else f"array({UTF8})"
    framed = f"concat('{{\"{_VALUE}\":', line, ',\"{_END}\":0}}')"
    type = f"{_VALUE} STRUCT<{schema}>, {_END} INT, {_MALFORMED} STRING".replace("\\", "\\\\").replace("'", "\\'")
    options = f"map('columnNameOfCorruptRecord', '{_MALFORMED}', 'allowSingleQuotes', 'false')"
    bad = f"one.{_MALFORMED} IS NOT NULL OR one.{_VALUE} IS NULL OR one.{_END} IS NULL"
    events = f"transform(found, (one, at) -> named_struct('{_VALUE}', one.{_VALUE}, '{ROW_NUMBER}', at))"
    is_bad = f"coalesce(size(found), 0) < 1 OR exists(found, one -> {bad})"
    why = f"'{_MALFORMED}', CASE WHEN {is_bad} THEN '' END, '{_STRAYS}', CAST(NULL AS STRING)"
    whole = f"named_struct('{_VALUE}', {events}, {why})"
    parsed = f"transform(filter({lines}, line -> line RLIKE '\\\\S'), line -> from_json({framed}, '{type}', {options}))"
    return f"transform(array({parsed}), found -> {whole})[0]"
