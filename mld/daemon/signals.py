"""The signals that the daemon handles (protocol#exit-codes): the first asks it to stop, the second ends it at once.

SIGHUP has two traditional meanings. A terminal that closes sends it, and means "stop". If there is no terminal (under a
service manager, in a container, in cron) somebody has sent it on purpose, and means "read your configuration again". A
process that was started with SIGHUP ignored (nohup) keeps ignoring it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Awaitable, Callable
from enum import Enum
from typing import TYPE_CHECKING

from mld.core.terminal import EXIT_FAILURE, EXIT_OK
from mld.core.waits import unless

if TYPE_CHECKING:
    from mld.daemon.until_tip import RunUntilTip
    from mld.daemon.worker import Worker

log = logging.getLogger(__name__)

EXIT_SIGNAL_BASE = 128
SIGNAL_ECHO_S = 0.5  # a second signal within this time is the same request: timeout(1) signals process and group


class HangUp(Enum):
    """What SIGHUP means."""

    STOP = "stop"
    RELOAD = "reload"
    NOTHING = "nothing"


def meaning_of_hang_up(*, is_supervised: bool, has_terminal: bool, is_ignored: bool) -> HangUp:
    """Return what SIGHUP means to a process: whether it is run by a service manager (`is_supervised`), has a
    controlling terminal, or was started with SIGHUP ignored.
    """
    if is_supervised:
        return HangUp.RELOAD
    if is_ignored:
        return HangUp.NOTHING
    return HangUp.STOP if has_terminal else HangUp.RELOAD


def hang_up_here(*, is_supervised: bool) -> HangUp:
    """Return what SIGHUP means to this process."""
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return meaning_of_hang_up(is_supervised=is_supervised, has_terminal=_has_terminal(), is_ignored=ignored)


def _has_terminal() -> bool:
    """Return whether this process has a controlling terminal."""
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return False
    return True


class StopSignals:
    """Handles signals from the moment it is made, so that a signal also ends a start, whatever step it has reached.

    A stop within the grace period has exit code 0, even if no worker was running yet.
    """

    def __init__(self, hang_up: HangUp, reload: Callable[[], None]) -> None:
        """Handle signals from now on: SIGTERM and SIGINT stop, and SIGHUP does what `hang_up` says. `reload` is called
        if that is to read the configuration again.
        """
        self._asked = asyncio.Event()
        """Set at the first signal."""
        self._received: list[signal.Signals] = []
        self._first_at = 0.0
        """When the first signal came. One that follows at once is taken for an echo of it."""
        self._worker: Worker | RunUntilTip | None = None
        """The worker that signals stop, once it runs."""
        self._running: asyncio.Future[bool] | None = None
        """The run of this worker, which a second signal cancels."""
        loop = asyncio.get_running_loop()
        stops = [signal.SIGTERM, signal.SIGINT]
        match hang_up:
            case HangUp.STOP:
                stops.append(signal.SIGHUP)
            case HangUp.RELOAD:
                loop.add_signal_handler(signal.SIGHUP, reload)
            case HangUp.NOTHING:
                pass
        for number in stops:
            loop.add_signal_handler(number, self._on_signal, number)

    def _on_signal(self, number: signal.Signals) -> None:
        """Handle a signal that means stop: the first one asks the worker to stop, the second
        one ends the run at once.
        """
        now = asyncio.get_running_loop().time()
        if self._received and now - self._first_at < SIGNAL_ECHO_S:
            return
        self._received.append(number)
        log.info("%s received", number.name, extra={"action": "signal", "count": len(self._received)})
        if len(self._received) == 1:
            self._first_at = now
            self._asked.set()
            if self._worker is not None:
                self._worker.request_stop()
        elif self._running is not None:
            self._running.cancel()

    async def unless_asked(self, step: Awaitable[object]) -> bool:
        """Run a step of the start. Return True when it is done. If a stop is asked for, cancel it and return False."""
        await unless(self._asked, step)
        return not self._asked.is_set()

    async def run(self, worker: Worker | RunUntilTip, grace_s: float) -> int:
        """Run the worker until a signal stops it or it ends by itself; return the exit code."""
        self._worker = worker
        self._running = asyncio.ensure_future(worker.run(grace_s))
        if self._asked.is_set():
            worker.request_stop()
        try:
            graceful = await self._running
        except asyncio.CancelledError:
            if not self._received:
                raise
            graceful = False
        if worker.failure is not None:
            return EXIT_FAILURE
        # Without a signal (the supervisor is gone, the tip is reached) a stop that was not graceful counts as SIGTERM.
        return EXIT_OK if graceful else EXIT_SIGNAL_BASE + (self._received[0] if self._received else signal.SIGTERM)
