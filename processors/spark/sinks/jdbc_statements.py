"""What the JDBC sink says to a database: names, types, statements, and what an error code means.

Statements are plain text with `?` for values; names are quoted here. `jdbc_dialects` has the databases.

Pure: values in, values out.

How the columns of a frame meet those of a table: which goes where, what is added, and what cannot be.

Names are the same if they are equal, or equal but for case if only one column of the table is. Types are the
database's business: it converts where it does that by itself, and a value that it cannot convert is a row's fault.

Pure: values in, values out.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar, NamedTuple

LEDGER_TABLE = "mld_ledger"
STAGE_PREFIX = "mld_stage_"
ROW = "mld_row"
"""Column of a staging table: number of the row, unique within the frame, so that a task that runs twice fails."""
RANK = "mld_rank"
ARRAY = re.compile(r"array<(\w+(?:\(\d+,\d+\))?)>")
DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")


class DatabaseFault(Enum):
    """What an error of the database means for the next attempt."""

    WAIT = "it cannot now"
    DATA = "a row is to blame"
    REFUSED = "it never will"
    UNKNOWN = "nobody can say"


class TableName(tuple[str, str]):
    """Schema (of MySQL: database) and table, as they stand in the catalog."""

    __slots__ = ()

    @property
    def schema(self) -> str:
        return self[0]

    @property
    def table(self) -> str:
        return self[1]

    def beside(self, table: str) -> TableName:
        """Return another table of the same schema."""
        return TableName((self.schema, table))

    def __str__(self) -> str:
        return f"{self.schema}.{self.table}"


@dataclass(frozen=True, slots=True)
class StagedColumn:
    """A column of the frame on its way: `source` in the staging table, `target` in the user's."""

    source: str
    target: str
    cast: str | None = None
    """The type that the value is cast to explicitly; None if assignment is enough."""
    is_key: bool = False


@dataclass(frozen=True, slots=True)
class Ordering:
    """Columns of the staging table by whose values one row is newer than another; `digits` are numbers as text."""

    column: str
    digits: bool = False


