"""Whether this worker makes progress: what each of its loops has promised, and whether that is overdue. Pure.

A loop that is about to wait says until when it will be heard of again at the latest: the renewals their period, a
reader the time its call may take. What waits for a child, for room in a buffer or for nothing at all promises nothing.
So lag, an unreachable AWS and a worker without leases are no reason to restart a daemon; a loop that hangs is.
"""

from __future__ import annotations

from dataclasses import dataclass

PERIODS = 3
"""A loop counts as hanging once it is overdue by this many of its periods."""


@dataclass(frozen=True, slots=True)
class LateLoop:
    """A loop that should have been heard of; `since_s` is how long ago its last step was."""

    name: str
    since_s: float


class Progress:
    """The last step and the period of each loop that has promised one."""

    def __init__(self) -> None:
        self._promises: dict[str, tuple[float, float]] = {}

    def step(self, name: str, now: float, period_s: float) -> None:
        """The loop `name` made a step, and makes its next one within `period_s`."""
        self._promises[name] = (now, period_s)

    def rest(self, name: str) -> None:
        """The loop promises nothing until its next step: it waits for somebody else, or it has ended."""
        self._promises.pop(name, None)

    def overdue(self, now: float) -> list[LateLoop]:
        """The loops that are overdue, the longest first."""
        late = [
            LateLoop(name, now - at) for name, (at, period_s) in self._promises.items() if now - at > PERIODS * period_s
        ]
        return sorted(late, key=lambda one: -one.since_s)
