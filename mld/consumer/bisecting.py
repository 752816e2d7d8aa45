"""`Bisecting`: chooses the records to deliver next, until the one that kills its processor is found alone. Pure.

Java has nothing like it. It keeps positions, never records, so its memory is constant and it survives every restart of
the child; `take` is given what a batch holds. Each life of a child begins at the checkpoint::

    checkpoint   good                    bad           end
        |---------|-----------------------|-------------|
         accepted   failed as a whole:      not tried yet: parts that double
         before: as  its first half next    in size until one fails
         one part

A part that fails moves `bad` to its last record; an accepted part moves `good`. A part of one record cannot be halved.
That record is the `culprit` only if it failed `attempts_max` times as the very next record after the checkpoint, so
that the processor has vouched for everything before it. When `good` reaches `end` the search is over.

A batch that fails only as a whole passes in parts, and all is well. One that keeps failing in new ways is given up
after `ROUNDS_MAX` failures without progress, and delivered whole until a checkpoint moves.

There must never be a culprit that was not alone, or with anything unacknowledged before it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace

from mld.core.positions import Position

ROUNDS_MAX = 64
"""Halving a page of a million user records takes 20 rounds; three times that means that halving does not help."""


@dataclass(frozen=True, slots=True)
class Bisecting:
    """The state of one shard; every change returns a new value. With `attempts_max` 0 there is never a search."""

    attempts_max: int
    attempts: int = 0
    """Failed deliveries in a row, each with records of the one before."""
    first: Position | None = None
    last: Position | None = None
    """The records of the latest of them."""
    good: Position | None = None
    bad: Position | None = None
    end: Position | None = None
    """Set during a search."""
    size: int = 1
    alone: Position | None = None
    alone_failures: int = 0
    rounds: int = 0
    """Failures during searches since the last progress, not counting those of a record alone."""

    @property
    def is_searching(self) -> bool:
        return self.end is not None

    @property
    def is_given_up(self) -> bool:
        return self.rounds >= ROUNDS_MAX

    @property
    def culprit(self) -> Position | None:
        """The record to set aside; None while there is doubt."""
        return self.alone if self.is_searching and self.alone_failures >= self.attempts_max else None

    def resumed(self, first: Position, attempts: int) -> Bisecting:
        """Continue the count of another owner of the shard."""
        return replace(self, attempts=attempts, first=first, last=first)

    def take(self, positions: Sequence[Position]) -> int:
        """Return how many of these records, which are next in order, to deliver as one part; at least one if there
        are any.
        """
        if self.end is None or self.good is None:
            return len(positions)
        accepted = bisect_right(positions, self.good)
        if accepted:
            return accepted
        candidates = 0 if self.bad is None else bisect_right(positions, self.bad)
        return max(1, candidates // 2) if candidates else min(self.size, len(positions))

    def needs_checkpoint(self, checkpoint: Position, delivered: Position, positions: Sequence[Position]) -> bool:
        """Return whether the next part is one poison candidate alone, before which not all records are checkpointed."""
        if self.bad is None or checkpoint == delivered or not positions or positions[0] > self.bad:
            return False
        return self.take(positions) == 1 and bisect_right(positions, self.bad) == 1

    def passed(self, last: Position) -> Bisecting:
        """Note that the processor has accepted the part that ends with `last`."""
        if self.end is None or self.good is None:
            return self
        if last >= self.end:
            return self._over()
        if self.bad is None and last > self.good:
            return replace(self, good=last, size=2 * self.size)
        bad = None if self.bad is not None and last >= self.bad else self.bad
        return replace(self, good=max(self.good, last), bad=bad)

    def failed(self, good: Position, first: Position, last: Position, *, is_next_alone: bool) -> Bisecting:
        """Note that the processor failed while it had the records `first` to `last`, having accepted everything before
        `first`.

        `good` is the position before them. `is_next_alone`: there was one record, the next after the checkpoint.
        """
        overlap = self.first is not None and self.last is not None and first <= self.last and self.first <= last
        state = replace(self, attempts=self.attempts + 1 if overlap else 1, first=first, last=last)
        if not is_next_alone:
            state = replace(state, alone=None, alone_failures=0, rounds=self.rounds + self.is_searching)
        else:
            again = self.alone == first
            state = replace(state, alone=first, alone_failures=self.alone_failures + 1 if again else 1)
        if state.is_given_up:
            return state._over()
        if state.end is None and not 0 < self.attempts_max <= state.attempts:
            return state
        end = last if state.end is None else max(state.end, last)
        return replace(state, good=good, bad=last, end=end, size=1)

    def moved(self, checkpoint: Position) -> Bisecting:
        """Note that the processor has checkpointed: progress."""
        if self.end is None or checkpoint >= self.end:
            return Bisecting(self.attempts_max)
        good = checkpoint if self.good is None else max(self.good, checkpoint)
        bad = None if self.bad is not None and checkpoint >= self.bad else self.bad
        return replace(self, good=good, bad=bad, rounds=0)

    def set_aside(self, culprit: Position) -> Bisecting:
        """Note that the culprit is in the dead letter, and the checkpoint is past it."""
        assert culprit == self.culprit
        fresh = Bisecting(self.attempts_max)
        assert self.end is not None
        return fresh if culprit >= self.end else replace(fresh, good=culprit, end=self.end)

    def _over(self) -> Bisecting:
        return replace(self, good=None, bad=None, end=None, size=1, alone=None, alone_failures=0)
