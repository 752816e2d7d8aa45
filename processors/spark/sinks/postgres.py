"""What the JDBC sink says to PostgreSQL: names, types and statements, how the columns of a frame meet those of a table,
and what an SQLState means.

Statements are plain text with `?` for values; names are quoted here. Columns are the same if their names are equal, or
equal but for case if only one column of the table is. Types are the database's business: it converts where it does that
by itself, and a value that it cannot convert is a row's fault.

Pure: values in, values out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from mld.processors.spark.sink_port import DataRefused, SinkError, SinkRefused

LEDGER_TABLE = "mld_ledger"
STAGE_PREFIX = "mld_stage_"
ABANDONED_S = 24 * 3600
"""A staging table of that age has no writer any more."""
ROW = "mld_row"
"""Column of a staging table: number of the row, unique within the frame, so that a task that runs twice fails."""
RANK = "mld_rank"
NUMBER = "BIGINT"
TYPES = {
    "string": "TEXT",
    "tinyint": "SMALLINT",
    "smallint": "SMALLINT",
    "int": "INTEGER",
    "bigint": NUMBER,
    "float": "FLOAT4",
    "double": "FLOAT8",
    "boolean": "BOOLEAN",
    "date": "DATE",
    "timestamp": "TIMESTAMP WITH TIME ZONE",
    "timestamp_ntz": "TIMESTAMP",
    "binary": "BYTEA",
}
"""Spark's name of a type -> PostgreSQL's, for tables that this sink creates."""
TEXTS = frozenset(("text", "character varying", "bpchar", "name"))
"""Types that take text without a cast."""
PLACE = ("sequenceNumber", "subSequenceNumber", "rowNumber")
"""Columns of `records` that say which of two rows of a shard is the newer one."""
_ARRAY = re.compile(r"array<(\w+(?:\(\d+,\d+\))?)>")
_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")
_PART = r'"(?:[^"]|"")+"|[^."`\[\]\s]+'
_NAME = re.compile(rf"(?:(?P<schema>{_PART})\.)?(?P<table>{_PART})")


# --- names -----------------------------------------------------------------------------------------------------------


class TableName(NamedTuple):
    """Schema and table, as they stand in the catalog."""

    schema: str
    table: str

    def beside(self, table: str) -> TableName:
        """Return another table of the same schema."""
        return TableName(self.schema, table)

    @property
    def place(self) -> str:
        """The table, as a statement names it."""
        return f"{quoted(self.schema)}.{quoted(self.table)}"

    def __str__(self) -> str:
        return f"{self.schema}.{self.table}"


def quoted(name: str) -> str:
    doubled = name.replace('"', '""')
    return f'"{doubled}"'


def listed(names: Iterable[str]) -> str:
    return ", ".join(map(quoted, names))


def table_named(text: str, default_schema: str) -> TableName:
    """Return the table that `schema.table` or `table` names, each part with or without quotes. Raises ValueError."""
    match = _NAME.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is no name of a table; write table or schema.table, quoted where needed")
    return TableName(_part(match["schema"]) if match["schema"] else default_schema, _part(match["table"]))


def _part(text: str) -> str:
    return text[1:-1].replace('""', '"') if text[0] == '"' else text.lower()


def stage_name(now: float, token: str) -> str:
    """Return the name of a staging table that is made at that time."""
    return f"{STAGE_PREFIX}{int(now)}_{token}"


# --- columns ---------------------------------------------------------------------------------------------------------


class FrameColumn(NamedTuple):
    """`type` is Spark's, as in its DDL."""

    name: str
    type: str


class TableColumn(NamedTuple):
    """A column as the catalog tells it."""

    name: str
    type: str
    required: bool = False
    """Whether a row has to give it a value: no NULL, no default, not counted by the database."""


class StagedColumn(NamedTuple):
    """A column of the frame on its way: `source` in the staging table, `target` in the user's."""

    source: str
    target: str
    cast: str | None = None
    """The type that the value is cast to explicitly; None if assignment is enough."""
    is_key: bool = False

    @property
    def value(self) -> str:
        """What goes into the target."""
        return f"CAST({quoted(self.source)} AS {self.cast})" if self.cast else quoted(self.source)


class ColumnsRefused(Exception):
    """The frame cannot be written into this table: a sentence."""


def staging_name(index: int) -> str:
    """Return the name of a frame's column in the staging table, so that no quoting and no case matters there."""
    return f"c{index}"


def type_of(column: FrameColumn) -> str:
    """Return PostgreSQL's type for a column of a frame. Raises ColumnsRefused if there is none."""
    array = _ARRAY.fullmatch(column.type)
    element = array[1] if array else column.type
    decimal = _DECIMAL.fullmatch(element)
    found = f"NUMERIC({decimal[1]},{decimal[2]})" if decimal else TYPES.get(element)
    if found is None:
        raise ColumnsRefused(
            f"PostgreSQL has no type for column {column.name}, which is {column.type}; cast it in the pipeline, for "
            "instance with to_json"
        )
    return f"{found}[]" if array else found


