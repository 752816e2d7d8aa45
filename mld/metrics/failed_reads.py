"""`FailedReads`: the reads of a shard that have failed since the last one that succeeded. Pure."""

from __future__ import annotations

import math

SAID_AGAIN_FIRST_S, SAID_AGAIN_MAX_S = 60.0, 3600.0
"""Continuing failures are logged again after the first time, after twice that time, and so on up to once an hour."""


class FailedReads:
    """Failed reads of a shard since the last successful one. Times are epoch seconds."""

    def __init__(self) -> None:
        self.count = 0
        self.since_s: float | None = None
        """Time of the first failure; None while reads succeed."""
        self.last = ""
        """Reason of the last failure."""
        self._kinds: set[type[Exception]] = set()
        self._say_at_s = math.inf
        self._pause_s = SAID_AGAIN_FIRST_S

    def failed(self, error: Exception, wall_s: float) -> bool:
        """Count a failed read. True if it must be logged: it is the first of its kind, or the next log line is due."""
        self.count += 1
        self.last = str(error)
        if self.since_s is None:
            self.since_s, self._say_at_s = wall_s, wall_s + self._pause_s
        is_due = wall_s >= self._say_at_s
        if is_due:
            self._pause_s = min(2 * self._pause_s, SAID_AGAIN_MAX_S)
            self._say_at_s = wall_s + self._pause_s
        is_new = type(error) not in self._kinds
        self._kinds.add(type(error))
        return is_due or is_new

    def for_s(self, wall_s: float) -> float:
        """Return for how many seconds reads have failed; 0 while they succeed."""
        return 0.0 if self.since_s is None else max(0.0, wall_s - self.since_s)
