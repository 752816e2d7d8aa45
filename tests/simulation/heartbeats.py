"""What heartbeats of workers justify: which process may believe in which lease, and which lease counts as alive.

Told of every accepted write, and of the answers that arrive. Rules: `mld.leases.validity`, read for the checkers: a row
with a mark lives by the heartbeat of that epoch; who sends it may believe for as long as the row has the mark, and a
lease duration more. A heartbeat whose answer is late counts as a late renewal does (`beliefs.counts_from`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from tests.simulation.beliefs import NEVER, counts_from
from tests.twins.dynamo import Applied
from tests.twins.dynamo_expressions import Item

_VALUE = re.compile(r"([0-9a-f]{16})\.([0-9]+)")


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """The last accepted heartbeat of an epoch."""

    process: str
    sent_at: float
    accepted_at: float


class Beats:
    def __init__(self, now: Callable[[], float], duration_s: float) -> None:
        self._now = now
        self._duration_s = duration_s
        self._last: dict[str, Heartbeat] = {}
        self._unanswered: dict[tuple[str, float], str] = {}
        """By process and sending: the epoch of an accepted heartbeat."""
        self._from: dict[str, float] = {}
        """By epoch: what the answers that have arrived count from."""
        self._marks: dict[str, str] = {}
        self._ceased: dict[tuple[str, str], float] = {}
        """By process and key: since when its heartbeat does not stand for the row any more."""

    def applied_to_report(self, write: Applied, sent_at: float) -> None:
        before, after = _text(write.before, "mldHeartbeat"), _text(write.after, "mldHeartbeat")
        if before != after and (match := _VALUE.fullmatch(after)):
            self._last[match[1]] = Heartbeat(write.sender, sent_at, self._now())
            self._unanswered[write.sender, sent_at] = match[1]

    def answered(self, process: str, sent_at: float, waiting: Iterable[float]) -> None:
        """A process hears of its report; `waiting` is when those writes of it were sent that it waits for."""
        if epoch := self._unanswered.pop((process, sent_at), None):
            since = counts_from(sent_at, self._now(), waiting, self._duration_s)
            self._from[epoch] = max(since, self._from.get(epoch, NEVER))

    def refused(self, process: str, waiting: Iterable[float]) -> None:
        """A refusal shows a heartbeat that was accepted, whichever that was, if not that the epoch is over."""
        for sender, sent_at in list(self._unanswered):
            if sender == process:
                self.answered(process, sent_at, waiting)

    def applied_to_lease(self, key: str, write: Applied) -> None:
        before, after = _standing(write.before), _standing(write.after)
        if before != after:
            self.changed_by_hand(key)
        if after[0]:
            self._marks[key] = after[0]

    def changed_by_hand(self, key: str) -> None:
        """The row has another owner or mark now."""
        heartbeat = self._last.get(self._marks.pop(key, ""))
        if heartbeat is not None:
            self._ceased[heartbeat.process, key] = self._now()

    def sent_for(self, process: str, key: str) -> float:
        """Since when at the latest the process may believe, by its heartbeats."""
        epoch = self._marks.get(key, "")
        heartbeat = self._last.get(epoch)
        if heartbeat is not None and heartbeat.process == process:
            return max(heartbeat.sent_at, self._from.get(epoch, NEVER))
        return self._ceased.get((process, key), NEVER)

    def alive_at(self, row: Item) -> float:
        """When the heartbeat that stands for a row was last accepted."""
        heartbeat = self._last.get(_text(row, "mldHeartbeat"))
        if heartbeat is None or heartbeat.process.split("#")[0] != _standing(row)[1]:
            return NEVER
        return heartbeat.accepted_at

    def sent_of(self, row: Item) -> float:
        """When the heartbeat that stands for a row was last sent."""
        heartbeat = self._last.get(_text(row, "mldHeartbeat"))
        return NEVER if heartbeat is None else heartbeat.sent_at


def _standing(row: Item) -> tuple[str, str]:
    """(mark, actual owner)."""
    return _text(row, "mldHeartbeat"), _text(row, "checkpointOwner") or _text(row, "leaseOwner")


def _text(row: Item, name: str) -> str:
    value: Any = row.get(name)
    return "" if value is None else str(next(iter(value.values())))
