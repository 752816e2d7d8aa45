"""Any other format that Spark can write, such as jdbc or kafka: at least once.

Spark writes first, then the marks advance in a ledger of their own, if `mld.spark.ledger` names a directory for it. A
batch whose writer dies in between is written again. So give such a table a key of `shardId, sequenceNumber,
subSequenceNumber` and let the later row win. The ledger still keeps everything that was seen to succeed from being
written again, also by another worker; without one the checkpoints alone do that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mld.processors.spark.commit.admission import AdmittedSink, admission_of
from mld.processors.spark.commit.journal import Journal, signature
from mld.processors.spark.commit.ledger import LedgerEntry
from mld.processors.spark.commit.store import Store
from mld.processors.spark.commit_stages import stage
from mld.processors.spark.high_water_marks import HighWaterMarks, ShardSpans, advanced
from mld.processors.spark.sink_port import Published, SinkSpec
from mld.processors.spark.sinks.spark_write import write

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class GenericSink(AdmittedSink):
    """Write, then remember."""

    exactly_once = False

    def __init__(self, spec: SinkSpec, ledger_store: Store | None) -> None:
        self._spec = spec
        self.name = spec.name
        self._journal = Journal(ledger_store, spec.name) if ledger_store else None
        place = ledger_store.uri("") if ledger_store else ""
        self._admission = admission_of(spec.writer, spec.name, place, shared=spec.shared)
        self._marks: HighWaterMarks = {}

    def open(self) -> HighWaterMarks:
        if self._journal:
            self._marks = self._admission.marks(self._journal.claim(self._journal.open(), self._admission))
        else:
            self._marks = {}  # what we have written says nothing of a shard that another worker has had meanwhile
        return self._marks

    def publish(self, frame: DataFrame | None, batch: ShardSpans, batch_id: str) -> Published:
        if self._journal:
            self._admission.check(self._journal.head(), batch)
        rows = 0
        if frame is not None:
            stage("staging")
            rows = write(
                frame,
                sink=self.name,
                format=self._spec.format,
                options=self._spec.options,
                mode=self._spec.mode,
                path=self._spec.path,
                partition_by=self._spec.partition_by,
            )
            stage("staged")
        number = self._remember(batch, batch_id, max(rows, 0))
        return Published(self._marks, number, rows if rows >= 0 else None)

    def _remember(self, batch: ShardSpans, batch_id: str, rows: int) -> int:
        if not self._journal:
            self._marks = advanced(self._marks, batch)
            return 0

        def follow(head: LedgerEntry | None) -> LedgerEntry:
            return self._admission.following(
                head,
                batch,
                token,
                layout=self._spec.format,
                batch_id=batch_id,
                **signature(),
                rows=rows,
            )

        with self._journal.staged() as token:
            entry = self._journal.commit(token, follow)
        self._marks = self._admission.marks(entry)
        return entry.number
