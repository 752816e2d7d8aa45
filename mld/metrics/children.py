"""`ChildLoads`: the load of each child of a shard that has several: how many records it works on, how many wait for it,
and which share of the shard's latest records it got.

Pages and commands show these figures to people; no decision depends on them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

HOT_SHARE_MIN, HOT_SHARE_MAX = 0.5, 0.9
"""Bounds of `hot_share`. The upper one is for two children, of which one may well get two thirds of the records."""
WINDOW_S = 60.0
"""Shares are counted over the last one to two minutes. So a hot key shows soon, and a single page of records is not
taken for a hot key.
"""


def hot_share(children: int) -> float:
    """Return the share of the records above which a child counts as hot. `children` is how many the shard has.

    It is twice an even share, within the bounds above.
    """
    return min(HOT_SHARE_MAX, max(HOT_SHARE_MIN, 2 / children))


@dataclass(slots=True)
class ChildLoad:
    """The load of one child. `number` counts the children of a shard from 0."""

    number: int
    description: str
    in_hand: int = 0
    """Records that the child is working on."""
    busy_since: float | None = None
    """When the child got the records in hand, in monotonic seconds; None while it has none."""
    waiting: int = 0
    """Records that wait for the child."""
    lately: int = 0
    """Records that the child got in the current window."""
    before: int = 0
    """Records that the child got in the window before."""

    @property
    def latest(self) -> int:
        """Records that the child got in both windows."""
        return self.lately + self.before


class ChildLoads:
    """The loads of all children of a shard. `now` is in monotonic seconds."""

    def __init__(self, children: Sequence[ChildLoad], now: float) -> None:
        self.children = children
        self._window_began = now

    def given(self, number: int, records: int, now: float) -> None:
        """Note that a child got more records, which wait for it from now on. If the present window is over, begin
        another one first.
        """
        since = now - self._window_began
        if since >= WINDOW_S:
            self._window_began = now
            for child in self.children:
                was_last_window = since < 2 * WINDOW_S  # otherwise a whole window without records lies between
                child.before = child.lately if was_last_window else 0
                child.lately = 0
        child = self.children[number]
        child.waiting += records
        child.lately += records

    def value(self, now: float) -> list[dict[str, Any]]:
        """Return the load of each child as plain values, for JSON.

        `busySeconds` is how long the child has had the records in hand; None if it has none. `share` is its part of the
        latest records of the shard; None if there were none.
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
        """The part of the latest records that the busiest child got, from 1 / children to 1; None if none came."""
        counts = [child.latest for child in self.children]
        return max(counts) / sum(counts) if sum(counts) else None

    @property
    def hot_child(self) -> str | None:
        """A text that names the hot child and its share; None if no child is hot."""
        share, count = self.busiest_share, len(self.children)
        if share is None or share <= hot_share(count):
            return None
        number = max(self.children, key=lambda child: child.latest).number
        return f"child {number} of {count} gets {share:.0%} of the records, and a hot key cannot be shared out"

    @property
    def busy_since(self) -> float | None:
        """When the oldest batch in a child's hands was given to it, in monotonic seconds; None if no child has one."""
        return min((child.busy_since for child in self.children if child.busy_since is not None), default=None)
