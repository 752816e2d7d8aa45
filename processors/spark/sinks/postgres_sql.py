"""Makes the statements that the JDBC sink sends to PostgreSQL, and matches columns of a frame with those of a table.

Columns match if their names are equal without regard to case; if several match, the one with the exact name does. Spark
and the database decide about types: a new table gets Spark's types for PostgreSQL, and every value is cast to the type
of its column. So if a value cannot be cast, its row is to blame.

Pure: values in, values out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from mld.processors.spark.sink_port import SinkRefused
from mld.processors.spark.sinks.merge import not_older

STAGE_PREFIX = "mld_stage_"
ROW = "mld_row"
"""Column of a staging table: the number of the row, in the order of the frame."""
SAME = "IS NOT DISTINCT FROM"
NAMED = "SELECT current_schema(), n[1], n[2], n[3] FROM parse_ident(?) n"
"""Query for the current schema, and for the parts of a name (schema, table, and one more if it is too long)."""
STAGES_BEFORE = (
    "SELECT tablename FROM pg_catalog.pg_tables WHERE schemaname = ? AND pg_has_role(tableowner, 'USAGE') AND "  # noqa: S608
    f"CAST(SUBSTRING(tablename FROM '^{STAGE_PREFIX}([0-9]{{1,12}})_[0-9a-f]+$') AS BIGINT) < CAST(? AS BIGINT)"
)
"""Query for the staging tables of a schema that were made before a time, and that this user may drop. Other tables have
no time in their names.
"""
COLUMNS = (
    "SELECT a.attname, format_type(a.atttypid, -1), "
    "(a.attnotnull OR t.typnotnull) AND NOT a.atthasdef AND a.attidentity = '' "
    "FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_type t ON t.oid = a.atttypid "
    "WHERE a.attrelid = to_regclass(?) AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum"
)
"""Query for the name and type of each column of a table, and whether a value is `required`. The parameter is the
table's `place`. There are no rows if the table does not exist.
"""


class TableName(NamedTuple):
    """The names of a schema and a table, as in the database's catalog."""

    schema: str
    table: str

    @property
    def place(self) -> str:
        """The table's name for a statement."""
        return f"{quoted(self.schema)}.{quoted(self.table)}"


class Column(NamedTuple):
    """A column of a table, or of a frame with its type in a table."""

    name: str
    type: str
    required: bool = False
    """Whether each row must have a value for the column: it allows no NULL, has no default, and is
    no identity column.
    """


def quoted(name: str) -> str:
    doubled = name.replace('"', '""')
    return f'"{doubled}"'


def listed(names: Iterable[str]) -> str:
    return ", ".join(map(quoted, names))


def stage_name(now: float, token: str) -> str:
    """Return the name of a staging table that is made at the time `now`."""
    return f"{STAGE_PREFIX}{int(now)}_{token}"


def places_of(names: Sequence[str], columns: Sequence[Column]) -> list[int]:
    """Return the indexes of the columns with these names, in upper or lower case. Names without a
    column are left out.
    """
    lowered = [column.name.lower() for column in columns]
    return [lowered.index(name.lower()) for name in names if name.lower() in lowered]


def fitted(
    at: str, frame: Sequence[Column], table: Sequence[Column], keys: Sequence[str], order: Sequence[str] = ()
) -> list[Column]:
    """Return for each column of the frame the matching column of the table, or the frame's own column if it has to be
    added to the table.

    Raises SinkRefused, with a sentence that begins with `at`; also if the table would sort a column of `order` in
    another way than the frame."""
    names = [column.name.lower() for column in frame]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise SinkRefused(f"{at}: the frame has column {twice[0]} twice; rename one in the pipeline")
    # The second dictionary comes last, so that an exact name wins.
    known = {column.name.lower(): column for column in table} | {column.name: column for column in table}
    matching = [known.get(column.name) or known.get(column.name.lower(), column) for column in frame]
    if absent := [matching[place].name for place in places_of(keys, frame) if table and matching[place] not in table]:
        raise SinkRefused(f"{at}: key {absent[0]} is no column of the table; add it, with a unique index")
    ordered = ((matching[place], frame[place]) for place in places_of(order, frame))
    if texts := [column for column, given in ordered if is_text(column) and not is_text(given)]:
        raise SinkRefused(
            f"{at}: orderBy names {texts[0].name}, which is {texts[0].type} there, where 9 is newer than 10; give it "
            "the type that it has in the frame, or cast it to text in the pipeline"
        )
    if left := [column.name for column in table if column.required and column not in matching]:
        raise SinkRefused(
            f"{at}: column {left[0]} takes no NULL and has no default, and the frame does not have it; add it in the "
            "pipeline, or give it a default"
        )
    return matching


