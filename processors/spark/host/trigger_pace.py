"""When a micro-batch starts, and whether a commit is near enough to be waited for.

Every micro-batch costs a job and adds a file, however little is in it. So by default records gather: a micro-batch
starts 30 s after the one before it, or 120 s while little waits, or as soon as one is full. After a silence that was
longer than this, the first record starts one at once, so whoever sends a record now and then sees it without delay.
Nothing starts while nothing waits.

With `mld.spark.latency = low`, or a `mld.spark.triggerIntervalMillis` of the user's, there is one interval, whatever
waits.

Pure: values in, values out; all times on one monotonic clock, in seconds.
"""

from __future__ import annotations

from dataclasses import dataclass

LITTLE_BYTES = 1024 * 1024
"""Less than this makes a file so small that the next records are waited for."""
GATHER_MAX_S = 0.1
"""Shards that are read on one beat offer within this time; a tenth of the interval if that is less."""
NEAR_S = 1.0
"""Answers are held for a commit that starts within this time. Whoever holds one for longer delays a shutdown."""

STALLED_S = 120.0
"""A trigger that takes longer is said to make no progress, and again each time it has taken twice as long."""


def is_stalled(trigger_s: float, times_said: int) -> bool:
    """Return whether it is time to say that a trigger of this age has not ended."""
    return trigger_s >= STALLED_S * (1 << times_said)


@dataclass(frozen=True, slots=True)
class TriggerPace:
    """`interval_s` from the start of one micro-batch to the next, `quiet_s` while less than LITTLE_BYTES wait;
    `bytes_max` is a full micro-batch."""

    interval_s: float
    quiet_s: float
    bytes_max: int

    def due_at(self, last_start: float, first_waiting_at: float, waiting_bytes: int) -> float:
        """Return when a micro-batch is to start if nothing else comes. Something has to wait."""
        interval_s = self.interval_s if waiting_bytes >= LITTLE_BYTES else self.quiet_s
        gathered_at = first_waiting_at + min(GATHER_MAX_S, self.interval_s / 10)
        return max(last_start + interval_s, gathered_at)

    def is_due(self, now: float, due_at: float, waiting_bytes: int, *, asked: bool) -> bool:
        """Return whether a micro-batch starts now: its time has come, it is full, or somebody waits for the end of
        it.
        """
        return asked or waiting_bytes >= self.bytes_max or now >= due_at

    def is_near(self, now: float, due_at: float, waiting_bytes: int, *, asked: bool) -> bool:
        """Return whether a child may hold its answer until the commit. Without an adaptive pace it always may: that
        interval was chosen by the user.
        """
        return not self.is_adaptive or self.is_due(now + NEAR_S, due_at, waiting_bytes, asked=asked)

    @property
    def is_adaptive(self) -> bool:
        return self.quiet_s > self.interval_s

    @property
    def hold_beat_s(self) -> float:
        """The interval by which held answers are bounded (`held_answers`)."""
        return min(self.interval_s, NEAR_S) if self.is_adaptive else self.interval_s