class JdbcDialect(ABC):
    """One kind of database."""

    name: ClassVar[str]
    schemes: ClassVar[tuple[str, ...]]
    driver: ClassVar[str]
    package: ClassVar[str]
    """Maven coordinates of the driver, for people; the version is an example."""
    quote: ClassVar[str] = '"'
    types: ClassVar[dict[str, str]]
    """Spark's name of a type -> ours, for tables that this sink creates."""
    text_key: ClassVar[str]
    """Type of a key of text."""
    ledger_text: ClassVar[str]
    schema_query: ClassVar[str]
    """Asks for the schema in which names without one are looked for."""
    product: ClassVar[str]
    """What the driver calls this database; another one may speak its protocol and not its SQL."""
    version_min: ClassVar[int]
    table_suffix: ClassVar[str] = ""
    schema_is_catalog = False
    """Whether what JDBC calls a catalog is what this database has instead of schemas."""
    write_options: ClassVar[dict[str, str]] = {}
    """Properties of the driver for many rows in one message."""
    strictness: ClassVar[str | None] = None
    """Asks for the modes among which one has to be strict."""
    any_unique_index_counts = False
    """Whether `merge` would take a row for known by any other unique index as well."""

    def quoted(self, name: str) -> str:
        return self.quote + name.replace(self.quote, self.quote * 2) + self.quote

    def place(self, table: TableName) -> str:
        return f"{self.quoted(table.schema)}.{self.quoted(table.table)}"

    def folded(self, name: str) -> str:
        """Return a name that was written without quotes, as the catalog has it."""
        return name

    def type_of(self, spark_type: str) -> str | None:
        """Return the database's type for a type of Spark; None if there is none."""
        if match := DECIMAL.fullmatch(spark_type):
            return f"{self.types['decimal']}({match[1]},{match[2]})"
        return self.types.get(spark_type)

    def cast(self, spark_type: str, column_type: str, *, is_key: bool) -> str | None:
        """Return what a value of the frame has to be cast to before it goes into a column of that type."""
        return None

    # --- statements --------------------------------------------------------------------------------------------------

    def create(
        self, table: TableName, columns: Sequence[tuple[str, str]], keys: Sequence[str], suffix: str = ""
    ) -> str:
        """Return CREATE TABLE; `keys` are its primary key."""
        lines = [f"{self.quoted(name)} {type_}{' NOT NULL' if name in keys else ''}" for name, type_ in columns]
        if keys:
            lines.append(f"PRIMARY KEY ({', '.join(map(self.quoted, keys))})")
        return " ".join(
            filter(None, (f"CREATE TABLE {self.place(table)} ({', '.join(lines)})", self.table_suffix, suffix))
        )

    def create_ledger(self, table: TableName) -> str:
        columns = [
            ("target", self.text_key),
            ("number", self.types["bigint"]),
            ("token", self.text_key),
            ("entry", self.ledger_text),
        ]
        return self.create(table, columns, ["target"])

    def add_column(self, table: TableName, name: str, type_: str) -> str:
        return f"ALTER TABLE {self.place(table)} ADD COLUMN {self.quoted(name)} {type_}"

    def drop(self, table: TableName) -> str:
        return f"DROP TABLE {self.place(table)}"

    def head(self, table: TableName) -> str:
        """Return the entry of a target: its number and text."""
        return f"SELECT number, entry FROM {self.place(table)} WHERE target = ?"  # noqa: S608 - names are quoted

    def locked_head(self, table: TableName) -> str:
        """Return the head, which nobody else gets before the transaction ends."""
        return f"{self.head(table)} FOR UPDATE"

    def first_entry(self, table: TableName) -> str:
        return f"INSERT INTO {self.place(table)} (target, number, token, entry) VALUES (?, 0, '', '')"  # noqa: S608

    def next_entry(self, table: TableName) -> str:
        return f"UPDATE {self.place(table)} SET number = ?, token = ?, entry = ? WHERE target = ? AND number = ?"  # noqa: S608

    def count(self, stage: TableName, columns: Sequence[StagedColumn]) -> str:
        """Return how many rows are staged, and how many of them lack a key."""
        keys = [f"{self.quoted(column.source)} IS NULL" for column in columns if column.is_key]
        lacking = f"SUM(CASE WHEN {' OR '.join(keys)} THEN 1 ELSE 0 END)" if keys else "0"
        return f"SELECT COUNT(*), {lacking} FROM {self.place(stage)}"  # noqa: S608

    def append(self, target: TableName, stage: TableName, columns: Sequence[StagedColumn]) -> str:
        names = ", ".join(self.quoted(column.target) for column in columns)
        values = ", ".join(map(self._value, columns))
        return f"INSERT INTO {self.place(target)} ({names}) SELECT {values} FROM {self.place(stage)}"  # noqa: S608

    @abstractmethod
    def merge(
        self, target: TableName, stage: TableName, columns: Sequence[StagedColumn], newest: Sequence[Ordering]
    ) -> str:
        """Return a merge: rows of new keys are inserted, those of known keys replace what is there; of one key the
        newest counts.
        """

    @abstractmethod
    def begin(self, *, lock_wait_s: int, idle_s: int) -> list[str]:
        """Return settings of the transaction that has just begun: how long it waits for locks, and how long it may be
        silent before the server gives it up.
        """

    def tables(self) -> str:
        """Return names of tables of a schema (first value) that begin with a prefix (second value)."""
        return "SELECT table_name FROM information_schema.tables WHERE table_schema = ? AND table_name LIKE ?"

    def engines(self) -> str | None:
        """Ask whether a table (schema, name) takes part in transactions: yes or no; None if all do."""
        return None

    # --- errors ------------------------------------------------------------------------------------------------------

    def serves(self, product: str, version: int) -> bool:
        """Return whether this is the dialect of a server of that name."""
        return product == self.product and version >= self.version_min

    def remedy(self, state: str, code: int, sink: str) -> str:
        """Return what a person can do about an error that is refused."""
        options = f"mld.spark.sink.{sink}.options"
        if state.startswith("28") or code in _LOGIN:
            return f"correct {options}.user and {options}.password"
        if state in ("3D000", "3F000") or code == _NO_DATABASE:
            return f"make the database, or correct {options}.url and {options}.dbtable"
        if state == "42501" or code in _NOT_ALLOWED:
            return (
                f"the user needs the right to create tables in the schema of {options}.dbtable, and to read and write "
                "that table; for new columns it has to be its owner"
            )
        return "correct the pipeline, the table or the sink's options"

    def fault(self, state: str, code: int) -> DatabaseFault:
        """Return what an SQLState and the vendor's code mean."""
        states = {**_STATES, **self.states}
        return self.codes.get(code) or states.get(state) or states.get(state[:2]) or DatabaseFault.UNKNOWN

    codes: ClassVar[dict[int, DatabaseFault]] = {}
    states: ClassVar[dict[str, DatabaseFault]] = {}

    # --- parts -------------------------------------------------------------------------------------------------------

    def _value(self, column: StagedColumn) -> str:
        source = self.quoted(column.source)
        return f"CAST({source} AS {column.cast})" if column.cast else source

    def _newest_first(self, newest: Sequence[Ordering], direction: str = "DESC") -> str:
        parts = []
        for ordering in newest:
            column = self.quoted(ordering.column)
            if ordering.digits:
                parts.append(f"CHAR_LENGTH({column}) {direction}")
            parts.append(f"{column} {direction}")
        return ", ".join([*parts, f"{self.quoted(ROW)} {direction}"])

    def _deduplicated(self, stage: TableName, columns: Sequence[StagedColumn], newest: Sequence[Ordering]) -> str:
        """Return one row of each key, under the names of the target."""
        values = ", ".join(f"{self._value(column)} AS {self.quoted(column.target)}" for column in columns)
        keys = ", ".join(self._value(column) for column in columns if column.is_key)
        names = ", ".join(self.quoted(column.target) for column in columns)
        rank = f"ROW_NUMBER() OVER (PARTITION BY {keys} ORDER BY {self._newest_first(newest)}) AS {RANK}"
        ranked = f"SELECT {values}, {rank} FROM {self.place(stage)}"  # noqa: S608
        return f"SELECT {names} FROM ({ranked}) ranked WHERE {RANK} = 1"  # noqa: S608


