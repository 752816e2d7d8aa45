"""`Progress`: decides whether this worker is alive, by the steps that its loops report.

Before a loop waits, it promises a period within which it will report its next step: the loop of renewals its own
period, a reader the time that its call may take. A loop promises nothing while it waits for a child, for room in a
buffer, or without any limit. So a loop that hangs makes the daemon count as dead, to be restarted; lag, an unreachable
AWS, or a worker without leases does not.
"""

from __future__ import annotations

from dataclasses import dataclass

PERIODS = 3
"""A loop hangs once it is overdue by this many of its periods."""


@dataclass(frozen=True, slots=True)
class LateLoop:
    """A loop that is overdue. `since_s` is for how many seconds it has reported no step. If its last step came late,
    `since_s` is how long it was silent before that step.
    """

    name: str
    since_s: float


class Progress:
    """The last step of each loop that has promised another one, and the promised period."""

    def __init__(self) -> None:
        self._promises: dict[str, tuple[float, float]] = {}
        self._came_late: dict[str, tuple[float, int]] = {}  # seconds that a loop was silent; timely steps still needed

    def step(self, name: str, now: float, period_s: float) -> None:
        """Note that the loop `name` made a step, and will make the next one within `period_s`."""
        self._promises[name] = (now, period_s)

    def timely_step(self, name: str, now: float, period_s: float) -> None:
        """Note a step of a loop that waits only for its timer, so that it is late only if the event loop is blocked.

        If the event loop is blocked again and again, this loop makes its step before a probe is answered, so the daemon
        would look healthy. So after a late step the loop counts as overdue until `PERIODS` steps came in time.
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
        """Note that the loop promises nothing until its next step: it waits for something else, or it has ended."""
        self._promises.pop(name, None)

    def overdue(self, now: float) -> list[LateLoop]:
        """Return the overdue loops, first the one that has been silent for longest."""
        late = {name: silent_s for name, (silent_s, _) in self._came_late.items()}
        late |= {name: now - at for name, (at, period_s) in self._promises.items() if now - at > PERIODS * period_s}
        return sorted((LateLoop(name, since_s) for name, since_s in late.items()), key=lambda one: -one.since_s)
