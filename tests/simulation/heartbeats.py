"""What heartbeats of workers justify: which process may believe in which lease, and which lease counts as alive.

Told of every accepted write. Rules: `mld.leases.validity`, read for the checkers: a row with a mark lives by the
heartbeat of that epoch; who sends it may believe for as long as the row has the mark, and a lease duration more.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.twins.dynamo import Applied
from tests.twins.dynamo_expressions import Item

NEVER = float("-inf")
_VALUE = re.compile(r"([0-9a-f]{16})\.([0-9]+)")


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """The last accepted heartbeat of an epoch."""

    process: str
    sent_at: float
    accepted_at: float


class Beats:
    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._last: dict[str, Heartbeat] = {}
        self._marks: dict[str, str] = {}
        self._ceased: dict[tuple[str, str], float] = {}
        """By process and key: since when its heartbeat does not stand for the row any more."""

    def applied_to_report(self, write: Applied, sent_at: float) -> None:
        before, after = _text(write.before, "mldHeartbeat"), _text(write.after, "mldHeartbeat")
        if before != after and (match := _VALUE.fullmatch(after)):
            self._last[match[1]] = Heartbeat(write.sender, sent_at, self._now())

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
        heartbeat = self._last.get(self._marks.get(key, ""))
        if heartbeat is not None and heartbeat.process == process:
            return heartbeat.sent_at
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
