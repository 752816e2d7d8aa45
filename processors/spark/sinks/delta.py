"""Delta tables, exactly once.

The ledger's entry stands in the commit's `userMetadata`, its number is the `txnVersion` of the application `mld`. Delta
refuses a second transaction of the same version that runs at the same time, and skips one that comes later; so after
each write the table is asked whose entry has the number.

The log keeps the number for ever, the entry only as long as `delta.logRetentionDuration` says. If the number is there
and the entry is not, nobody knows what the table holds, and the sink refuses to guess (`_lost`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from mld.processors.spark.commit import ledger
from mld.processors.spark.commit.ledger import Columns, ColumnsClash, LedgerEntry
from mld.processors.spark.high_water_marks import HighWaterMarks
from mld.processors.spark.sink_port import SinkRefused, SinkSpec
from mld.processors.spark.sinks.lake_table import (
    APPLICATION,
    MISSING,
    LakeSink,
    LostRace,
    Merge,
    PartitionField,
    merge_of,
    quoted,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

HISTORY_STEPS = (16, 256, 100_000)
"""How far back the newest entry is looked for; commits of others, such as OPTIMIZE, lie between."""
LOST_PROPERTY = "mld.ledger.lost"
"""Of a table: the number of the entry whose loss somebody has accepted. It says nothing about a later one."""
ONE_DRIVER_SCHEMES = frozenset(("s3", "s3a", "s3n"))
"""Where Delta's own log store lets two drivers overwrite each other's commits: it looks, and then writes."""
SINGLE_DRIVER_STORE = "S3SingleDriverLogStore"
CONDITION = "fs.option.create.conditional.overwrite"
NOT_MATCHED = "RemoteFileChangedException"
"""How S3A says that a condition did not hold."""
CONF = "spark.databricks.delta."
USER_METADATA, TXN_APPLICATION, TXN_VERSION = (
    f"{CONF}commitInfo.userMetadata",
    f"{CONF}write.txnAppId",
    f"{CONF}write.txnVersion",
)
"""What options are to an append, these settings of a session are to a MERGE."""
ROWS = ("numOutputRows",), ("numTargetRowsInserted", "numTargetRowsUpdated", "numTargetRowsDeleted")
"""Figures of a commit that count its rows: of an append, of a MERGE."""


class DeltaSink(LakeSink):
    """A Delta table, named by its path, or by its name in the catalog."""

    def __init__(self, spec: SinkSpec, spark: SparkSession) -> None:
        super().__init__(spec, spark)
        self._merge = merge_of(spec)
        self._blank: DataFrame | None = None
        """The frame without rows that an empty batch is written as."""
        self._is_tried = False

    def _opened(self) -> HighWaterMarks:
        self._refuse_one_driver_store()
        return super()._opened()

    # --- the ledger --------------------------------------------------------------------------------------------------

    def _head(self) -> LedgerEntry | None:
        rows: list[Any] = []
        for limit in HISTORY_STEPS:
            rows = self._history(limit)
            for row in rows:
                if row.userMetadata and f'"application":"{APPLICATION}"' in row.userMetadata:
                    return self._decoded(row.userMetadata)
            if len(rows) < limit:
                break
        return self._lost() if rows else None

    def _lost(self) -> LedgerEntry | None:
        """Return an entry without marks if the table once had one, and somebody has accepted its loss; None if it never
        had.

        Raises SinkRefused if the entry is lost and nobody has said what that means."""
        number = self._number()
        if not number:
            return None
        properties = self._detail().properties or {}
        if properties.get(LOST_PROPERTY) == str(number):
            return LedgerEntry(number, "")
        raise SinkRefused(
            f"sink {self.name}: {self._target} has had {number} commits of this program, but its history no longer "
            "says up to where the last one went (delta.logRetentionDuration), so records that are delivered again "
            "cannot be told from new ones. RESTORE a version that has it; or, if records written twice do no harm or "
            f"none is delivered again, ALTER TABLE {self._identifier()} SET TBLPROPERTIES ('{LOST_PROPERTY}' = "
            f"'{number}')"
        )

    def _number(self) -> int:
        """Return the highest number that the log has of this program: in checkpoints it stays when entries are gone."""
        log = f"{self._location().rstrip('/')}/_delta_log"
        reading = self._spark.read.schema("txn struct<appId: string, version: bigint>")
        numbers = [0]
        for suffix, format in (("*.json", "json"), ("*.parquet", "parquet")):
            frame = reading.option("pathGlobFilter", suffix).format(format).load(log)
            rows = frame.where(f"txn.appId = '{APPLICATION}'").selectExpr("max(txn.version) AS number").collect()
            numbers += [row.number for row in rows if row.number is not None]
        return max(numbers)

    def _history(self, limit: int):  # type: ignore[no-untyped-def]
        try:
            history = self._spark.sql(f"DESCRIBE HISTORY {self._identifier()} LIMIT {limit}")
            return (
                history.select("version", "userMetadata", "operation", "operationMetrics")
                .orderBy("version", ascending=False)
                .collect()
            )
        except Exception as error:
            if any(condition in str(error) for condition in MISSING):
                return []
            raise

    def _rows_of(self, entry: LedgerEntry) -> int | None:
        """Return how many rows the commit of the entry has written or changed; None if the number is not ours. Others
        may have followed already, hence the look further back.
        """
        for row in self._history(HISTORY_STEPS[1]):
            if row.userMetadata and entry.token in row.userMetadata:
                return sum(int((row.operationMetrics or {}).get(name, 0)) for name in ROWS[row.operation == "MERGE"])
        return None

    # --- the commit --------------------------------------------------------------------------------------------------

    def _commit(self, frame: DataFrame, entry: LedgerEntry) -> int:
        said = ledger.encode(entry, application=APPLICATION).decode()
        try:
            if "/" not in self._target and self._table() is None:
                self._create(frame)
            if self._merge is None or frame is self._blank:
                self._check_columns(frame, self._table())
                with self._bounded(frame) as bounded:
                    self._append(bounded, entry, said, widens=bounded.columns != frame.columns)
            else:
                self._change(self._merge, frame, entry, said)
        except SinkRefused:
            raise
        except Exception as error:
            # Whatever it was, the commit may have happened: only the table knows.
            if (rows := self._rows_of(entry)) is not None:
                return rows
            if "CONCURRENT" in str(error).upper() or "ProtocolChanged" in str(error):
                raise LostRace from error
            raise
        if (rows := self._rows_of(entry)) is None:
            raise LostRace
        return rows

    def _append(self, frame: DataFrame, entry: LedgerEntry, said: str, *, widens: bool = False) -> None:
        """Append the rows. Columns that the table has not got are added by the same commit, unless the user's options
        say otherwise; `widens`: some are the sink's own.
        """
        options = {"txnAppId": APPLICATION, "txnVersion": str(entry.number), "userMetadata": said}
        if widens:
            options["mergeSchema"] = "true"
        mine = {"mergeSchema": "true", **self._spec.options, **options}
        writing = frame.write.format("delta").mode("append").options(**mine)
        if self._spec.partition_by:
            writing = writing.partitionBy(*self._spec.partition_by)
        if "/" in self._target:
            writing.save(self._target)
        else:
            writing.saveAsTable(self._target)

    def _create(self, frame: DataFrame) -> None:
        """Create the table. One that is made by its name keeps no `userMetadata` of the commit that makes it: it begins
        empty.
        """
        writing = frame.limit(0).write.format("delta").options(**self._spec.options)
        if self._spec.partition_by:
            writing = writing.partitionBy(*self._spec.partition_by)
        try:
            writing.mode("error").saveAsTable(self._target)
        except Exception as error:
            if "ALREADY_EXISTS" not in str(error).upper():
                raise

    def _change(self, merge: Merge, frame: DataFrame, entry: LedgerEntry, said: str) -> None:
        merge.check(frame.columns)
        table = self._table()
        if table is None:
            self._append(merge.inserted(frame), entry, said)
            return
        self._check_columns(frame, table)
        session = frame.sparkSession
        source = f"mld_changes_{entry.token}"
        merge.newest(frame).createTempView(source)
        statement = merge.statement(self._identifier(), source, frame.columns, evolve=True)
        conf = {USER_METADATA: said, TXN_APPLICATION: APPLICATION, TXN_VERSION: str(entry.number)}
        try:
            with _set(session, conf):
                session.sql(statement).collect()
        finally:
            session.catalog.dropTempView(source)

    # --- the table ---------------------------------------------------------------------------------------------------

    def _check_columns(self, frame: DataFrame, table: DataFrame | None) -> None:
        """Check the columns: some may be added; none may change its type. Raises SinkRefused."""
        if table is None:
            return
        try:
            ledger.widened(_columns(table), _columns(frame), by_place=False)
        except ColumnsClash as error:
            raise SinkRefused(
                f"sink {self.name}: {self._target}: {error}; cast it in the pipeline, or use a new table"
            ) from error

    def _table(self) -> DataFrame | None:
        """Return the table as it is now; None if there is none."""
        if not self._history(1):
            return None
        if "/" in self._target:
            return self._spark.read.format("delta").load(self._target)
        return self._spark.table(self._target)

    def _snapshot(self) -> Any:
        """Return the state of the table as it was looked at last; None if there is no table."""
        java: Any = self._spark._jvm
        log = java.org.apache.spark.sql.delta.DeltaLog.forTable(self._spark._jsparkSession, self._location())
        snapshot = log.unsafeVolatileSnapshot()
        return None if snapshot.version() < 0 else snapshot

    def _partition_fields(self) -> list[PartitionField]:
        from pyspark.sql.functions import col

        snapshot = self._snapshot()
        if snapshot is None:
            names, columns = list(self._spec.partition_by), {}
        else:
            said = json.loads(snapshot.metadata().json())["metaData"]
            names = said["partitionColumns"]
            columns = {field["name"]: field for field in json.loads(said["schemaString"])["fields"]}
        return [_partition_field(name, columns.get(name, {}), col(quoted(name))) for name in names]

    def _stored_partitions(self) -> DataFrame | None:
        from pyspark.sql import DataFrame

        snapshot = self._snapshot()
        return None if snapshot is None else DataFrame(snapshot.allFiles().toDF(), self._spark)

    def _nothing(self) -> DataFrame | None:
        table = self._table()
        self._blank = None if table is None else table.limit(0)
        return self._blank

    def _identifier(self) -> str:
        return f"delta.{quoted(self._target)}" if "/" in self._target else self._target

    def _detail(self) -> Any:
        return self._spark.sql(f"DESCRIBE DETAIL {self._identifier()}").collect()[0]

    def _location(self) -> str:
        return self._target if "/" in self._target else str(self._detail().location)

    def _refuse_one_driver_store(self) -> None:
        """Raise SinkRefused where two drivers could overwrite each other's commits."""
        if "/" in self._target:
            place = self._target
        elif self._history(1):
            place = self._location()
        else:  # where it will be
            database = self._target.rpartition(".")[0] or self._spark.catalog.currentDatabase()
            place = self._spark.catalog.getDatabase(database).locationUri
        scheme = urlsplit(place).scheme.lower()
        store = self._spark.conf.get(f"spark.delta.logStore.{scheme}.impl", None)
        if refusal := one_driver_refusal(self.name, scheme, store):
            raise SinkRefused(refusal)
        if scheme in ONE_DRIVER_SCHEMES:
            self._try_store(place)

    def _try_store(self, place: str) -> None:
        if self._is_tried:
            return
        if not is_conditional(self._spark, place):
            raise SinkRefused(
                f"sink {self.name}: the store behind {place} takes writes whose condition does not hold "
                "(If-None-Match), so that two workers would overwrite each other's commits; use S3, or a store that "
                "has conditional writes (docs/use/spark-sinks.md#files-on-s3 names some)"
            )
        self._is_tried = True


