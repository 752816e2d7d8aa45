"""The data of a record -> its payload, and what of it the payload does not show, as expressions of Spark.

One parse makes the payload and says whether it is one: of JSON by a class in the JVM (`jvm_classes.JSON_SOURCE`), which
has Spark's own reader of files read each record's bytes, and sees what follows the value; `from_json` costs twice as
much, and stands in where a Spark has not got what that class calls. That reader passes over what it cannot use: fields
that the schema does not name (another letter case is another name) are left out, and a number of milliseconds becomes a
time in the year 57973. So a second parse takes the fields as they came, a map of variants: of a sample of the records,
to count those with stray fields; of all, where a column is to keep these; and of malformed records, to say which field
is wrong. A time that no calendar of four digits has makes its record malformed.

What depends on the fields of the schema is text of SQL, made once: each call of PySpark's functions asks the JVM.

What is said of payloads that do not fit the schema, once for many records, and when there are too many of them.

Pure: counts in, sentences out.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from mld.processors.spark.session import jvm_classes
from mld.processors.spark.session.jvm_classes import IS
from mld.processors.spark.sink_port import SessionError, first_line
from mld.properties.redaction import printable
from mld.properties.spark import Format

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession
    from pyspark.sql.types import DataType, StructType


log = logging.getLogger("mld.spark")
_warn = lru_cache(maxsize=8)(log.warning)
"""Says a text once."""

PAYLOAD = "payload"
STRAYS = "_mld_strays"
"""Column of `Format.JSON` and `JSON_LINES`: of each event the stray fields, with name and value, if a column is to keep
them; else the data of a record of the sample, and null of others."""
ROW_NUMBER = "rowNumber"
"""Column of `Format.JSON_LINES`: the number of an event within its record, from 0 on."""
_VALUE, _END, _MALFORMED = "_mld_value", "_mld_end", "_mld_malformed"
"""Avro reads any bytes as something, and not all of them. So an end is put after each payload, and one is valid only if
what the schema describes ends right before it."""
EVENTS = f"{PAYLOAD}.{_VALUE}"
"""What records of JSON are decoded to: structs of each event's payload and its number, `ROW_NUMBER`."""
_AVRO_END = b"\x8f mld \x8f\n"
AVRO_PACKAGE = "org.apache.spark:spark-avro_2.13"
AVRO_NOT_THERE = ("AVRO_NOT_LOADED", "spark-avro")
"""Words by which Spark says that it lacks that package."""
OF_JSON = (Format.JSON, Format.JSON_LINES)
NOT_DECODED = {
    Format.JSON: "not JSON of mld.spark.schema",
    Format.JSON_LINES: "not lines of JSON of mld.spark.schema",
    Format.AVRO: "not Avro of mld.spark.schema",
    Format.TEXT: "not UTF-8",
}
SAMPLE = "monotonically_increasing_id() % (1L << 33) < 1000"
"""Which records of a batch are looked at for stray fields: the first ones of each task."""
NAMES_MAX, NAME_CHARS_MAX = 8, 60
VALUE_CHARS_MAX = 80
FIRST_DAY, LAST_DAY = "DATE'0001-01-01'", "DATE'9999-12-31'"
_TIMES = ("timestamp", "timestamp_ntz", "date")


class Decoding(NamedTuple):
    """Expressions over a record. `bad`, `clean` and `reason` are over the column `PAYLOAD`, which `decoded` makes, and
    `stray_names` over `STRAYS`."""

    decoded: Column
    bad: Column
    clean: Column
    reason: Column
    """Why a malformed record is one."""
    strays: Column | None = None
    """What `STRAYS` is; None for formats in which Spark passes over nothing."""
    stray_names: Column | None = None
    """The names of a record's stray fields, or the first ones of many; null if it has none, or is not looked at."""


def check_schema(session: SparkSession, format: Format, schema: str | None, rescued: str | None = None) -> None:
    """Find out before the first record whether the schema is one, and can be used. Raises SessionError."""
    from pyspark.sql import functions as F

    if format in (Format.BINARY, Format.TEXT):
        return
    try:
        decoded, _ = _decoded(session, format, schema)
        assert session.range(0).select(F.lit(b"").alias("data")).select(decoded).schema
        named = [] if format is Format.AVRO else [field.name.lower() for field in fields_of(str(schema))]
    except SessionError:
        raise
    except Exception as error:
        text = str(error)
        if format is Format.AVRO and any(words in text for words in AVRO_NOT_THERE):
            raise SessionError(
                "mld.spark.format is avro, and Spark has no Avro module; write mld.spark.packages = "
                f"{AVRO_PACKAGE}:{session.version}, which Spark fetches from Maven Central when it starts"
            ) from error
        said = next((line.strip() for line in text.splitlines() if line.strip()), type(error).__name__)
        raise SessionError(f"mld.spark.schema does not fit mld.spark.format = {format.value}: {said}") from error
    if rescued is not None and rescued.lower() in named:
        raise SessionError(f"mld.spark.rescuedColumn = {rescued} is a field of mld.spark.schema; choose another name")


