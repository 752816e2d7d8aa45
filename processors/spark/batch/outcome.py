"""The outcome of a micro-batch: which shards stop, and figures for the log and the counters.

Values only.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from mld.processors.spark.positions import StreamShard


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
    dropped: int = 0
    """Records of pages that every sink had held before, so that they were delivered again."""


@dataclass(slots=True)
class BatchOutcome:
    """`failed` says why a shard stops. All others of the batch are committed to their ends."""

    failed: dict[StreamShard, str] = field(default_factory=dict)
    figures: BatchFigures = field(default_factory=BatchFigures)
