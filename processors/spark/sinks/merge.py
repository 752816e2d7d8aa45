"""Merges change data into a table of current rows (`mode = merge`): the rules that Delta, Iceberg and PostgreSQL share.

A batch is a set of changes. It is computed once, before the statement, because a MERGE reads its source more than once,
and refuses expressions that are not deterministic, such as those for JSON. If a batch has several changes of a key,
only the newest is applied: the one with the highest sequence number and, within an aggregated record, the last one.
Then one `MERGE` inserts, updates and deletes rows. Between batches, changes are applied in the order of the shard, so
all changes of a key must have the same partition key.

If changes may be repeated or come in another order, columns of the changes (`order_by`) show which one is newer, within
a batch and between batches. A change cannot be compared with a row that is deleted, so in this case a delete leaves the
row in the table and marks it.

Pure. `Merge.newest` adds steps to the frame of a batch and runs no job. Names of columns are matched without regard to
case, as in Spark.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mld.processors.spark.positions import SEQUENCE_DIGITS_MAX
from mld.processors.spark.session.decoding import quoted
from mld.processors.spark.sink_port import SinkRefused

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


SEQUENCE, *PLACES = "sequenceNumber", "subSequenceNumber", "rowNumber"
"""Columns of the records that show which change is newer. The first is required. The second is needed if the producer
aggregates records, the third if a record has several events.
"""
DELETED = "_mld_deleted"
"""Column in the source of a MERGE: whether the change deletes its row. The table has this column only if it keeps
deleted rows.
"""
RANK = "_mld_rank"
TARGET, SOURCE = "t", "s"


@dataclass(frozen=True, slots=True)
class Merge:
    """The rules by which a sink merges, from its settings. `sink` is its name, for messages."""

    sink: str
    keys: tuple[str, ...]
    """`mld.spark.sink.<name>.keys`: the columns that identify a row. A null in them is a value like any other."""
    delete_when: str | None = None
    """`mld.spark.sink.<name>.deleteWhen`: a condition in SQL over the columns of the frame. Null counts as false."""
    order_by: tuple[str, ...] = ()
    """`mld.spark.sink.<name>.orderBy`: the columns that show which change is newer. Without them, a later record is
    newer.
    """

    @property
    def keeps_deleted(self) -> bool:
        """Whether a delete leaves its row in the table, marked in the column DELETED, so that an older change that
        comes later does not bring the row back.
        """
        return bool(self.delete_when and self.order_by)

    def marked(self, frame: DataFrame) -> DataFrame:
        """Return the frame with the additional column DELETED."""
        return frame.selectExpr("*", f"{self.is_deleted()} AS {DELETED}")

    def rows(self, changes: DataFrame) -> DataFrame:
        """Return the rows to write, from the result of `newest`: without the column DELETED, unless
        the table has it.
        """
        return changes if self.keeps_deleted else changes.drop(DELETED)

    def check(self, columns: Sequence[str]) -> None:
        """Check that a frame with these columns can be merged. Raises SinkRefused with a remedy."""
        have = [name.lower() for name in columns]
        self.check_named(have, "the frame has no such column; select it")
        if SEQUENCE.lower() not in have:
            raise SinkRefused(
                f"sink {self.sink}: mode = merge needs the column {SEQUENCE}, which says which change of a key is the "
                "newest; select it in the pipeline (and subSequenceNumber, if the producer aggregates records)"
            )
        if twice := sorted({name for name in have if have.count(name) > 1}):
            raise SinkRefused(f"sink {self.sink}: the frame has {', '.join(twice)} more than once; rename one")
        if own := [name for name in have if name in (DELETED, RANK)]:
            raise SinkRefused(f"sink {self.sink}: the column {own[0]} is the sink's own; rename it in the pipeline")

    def check_named(self, have: Sequence[str], otherwise: str) -> None:
        """Raise SinkRefused if `have` (in lower case) lacks a column that a key of the settings names."""
        for key, names in (("keys", self.keys), ("orderBy", self.order_by)):
            if missing := [name for name in names if name.lower() not in have]:
                raise SinkRefused(f"mld.spark.sink.{self.sink}.{key} names {', '.join(missing)}, {otherwise}")

    def order(self, columns: Sequence[str]) -> tuple[str, ...]:
        """Return the expressions by which changes of one key are sorted, the newest first.

        Sequence numbers have too many digits for Spark's numbers, so they are sorted as texts with leading zeros."""
        have = {name.lower() for name in columns}
        given = (f"{quoted(name)} DESC NULLS LAST" for name in self.order_by)
        places = (f"{quoted(place)} DESC" for place in PLACES if place.lower() in have)
        return (*given, f"lpad(CAST({quoted(SEQUENCE)} AS STRING), {SEQUENCE_DIGITS_MAX}, '0') DESC", *places)

    def is_deleted(self) -> str:
        """Return a condition in SQL that is true if a change deletes its row, and otherwise false, never null."""
        return f"coalesce(({self.delete_when}), false)" if self.delete_when else "false"

    def newest(self, frame: DataFrame) -> DataFrame:
        """Return the newest change of each key, with the additional column DELETED. Raises SinkRefused."""
        columns = frame.columns
        self.check(columns)
        keys = ", ".join(quoted(name) for name in self.keys)
        rank = f"row_number() OVER (PARTITION BY {keys} ORDER BY {', '.join(self.order(columns))}) AS {RANK}"
        first = frame.selectExpr("*", rank).where(f"{RANK} = 1")
        return self.marked(first.select(*map(quoted, columns)))

    def statement(self, target: str, source: str, columns: Sequence[str]) -> str:
        """Return the `MERGE INTO` of one batch. `target` is quoted for SQL; `source` names a view of the result of
        `newest`; `columns` are those of `rows`, and the table has them."""
        named = [quoted(name) for name in columns]
        on = " AND ".join(f"{TARGET}.{quoted(name)} <=> {SOURCE}.{quoted(name)}" for name in self.keys)
        updates = ", ".join(f"{TARGET}.{name} = {SOURCE}.{name}" for name in named)
        values = ", ".join(f"{SOURCE}.{name}" for name in named)
        newer = f" AND {not_older([quoted(name) for name in self.order_by], SOURCE, TARGET)}" if self.order_by else ""
        is_for_good = self.delete_when and not self.keeps_deleted
        delete = f"WHEN MATCHED AND {SOURCE}.{DELETED} THEN DELETE" if is_for_good else ""
        unless = f" AND NOT {SOURCE}.{DELETED}" if is_for_good else ""
        clauses = (
            f"MERGE INTO {target} AS {TARGET} USING {source} AS {SOURCE} ON {on}",
            delete,
            f"WHEN MATCHED{newer} THEN UPDATE SET {updates}",
            f"WHEN NOT MATCHED{unless} THEN INSERT ({', '.join(named)}) VALUES ({values})",  # noqa: S608 - the user's own table
        )
        return " ".join(filter(None, clauses))


def not_older(columns: Sequence[str], new: str, old: str, same: str = "<=>") -> str:
    """Return a condition in SQL that is true if the row `new` is not older than the row `old`, and never null.

    Of `columns` (quoted names) the first one in which the rows differ decides. A null is older than any value. `same`
    is the SQL dialect's operator that compares values which may be null.
    """
    condition = "true"
    for name in reversed(columns):
        of_new, of_old = f"{new}.{name}", f"{old}.{name}"
        # The comparison is null if one of the values is: then a value is newer than a null.
        newer = f"coalesce({of_new} > {of_old}, {of_new} IS NOT NULL)"
        condition = f"({newer} OR {of_new} {same} {of_old} AND {condition})"
    return condition