_LOGIN = frozenset((1045, 1698))
_NO_DATABASE = 1049
_NOT_ALLOWED = frozenset((1044, 1142, 1227))
_STATES: dict[str, DatabaseFault] = {
    "08": DatabaseFault.WAIT,  # connection
    "40": DatabaseFault.WAIT,  # rolled back: deadlock, serialization
    "21": DatabaseFault.DATA,  # two rows of one batch for one row of the table
    "22": DatabaseFault.DATA,  # data exception
    "23": DatabaseFault.DATA,  # constraint
    "28": DatabaseFault.REFUSED,  # user or password
    "3D": DatabaseFault.REFUSED,  # no such database
    "3F": DatabaseFault.REFUSED,  # no such schema
    "42": DatabaseFault.REFUSED,  # syntax, names, permissions
    "0A": DatabaseFault.REFUSED,  # not supported
}


_PART = r'"(?:[^"]|"")+"|`(?:[^`]|``)+`|[^."`\[\]\s]+'
_NAME = re.compile(rf"(?:(?P<schema>{_PART})\.)?(?P<table>{_PART})")


def table_named(text: str, dialect: JdbcDialect, default_schema: str) -> TableName:
    """Return the table that `schema.table` or `table` names, each part with or without quotes. Raises ValueError."""
    match = _NAME.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is no name of a table; write table or schema.table, quoted where needed")
    schema = _part(match["schema"], dialect) if match["schema"] else default_schema
    return TableName((schema, _part(match["table"], dialect)))


def _part(text: str, dialect: JdbcDialect) -> str:
    if text[0] not in '"`':
        return dialect.folded(text)
    return text[1:-1].replace(text[0] * 2, text[0])


PLACE = ("sequenceNumber", "subSequenceNumber", "rowNumber")
"""Columns of `records` that say which of two rows of a shard is the newer one."""


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
    generated: bool = False
    """Whether nobody may give it one."""