def cast_of(spark_type: str, column_type: str, *, is_key: bool) -> str | None:
    """Return what a value is cast to before it goes into a column: keys, so that those of one batch are compared as the
    table compares them, and text that goes into another type.
    """
    return column_type if is_key or (spark_type == "string" and column_type not in TEXTS) else None


def key_indices(frame: Sequence[FrameColumn], keys: Sequence[str]) -> list[int]:
    """Return where the keys are in the frame. Raises ColumnsRefused if one is not there."""
    lowered = [column.name.lower() for column in frame]
    if twice := sorted({name for name in lowered if lowered.count(name) > 1}):
        raise ColumnsRefused(f"the frame has column {twice[0]} twice; rename one in the pipeline")
    for key in keys:
        if key.lower() not in lowered:
            raise ColumnsRefused(f"key {key} is no column of the frame ({', '.join(c.name for c in frame)})")
    return [lowered.index(key.lower()) for key in keys]


def fitted(
    frame: Sequence[FrameColumn], table: Sequence[TableColumn], keys: Sequence[str]
) -> tuple[list[StagedColumn], list[tuple[str, str]]]:
    """Return where each column of the frame goes; and what has to be added to the table first, names and types. Raises
    ColumnsRefused.
    """
    key_places = set(key_indices(frame, keys))
    staged, added, taken = [], [], set()
    for index, column in enumerate(frame):
        is_key = index in key_places
        match = _column(column.name, table)
        if match is None:
            if is_key:
                raise ColumnsRefused(f"key {column.name} is no column of the table; add it, with a unique index")
            added.append((column.name, type_of(column)))
            staged.append(StagedColumn(staging_name(index), column.name))
            continue
        taken.add(match.name)
        cast = cast_of(column.type, match.type, is_key=is_key)
        staged.append(StagedColumn(staging_name(index), match.name, cast, is_key))
    for left in table:
        if left.required and left.name not in taken:
            raise ColumnsRefused(
                f"column {left.name} takes no NULL and has no default, and the frame does not have it; add it in the "
                "pipeline, or give it a default"
            )
    return staged, added


def _column(name: str, table: Sequence[TableColumn]) -> TableColumn | None:
    if exact := [column for column in table if column.name == name]:
        return exact[0]
    alike = [column for column in table if column.name.lower() == name.lower()]
    if len(alike) > 1:
        raise ColumnsRefused(
            f"column {name} could be {' or '.join(column.name for column in alike)}; name it as one of them in the "
            "pipeline"
        )
    return alike[0] if alike else None


def newest_first(frame: Sequence[FrameColumn]) -> list[str]:
    """Return by which columns of the staging table the rows of a key are sorted, the newest first: the position of the
    record, if the frame has it. Numbers as text have no zeros in front.
    """
    places = {column.name.lower(): index for index, column in enumerate(frame)}
    found = [places[name.lower()] for name in PLACE if name.lower() in places and PLACE[0].lower() in places]
    terms = []
    for index in found:
        column = quoted(staging_name(index))
        terms += [f"CHAR_LENGTH({column}) DESC"] if frame[index].type == "string" else []
        terms.append(f"{column} DESC")
    return terms


# --- statements ------------------------------------------------------------------------------------------------------

SERVER = "SELECT CAST(SUBSTRING(current_setting('server_version') FROM '^[0-9]+') AS INTEGER), current_schema()"
"""Asks for the major version, and for the schema in which names without one are looked for."""
STAGES_BEFORE = (
    "SELECT table_name FROM information_schema.tables WHERE table_schema = ? "  # noqa: S608
    f"AND CAST(SUBSTRING(table_name FROM '^{STAGE_PREFIX}([0-9]{{1,12}})_[0-9a-f]+$') AS BIGINT) < ?"
)
"""Asks for the staging tables of a schema that were made before a time; what has no such name has no time."""
COLUMNS = (
    "SELECT a.attname, format_type(a.atttypid, -1), "
    "CASE WHEN (a.attnotnull OR t.typnotnull) AND NOT a.atthasdef AND a.attidentity = '' THEN 1 ELSE 0 END "
    "FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_type t ON t.oid = a.atttypid "
    "WHERE a.attrelid = to_regclass(?) AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum"
)
"""Asks for name, type and `required` of each column of a table (its `place`); of none if there is no such table."""


def transaction_settings(*, lock_wait_s: int, idle_s: int) -> str:
    """Return the first statements of a transaction: it sees what is committed; how long it waits for locks, and how
    long it may be silent before the server gives it up.
    """
    return (
        f"SET TRANSACTION ISOLATION LEVEL READ COMMITTED; SET LOCAL lock_timeout = '{lock_wait_s}s'; "
        f"SET LOCAL idle_in_transaction_session_timeout = '{idle_s}s'"
    )


def create(table: TableName, columns: Sequence[tuple[str, str]], keys: Sequence[str] = (), suffix: str = "") -> str:
    """Return CREATE TABLE; `keys` are its primary key. Another writer may be making the same one."""
    lines = [f"{quoted(name)} {type_}{' NOT NULL' if name in keys else ''}" for name, type_ in columns]
    lines += [f"PRIMARY KEY ({listed(keys)})"] if keys else []
    return f"CREATE TABLE IF NOT EXISTS {table.place} ({', '.join(lines)}) {suffix}".rstrip()