def decoding(session: SparkSession, format: Format, schema: str | None, rescued: str | None = None) -> Decoding:
    """Return how data is decoded. `rescued`: the field of the payload that has the stray fields, as JSON."""
    from pyspark.sql import functions as F

    decoded, bad = _decoded(session, format, schema)
    generic = F.lit(NOT_DECODED[format])
    if format not in OF_JSON:
        clean = F.col(PAYLOAD) if format is Format.TEXT else F.col(PAYLOAD)[_VALUE]
        return Decoding(decoded, bad, clean, generic)
    fields = fields_of(str(schema))
    reason = F.coalesce(F.expr(f"nullif({PAYLOAD}.{_MALFORMED}, '')"), F.expr(_reason(format, fields)), generic)
    if (beyond := astray(f"event.{_VALUE}", fields)) is not None:
        bad = bad | F.expr(f"coalesce(exists({EVENTS}, event -> {beyond}), false)")
    clean = F.expr(EVENTS if rescued is None else _with_rescued(fields, rescued))
    clean = clean if format is Format.JSON_LINES else F.get(clean, F.lit(0))[_VALUE]
    if rescued is not None:
        strays = F.expr(_strays(format, fields, "data"))
        return Decoding(decoded, bad, clean, reason, strays, F.expr(_stray_names(STRAYS)))
    sample = F.expr(f"CASE WHEN {SAMPLE} THEN data END")
    return Decoding(decoded, bad, clean, reason, sample, F.expr(_stray_names(_strays(format, fields, STRAYS))))


@lru_cache(maxsize=8)
def fields_of(schema: str) -> StructType:
    """Return the fields of `mld.spark.schema` in Spark's DDL; there has to be a session."""
    from pyspark.sql.types import DataType, StructType

    type = DataType.fromDDL(f"STRUCT<{schema}>")
    assert isinstance(type, StructType)
    return type


# --- the payload -----------------------------------------------------------------------------------------------------


def _decoded(session: SparkSession, format: Format, schema: str | None) -> tuple[Column, Column]:
    """Return the payload as Spark makes it, and whether it is malformed. Raises SessionError."""
    from pyspark.sql import functions as F

    payload = F.col(PAYLOAD)
    match format:
        case Format.JSON | Format.JSON_LINES:
            events = f"ARRAY<STRUCT<{_VALUE}: STRUCT<{schema}>, {ROW_NUMBER}: INT>>"
            type = f"STRUCT<{_VALUE}: {events}, {_MALFORMED}: STRING>"
            fields = fields_of(str(schema)).json().count('"name":')
            try:
                decoded = jvm_classes.json_column(session, "data", type, fields, of_lines=format is Format.JSON_LINES)
            except Exception as error:  # whatever a future Spark has changed
                _warn(
                    "JSON is decoded by from_json, which costs twice as much and has no bounds for a record; "
                    f"install the PySpark that mld[spark] names: {first_line(error)}"
                )
                decoded = F.expr(_from_json(format, str(schema), "data"))
            return decoded, payload[_MALFORMED].isNotNull()
        case Format.AVRO:
            from pyspark.sql.avro.functions import from_avro

            framed = F.concat("data", F.lit(_AVRO_END))
            # Spark makes a struct of nulls of what it cannot read.
            bad = ~F.equal_null(payload[_END], F.lit(_AVRO_END))
            return from_avro(framed, _framed(str(schema)), {"mode": "PERMISSIVE"}), bad
        case Format.TEXT:
            return F.expr(_utf8("data")), payload.isNull()
        case Format.BINARY:
            raise AssertionError("binary has no payload")


def _framed(schema: str) -> str:
    """Return the schema of a record followed by `_AVRO_END`: an Avro record is its fields, one after the other."""
    try:
        value = json.loads(schema)
    except ValueError as error:
        raise ValueError(f"it is not JSON ({error}); write the Avro schema of the records") from error
    end = {"type": "fixed", "name": "mld_end", "size": len(_AVRO_END)}
    fields = [{"name": _VALUE, "type": value}, {"name": _END, "type": end}]
    return json.dumps({"type": "record", "name": "mld_framed", "fields": fields})


