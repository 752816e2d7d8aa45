"""`FailedReads`: the reads of a shard that have failed since the last one that succeeded. Pure."""

from __future__ import annotations

import math

LOGGED_AGAIN_FIRST_S, LOGGED_AGAIN_MAX_S = 60.0, 3600.0
"""Pauses between log lines while reads keep failing: the first one, doubled after each line, up to an hour."""


class FailedReads:
    """Counts failed reads of a shard since the last successful one. Times are epoch seconds."""

    def __init__(self) -> None:
        self.count = 0
        self.since_s: float | None = None
        """Time of the first failure; None while reads succeed."""
        self.last = ""
        """Reason of the last failure."""
        self._kinds: set[type[Exception]] = set()
        self._log_due_s = math.inf
        self._pause_s = LOGGED_AGAIN_FIRST_S

    def failed(self, error: Exception, wall_s: float) -> bool:
        """Count a failed read. Return whether to log it: it is the first of its type, or the next log line is due."""
        self.count += 1
        self.last = str(error)
        if self.since_s is None:
            self.since_s, self._log_due_s = wall_s, wall_s + self._pause_s
        is_due = wall_s >= self._log_due_s
        if is_due:
            self._pause_s = min(2 * self._pause_s, LOGGED_AGAIN_MAX_S)
            self._log_due_s = wall_s + self._pause_s
        is_new = type(error) not in self._kinds
        self._kinds.add(type(error))
        return is_due or is_new

    def for_s(self, wall_s: float) -> float:
        """Return for how many seconds reads have been failing; 0 while they succeed."""
        return 0.0 if self.since_s is None else max(0.0, wall_s - self.since_s)
