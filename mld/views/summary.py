"""The log's line a minute: what this worker did since the last one. Rules: metrics#summary-line."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass

from mld.core.clock import Clock, wait_for_event
from mld.core.error_boundary import kept_running
from mld.metrics.declaring import Instant
from mld.metrics.registry import Metrics
from mld.views.status_line import TROUBLE

log = logging.getLogger(__name__)

PERIOD_S = 60.0


@dataclass(frozen=True, slots=True)
class Totals:
    """What only rises, at one moment."""

    records: int = 0
    record_bytes: int = 0
    restarts: int = 0
    leases_lost: int = 0

    @classmethod
    def of(cls, metrics: Metrics) -> Totals:
        return cls(metrics.records, metrics.record_bytes, metrics.child_restarts, metrics.worker.leases_lost)


def summary_of(before: Totals, after: Totals, metrics: Metrics, at: Instant, in_s: float) -> dict[str, int | float]:
    """Return the fields of the line. `behind_ms` is that of the shard furthest behind, and missing while nobody
    knows it.
    """
    fields: dict[str, int | float] = {
        "in_s": round(in_s, 1),
        "records": after.records - before.records,
        "bytes": after.record_bytes - before.record_bytes,
        "shards": len(metrics.shards),
        "restarts": after.restarts - before.restarts,
        "leases_lost": after.leases_lost - before.leases_lost,
    }
    behind_s = metrics.furthest_behind_s(at)
    if behind_s is not None:
        fields["behind_ms"] = round(behind_s * 1000)
    return fields | {one.value: count for one in TROUBLE if (count := metrics.in_activity(one, at))}


class SummaryLine:
    """Logs it each minute, and when it is closed for what is left."""

    def __init__(self, metrics: Metrics, clock: Clock) -> None:
        self._metrics = metrics
        self._clock = clock
        self._before = Totals.of(metrics)
        self._since = clock.monotonic()
        self._stopping = asyncio.Event()
        self._running: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._running = asyncio.create_task(kept_running(self.run, "summing up", self._clock))

    async def run(self) -> None:
        due = self._since
        while not self._stopping.is_set():
            due += PERIOD_S
            await wait_for_event(self._stopping, max(0.0, due - self._clock.monotonic()))
            self._tell()

    async def close(self) -> None:
        self._stopping.set()
        if self._running is not None:
            with contextlib.suppress(Exception):  # told by `kept_running`; the daemon is ending
                await self._running

    def _tell(self) -> None:
        after, now = Totals.of(self._metrics), self._clock.monotonic()
        fields = summary_of(self._before, after, self._metrics, Instant(now, self._clock.wall()), now - self._since)
        log.info("since the last summary", extra={"action": "summary", **fields})
        self._before, self._since = after, now