def one_driver_refusal(sink: str, scheme: str, store: str | None) -> str | None:
    """Return why a table there cannot be written exactly once by several workers; `store` is the log store of the
    settings.
    """
    if scheme not in ONE_DRIVER_SCHEMES or (store and not store.endswith(SINGLE_DRIVER_STORE)):
        return None
    key = f"mld.spark.conf.spark.delta.logStore.{scheme}.impl"
    return (
        f"sink {sink}: Delta's log store for {scheme}:// is for a single driver: two workers, or a worker and one that "
        f"was taken for dead, overwrite each other's commits. Use PySpark 4.1, with which this program brings one of "
        f"its own; or format = iceberg; or name in {key} a log store that creates a file only if it is not there"
    )


def _partition_field(name: str, column: Mapping[str, Any], value: Column) -> PartitionField:
    """Return a field of the partitions by what the table's schema has about its column."""
    metadata = column.get("metadata", {})
    physical = metadata.get("delta.columnMapping.physicalName", name).replace("'", r"\'")
    stored = f"CAST(partitionValues['{physical}'] AS {column.get('type', 'string')})"
    takes_null = column.get("nullable", True) and "delta.generationExpression" not in metadata
    return PartitionField(name, value, stored, takes_null)


def _columns(frame: DataFrame) -> Columns:
    return tuple((field.name, field.dataType.simpleString()) for field in frame.schema.fields)


@contextmanager
def _set(session: SparkSession, conf: Mapping[str, str]) -> Iterator[None]:
    """Apply settings of the session for one statement; nothing else writes through it meanwhile."""
    for key, value in conf.items():
        session.conf.set(key, value)
    try:
        yield
    finally:
        for key in conf:
            session.conf.unset(key)


def is_conditional(session: SparkSession, place: str) -> bool:
    """Return whether a file below `place` is created only if it is not there, tried with two writers of one at once.
    Raises whatever Spark raises if that cannot be tried.
    """
    java: Any = session._jvm
    path = java.org.apache.hadoop.fs.Path(f"{place.rstrip('/')}/_mld/probe/{java.java.util.UUID.randomUUID()}")
    files = path.getFileSystem(session._jsparkSession.sessionState().newHadoopConf())
    try:
        one, other = (files.createFile(path).overwrite(True).must(CONDITION, True).build() for _ in range(2))
        one.close()
        try:
            other.close()
        except Exception as error:
            if NOT_MATCHED in str(error):
                return True
            raise
        return False
    finally:
        files.delete(path, False)
