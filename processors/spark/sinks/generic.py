"""`GenericSink`: writes any format of Spark for which mld keeps no ledger, such as kafka, at least once.

If the writer of a batch dies before the checkpoint, the batch is written again. So such a table needs the key `shardId,
sequenceNumber, subSequenceNumber`, and a later row has to replace an earlier one with the same key.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mld.processors.spark.commit.faults import stage
from mld.processors.spark.high_water_marks import HighWaterMarks, ShardSpans, advanced
from mld.processors.spark.sink_port import Published
from mld.processors.spark.sink_spec import SinkSpec
from mld.processors.spark.sinks.frame_writer import write

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class GenericSink:
    """Writes frames, and keeps its marks only in memory.

    `open` forgets the marks, because another worker may have had the shards meanwhile."""

    exactly_once = False

    def __init__(self, spec: SinkSpec) -> None:
        self._spec = spec
        self.name = spec.name
        self._marks: HighWaterMarks = {}

    def open(self) -> HighWaterMarks:
        self._marks = {}
        return self._marks

    def publish(self, frame: DataFrame | None, batch: ShardSpans, batch_id: str) -> Published:
        """Write the frame (None: no rows), and advance the marks to the ends of `batch`, in memory only."""
        rows = 0
        if frame is not None:
            stage("staging")
            rows = write(frame, self._spec)
            stage("staged")
        self._marks = advanced(self._marks, batch)
        return Published(self._marks, rows=rows if rows >= 0 else None)

    def retire(self, ended: HighWaterMarks) -> None:
        """Forget the marks of these shards: there is no ledger that could record their ends."""
        self._marks = {shard: mark for shard, mark in self._marks.items() if shard not in ended}
