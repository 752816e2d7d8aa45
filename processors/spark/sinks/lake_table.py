"""Tables of a lake house, exactly once: the ledger's entry is part of the table's atomic commit (`delta`, `iceberg`).

A writer that lost the race reads the ledger, checks its shards, and writes again: unlike files, its rows are not kept.
That goes for writers of other applications and streams as well, whose marks are in the same entry.
Readers see whole commits. The newest entry has to stay in the table's history (Delta: `delta.logRetentionDuration`,
Iceberg: `expire_snapshots`), so do not let a table's history expire to less than the time in which nothing is written.
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
from mld.processors.spark.sink_port import Published, SinkError, SinkRefused
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