def create_ledger(table: TableName) -> str:
    columns = [("target", "TEXT"), ("number", NUMBER), ("token", "TEXT"), ("entry", "TEXT")]
    return create(table, columns, ["target"])


def add_column(table: TableName, name: str, type_: str) -> str:
    return f"ALTER TABLE {table.place} ADD COLUMN IF NOT EXISTS {quoted(name)} {type_}"


def drop(table: TableName) -> str:
    return f"DROP TABLE {table.place}"


def head(table: TableName) -> str:
    """Return the entry of a target: its number and text."""
    return f"SELECT number, entry FROM {table.place} WHERE target = ?"  # noqa: S608 - names are quoted


def locked_head(table: TableName) -> str:
    """Return the head, which nobody else gets before the transaction ends."""
    return f"{head(table)} FOR UPDATE"


def first_entry(table: TableName) -> str:
    values = "(target, number, token, entry) VALUES (?, 0, '', '')"
    return f"INSERT INTO {table.place} {values} ON CONFLICT DO NOTHING"


def next_entry(table: TableName) -> str:
    return f"UPDATE {table.place} SET number = ?, token = ?, entry = ? WHERE target = ? AND number = ?"  # noqa: S608


def count(stage: TableName, columns: Sequence[StagedColumn]) -> str:
    """Return how many rows are staged, and how many of them lack a key."""
    lacking = " OR ".join(f"{quoted(column.source)} IS NULL" for column in columns if column.is_key) or "FALSE"
    return f"SELECT COUNT(*), COUNT(*) FILTER (WHERE {lacking}) FROM {stage.place}"  # noqa: S608


def append(target: TableName, stage: TableName, columns: Sequence[StagedColumn]) -> str:
    values = ", ".join(column.value for column in columns)
    names = listed(column.target for column in columns)
    return f"INSERT INTO {target.place} ({names}) SELECT {values} FROM {stage.place}"  # noqa: S608


def merge(target: TableName, stage: TableName, columns: Sequence[StagedColumn], newest: Sequence[str]) -> str:
    """Return a merge: rows of new keys are inserted, those of known keys replace what is there; of one key the first by
    `newest` counts, and without that the last in the order of the frame.
    """
    names, keys = listed(c.target for c in columns), [c for c in columns if c.is_key]
    rest = [quoted(column.target) for column in columns if not column.is_key]
    update = f"DO UPDATE SET {', '.join(f'{name} = EXCLUDED.{name}' for name in rest)}" if rest else "DO NOTHING"
    values = ", ".join(f"{column.value} AS {quoted(column.target)}" for column in columns)
    order = ", ".join((*newest, f"{quoted(ROW)} DESC"))
    rank = f"ROW_NUMBER() OVER (PARTITION BY {', '.join(c.value for c in keys)} ORDER BY {order}) AS {RANK}"
    ranked = f"SELECT {values}, {rank} FROM {stage.place}"  # noqa: S608
    return (
        f"INSERT INTO {target.place} ({names}) SELECT {names} FROM ({ranked}) ranked WHERE {RANK} = 1 "  # noqa: S608
        f"ON CONFLICT ({listed(c.target for c in keys)}) {update}"
    )


# --- errors ----------------------------------------------------------------------------------------------------------


_STATES: dict[str, type[SinkError]] = {
    "21": DataRefused,  # two rows of one batch for one row of the table
    "22": DataRefused,  # data exception
    "23": DataRefused,  # constraint
    "44": DataRefused,  # WITH CHECK OPTION
    "54": DataRefused,  # a value that is too long for an index
    "P0001": DataRefused,  # a trigger says no
    "0A": SinkRefused,  # not supported
    "28": SinkRefused,  # user or password
    "3D": SinkRefused,  # no such database
    "3F": SinkRefused,  # no such schema
    "42": SinkRefused,  # syntax, names, permissions
    "42P07": SinkError,  # another writer has made the table at the same time
    "55000": SinkRefused,  # a deferrable constraint is none to merge by
}
"""By SQLState or its first two characters. All others are waited for: connections, locks, resources, fail-overs."""
_LOGIN = "correct {0}.user and {0}.password"
_PLACES = "make the database, or correct {0}.url and {0}.dbtable"
_REMEDIES = {
    "28": _LOGIN,
    "3D": _PLACES,
    "3F": _PLACES,
    "42501": "the user needs the right to create tables in the schema of {0}.dbtable, and to read and write that "
    "table; for new columns it has to be its owner",
    "42P10": "the table needs a unique index of exactly its keys; create one",
}


def fault(state: str) -> type[SinkError]:
    """Return what an SQLState means for the next attempt, as an error of a sink: `DataRefused` if a row is to blame."""
    return _STATES.get(state) or _STATES.get(state[:2], SinkError)


def remedy(state: str, sink: str) -> str:
    """Return what a person can do about an error that is refused."""
    found = _REMEDIES.get(state) or _REMEDIES.get(state[:2], "correct the pipeline, the table or the sink's options")
    return found.format(f"mld.spark.sink.{sink}.options")
