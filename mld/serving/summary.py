"""Makes the summary of a worker: a line in the log each minute, and a line for `systemctl status`.

Rules: metrics#summary-line.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from mld.core.clock import Clock
from mld.core.error_boundary import in_background
from mld.metrics.declaring import Instant
from mld.metrics.registry import Metrics
from mld.operating.durations import duration

log = logging.getLogger(__name__)

PERIOD_S = 60.0


@dataclass(frozen=True, slots=True)
class Totals:
    """Counters of a worker at one moment."""

    records: int = 0
    record_bytes: int = 0
    restarts: int = 0
    leases_lost: int = 0

    @classmethod
    def of(cls, metrics: Metrics) -> Totals:
        return cls(metrics.records, metrics.record_bytes, metrics.child_restarts, metrics.worker.leases_lost)


def summary_of(before: Totals, after: Totals, metrics: Metrics, at: Instant, in_s: float) -> dict[str, int | float]:
    """Return the fields of the line in the log: what changed between two totals, `in_s` seconds apart, and the lag.

    `behind_ms` is the lag of the shard furthest behind; it is missing while no lag is known.
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
    return fields | _wrong(metrics)


def _wrong(metrics: Metrics) -> dict[str, int]:
    """Return the number of faults of each kind that this worker knows of, without kinds that have none."""
    return {kind: count for kind, count in metrics.worker.fault_counts.items() if count}


@asynccontextmanager
async def summing_up(metrics: Metrics, clock: Clock) -> AsyncIterator[None]:
    """Log the summary each minute while the context is open, and once more at its end."""
    before, since = Totals.of(metrics), clock.monotonic()

    def log_summary() -> None:
        """Log what has happened since the last summary."""
        nonlocal before, since
        after, now = Totals.of(metrics), clock.monotonic()
        fields = summary_of(before, after, metrics, Instant(now, clock.wall()), now - since)
        log.info("since the last summary", extra={"action": "summary", **fields})
        before, since = after, now

    async def run() -> None:
        """Log a summary every `PERIOD_S`, until cancelled."""
        due = since
        while True:
            due += PERIOD_S
            await clock.sleep(max(0.0, due - clock.monotonic()))
            log_summary()

    try:
        async with in_background(run, "summing up", clock):
            yield
    finally:
        with contextlib.suppress(Exception):  # the daemon is ending
            log_summary()


def status_line(metrics: Metrics, at: Instant) -> str:
    """Return a line with the number of shards, the faults, and the lag.

    The line is made every second. A short lag is rounded, so that the line stays the same if nothing has changed.
    """
    count, wrong = len(metrics.shards), [f"{number} {kind}" for kind, number in _wrong(metrics).items()]
    if count == 0:
        return ", ".join(["no shards", *wrong])
    parts = [f"{count} shard{'s' * (count != 1)}", *wrong]
    behind_s = metrics.furthest_behind_s(at)
    if behind_s is not None and behind_s < 1:
        behind_s = round(behind_s, 2)
    parts.append("lag unknown" if behind_s is None else f"{duration(behind_s)} behind")
    return ", ".join(parts)
