"""Decides when a micro-batch begins.

Every micro-batch costs a job and adds a file, even if it has few records. So by default records gather: a micro-batch
begins 30 s after the last one began (120 s if few records wait), or as soon as it is full. After a longer silence the
first record begins one at once, so whoever sends a record now and then sees it without delay. Without records no
micro-batch begins.

If the user sets `mld.spark.triggerIntervalMillis`, there is only this interval. All times are on one monotonic clock,
in seconds.
"""

from __future__ import annotations

from mld.processors.spark.settings import SparkSettings

LITTLE_BYTES = 1024 * 1024
"""Fewer bytes than this would make a very small file, so the longer interval applies."""
GATHER_MAX_S = 0.1
"""Shards that are read at the same time offer their records within this time (at most a tenth of the interval)."""


def due_at(
    settings: SparkSettings, last_start: float, first_waiting_at: float, waiting_bytes: int, *, asked: bool
) -> float:
    """Return when a micro-batch has to begin if no more records come. It begins at once if it is full, or if somebody
    waits for its end (`asked`). Some records must be waiting."""
    if asked or waiting_bytes >= settings.batch_bytes_max:
        return first_waiting_at
    interval_s = settings.trigger_interval_s if waiting_bytes >= LITTLE_BYTES else settings.trigger_quiet_s
    return max(last_start + interval_s, first_waiting_at + min(GATHER_MAX_S, settings.trigger_interval_s / 10))
