"""`Turn`: a lock that lets one thread at a time do long work, above all receive and parse a large body. It measures for
how long it is held.

`TurnWatch` computes from that how busy the lock is. If the lock is held almost all the time, calls wait for the
processor and not for the network; then `Places` allows fewer calls at a time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class Turn:
    """A lock that measures for how long it is held."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self.now = now
        self._lock = threading.Lock()
        self._before_s = 0.0  # for how long the lock was held in all earlier turns
        self._since_s: float | None = None  # when the present turn began; None if the lock is free

    def acquire(self) -> None:
        """Wait for the turn, and begin it."""
        self._lock.acquire()
        self._since_s = self.now()

    def release(self) -> None:
        """Let the next thread have its turn, and add the time of this turn to the total."""
        since_s, self._since_s = self._since_s, None
        assert since_s is not None, "it was taken"
        self._before_s += self.now() - since_s
        self._lock.release()

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    def taken_s(self, at_s: float) -> float:
        """Return for how many seconds the lock was held in total until `at_s`. May be called from any thread.

        The value is approximate while the lock passes from one thread to another.
        """
        since_s = self._since_s
        return self._before_s + (0.0 if since_s is None else max(0.0, at_s - since_s))


class TurnWatch:
    """Measures how busy a turn is, from `begin` on."""

    def __init__(self, turn: Turn | None = None) -> None:
        self._turn = Turn() if turn is None else turn
        self.begin()

    def begin(self) -> None:
        """Begin a new period, for which `share` then returns the share."""
        self._begun_s = self._turn.now()
        self._taken_s = self._turn.taken_s(self._begun_s)

    def share(self) -> float:
        """Return the share of the time since the last call in which the turn was held: 0 to 1, approximate."""
        begun_s, taken_s = self._begun_s, self._taken_s
        self.begin()
        return (self._taken_s - taken_s) / max(self._begun_s - begun_s, 1e-6)
