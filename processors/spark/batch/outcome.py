"""The outcome of a micro-batch: the shards that have to stop, and figures for the log and the counters.

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
    """Records that could not be decoded."""
    poisoned: int = 0
    """Records that the pipeline or a sink failed over, and that are in the dead letter."""
    stray: int = 0
    """Records with fields that the schema does not name, among the records that were checked for such fields."""
    attempts: int = 0
    failures: int = 0
    jobs: int = 0
    """Jobs that have written a frame into a sink."""
    dropped: int = 0
    """Records that were delivered again although every sink held them."""


@dataclass(slots=True)
class BatchOutcome:
    """The outcome. `failed` has the reason for each shard that stops. All records of the other shards are committed."""

    failed: dict[StreamShard, str] = field(default_factory=dict)
    figures: BatchFigures = field(default_factory=BatchFigures)
