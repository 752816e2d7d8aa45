"""`Progress`: whether this worker is alive, by its loops.

A loop that is about to wait says until when it will be heard of again at the latest: the renewals their period, a
reader the time its call may take. A loop that waits for a child, for room in a buffer or for nothing at all promises
nothing. So lag, an unreachable AWS and a worker without leases are no reason to restart a daemon; a loop that hangs is.
"""

from __future__ import annotations

from dataclasses import dataclass

PERIODS = 3
"""A loop counts as hanging once it is overdue by this many of its periods."""


@dataclass(frozen=True, slots=True)
class LateLoop:
    """A loop that should have been heard of; `since_s` is how long it has been silent, or was until a moment ago."""

    name: str
    since_s: float


class Progress:
    """The last step and the period of each loop that has promised one."""

    def __init__(self) -> None:
        self._promises: dict[str, tuple[float, float]] = {}
        self._came_late: dict[str, tuple[float, int]] = {}  # how long a loop was silent; how many steps it is to prove

    def step(self, name: str, now: float, period_s: float) -> None:
        """Note that the loop `name` made a step, and makes its next one within `period_s`."""
        self._promises[name] = (now, period_s)

    def timely_step(self, name: str, now: float, period_s: float) -> None:
        """Note a step of a loop that waits for nothing but its timer, so that only a blocked event loop makes it late.

        An event loop that hangs again and again answers a probe just when this loop gets its turn, too. So a step that
        came late counts as overdue until `PERIODS` others have come in time.
        """
        before = self._promises.get(name)
        if before is not None and now - before[0] > PERIODS * before[1]:
            self._came_late[name] = (now - before[0], PERIODS)
        elif name in self._came_late:
            silent_s, left = self._came_late.pop(name)
            if left > 1:
                self._came_late[name] = (silent_s, left - 1)
        self._promises[name] = (now, period_s)

    def rest(self, name: str) -> None:
        """Note that the loop promises nothing until its next step: it waits for somebody else, or it has ended."""
        self._promises.pop(name, None)

    def overdue(self, now: float) -> list[LateLoop]:
        """Return the loops that are overdue, the longest first."""
        late = {name: silent_s for name, (silent_s, _) in self._came_late.items()}
        late |= {name: now - at for name, (at, period_s) in self._promises.items() if now - at > PERIODS * period_s}
        return sorted((LateLoop(name, since_s) for name, since_s in late.items()), key=lambda one: -one.since_s)