def is_text(column: Column) -> bool:
    """Return whether values of a column are compared as texts."""
    return column.type.lower().startswith(("text", "char", "varchar", "citext", "name"))


def create(table: TableName, lines: Iterable[str], suffix: str = "") -> str:
    """Return a CREATE TABLE with these columns and constraints. It also succeeds if the table exists already."""
    return f"CREATE TABLE IF NOT EXISTS {table.place} ({', '.join(lines)}) {suffix}".rstrip()


def create_stage(table: TableName, columns: Sequence[Column], keys: Sequence[int]) -> str:
    """Return a CREATE TABLE for a staging table, with the columns `c0`, `c1`, …. The columns with the indexes `keys`
    must have a value; if one has none, the database's error names the key.
    """
    lines = [*(f"c{place} {column.type}" for place, column in enumerate(columns)), f"{ROW} BIGINT"]
    names = {place: quoted(f"key {columns[place].name} has a value") for place in keys}
    return create(table, [*lines, *(f"CONSTRAINT {names[place]} CHECK (c{place} IS NOT NULL)" for place in keys)])


def add_column(table: TableName, column: Column) -> str:
    return f"ALTER TABLE {table.place} ADD COLUMN IF NOT EXISTS {quoted(column.name)} {column.type}"


def take_over(
    target: TableName,
    stage: TableName,
    columns: Sequence[Column],
    keys: Sequence[int],
    newest: Sequence[int],
    order: Sequence[int] = (),
) -> str:
    """Return the statement that copies staged rows into these columns of the target.

    With `keys` the statement merges: a row with a new key is inserted; another row replaces the row of its key, unless
    it is older by the columns `order`. If a key has several staged rows, only one is used: the newest by the columns
    `order`, among these the one with the highest numbers in the columns `newest`, and among these the last in the
    frame. All columns are given by their indexes."""
    names = [column.name for column in columns]
    values = [f"CAST(s.c{place} AS {column.type})" for place, column in enumerate(columns)]
    into, rows = f"INSERT INTO {target.place} ({listed(names)})", f"{', '.join(values)} FROM {stage.place} s"
    if not keys:
        return f"{into} SELECT {rows}"
    # DISTINCT ON keeps the first row of each key. Numbers stand for columns of the SELECT, from 1 on.
    key = ", ".join(str(place + 1) for place in keys)
    newest_first = [f"{values[place]} DESC NULLS LAST" for place in order]
    newest_first += [f"CAST(s.c{place} AS NUMERIC) DESC" for place in newest]
    by = ", ".join((key, *newest_first, f"s.{ROW} DESC"))
    rest = [quoted(name) for place, name in enumerate(names) if place not in keys]
    action = f"UPDATE SET {', '.join(f'{name} = EXCLUDED.{name}' for name in rest)}" if rest else "NOTHING"
    if rest and order:
        by_names = [quoted(names[place]) for place in order]
        action += f" WHERE {not_older(by_names, 'EXCLUDED', quoted(target.table), SAME)}"
    conflict = f"ON CONFLICT ({listed(names[place] for place in keys)}) DO {action}"
    return f"{into} SELECT DISTINCT ON ({key}) {rows} ORDER BY {by} {conflict}"