def _from_json(format: Format, schema: str, data: str) -> str:
    """Return SQL for what `jvm_classes.json_column` makes. Each text is framed as a field that another one follows,
    since `from_json` does not look at what follows a value."""
    lines = f"split({_utf8(data)}, '\\n')" if format is Format.JSON_LINES else f"array({_utf8(data)})"
    framed = f"concat('{{\"{_VALUE}\":', line, ',\"{_END}\":0}}')"
    type = f"{_VALUE} STRUCT<{schema}>, {_END} INT, {_MALFORMED} STRING".replace("\\", "\\\\").replace("'", "\\'")
    options = f"map('columnNameOfCorruptRecord', '{_MALFORMED}', 'allowSingleQuotes', 'false')"
    bad = f"one.{_MALFORMED} IS NOT NULL OR one.{_VALUE} IS NULL OR one.{_END} IS NULL"
    events = f"transform(found, (one, at) -> named_struct('{_VALUE}', one.{_VALUE}, '{ROW_NUMBER}', at))"
    is_bad = f"coalesce(size(found), 0) < 1 OR exists(found, one -> {bad})"
    whole = f"named_struct('{_VALUE}', {events}, '{_MALFORMED}', CASE WHEN {is_bad} THEN '' END)"
    parsed = f"transform(filter({lines}, line -> line RLIKE '\\\\S'), line -> from_json({framed}, '{type}', {options}))"
    return f"transform(array({parsed}), found -> {whole})[0]"


# --- what the payload does not show: text of SQL ---------------------------------------------------------------------


def _text(value: str) -> str:
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _name(value: str) -> str:
    return "`" + value.replace("`", "``") + "`"


def _utf8(data: str) -> str:
    """Return bytes as a text, null if they are not UTF-8. As the first part of one the JVM decodes and encodes them,
    by its vector instructions, and what is not UTF-8 comes out changed: a third of the cost of `try_validate_utf8`."""
    text = f"cast({data} AS STRING)"
    return f"CASE WHEN split({text}, ',', 1)[0] = {text} THEN {text} END"


def _came(format: Format, data: str) -> str:
    """Return the events of a record, each with its fields as they came: variants by name."""
    text = _utf8(data)
    if format is Format.JSON_LINES:
        text = f"array_join(filter(split({text}, '\\n'), line -> line RLIKE '\\\\S'), ',')"
    framed = f"concat('{{\"{_VALUE}\":[', {text}, ']}}')"
    return f"from_json({framed}, '{_VALUE} ARRAY<MAP<STRING, VARIANT>>').{_VALUE}"


def _strays(format: Format, fields: StructType, data: str) -> str:
    return f"transform({_came(format, data)}, came -> {strays_of('came', fields)})"


def _stray_names(strays: str) -> str:
    names = f"transform(slice(flatten({strays}), 1, {NAMES_MAX}), one -> left(one.name, {NAME_CHARS_MAX}))"
    of_good = f"{STRAYS} IS NOT NULL AND {PAYLOAD}.{_MALFORMED} IS NULL"
    return f"CASE WHEN {of_good} THEN get(filter(array(array_join({names}, ', ')), one -> one <> ''), 0) END"


def _inner(came: str, name: str) -> str:
    return f"try_variant_get({came}[{_text(name)}], '$', 'map<string,variant>')"


def strays_of(came: str, fields: StructType, path: str = "", depth: int = 0) -> str:
    """Return the fields of an object, and of objects in it, that the schema does not name, as an array of name and
    value."""
    from pyspark.sql.types import StructType

    one, inner = f"one{depth}", f"inner{depth}"
    names = ", ".join(_text(field.name) for field in fields)
    parts = [
        f"transform(filter(map_entries({came}), {one} -> {one}.key NOT IN ({names})), {one} -> "
        f"named_struct('name', concat({_text(path)}, {one}.key), 'value', {one}.value))"
    ]
    for field in fields:
        if isinstance(field.dataType, StructType):
            deeper = strays_of(inner, field.dataType, f"{path}{field.name}.", depth + 1)
            parts.append(f"coalesce(transform(array({_inner(came, field.name)}), {inner} -> {deeper})[0], array())")
    return f"concat({', '.join(parts)})" if len(parts) > 1 else parts[0]


def _with_rescued(fields: StructType, name: str) -> str:
    """Return the events, each payload with one field more: the stray fields as an object of JSON, null if there are
    none."""
    value, strays = f"event.{_VALUE}", f"get({STRAYS}, at)"
    member = "to_json(map(one.name, one.value))"
    members = f"transform({strays}, one -> substring({member}, 2, length({member}) - 2))"
    text = f"CASE WHEN size({strays}) > 0 THEN concat('{{', array_join({members}, ','), '}}') END"
    own = ", ".join(f"{_text(field.name)}, {value}.{_name(field.name)}" for field in fields)
    whole = f"CASE WHEN {value} IS NOT NULL THEN named_struct({own}, {_text(name)}, {text}) END"
    return f"transform({EVENTS}, (event, at) -> named_struct('{_VALUE}', {whole}, '{ROW_NUMBER}', event.{ROW_NUMBER}))"


