"""What a running daemon knows of itself and its fleet. Every view and every way to ask goes through `DaemonStatus`.

Nothing here changes anything, and nothing here is needed: an answer that fails costs nobody but who asked. Liveness
asks the loops of this process only. The tables are read at most every few seconds, and only while somebody looks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from mld import surviving
from mld.clock import Clock
from mld.errors import MldError
from mld.metrics.liveness import LateLoop
from mld.metrics.registry import Metrics
from mld.metrics.rings import PERIOD_S, History
from mld.metrics.snapshot import Identity, Snapshot, take_snapshot
from mld.operating.fleet_reader import FleetReader
from mld.operating.fleet_status import FleetStatus
from mld.serving.status import document
from mld.surviving import survived

LOOK_PERIOD_S = 5.0
LOOP = "event loop"
LOOP_STEP_S = 1.0


class DaemonStatus:
    """What this daemon is, does and sees; `run` samples it for as long as the daemon runs."""

    def __init__(
        self,
        metrics: Metrics,
        identity: Identity,
        reader: FleetReader,
        clock: Clock,
        *,
        prefetch_limit_bytes: int,
        mode: Callable[[], str],
        is_ready: Callable[[], bool],
    ) -> None:
        self.metrics = metrics
        self.identity = identity
        self._reader = reader
        self._clock = clock
        self._prefetch_limit_bytes = prefetch_limit_bytes
        self._mode = mode
        self._is_ready = is_ready
        self._history = History()
        self._looking = asyncio.Lock()
        self._looked_at: float | None = None
        self._fleet: FleetStatus | None = None
        self._trouble: str | None = None

    async def run(self) -> None:
        """Measure how late the loop is, and take a value a minute for the page, until cancelled."""
        sampled_at = self._clock.monotonic()
        while True:
            asleep_at = self._clock.monotonic()
            self.metrics.progress.timely_step(LOOP, asleep_at, LOOP_STEP_S)
            await self._clock.sleep(LOOP_STEP_S)
            now = self._clock.monotonic()
            self.metrics.worker.unexpected_errors = surviving.total()
            self.metrics.worker.loop_delay.note(max(0.0, now - asleep_at - LOOP_STEP_S))
            if now - sampled_at >= PERIOD_S:
                sampled_at = now
                self._history.note(self.snapshot())

    @property
    def is_ready(self) -> bool:
        """Whether initialization is over, and no stop has been asked for."""
        return self._is_ready()

    @property
    def mode(self) -> str:
        """How the fleet works together, in the words of the log."""
        return self._mode()

    def why_not_ready(self) -> str | None:
        """Why this daemon is not ready; None if it is."""
        return None if self._is_ready() else "not initialized, or stopping"

    def why_not_alive(self) -> str | None:
        """Which loops make no progress, in words; None if this daemon lives."""
        overdue = self.overdue()
        words = ", ".join(f"{one.name} (silent for {one.since_s:.0f} s)" for one in overdue)
        return f"no progress: {words}" if overdue else None

    def overdue(self) -> list[LateLoop]:
        """The loops that make no progress; none if this daemon lives."""
        return self.metrics.progress.overdue(self._clock.monotonic())

    def snapshot(self) -> Snapshot:
        """The metrics of now."""
        return take_snapshot(
            self.metrics,
            self.identity,
            self._clock.monotonic(),
            self._clock.wall(),
            prefetch_limit_bytes=self._prefetch_limit_bytes,
        )

    async def document(self) -> dict[str, Any]:
        """The data of the status page: the whole fleet, and more of this worker."""
        fleet = await self._look()
        return document(self.snapshot(), fleet, self._history, mode=self._mode(), trouble=self._trouble)

    async def _look(self) -> FleetStatus | None:
        """The fleet by its tables, a few seconds old at most; what was known before if they cannot be read."""
        async with self._looking:
            now = self._clock.monotonic()
            if self._looked_at is None or now - self._looked_at >= LOOK_PERIOD_S:
                try:
                    self._fleet, self._trouble = await self._reader.look(), None
                except Exception as error:
                    failure: MldError = survived(error, "looking at the fleet")
                    self._trouble = f"the tables cannot be read: {failure}"
                self._looked_at = self._clock.monotonic()
            return self._fleet
