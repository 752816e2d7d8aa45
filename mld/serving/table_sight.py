"""Whether a worker can reach its lease table, for readiness. It costs a read only where nothing else is heard of it."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable

from mld.aws.table_calls import THROTTLING_CODES
from mld.clock import Clock
from mld.metrics.registry import Metrics
from mld.surviving import survived

READ_SHARE = 1 / 3
"""The table is read once nothing was heard of it for this share of the lease duration."""
THROTTLED_S = 60.0
"""For how long after a refused request the table counts as throttled: as long as a worker may be silent."""
ASKED_S = 60.0
"""For how long after a question the table is kept in sight: longer than the period of a probe."""


class TableSight:
    """Whether the lease table was reached within a lease duration: by our renewals, or else by `read`, of one row.

    Nothing is read unless somebody has asked lately. So the first answer to whoever asks a worker without leases may
    be that of a while ago; the next one is not.
    """

    def __init__(
        self, metrics: Metrics, clock: Clock, lease_duration_s: float, read: Callable[[], Awaitable[object]]
    ) -> None:
        self._metrics = metrics
        self._clock = clock
        self._valid_s = lease_duration_s
        self._read = read
        self._reached_at = clock.monotonic()
        self._asked_at = -ASKED_S
        self._reading: asyncio.Task[None] | None = None
        self._failure = ""
        self._refused = 0
        self._refused_at = -math.inf

    @property
    def is_throttled(self) -> bool:
        """Whether DynamoDB has refused requests of ours lately, for want of capacity."""
        return self._clock.monotonic() - self._refused_at < THROTTLED_S

    def why_out_of_sight(self) -> str | None:
        """Why the table counts as unreachable; None if it was reached within the lease duration."""
        now = self._clock.monotonic()
        if not self._is_watched(now):
            self._reached_at = max(self._reached_at, now - self._valid_s * READ_SHARE)
        self._asked_at = now
        silent_s = now - self._last_reached()
        if silent_s <= self._valid_s:
            return None
        why = f": {self._failure}" if self._failure else ""
        return f"the lease table was not reached for {silent_s:.0f} s{why}"

    def reached(self, sent_at: float) -> None:
        """The table has answered a request that was sent at `sent_at`."""
        self._reached_at, self._failure = max(self._reached_at, sent_at), ""

    def look(self) -> None:
        """Read the table if it is time to; to be called every second."""
        now = self._clock.monotonic()
        refused = _throttled(self._metrics)
        if refused > self._refused:
            self._refused, self._refused_at = refused, now
        self._reached_at = self._last_reached()
        is_due = now - self._reached_at >= self._valid_s * READ_SHARE
        if is_due and self._is_watched(now) and (self._reading is None or self._reading.done()):
            self._reading = asyncio.create_task(self._reach())

    def close(self) -> None:
        """Give up a read that is under way."""
        if self._reading is not None:
            self._reading.cancel()

    def _is_watched(self, now: float) -> bool:
        return now - self._asked_at < ASKED_S

    def _last_reached(self) -> float:
        return max(self._reached_at, *(part.renewed_at for part in self._metrics.shards.values()), -math.inf)

    async def _reach(self) -> None:
        sent_at = self._clock.monotonic()
        try:
            async with asyncio.timeout(self._valid_s):
                await self._read()
        except TimeoutError:
            self._failure = "no answer"
        except Exception as error:
            self._failure = str(survived(error, "reading the lease table"))
        else:
            self.reached(sent_at)


def _throttled(metrics: Metrics) -> int:
    """How many requests DynamoDB has refused for want of capacity."""
    answers = ((what.split(" "), count) for what, count in metrics.worker.requests.value().items())
    return sum(count for (service, *_, code), count in answers if service == "dynamodb" and code in THROTTLING_CODES)
