"""`SafePrefix`: up to where every record of a shard was checkpointed by the child that had it. Pure.

Rule: parallel#safe-prefix. Several children share the records of one shard, each in its own time. The lease row has
room for one position, and that position says: nothing before it has to be delivered again. So it may only be::

    records in order      1  2  3  4  5  6  7  8
    given to child        a  b  a  c  b  a  c  b
    a has checkpointed    ---------------- 6            a: 1, 3 and 6 are done
    b has checkpointed    - 2                           b: 2 is done, 5 and 8 are open
    c has checkpointed    ------------------- 7         c: 4 and 7 are done
    safe prefix                       ^                 4: record 5 is the first one that is open

The first open record of any child ends the prefix, whatever the other children have done after it. The prefix is the
record before it in the order of the shard. A child that was given nothing has no open record, and holds nobody back.

Only the front is ever looked at: `given` adds records at the end of a queue, and `advance` takes those from the front
that their own child has checkpointed. Each record is looked at once, so that a checkpoint costs as much as the records
that it frees, and the queue holds what was given and is not safe yet.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from operator import le
from typing import TypeAlias

from mld.core.positions import SHARD_END, Position

Given: TypeAlias = tuple[bytes, int, int]
"""A record as it was given to a child: its sequence number in digits, its sub-sequence number, the child."""


def position_of(record: Given) -> Position:
    return Position(record[0].decode(), record[1])


def by_position(record: Given) -> tuple[int, int]:
    """Return what records are sorted by."""
    return int(record[0]), record[1]


def is_ordered(records: Sequence[Given]) -> bool:
    """Return whether records are certainly in the order of their positions: user records of an aggregate always are."""
    numbers = [record[0] for record in records]
    return len(set(map(len, numbers))) == 1 and all(map(le, numbers, numbers[1:]))


class SafePrefix:
    """The records of one shard that its children have and have not checkpointed. Children count from 0."""

    def __init__(self, children: int, checkpoint: Position) -> None:
        self.position = checkpoint
        """The prefix: SHARD_END once all children have checkpointed the end and no record is open."""
        self._open: deque[Given] = deque()
        self._confirmed = [(-1, 0)] * children
        self._ended: set[int] = set()

    def __len__(self) -> int:
        """Return how many records were given and are not in the prefix."""
        return len(self._open)

    def given(self, records: Iterable[Given]) -> None:
        """Note that children get these records, which come after all earlier ones, in the order of the shard."""
        self._open.extend(records)

    def confirmed(self, child: int, position: Position) -> Position:
        """Note that a child has checkpointed what it had up to `position`. Returns the prefix."""
        if position.is_shard_end:
            self._ended.add(child)
        elif position.number is not None:
            self._confirmed[child] = max(self._confirmed[child], (position.number, position.sub))
        self._advance()
        return self.position

    def _advance(self) -> None:
        passed = None
        while self._open and self._is_done(self._open[0]):
            passed = self._open.popleft()
        if passed is not None:
            self.position = position_of(passed)
        if not self._open and len(self._ended) == len(self._confirmed):
            self.position = SHARD_END

    def _is_done(self, record: Given) -> bool:
        child = record[2]
        return child in self._ended or by_position(record) <= self._confirmed[child]
