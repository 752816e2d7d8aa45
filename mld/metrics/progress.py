"""`Progress`: whether this worker is alive, judged by its loops.

Before a loop waits, it promises when it will report again: the loop of renewals within its period, a reader within the
time that its call may take. A loop that waits for a child, for room in a buffer or for nothing in particular promises
nothing. So a hanging loop is a reason to restart a daemon, but lag, an unreachable AWS or a worker without leases is
not.
"""

from __future__ import annotations

from dataclasses import dataclass

PERIODS = 3
"""A loop hangs once it is overdue by this many of its periods."""


@dataclass(frozen=True, slots=True)
class LateLoop:
    """A loop that is overdue. `since_s` is how long it has been silent, or was until its last step."""

    name: str
    since_s: float


class Progress:
    """The last step of each loop that has promised another one, and the promised period."""

    def __init__(self) -> None:
        self._promises: dict[str, tuple[float, float]] = {}
        self._came_late: dict[str, tuple[float, int]] = {}  # how long a loop was silent, and timely steps still needed

    def step(self, name: str, now: float, period_s: float) -> None:
        """Note that the loop `name` made a step, and will make the next one within `period_s`."""
        self._promises[name] = (now, period_s)

    def timely_step(self, name: str, now: float, period_s: float) -> None:
        """Note a step of a loop that waits only for its timer, so that it is late only if the event loop is blocked.

        An event loop that is blocked again and again answers a probe only after this loop had its turn, too, and would
        look healthy. So after a late step the loop counts as overdue until `PERIODS` steps came in time.
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
        """Return the overdue loops, the longest silence first."""
        late = {name: silent_s for name, (silent_s, _) in self._came_late.items()}
        late |= {name: now - at for name, (at, period_s) in self._promises.items() if now - at > PERIODS * period_s}
        return sorted((LateLoop(name, since_s) for name, since_s in late.items()), key=lambda one: -one.since_s)
