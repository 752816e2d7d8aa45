"""Any format of Spark without a ledger here, such as kafka: written at least once.

A batch whose writer dies before the checkpoint is written again. So such a table needs the key `shardId,
sequenceNumber, subSequenceNumber`, where the later row wins.
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
    """Writes, and remembers its marks only until another worker may have had the shard."""

    exactly_once = False

    def __init__(self, spec: SinkSpec) -> None:
        self._spec = spec
        self.name = spec.name
        self._marks: HighWaterMarks = {}

    def open(self) -> HighWaterMarks:
        self._marks = {}
        return self._marks

    def publish(self, frame: DataFrame | None, batch: ShardSpans, batch_id: str) -> Published:
        rows = 0
        if frame is not None:
            stage("staging")
            rows = write(frame, self._spec)
            stage("staged")
        self._marks = advanced(self._marks, batch)
        return Published(self._marks, rows=rows if rows >= 0 else None)

    def retire(self, ended: HighWaterMarks) -> None:
        self._marks = {shard: mark for shard, mark in self._marks.items() if shard not in ended}
