"""What each of several children of one shard has to do, for people who look: in hand, waiting, and its share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

HOT_SHARE_MIN, HOT_SHARE_MAX = 0.5, 0.9
"""Bounds for the share from which a child has most of the records: of two children one may well get two thirds."""
WINDOW_S = 60.0
"""The shares are those of the last one to two minutes: a hot key shows soon, and a single page does not."""


def hot_share(children: int) -> float:
    """Return the share of the records above which one of so many children gets most of them: twice an even share."""
    return min(HOT_SHARE_MAX, max(HOT_SHARE_MIN, 2 / children))


@dataclass(slots=True)
class ChildLoad:
    """One child, counted from 0."""

    number: int
    description: str
    in_hand: int = 0
    """Records it is working on."""
    busy_since: float | None = None
    """Since when, in monotonic seconds; None while it has none."""
    waiting: int = 0
    """Records that wait for it."""
    lately: int = 0
    """Records it was given in the current window."""
    before: int = 0
    """Records it was given in the window before."""

    @property
    def latest(self) -> int:
        """Records it was given in both windows."""
        return self.lately + self.before


class ChildLoads:
    """Those of all children of a shard. `now` is in monotonic seconds."""

    def __init__(self, children: Sequence[ChildLoad], now: float) -> None:
        self.children = children
        self._window_began = now

    def given(self, number: int, records: int, now: float) -> None:
        """Note that records were shared out to a child."""
        since = now - self._window_began
        if since >= WINDOW_S:
            self._window_began = now
            for child in self.children:
                child.before, child.lately = child.lately if since < 2 * WINDOW_S else 0, 0
        child = self.children[number]
        child.waiting += records
        child.lately += records

    def value(self, now: float) -> list[dict[str, Any]]:
        """Return the children in plain values: records in hand and since when, records that wait, and the share of the
        latest records; None without records.
        """
        total = sum(child.latest for child in self.children)
        return [
            {
                "number": child.number,
                "child": child.description,
                "inHand": child.in_hand,
                "busySeconds": None if child.busy_since is None else max(0.0, now - child.busy_since),
                "waiting": child.waiting,
                "share": child.latest / total if total else None,
            }
            for child in self.children
        ]

    @property
    def busiest_share(self) -> float | None:
        """The part of the latest records that the busiest child got, from 1 / children to 1; None without records."""
        counts = [child.latest for child in self.children]
        return max(counts) / sum(counts) if sum(counts) else None

    @property
    def hot_child(self) -> str | None:
        """Which child gets most of the records, in words; None if none does."""
        share, count = self.busiest_share, len(self.children)
        if share is None or share <= hot_share(count):
            return None
        number = max(self.children, key=lambda child: child.latest).number
        return f"child {number} of {count} gets {share:.0%} of the records, and a hot key cannot be shared out"

    @property
    def busy_since(self) -> float | None:
        """Since when the child that has its records longest is busy with them; None if none has any."""
        return min((child.busy_since for child in self.children if child.busy_since is not None), default=None)
