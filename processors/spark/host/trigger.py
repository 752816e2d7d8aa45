"""Decides when a micro-batch begins.

Every micro-batch costs a job and adds a file, even if it has few records. So by default records are gathered: a
micro-batch begins 30 s after the last one began (120 s if few records wait), or as soon as it is full. If the last one
began longer ago than that, a new one begins almost at once when a record arrives (`GATHER_MAX_S`). So records that
arrive only now and then are written without delay. While no records wait, no micro-batch begins.

If the user sets `mld.spark.triggerIntervalMillis`, this interval applies, however few records wait. All times are on
one monotonic clock, in seconds.
"""

from __future__ import annotations

from mld.processors.spark.settings import SparkSettings

LITTLE_BYTES = 1024 * 1024
"""If fewer bytes than this wait, the longer interval applies, because they would make a very small file."""
GATHER_MAX_S = 0.1
"""How long a micro-batch waits at least after its first record, or a tenth of the interval if that is shorter. Shards
that are read at the same time offer their records within this time, so they all get into the same micro-batch.
"""


def due_at(
    settings: SparkSettings, last_start: float, first_waiting_at: float, waiting_bytes: int, *, asked: bool
) -> float:
    """Return when a micro-batch has to begin if no more records come. Call it only while records wait.

    It begins at once if it is full, or if a child waits for the micro-batch to end (`asked`).
    """
    if asked or waiting_bytes >= settings.batch_bytes_max:
        return first_waiting_at
    interval_s = settings.trigger_interval_s if waiting_bytes >= LITTLE_BYTES else settings.trigger_quiet_s
    return max(last_start + interval_s, first_waiting_at + min(GATHER_MAX_S, settings.trigger_interval_s / 10))
