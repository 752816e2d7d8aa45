"""Lakehouse tables, exactly once: the ledger's entry is part of the table's own atomic commit (`delta`, `iceberg`).

A writer that lost a race reads the ledger, checks the marks of its shards, and writes again. The marks of other writers
are in the same entry, so writers of other applications and streams race with it, too. Readers see whole commits. The
newest entry has to stay in the table's history (Delta: `delta.logRetentionDuration`, Iceberg: `expire_snapshots`). So a
table's history must be kept for longer than the longest time without a write.

An entry of the ledger has the marks after its commit. A mark is the position up to which the records of a shard are in
the table. The newest entry is the head.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, TypeVar

from mld.processors.spark.commit.admission import Admission
from mld.processors.spark.commit.admitted_sink import AdmittedSink
from mld.processors.spark.commit.ledger import LedgerEntry
from mld.processors.spark.high_water_marks import HighWaterMarks, ShardSpans
from mld.processors.spark.sentences import first_line, sentence
from mld.processors.spark.session.error_classes import causes_of, is_of, kind_of
from mld.processors.spark.session.error_kinds import ErrorKind
from mld.processors.spark.session.sink_errors import failure
from mld.processors.spark.sink_port import JobFailed, Published, SinkError, SinkRefused
from mld.processors.spark.sink_spec import SinkSpec
from mld.processors.spark.sinks.columns import SinkColumns, fitted
from mld.processors.spark.sinks.merge import DELETED, Merge

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


IS_THERE = (
    *("TABLE_OR_VIEW_ALREADY_EXISTS", "DELTA_TABLE_ALREADY_EXISTS", "DELTA_TABLE_ID_MISMATCH"),
    *("org.apache.iceberg.exceptions.AlreadyExistsException", "org.apache.spark.sql.delta.ProtocolChangedException"),
)
"""Error conditions and classes of exceptions if another writer has just made the same table or column."""
INVALID = "org.apache.iceberg.exceptions.ValidationException"
"""The exception by which Iceberg refuses a statement that makes or changes a table, because such a table is not
possible. A commit raises the same exception if another writer committed first.
"""
RACES_MAX = 20
"""After this many lost races in a row, SinkError is raised, and the engine waits before the next attempt, because each
race costs a write."""
Result = TypeVar("Result")


class LostRace(Exception):
    """Another writer committed first. Nothing of ours is in the table."""


class OfRows(Exception):
    """A job over a frame has failed; the cause is its exception. A row can be to blame for this error, and for no other
    error of a statement."""


@contextmanager
def of_rows() -> Iterator[None]:
    """Run a job over a frame within this block. Raises OfRows from any exception of the job; a SinkError passes."""
    try:
        yield
    except SinkError:
        raise
    except Exception as error:
        raise OfRows(str(error)) from error


class LakeSink(AdmittedSink):
    """The common part of Delta and Iceberg: reads the head, commits an entry that follows it, and begins again if
    another writer committed first.
    """

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
        """Commit the frame and the new marks: as an append, or with `mode = merge` as a MERGE whose changes are
        computed once, however many races are lost. Without a frame, commit only the marks. Raises SinkError.
        """
        doing = f"writing a batch as {self._spec.format}"
        if self._merge is None or frame is None:
            return self._raced(lambda: self._attempt(frame, None, batch, batch_id), doing)
        merge = self._merge
        self._raced(lambda: self._admission.check(self._head(), batch), doing)  # a worker without its lease stops here
        compute = of_rows()(lambda: merge.newest(frame).localCheckpoint())  # an error of this job is one of its rows
        changes = self._raced(compute, doing)
        try:
            return self._raced(lambda: self._attempt(merge.rows(changes), changes, batch, batch_id), doing)
        finally:
            with suppress(Exception):  # the JVM may be gone
                changes._jdf.queryExecution().logical().rdd().unpersist(False)  # frees what `localCheckpoint` keeps

    @contextmanager
    def _making(self) -> Iterator[None]:
        """Run the block's statements, which make or change the table. Raises LostRace if another writer has made the
        same table or column first, and SinkRefused if such a table is not possible.

        An error of unknown meaning is taken for the latter, because no row can be to blame for it. All others pass
        unchanged (`_raced` handles them)."""
        try:
            yield
        except Exception as error:
            if is_of(error, *IS_THERE):
                raise LostRace from error
            if is_of(error, INVALID) or kind_of(causes_of(error)) is ErrorKind.UNKNOWN:
                what = (
                    f"sink {self.name}: {self._target} cannot have these columns or partitions: {sentence(str(error))}"
                )
                raise SinkRefused(f"{what}; cast them in the pipeline, for instance with to_json") from error
            raise

    def _raced(self, attempt: Callable[[], Result], doing: str) -> Result:
        """Run `attempt`, and run it again whenever another writer has committed first, at most RACES_MAX times. Return
        its result.

        Other errors of Spark become errors of the sink, in a sentence about the work (`doing`). If a job over rows
        failed, a record may be to blame (JobFailed); if any other statement failed, none is. Raises SinkError."""
        lost: Exception | None = None  # why the last race was lost
        is_shape = False  # whether the last attempt failed with ErrorKind.SHAPE
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
                    found = failure(error, f"sink {self.name}: {doing}")
                    is_of_table = isinstance(found, JobFailed) and not isinstance(error, OfRows)
                    raise (SinkError(f"{found}; it is tried again") if is_of_table else found) from error
                lost = error
                is_shape = kind is ErrorKind.SHAPE  # tried again once, as the table may have changed meanwhile
        why = f" ({first_line(lost)})" if lost else ""
        raise SinkError(f"sink {self.name}: {RACES_MAX} other commits came first, nothing was published{why}")

    def _opened(self) -> HighWaterMarks:
        """Return the marks that the head of the table's ledger has for this writer; subclasses first check the
        table.
        """
        return self._admission.marks(self._head())

    def _identifier(self) -> str:
        """Return the table's name for a statement of SQL."""
        return self._target

    def _change(self, changes: DataFrame, whole: StructType, token: str, conf: Mapping[str, str]) -> None:
        """Run the MERGE of a batch into a table with the columns `whole`. The session has the settings `conf` while the
        statement runs; nothing else writes through the session then. `token` makes the name of the view unique.
        """
        from pyspark.sql.types import BooleanType, StructField, StructType

        assert self._merge is not None
        others = (column for column in whole if column.name != DELETED)
        changes = fitted(changes, StructType([*others, StructField(DELETED, BooleanType())]))
        session, source = changes.sparkSession, f"mld_changes_{token}"
        changes.createTempView(source)
        try:
            for name, value in conf.items():
                session.conf.set(name, value)
            columns = self._merge.rows(changes).columns
            with of_rows():
                session.sql(self._merge.statement(self._identifier(), source, columns)).collect()
        finally:
            with suppress(Exception):  # the JVM may be gone
                for name in conf:
                    session.conf.unset(name)
                session.catalog.dropTempView(source)

    @abstractmethod
    def _head(self) -> LedgerEntry | None:
        """Read and return the newest entry. The next commit succeeds only if it is still the newest."""

    @abstractmethod
    def _attempt(
        self, frame: DataFrame | None, changes: DataFrame | None, batch: ShardSpans, batch_id: str
    ) -> Published:
        """Write the frame together with the entry that follows the head. Raises LostRace if another writer has
        committed meanwhile.

        `changes` is the source of a MERGE, already computed; None for an append.
        """