def astray(value: str, type: DataType, depth: int = 0) -> str | None:
    """Return whether a value is a time that no calendar of four digits has, or has one in it; None if it cannot."""
    from pyspark.sql import types as T

    one = f"value{depth}"
    match type:
        case T.StructType():
            parts = (astray(f"{value}.{_name(field.name)}", field.dataType, depth) for field in type)
            found = [f"coalesce({part}, false)" for part in parts if part is not None]
            return f"({' OR '.join(found)})" if found else None
        case T.ArrayType():
            within = astray(one, type.elementType, depth + 1)
            return within and f"exists({value}, {one} -> coalesce({within}, false))"
        case T.MapType():
            return astray(f"map_values({value})", T.ArrayType(type.valueType), depth)
        case _ if type.typeName() in _TIMES:
            return f"(cast({value} AS DATE) < {FIRST_DAY} OR cast({value} AS DATE) > {LAST_DAY})"
    return None


def _reason(format: Format, fields: StructType) -> str:
    """Return which field of a malformed record is wrong, and why; null if that is not to be seen."""
    found = ", ".join(wrong_fields(f"get({EVENTS}, at).{_VALUE}", "came", fields))
    reasons = f"transform({_came(format, 'data')}, (came, at) -> coalesce({found}, null))"
    return f"get(filter({reasons}, one -> one IS NOT NULL), 0)"


def wrong_fields(value: str, came: str, fields: StructType, path: str = "", depth: int = 0) -> Iterator[str]:
    """Yield what is wrong with each field of an object, those in it first; null of one that is right."""
    from pyspark.sql.types import StructType

    for field in fields:
        type, name = field.dataType, f"{path}{field.name}"
        got, raw = f"{value}.{_name(field.name)}", f"{came}[{_text(field.name)}]"
        why, is_wrong = _text(f", which is no {type.simpleString()}"), f"{got} IS NULL"
        if isinstance(type, StructType):
            inner = f"inner{depth}"
            deeper = ", ".join(wrong_fields(got, inner, type, f"{name}.", depth + 1))
            yield f"transform(array({_inner(came, field.name)}), {inner} -> coalesce({deeper}, null))[0]"
        elif (beyond := astray(got, type)) is not None:
            later = _text(", a time beyond the year 9999: a number is read as seconds")
            why = f"CASE WHEN {got} IS NULL THEN {why} ELSE {later} END"
            is_wrong = f"({got} IS NULL OR {beyond})"
        said = f"concat({_text(f'{name}{IS}')}, left(to_json({raw}), {VALUE_CHARS_MAX}), {why})"
        is_there = f"{raw} IS NOT NULL AND NOT is_variant_null({raw})"
        yield f"CASE WHEN {value} IS NOT NULL AND {is_there} AND {is_wrong} THEN {said} END"


STRAY_NAMES_MAX = 50
"""Names of stray fields that are said since the start; producers choose them, so there may be any number."""
RECORDS_MIN = 100
"""A share of fewer records says nothing."""


class StrayNames:
    """Which stray fields were said already."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def news(self, count: int, names: str | None) -> str | None:
        """Return a warning if one of the names, which commas separate, is new; None if all were said before."""
        new = [name for name in (names or "").split(", ") if name and name not in self._said]
        if not new or len(self._said) >= STRAY_NAMES_MAX:
            return None
        self._said.update(new)
        return (
            f"{count} records have fields that mld.spark.schema does not name, and that are left out: "
            f"{printable(', '.join(new))} (letter case counts); name them there, or keep them in "
            "mld.spark.rescuedColumn"
        )


class MalformedShare:
    """How many of the last hundred records are malformed; a batch of as many or more is judged by itself."""

    def __init__(self, share_max: float) -> None:
        self._share_max = share_max
        self._seen = self._bad = 0.0
        """Of the last hundred, of which a longer batch is all. What was refused counts as anything else."""

    def excess(self, seen: int, malformed: int) -> str | None:
        """Take the next records; return why they are too many, if they are: then they come again and are not taken."""
        if not seen:
            return None
        own = min(seen, RECORDS_MIN)
        before = min(self._seen, RECORDS_MIN - own)
        every = own + before
        bad = malformed * own / seen + (self._bad * before / self._seen if before else 0.0)
        self._seen, self._bad = every, bad
        if every < RECORDS_MIN or bad <= self._share_max * every or malformed <= self._share_max * seen:
            return None
        counts = (malformed, seen) if seen >= RECORDS_MIN else (round(bad), round(every))
        return (
            f"{counts[0]} of the last {counts[1]} records are malformed, more than mld.spark.malformedShareMax = "
            f"{self._share_max:g} allows, so they are not put into the dead letter"
        )
