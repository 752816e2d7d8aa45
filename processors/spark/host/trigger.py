"""When a micro-batch starts.

Every micro-batch costs a job and adds a file, however little is in it. So by default records gather: a micro-batch
starts 30 s after the one before it, or 120 s while little waits, or as soon as one is full. After a silence that was
longer than this, the first record starts one at once, so whoever sends a record now and then sees it without delay.
Nothing starts while nothing waits.

If the user sets `mld.spark.triggerIntervalMillis`, there is one interval, whatever waits. All times are on one
monotonic clock, in seconds.
"""

from __future__ import annotations

from mld.processors.spark.settings import SparkSettings

LITTLE_BYTES = 1024 * 1024
"""Less than this makes a file so small that the next records are waited for."""
GATHER_MAX_S = 0.1
"""Shards that are read on one beat offer within this time; a tenth of the interval if that is less."""


def due_at(
    settings: SparkSettings, last_start: float, first_waiting_at: float, waiting_bytes: int, *, asked: bool
) -> float:
    """Return when a micro-batch is to start if nothing else comes: at once if it is full, or if somebody waits for its
    end (`asked`). Something has to wait."""
    if asked or waiting_bytes >= settings.batch_bytes_max:
        return first_waiting_at
    interval_s = settings.trigger_interval_s if waiting_bytes >= LITTLE_BYTES else settings.trigger_quiet_s
    return max(last_start + interval_s, first_waiting_at + min(GATHER_MAX_S, settings.trigger_interval_s / 10))