class ColumnsRefused(Exception):
    """The frame cannot be written into this table: a sentence."""


@dataclass(frozen=True, slots=True)
class FittedColumns:
    """`staged` in the order of the frame; `added` have to be added to the table first, with their types."""

    staged: tuple[StagedColumn, ...]
    added: tuple[tuple[str, str], ...]


def staging_name(index: int) -> str:
    """Return the name of a frame's column in the staging table, so that no quoting and no case matters there."""
    return f"c{index}"


def staging_columns(frame: Sequence[FrameColumn], dialect: JdbcDialect) -> list[tuple[str, str]]:
    """Return names and types of the columns of a staging table. Raises ColumnsRefused."""
    return [(staging_name(index), type_of(column, dialect)) for index, column in enumerate(frame)]


def type_of(column: FrameColumn, dialect: JdbcDialect) -> str:
    found = dialect.type_of(column.type)
    if found is None:
        raise ColumnsRefused(
            f"{dialect.name} has no type for column {column.name}, which is {column.type}; cast it in the pipeline, "
            "for instance with to_json"
        )
    return found


def created(
    frame: Sequence[FrameColumn], keys: Sequence[str], dialect: JdbcDialect
) -> tuple[list[tuple[str, str]], list[str]]:
    """Return columns of a new table for these frames, and its primary key. Raises ColumnsRefused."""
    names = [frame[index].name for index in key_indices(frame, keys)]
    columns = [
        (
            column.name,
            dialect.text_key if column.name in names and column.type == "string" else type_of(column, dialect),
        )
        for column in frame
    ]
    return columns, names


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
    frame: Sequence[FrameColumn], table: Sequence[TableColumn], keys: Sequence[str], dialect: JdbcDialect
) -> FittedColumns:
    """Return where each column of the frame goes. Raises ColumnsRefused."""
    key_places = set(key_indices(frame, keys))
    staged, added, taken = [], [], set()
    for index, column in enumerate(frame):
        is_key = index in key_places
        match = _column(column.name, table)
        if match is None:
            if is_key:
                raise ColumnsRefused(f"key {column.name} is no column of the table; add it, with a unique index")
            added.append((column.name, type_of(column, dialect)))
            staged.append(StagedColumn(staging_name(index), column.name))
            continue
        if match.generated:
            raise ColumnsRefused(f"column {match.name} is generated by the database; leave it out in the pipeline")
        taken.add(match.name)
        cast = dialect.cast(column.type, match.type, is_key=is_key)
        staged.append(StagedColumn(staging_name(index), match.name, cast, is_key))
    for left in table:
        if left.required and left.name not in taken:
            raise ColumnsRefused(
                f"column {left.name} takes no NULL and has no default, and the frame does not have it; add it in the "
                "pipeline, or give it a default"
            )
    return FittedColumns(tuple(staged), tuple(added))


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


def newest(frame: Sequence[FrameColumn]) -> tuple[Ordering, ...]:
    """Return that by which one row of a key is newer than another: the position of its record, if the frame has it."""
    places = {column.name.lower(): index for index, column in enumerate(frame)}
    found = [places[name.lower()] for name in PLACE if name.lower() in places and PLACE[0].lower() in places]
    return tuple(Ordering(staging_name(index), digits=frame[index].type == "string") for index in found)


def check_unique(keys: Collection[str], indexes: Sequence[frozenset[str]], dialect: JdbcDialect) -> None:
    """Check whether a merge by these columns of the table is sound; `indexes` are the unique ones. Raises
    ColumnsRefused.
    """
    wanted = frozenset(keys)
    named = ", ".join(sorted(keys))
    if wanted not in indexes:
        raise ColumnsRefused(f"the table has no unique index of exactly its keys ({named}); create one")
    if dialect.any_unique_index_counts and (others := [index for index in indexes if index != wanted]):
        raise ColumnsRefused(
            f"the table has another unique index ({', '.join(sorted(others[0]))}) beside its keys ({named}), by which "
            f"{dialect.name} would replace rows of other keys; drop it, or make it one that is not unique"
        )
