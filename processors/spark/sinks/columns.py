"""Computes how a frame changes the columns of a sink, and converts the frame to the sink's columns.

Columns, and fields of structs, are matched by name without regard to case. They keep their first spelling and their
type, and values of a narrower type are widened. A new column or field is added at the end; later frames may lack it. If
the format can change types, a column gets a wider type when a frame needs it. Types are compared as Spark's types,
never as texts. Only the ledger of a directory stores texts, which are parsed.

Pure, except for lines that it logs, and for `fitted`, which adds a step to a frame. No job is run.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mld.processors.spark.commit.ledger import Columns
from mld.processors.spark.session.decoding import fields_of, quoted
from mld.processors.spark.sink_port import SinkRefused

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType, StructField, StructType

log = logging.getLogger("mld.spark")

WHOLE_DIGITS = {"tinyint": 3, "smallint": 5, "int": 10, "bigint": 19}
"""Digits of the largest value of each integer type."""
EXACT_IN = {**WHOLE_DIGITS, "float": 5, "double": 10}
"""For each type of a column: how many digits integers may have, so that the column still holds each value exactly.
"""
PLAIN = re.compile(r"[A-Za-z_]\w*", re.ASCII)
CASE_SENSITIVE = "spark.sql.caseSensitive"
REMEDY = "use a new directory or table"
ADDED = "new columns are added: %s; if the table has one under another name, rename it in the pipeline"
ABSENT = "the frame lacks columns that are there: %s; NULL or their default is written"


def by_name(fields: StructType) -> dict[str, StructField]:
    """Return the fields by their names in lower case."""
    return {field.name.lower(): field for field in fields}


def place_of(fields: StructType, name: str) -> tuple[str, DataType] | None:
    """Return the identifier of a column in Spark's SQL, and the column's type; None if there is no such column.

    A name with dots is first looked for as the name of a column, then as a path through structs."""
    from pyspark.sql.types import StructType

    known, (first, _, rest) = by_name(fields), name.partition(".")
    if (field := known.get(name.lower())) is not None:
        return quoted(field.name), field.dataType
    outer = known.get(first.lower())
    within = outer.dataType if outer is not None else None
    inner = place_of(within, rest) if rest and isinstance(within, StructType) else None
    return inner and (f"{quoted(first)}.{inner[0]}", inner[1])


def holds(wide: DataType, narrow: DataType) -> bool:
    """Return whether a column of type `wide` holds every value of type `narrow` exactly."""
    from pyspark.sql.types import DecimalType, NullType

    wide_name, narrow_name = wide.simpleString(), narrow.simpleString()
    if wide == narrow or isinstance(narrow, NullType) or (wide_name, narrow_name) == ("double", "float"):
        return True
    # The digits before and after the decimal point that values of the narrow type may have. 99: they fit nowhere.
    whole, parts = WHOLE_DIGITS.get(narrow_name, 99), 0
    if isinstance(wide, DecimalType):
        if isinstance(narrow, DecimalType):
            whole, parts = narrow.precision - narrow.scale, narrow.scale
        return wide.precision - wide.scale >= whole and wide.scale >= parts
    return whole <= EXACT_IN.get(wide_name, 0)


def widens(had: DataType, new: DataType) -> bool:
    """Return whether a format that can widen types can change a column from type `had` to type `new`. The scale of a
    decimal cannot be changed."""
    from pyspark.sql.types import FractionalType, IntegralType

    alike = any(isinstance(had, family) and isinstance(new, family) for family in (IntegralType, FractionalType))
    return alike and getattr(had, "scale", 0) == getattr(new, "scale", 0) and holds(new, had)


class SinkColumns:
    """Computes and logs changes of the columns of one sink. Each change is logged only once."""

    def __init__(self, sink: str) -> None:
        self._sink = sink
        self._logged: set[str] = set()

    def grown(self, had: StructType, new: StructType, *, wider: bool = False, remedy: str = REMEDY) -> StructType:
        """Return the columns that a sink with the columns `had` needs for a frame with the columns `new`: those of the
        sink, then new ones.

        `wider`: the format can change types. `remedy` is for the message if the frame does not fit. Raises
        SinkRefused."""
        growth = _Growth(wider, remedy, [])
        try:
            whole = growth.fields("", had, new)
        except ValueError as error:
            raise SinkRefused(f"sink {self._sink}: {error}") from error
        if had.fields:
            self.say(growth.added, (field.name for name, field in by_name(had).items() if name not in by_name(new)))
        return whole

    def say(self, added: Iterable[str], absent: Iterable[str]) -> None:
        """Log columns that are added, and columns that the frame lacks, each only once."""
        for names, text in ((added, ADDED), (absent, ABSENT)):
            if fresh := [name for name in names if text + name not in self._logged]:
                self._logged.update(text + name for name in fresh)
                log.warning(f"sink %s: {text}", self._sink, ", ".join(fresh))


def of_ledger(columns: Columns, new: StructType) -> StructType:
    """Return the columns in a ledger as Spark's types, for a frame with the columns `new`.

    The ledger has the types as texts. If a text is that of the frame's type, the frame's type is used; otherwise the
    text is parsed. A column that the frame lacks gets the type void, whatever its type is."""
    from pyspark.sql.types import NullType, StructField, StructType

    found, of_frame = [], by_name(new)
    for name, kind in columns:
        type = of_frame[name.lower()].dataType if name.lower() in of_frame else NullType()
        is_known = name.lower() not in of_frame or kind in (text_of(type), type.simpleString())
        found.append(StructField(name, type if is_known else fields_of(f"c {kind}")[0].dataType))
    return StructType(found)


def to_ledger(had: Columns, whole: StructType) -> Columns:
    """Return the columns for the ledger, as texts.

    `had` are the columns in the ledger so far. `whole` are the same columns as types (`of_ledger`), after `grown`. A
    column of type void, which the frame lacks, keeps the text that it has in the ledger."""
    kinds = ((field.name, text_of(field.dataType)) for field in whole)
    return tuple((name, dict(had)[name] if kind == "void" else kind) for name, kind in kinds)


def text_of(type: DataType) -> str:
    """Return a type as text, like Spark's `simpleString`, but with names quoted if the text could not be parsed
    otherwise."""
    from pyspark.sql.types import ArrayType, MapType, StructType

    match type:
        case StructType():
            names = (field.name if PLAIN.fullmatch(field.name) else quoted(field.name) for field in type)
            return f"struct<{','.join(f'{name}:{text_of(type[at].dataType)}' for at, name in enumerate(names))}>"
        case ArrayType():
            return f"array<{text_of(type.elementType)}>"
        case MapType():
            return f"map<{text_of(type.keyType)},{text_of(type.valueType)}>"
    return type.simpleString()


@dataclass(frozen=True, slots=True)
class _Growth:
    """Computes the changes of columns for one frame, and collects the paths of new columns and fields in `added`.

    Raises ValueError if the frame does not fit."""

    wider: bool
    remedy: str
    added: list[str]

    def fields(self, at: str, had: StructType, new: StructType) -> StructType:
        """Return a struct with the fields of both structs. `at` is the path of the struct, with a dot at the end, for
        messages."""
        from pyspark.sql.types import StructField, StructType

        unmatched, names = by_name(new), [name.lower() for name in new.names]
        if twice := [name for name in unmatched if names.count(name) > 1]:
            raise ValueError(f"the frame has {at}{twice[0]} twice, but for case; rename one in the pipeline")
        grown = []
        for field in had:
            got = unmatched.pop(field.name.lower(), None)
            type = field.dataType if got is None else self.type(f"{at}{field.name}", field.dataType, got.dataType)
            grown.append(StructField(field.name, type, field.nullable, field.metadata))
        for field in unmatched.values():  # the new fields
            self.added.append(f"{at}{field.name}")
            grown.append(StructField(field.name, self.type(f"{at}{field.name}", None, field.dataType)))
        return StructType(grown)

    def type(self, at: str, had: DataType | None, new: DataType) -> DataType:
        """Return a type for a column or field that holds both its present values, of type `had`, and those of the
        frame, of type `new`. `had` is None for a new column. `at` is the path of the column, for messages.
        """
        from pyspark.sql.types import ArrayType, MapType, NullType, StructType

        match had, new:
            case None, NullType():
                raise ValueError(f"the new column {at} has no type, as it is only NULL; cast it in the pipeline")
            case None | NullType() | StructType(), StructType():
                return self.fields(f"{at}.", had if isinstance(had, StructType) else StructType(), new)
            case None | NullType() | ArrayType(), ArrayType():
                element, nulls = (had.elementType, had.containsNull) if isinstance(had, ArrayType) else (None, True)
                return ArrayType(self.type(f"{at}.element", element, new.elementType), nulls)
            case None | NullType() | MapType(), MapType():
                key, value, nulls = None, None, True
                if isinstance(had, MapType):
                    key, value, nulls = had.keyType, had.valueType, had.valueContainsNull
                of_key = self.type(f"{at}.key", key, new.keyType)
                return MapType(of_key, self.type(f"{at}.value", value, new.valueType), nulls)
        if had is None or isinstance(had, NullType) or (self.wider and widens(had, new)):
            return new
        if holds(had, new):
            return had
        kinds = f"{had.simpleString()}, in this batch it is {new.simpleString()}"
        raise ValueError(f"its column {at} is {kinds}; cast it in the pipeline, or {self.remedy}")


def fitted(frame: DataFrame, whole: StructType, *, fill: bool = False) -> DataFrame:
    """Return the frame with the names, types and order of `whole`, also within structs. Return the same frame if it has
    them already.

    Missing fields of structs become null. With `fill`, missing columns become null as well."""
    from pyspark.sql.types import StructField, StructType

    kept = by_name(whole) if fill else by_name(frame.schema)
    fields = [StructField(field.name, field.dataType) for field in whole if field.name.lower() in kept]
    target = StructType(fields).toNullable()
    if text_of(frame.schema) == text_of(target):
        return frame
    session, was = frame.sparkSession, frame.sparkSession.conf.get(CASE_SENSITIVE)
    session.conf.set(CASE_SENSITIVE, "false")  # otherwise columns in another spelling would become null
    try:
        return frame.to(target)
    finally:
        session.conf.set(CASE_SENSITIVE, str(was))
