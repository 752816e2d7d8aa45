"""Tables of a lake house, exactly once: the ledger's entry is part of the table's atomic commit (`delta`, `iceberg`).

A writer that lost the race reads the ledger, checks its shards, and writes again: unlike files, its rows are not kept.
That goes for writers of other applications and streams as well, whose marks are in the same entry.
Readers see whole commits. The newest entry has to stay in the table's history (Delta: `delta.logRetentionDuration`,
Iceberg: `expire_snapshots`), so do not let a table's history expire to less than the time in which nothing is written.

Change data into a table of current rows (`mode = merge`): what the formats of a lake house share.

A batch is a set of changes, which are computed once, before the statement: it reads them more than once, and takes no
frame whose expressions are not deterministic, as those of JSON. Of several changes of a key within one batch the newest
counts, by sequence number and, of records that were aggregated, by their place; then one `MERGE` inserts, updates and
deletes. Between batches the order is that of the shard: changes of one key have to bear one partition key.

Where changes repeat, or come in another order, columns of theirs (`order_by`) say which is newer, within a batch and
between batches. A row that is gone could not say what it was newer than, so a delete leaves its own row, marked.

`Merge` is pure; its `newest` adds steps to the frame of a batch and runs nothing. Columns are matched by name, without
regard to case, as Spark does.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from mld.processors.spark.commit.journal import AdmittedSink
from mld.processors.spark.commit.ledger import Admission, LedgerEntry
from mld.processors.spark.high_water_marks import SEQUENCE_DIGITS_MAX, HighWaterMarks, ShardSpans
from mld.processors.spark.session.decoding import quoted
from mld.processors.spark.session.error_classes import ErrorKind, causes_of, failure, is_of, kind_of
from mld.processors.spark.sink_port import Published, SinkError, SinkRefused, SinkSpec, first_line, sentence
from mld.processors.spark.sinks.columns import SinkColumns, fitted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


SEQUENCE, *PLACES = "sequenceNumber", "subSequenceNumber", "rowNumber"
"""Columns of the records that say which change is newer; the first is required, the second has to be there if records
are aggregated by the producer, the third if a record has several events."""
DELETED = "_mld_deleted"
"""Column of the source of a MERGE: whether the change deletes its row; of the table only where deletes are kept."""
RANK = "_mld_rank"
TARGET, SOURCE = "t", "s"


@dataclass(frozen=True, slots=True)
class Merge:
    """How a sink merges; `sink` is its name, for sentences."""

    sink: str
    keys: tuple[str, ...]
    """`mld.spark.sink.<name>.keys`: which columns name a row. A null is a value like any other."""
    delete_when: str | None = None
    """`mld.spark.sink.<name>.deleteWhen`: a condition of SQL over the columns of the frame; null is no."""
    order_by: tuple[str, ...] = ()
    """`mld.spark.sink.<name>.orderBy`: which columns say what is newer; none: what comes later is."""

    @property
    def keeps_deleted(self) -> bool:
        """Whether a delete leaves a row with the mark DELETED, which nothing older replaces."""
        return bool(self.delete_when and self.order_by)

    def marked(self, frame: DataFrame) -> DataFrame:
        """Return the frame with the column DELETED besides its own."""
        return frame.selectExpr("*", f"{self.is_deleted()} AS {DELETED}")

    def rows(self, changes: DataFrame) -> DataFrame:
        """Return what of `newest` is for the table."""
        return changes if self.keeps_deleted else changes.drop(DELETED)

    def check(self, columns: Sequence[str]) -> None:
        """Check whether a frame of these columns can be merged. Raises SinkRefused that names key and remedy."""
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
        """Raise SinkRefused if the columns `have`, in lower case, lack one that a key of the settings names."""
        for key, names in (("keys", self.keys), ("orderBy", self.order_by)):
            if missing := [name for name in names if name.lower() not in have]:
                raise SinkRefused(f"mld.spark.sink.{self.sink}.{key} names {', '.join(missing)}, {otherwise}")

    def order(self, columns: Sequence[str]) -> tuple[str, ...]:
        """Return expressions by which changes of one key are sorted, the newest first.

        Sequence numbers have too many digits for any number of Spark: with zeros in front they sort as text."""
        have = {name.lower() for name in columns}
        given = (f"{quoted(name)} DESC NULLS LAST" for name in self.order_by)
        places = (f"{quoted(place)} DESC" for place in PLACES if place.lower() in have)
        return (*given, f"lpad(CAST({quoted(SEQUENCE)} AS STRING), {SEQUENCE_DIGITS_MAX}, '0') DESC", *places)

    def is_deleted(self) -> str:
        """Return a condition that is true or false, never null."""
        return f"coalesce(({self.delete_when}), false)" if self.delete_when else "false"

    def newest(self, frame: DataFrame) -> DataFrame:
        """Return one row per key, the newest, with the column DELETED besides its own. Raises SinkRefused."""
        columns = frame.columns
        self.check(columns)
        keys = ", ".join(quoted(name) for name in self.keys)
        rank = f"row_number() OVER (PARTITION BY {keys} ORDER BY {', '.join(self.order(columns))}) AS {RANK}"
        first = frame.selectExpr("*", rank).where(f"{RANK} = 1")
        return self.marked(first.select(*map(quoted, columns)))

    def statement(self, target: str, source: str, columns: Sequence[str]) -> str:
        """Return the `MERGE INTO` of one batch. `target` is quoted as SQL wants it, `source` is what `newest` made, by
        the name of a view or a marker such as `{source}`; `columns` are those of `rows`, and the table has them."""
        named = [quoted(name) for name in columns]
        on = " AND ".join(f"{TARGET}.{quoted(name)} <=> {SOURCE}.{quoted(name)}" for name in self.keys)
        updates = ", ".join(f"{TARGET}.{name} = {SOURCE}.{name}" for name in named)
        values = ", ".join(f"{SOURCE}.{name}" for name in named)
        newer = f" AND {not_older([quoted(name) for name in self.order_by], SOURCE, TARGET)}" if self.order_by else ""
        is_for_good = self.delete_when and not self.keeps_deleted
        delete = f"WHEN MATCHED AND {SOURCE}.{DELETED} THEN DELETE" if is_for_good else ""
        unless = f" AND NOT {SOURCE}.{DELETED}" if is_for_good else ""
        words = (
            f"MERGE INTO {target} AS {TARGET} USING {source} AS {SOURCE} ON {on}",
            delete,
            f"WHEN MATCHED{newer} THEN UPDATE SET {updates}",
            f"WHEN NOT MATCHED{unless} THEN INSERT ({', '.join(named)}) VALUES ({values})",  # noqa: S608 - the user's own table
        )
        return " ".join(filter(None, words))


def not_older(columns: Sequence[str], new: str, old: str, same: str = "<=>") -> str:
    """Return a condition, true or false: that the row `new` is not older than `old`. The first of `columns`, quoted,
    that differs decides; a null is older than any value. `same`: how the dialect compares what may be null."""
    condition = "true"
    for name in reversed(columns):
        mine, theirs = f"{new}.{name}", f"{old}.{name}"
        newer = f"coalesce({mine} > {theirs}, {mine} IS NOT NULL)"
        condition = f"({newer} OR {mine} {same} {theirs} AND {condition})"
    return condition


IS_THERE = (
    *("TABLE_OR_VIEW_ALREADY_EXISTS", "DELTA_TABLE_ALREADY_EXISTS", "DELTA_TABLE_ID_MISMATCH"),
    *("org.apache.iceberg.exceptions.AlreadyExistsException", "org.apache.spark.sql.delta.ProtocolChangedException"),
)
"""What is said of a table or a column that somebody else has just made."""
INVALID = "org.apache.iceberg.exceptions.ValidationException"
"""Of a statement that makes a table: it cannot be so. Of a commit: somebody else was faster."""
RACES_MAX = 20
"""Each lost race costs a write; who loses so many in a row lets its host back off."""
Result = TypeVar("Result")


class LostRace(Exception):
    """Somebody else committed first; nothing of ours is in the table."""


class LakeSink(AdmittedSink):
    """What both have in common: read the head, write what follows it, start again if somebody was faster."""

    def __init__(self, spec: SinkSpec, spark: SparkSession) -> None:
        assert spec.path is not None
        self._spec, self._spark = spec, spark
        self.name = spec.name
        self._target = spec.path
        self._ledger_place = f"the ledger in {spec.path}"
        self._columns = SinkColumns(spec.name)
        merge = Merge(spec.name, spec.keys, spec.delete_when, spec.order_by)
        self._merge = merge if spec.mode.lower() == "merge" else None
        self._admission = Admission(spec.writer, spec.name, spec.path, shared=spec.shared)

    def open(self) -> HighWaterMarks:
        return self._raced(self._opened, f"reading the ledger of {self._target}")

    def publish(self, frame: DataFrame | None, batch: ShardSpans, batch_id: str) -> Published:
        doing = f"writing a batch as {self._spec.format}"
        if self._merge is None or frame is None:
            return self._raced(lambda: self._attempt(frame, None, batch, batch_id), doing)
        merge = self._merge
        self._raced(lambda: self._admission.check(self._head(), batch), doing)  # a zombie need not run the job
        changes = self._raced(lambda: merge.newest(frame).localCheckpoint(), doing)
        try:
            return self._raced(lambda: self._attempt(merge.rows(changes), changes, batch, batch_id), doing)
        finally:
            with suppress(Exception):  # a JVM that is gone has nothing to forget
                changes._jdf.queryExecution().logical().rdd().unpersist(False)

    @contextmanager
    def _making(self) -> Iterator[None]:
        """Let somebody else have been faster at making a table or a column. No row can be to blame for anything else:
        raises SinkRefused where nobody knows better."""
        try:
            yield
        except Exception as error:
            if is_of(error, *IS_THERE):
                return
            if is_of(error, INVALID) or kind_of(causes_of(error)) is ErrorKind.UNKNOWN:
                said = (
                    f"sink {self.name}: {self._target} cannot have these columns or partitions: {sentence(str(error))}"
                )
                raise SinkRefused(f"{said}; cast them in the pipeline, for instance with to_json") from error
            raise

    def _raced(self, attempt: Callable[[], Result], doing: str) -> Result:
        lost: Exception | None = None
        is_shape = False
        for _ in range(RACES_MAX):
            try:
                return attempt()
            except LostRace as error:
                lost = error.__cause__ if isinstance(error.__cause__, Exception) else lost
            except SinkError:
                raise
            except Exception as error:
                kind = kind_of(causes_of(error))
                if kind is not ErrorKind.CONFLICT and (kind is not ErrorKind.SHAPE or is_shape):
                    raise failure(error, f"sink {self.name}: {doing}") from error
                lost, is_shape = error, kind is ErrorKind.SHAPE  # once: the table may have changed meanwhile
        why = f" ({first_line(lost)})" if lost else ""
        raise SinkError(f"sink {self.name}: {RACES_MAX} other commits came first, nothing was published{why}")

    def _opened(self) -> HighWaterMarks:
        return self._admission.marks(self._head())

    def _identifier(self) -> str:
        """Return the table as a statement names it."""
        return self._target

    def _change(self, changes: DataFrame, whole: StructType, token: str, conf: Mapping[str, str]) -> None:
        """Run the MERGE of a batch into a table of the columns `whole`. The settings hold for this statement: nothing
        else writes through the session meanwhile."""
        from pyspark.sql.types import BooleanType, StructField, StructType

        assert self._merge is not None
        others = (one for one in whole if one.name != DELETED)
        changes = fitted(changes, StructType([*others, StructField(DELETED, BooleanType())]))
        session, source = changes.sparkSession, f"mld_changes_{token}"
        changes.createTempView(source)
        try:
            for name, value in conf.items():
                session.conf.set(name, value)
            columns = self._merge.rows(changes).columns
            session.sql(self._merge.statement(self._identifier(), source, columns)).collect()
        finally:
            with suppress(Exception):  # a JVM that is gone has neither
                for name in conf:
                    session.conf.unset(name)
                session.catalog.dropTempView(source)

    @abstractmethod
    def _head(self) -> LedgerEntry | None:
        """Return the newest entry; what the next commit is bound to."""

    @abstractmethod
    def _attempt(
        self, frame: DataFrame | None, changes: DataFrame | None, batch: ShardSpans, batch_id: str
    ) -> Published:
        """Write the frame with the entry that follows the head, atomically, if the head is still that one. `changes`:
        the same as the source of a MERGE, computed already. Raises LostRace.
        """
