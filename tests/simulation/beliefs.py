"""How long a process may believe in a lease, from the requests seen at its door: checkers 4 and 5.

Read from docs/develop/rules/leases.md#send-time-validity and #answers-slower-than-leases, not from the code.
"""

from __future__ import annotations

from collections.abc import Iterable

from tests.simulation.world.plan import DRIFT_MAX

LATE = 0.8 * (1 - 4 * DRIFT_MAX)
PAUSE = 0.4 * (1 + 4 * DRIFT_MAX)
"""Both of the lease duration, by whoever's clock."""
NEVER = float("-inf")


def counts_from(sent_at: float, answered_at: float, waiting: Iterable[float], duration_s: float) -> float:
    """From when an accepted write counts: its sending. If its answer took more than 0.8 of the lease duration, the
    sending of the last write that waits for its answer then and was sent without a pause of more than 0.4 in between.
    """
    if answered_at - sent_at <= LATE * duration_s:
        return sent_at
    end = sent_at
    for later in sorted(waiting):
        if end < later <= end + PAUSE * duration_s:
            end = later
    return end


class Beliefs:
    """Told of every accepted write that leaves its sender the owner of a row, and of the answers that arrive."""

    def __init__(self, duration_s: float) -> None:
        self._duration_s = duration_s
        self._unanswered: dict[tuple[str, str], dict[float, bool]] = {}
        self._from: dict[tuple[str, str], float] = {}

    def applied(self, process: str, key: str, sent_at: float, *, is_take: bool) -> None:
        self._unanswered.setdefault((process, key), {})[sent_at] = is_take

    def answered(self, process: str, key: str, sent_at: float, answered_at: float, waiting: Iterable[float]) -> None:
        is_take = self._unanswered.get((process, key), {}).pop(sent_at, None)
        if is_take is None:
            return  # refused, or it has confirmed nothing
        since = sent_at if is_take else counts_from(sent_at, answered_at, waiting, self._duration_s)
        self._from[process, key] = max(since, self.since(process, key))

    def refused(self, process: str, key: str) -> None:
        """A repeated take is refused by the first one, whose answer was lost, and that counts then.

        If a row was given to the process by hand, a take looks like a renewal, but of a lease in which the process does
        not believe.
        """
        since = self.since(process, key)
        takes = [
            sent_at
            for sent_at, is_take in self._unanswered.get((process, key), {}).items()
            if is_take or sent_at - since > self._duration_s
        ]
        self._from[process, key] = max([*takes, since])

    def since(self, process: str, key: str) -> float:
        """What the belief of a process counts from now."""
        return self._from.get((process, key), NEVER)

    def since_of_worker(self, worker: str, key: str) -> float:
        """The same of whichever process has or had this worker id."""
        found = (at for (process, of), at in self._from.items() if of == key and process.split("#")[0] == worker)
        return max(found, default=NEVER)
