"""Delta tables, exactly once.

The ledger's entry stands in the commit's `userMetadata`, its number is the `txnVersion` of the application `mld`. Delta
refuses a second transaction of the same version that runs at the same time, and skips one that comes later; so after
each write the table is asked whose entry has the number.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from processors.spark.commit import ledger
from processors.spark.commit.ledger import LedgerEntry
from processors.spark.sinks.lake_table import APPLICATION, MISSING, LakeSink, LostRace

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

HISTORY_STEPS = (16, 256, 100_000)
"""How far back the newest entry is looked for; commits of others, such as OPTIMIZE, lie between."""


class DeltaSink(LakeSink):
    """A Delta table, named by its path, or by its name in the catalog."""

    def _head(self) -> LedgerEntry | None:
        for limit in HISTORY_STEPS:
            rows = self._history(limit)
            for row in rows:
                if row.userMetadata and f'"application":"{APPLICATION}"' in row.userMetadata:
                    return self._decoded(row.userMetadata)
            if len(rows) < limit:
                break
        return None

    def _history(self, limit: int):  # type: ignore[no-untyped-def]
        try:
            history = self._spark.sql(f"DESCRIBE HISTORY {self._identifier()} LIMIT {limit}")
            return history.select("version", "userMetadata").orderBy("version", ascending=False).collect()
        except Exception as error:
            if any(condition in str(error) for condition in MISSING):
                return []
            raise

    def _identifier(self) -> str:
        return f"delta.`{self._target.replace('`', '``')}`" if "/" in self._target else self._target

    def _commit(self, frame: DataFrame, entry: LedgerEntry) -> None:
        said = ledger.encode(entry, application=APPLICATION).decode()
        options = {"txnAppId": APPLICATION, "txnVersion": str(entry.number), "userMetadata": said}
        writing = frame.write.format("delta").mode("append").options(**{**self._spec.options, **options})
        if self._spec.partition_by:
            writing = writing.partitionBy(*self._spec.partition_by)
        try:
            if "/" in self._target:
                writing.save(self._target)
            else:
                writing.saveAsTable(self._target)
        except Exception as error:
            # Whatever it was, the commit may have happened: only the table knows.
            if self._is_head(entry):
                return
            if "CONCURRENT" in str(error).upper() or "ProtocolChanged" in str(error):
                raise LostRace from error
            raise
        if not self._is_head(entry):
            raise LostRace

    def _is_head(self, entry: LedgerEntry) -> bool:
        """Whether the number is ours. Others may have followed already, hence the look further back."""
        return any(row.userMetadata and entry.token in row.userMetadata for row in self._history(HISTORY_STEPS[1]))

    def _nothing(self) -> DataFrame | None:
        if not self._history(1):
            return None
        if "/" in self._target:
            return self._spark.read.format("delta").load(self._target).limit(0)
        return self._spark.table(self._target).limit(0)
