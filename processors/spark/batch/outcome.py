"""What became of a micro-batch: which shards stop, and figures for the log and the counters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from mld.processors.spark.high_water_marks import RecordPosition, StreamShard


@dataclass(slots=True)
class BatchFigures:
    """Figures of one micro-batch; durations in seconds."""

    handover_s: float = 0.0
    pipeline_s: float = 0.0
    publish_s: float = 0.0
    rows: int = 0
    malformed: int = 0
    poisoned: int = 0
    stray: int = 0
    """Records with fields that the schema does not name, among those that were looked at."""
    attempts: int = 0
    failures: int = 0
    jobs: int = 0
    late_rows: int = 0
    """Rows that streaming queries have left out since the last micro-batch, because they came after the watermark."""
    watermarks: Mapping[str, str] = field(default_factory=dict)
    """Of the streaming queries that run here, in ISO 8601."""
    dropped: Mapping[str, int] = field(default_factory=dict)
    """Records that were delivered again and not written, by the sink whose ledger has their positions."""
    aside: Mapping[str, str] = field(default_factory=dict)
    """Sinks that cannot now and that the others do not wait for, with the reason."""


@dataclass(slots=True)
class BatchOutcome:
    """`failed` says why a shard stops. All others of the batch are committed to their ends, but for those that are
    `kept` because a sink misses some of their records: the records come again, with the next batch, in `again_in_s`."""

    failed: dict[StreamShard, str] = field(default_factory=dict)
    figures: BatchFigures = field(default_factory=BatchFigures)
    kept: dict[StreamShard, RecordPosition | None] = field(default_factory=dict)
    """With the position up to which all sinks hold a shard."""
    again_in_s: float | None = None
