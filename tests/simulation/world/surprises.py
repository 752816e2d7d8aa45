"""The arbitrary exception: what no port is meant to raise, raised at any port all the same, with its effect or without.

Drawn from a stream of its own, so that plans and runs without it stay what they are.
"""

from __future__ import annotations

import errno
import ssl
from collections.abc import Callable
from random import Random

MARK = "drawn surprise"
"""Stands in the text of each, by which the world tells them from bugs."""
ERRNOS = tuple(sorted(errno.errorcode))
KINDS: tuple[Callable[[Random], Exception], ...] = (
    lambda rng: OSError(rng.choice(ERRNOS), MARK),
    lambda rng: ssl.SSLError(rng.randrange(1, 9), MARK),
    lambda rng: RuntimeError(f"can't start new thread: {MARK}"),
    lambda rng: MemoryError(MARK),
    lambda rng: UnicodeDecodeError("utf-8", b"\xff", 0, 1, MARK),
)


class Surprises:
    """Those of one process. A rate is their share of the calls."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng

    def draw(self, rate: float) -> Exception | None:
        """What this call raises, if anything."""
        if not rate or self._rng.random() >= rate:
            return None
        return self._rng.choice(KINDS)(self._rng)

    def with_effect(self) -> bool:
        """Whether what was asked for is done before it is raised."""
        return self._rng.random() < 0.5
