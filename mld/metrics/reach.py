"""`TableReach`: decides whether a worker reaches its lease table, by the answers to its requests. Pure.

Every worker keeps sending requests to the table, even without leases, so no additional reads are needed.
`aws.counted_service.CountedService` notes the answers; the readiness probe uses the result.
"""

from __future__ import annotations

import math

QUIET_S_MIN = 30.0
"""The table counts as out of reach if it has not answered for this long, or for QUIET_LEASES lease durations, whichever
is longer. A worker without leases asks every 10 s (`core.periods.QUERY_SPACING_S_MAX`), in the modes of 2.x every two
lease durations.
"""
QUIET_LEASES = 3
THROTTLED_S = 60.0
"""How long the table counts as throttled after it refused a request."""


class TableReach:
    """Remembers when one table was last asked, and when it last answered. A request may wait `lease_duration_s`.

    Times are monotonic seconds.
    """

    def __init__(self, table: str, lease_duration_s: float, now: float) -> None:
        self.table = table
        self._lease_duration_s = lease_duration_s
        self._answered_at = now
        """When the latest of the answered requests was sent."""
        self._waiting_since: float | None = None
        """When the first of the requests was sent that are all unanswered so far; None once one of them is answered."""
        self._failure = ""
        self._throttled_at = -math.inf

    def asked(self, now: float) -> None:
        """Note that a request is sent."""
        if self._waiting_since is None:
            self._waiting_since = now

    def answered(self, sent_at: float) -> None:
        """Note an answer to a request that was sent at `sent_at`. A write whose condition failed was answered, too."""
        self._answered_at, self._failure = max(self._answered_at, sent_at), ""
        if self._waiting_since is not None and sent_at >= self._waiting_since:
            self._waiting_since = None

    def failed(self, why: str, now: float, *, is_throttled: bool) -> None:
        """Note that a request was refused or not answered, and `why`. `is_throttled`: it was refused for lack of
        capacity.
        """
        self._failure = why
        if is_throttled:
            self._throttled_at = now

    def is_throttled(self, now: float) -> bool:
        """Return whether the table recently refused a request for lack of capacity."""
        return now - self._throttled_at < THROTTLED_S

    def why_out_of_reach(self, now: float) -> str | None:
        """Return why the table counts as out of reach.

        Return None if the table answered recently, or if no request has waited for longer than the lease duration.
        """
        silent_s = now - self._answered_at
        if self._waiting_since is not None and now - self._waiting_since > self._lease_duration_s:
            why = self._failure or "no answer"
            return f"the lease table was not reached for {silent_s:.0f} s: {why}"
        if silent_s > max(QUIET_S_MIN, QUIET_LEASES * self._lease_duration_s):
            return f"nothing is known of the lease table: no loop has asked it for {silent_s:.0f} s; see the log"
        return None
