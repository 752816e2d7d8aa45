"""Notifies the service manager that the worker has started, is alive, or is stopping, and sends its status in words.

`Announcements` decides which notifications are due; `announcing` calls it at every change of the worker's phase, and
regularly in between. While a loop of the worker makes no progress (as `/livez` shows) no sign of life is sent, so the
service manager restarts the process. If the event loop hangs, the same happens, because `announcing` runs on it.
"""

from __future__ import annotations

import asyncio
import faulthandler
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from enum import Enum

from mld.core.clock import Clock
from mld.core.error_boundary import in_background
from mld.daemon.systemd import ServiceManager
from mld.metrics.progress import LateLoop

log = logging.getLogger(__name__)

STATUS_PERIOD_S = 3.0
"""Shortest time between two texts of the status."""
EXTENSION_S = 20.0
"""How much more time each request asks for, during a start or a stop."""
EXTEND_PERIOD_S = 5.0
"""Time between two such requests."""
DRAIN_MARGIN_S = 60.0
"""After the grace period for children, a stop may take this much longer, to give leases back and close connections. If
it takes longer still, it hangs, and no more time is asked for.
"""
TICK_MAX_S = 1.0
"""Longest time between two checks of which notifications are due."""


class LifePhase(Enum):
    """Phase of a worker's life; `systemctl status` shows the value."""

    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"


class Announcements:
    """Sends the notifications that are due. Times are monotonic seconds."""

    def __init__(self, manager: ServiceManager, grace_s: float) -> None:
        """Make announcements to `manager`. `grace_s` is how long children may take to end at a stop."""
        self._manager = manager
        self._stop_within_s = grace_s + DRAIN_MARGIN_S
        self._phase: LifePhase | None = None  # the phase at the last step
        self._since = 0.0
        """When this phase began."""
        self._alive_at: float | None = None
        """When the service manager was last told that the daemon is alive."""
        self._extended_at: float | None = None
        """When the service manager was last asked for more time in this phase."""
        self._text, self._text_at = "", 0.0  # the status that was sent last, and when
        self._is_late = False
        """Whether some loop makes no progress, as last announced."""

    def step(self, now: float, phase: LifePhase, late: Sequence[LateLoop], text: str) -> None:
        """Send the notifications that are due at `now`.

        `late` are the loops that make no progress; `text` is the status in words.
        """
        is_new = phase is not self._phase
        if is_new:
            self._phase, self._since, self._extended_at = phase, now, None
            if phase is LifePhase.RUNNING:
                self._manager.ready()
        self._note_late(late)
        if not late:
            self._extend(now, phase)
            self._keep_alive(now)
        self._send_status(now, _hanging(late) if late else text, at_once=is_new)

    def _extend(self, now: float, phase: LifePhase) -> None:
        """Ask the service manager for more time during a start or a stop.

        A start may take any time, because it gives up by itself. A stop that takes longer than the grace period and
        `DRAIN_MARGIN_S` together counts as hanging: then no more time is asked for.
        """
        if phase is LifePhase.RUNNING or not _is_due(now, self._extended_at, EXTEND_PERIOD_S):
            return
        if phase is LifePhase.STARTING:
            self._manager.starting(EXTENSION_S)
        elif now - self._since <= self._stop_within_s:
            self._manager.stopping(EXTENSION_S)
        self._extended_at = now

    def _keep_alive(self, now: float) -> None:
        """Send a sign of life if one is due, and the service manager expects any."""
        if self._manager.keepalive_s is not None and _is_due(now, self._alive_at, self._manager.keepalive_s):
            self._manager.alive()
            self._alive_at = now

    def _send_status(self, now: float, text: str, *, at_once: bool) -> None:
        """Send a changed status; unless `at_once`, not sooner than `STATUS_PERIOD_S` after the last one."""
        if text != self._text and (at_once or now - self._text_at >= STATUS_PERIOD_S):
            self._manager.status(text)
            self._text, self._text_at = text, now

    def _note_late(self, late: Sequence[LateLoop]) -> None:
        """Log when the first loop stops making progress, and when all loops make progress again."""
        if bool(late) is self._is_late:
            return
        self._is_late = bool(late)
        if not late:
            log.warning("all loops make progress again", extra={"action": "progress_again"})
            return
        ends = (
            "" if self._manager.keepalive_s is None else "; the service manager gets no sign of life until it goes on"
        )
        log.error("%s%s", _hanging(late), ends, extra={"action": "no_progress", "loops": [loop.name for loop in late]})


def _is_due(now: float, last: float | None, period_s: float) -> bool:
    """Return whether `period_s` has passed since `last`; True if `last` is None."""
    return last is None or now - last >= period_s


def _hanging(late: Sequence[LateLoop]) -> str:
    """Return a text about the loops that make no progress, which names the first."""
    more = f" and {len(late) - 1} more" if len(late) > 1 else ""
    return f"no progress for {late[0].since_s:.0f} s: {late[0].name}{more}"


@asynccontextmanager
async def announcing(
    manager: ServiceManager,
    clock: Clock,
    *,
    grace_s: float,
    initialized: asyncio.Event,
    stop_asked: asyncio.Event,
    overdue: Callable[[], Sequence[LateLoop]],
    text: Callable[[], str],
) -> AsyncIterator[None]:
    """Keep the service manager informed while the context is open.

    The events `initialized` and `stop_asked` show the phase of the worker's life. `grace_s` is how long children may
    take to end after a stop was asked for. `overdue` returns the loops that make no progress, and `text` the status of
    a running worker in words.
    """
    announcements = Announcements(manager, grace_s)
    tick_s = min(TICK_MAX_S, (manager.keepalive_s or TICK_MAX_S) / 2)
    if manager.keepalive_s is not None:
        faulthandler.enable()  # the watchdog ends us by SIGABRT: then the log shows where each thread was

    def phase() -> LifePhase:
        """Return the present phase of the worker's life."""
        if stop_asked.is_set():
            return LifePhase.STOPPING
        return LifePhase.RUNNING if initialized.is_set() else LifePhase.STARTING

    async def announce() -> None:
        """Call `Announcements.step` whenever the phase may have changed, and at least every `tick_s`."""
        while True:
            present = phase()
            status = text() if present is LifePhase.RUNNING else present.value
            announcements.step(clock.monotonic(), present, overdue(), status)
            changes = (event.wait() for event in (initialized, stop_asked) if not event.is_set())
            waiting = [asyncio.ensure_future(wait) for wait in (clock.sleep(tick_s), *changes)]
            try:
                await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in waiting:
                    task.cancel()

    async with in_background(announce, "telling the service manager", clock):
        yield
