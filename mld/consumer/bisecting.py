"""`Bisecting`: searches for the record that kills its processor, by delivering smaller and smaller parts. Pure.

Java has no such search. The search keeps positions and no records, so it takes constant memory, and it survives
restarts of the child. `take` gets the positions of the records that can be delivered next. Each new child begins at the
checkpoint::

    checkpoint   good                    bad           end
        |---------|-----------------------|-------------|
         accepted   failed as a whole:      not tried yet: deliver parts
         before:     deliver its first      that double in size until
         deliver as  half next              one fails
         one part

If a part fails, `bad` moves to its last record; if a part is accepted, `good` moves there. A part of one record cannot
be halved. That record is the `culprit` only if the processor failed on it `attempts_max` times, and each time the
record was delivered alone and came right after the checkpoint, so that everything before it is checkpointed. When
`good` reaches `end`, the search is over.

If a batch fails only as a whole, all its parts are accepted, and the search ends without a culprit. If failures
continue without progress, the search is given up after `ROUNDS_MAX` failures, and batches are delivered whole until the
processor checkpoints.

A record must never become the culprit if it was not alone, or if a record before it is not checkpointed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace

from mld.core.positions import Position

ROUNDS_MAX = 64
"""Halving a page of a million user records takes 20 rounds; after three times that, halving does not help."""


@dataclass(frozen=True, slots=True)
class Bisecting:
    """The state of the search in one shard; every change returns a new value. With `attempts_max` 0 there is never a
    search.
    """

    attempts_max: int
    attempts: int = 0
    """The number of consecutive failed deliveries, each of which shared records with the previous one."""
    first: Position | None = None
    last: Position | None = None
    """First and last record of the latest failed delivery."""
    good: Position | None = None
    bad: Position | None = None
    end: Position | None = None
    """`good`, `bad` and `end` are set during a search, see the module's header."""
    size: int = 1
    """How many records the next part has, if it lies after `bad`, where nothing has been tried yet."""
    alone: Position | None = None
    """The record on which the processor failed `alone_failures` times, when it was delivered alone and right after the
    checkpoint."""
    alone_failures: int = 0
    rounds: int = 0
    """Failures during searches since the last progress, without those on a single record right after the checkpoint."""

    @property
    def is_searching(self) -> bool:
        return self.end is not None

    @property
    def is_given_up(self) -> bool:
        return self.rounds >= ROUNDS_MAX

    @property
    def culprit(self) -> Position | None:
        """The record to set aside; None if no record is certain to be the cause."""
        return self.alone if self.is_searching and self.alone_failures >= self.attempts_max else None

    def resumed(self, first: Position, attempts: int) -> Bisecting:
        """Return the state with which to continue after the shard's previous owner, which counted `attempts` failed
        deliveries that began at `first`. The lease row does not store where they ended, so `first` is also taken for
        the last record.
        """
        return replace(self, attempts=attempts, first=first, last=first)

    def take(self, positions: Sequence[Position]) -> int:
        """Return how many of the next records to deliver as one part, at least one if there are any. `positions` are
        the positions of these records, in order.

        Without a search all of them are one part. During a search the next part consists of the records up to `good`,
        which were accepted before. If none of these is left, it is the first half of the records up to `bad`, which
        failed as a whole. If none of those is left either, the rest was not tried yet, and the part has `size` records.
        """
        if self.end is None or self.good is None:
            return len(positions)
        accepted = bisect_right(positions, self.good)
        if accepted:
            return accepted
        candidates = 0 if self.bad is None else bisect_right(positions, self.bad)
        return max(1, candidates // 2) if candidates else min(self.size, len(positions))

    def needs_checkpoint(self, checkpoint: Position, delivered: Position, positions: Sequence[Position]) -> bool:
        """Return whether the processor has to checkpoint before it gets the next part: the part would be the only
        record left that may be the cause, and records before it are not checkpointed yet.

        `checkpoint` is the position in the row, `delivered` the last position that the processor got, and `positions`
        are those of the next records.
        """
        if self.bad is None or checkpoint == delivered or not positions or positions[0] > self.bad:
            return False
        return self.take(positions) == 1 and bisect_right(positions, self.bad) == 1

    def passed(self, last: Position) -> Bisecting:
        """Return the state after the processor has accepted the part that ends with `last`. If that is the `end`, the
        search is over.

        As long as no part has failed (`bad` is None), the next part is twice as large. If the part reaches `bad`, the
        records that failed as a whole have been accepted in parts, and the search continues after them.
        """
        if self.end is None or self.good is None:
            return self
        if last >= self.end:
            return self._over()
        if self.bad is None and last > self.good:
            return replace(self, good=last, size=2 * self.size)
        bad = None if self.bad is not None and last >= self.bad else self.bad
        return replace(self, good=max(self.good, last), bad=bad)

    def failed(self, good: Position, first: Position, last: Position, *, is_next_alone: bool) -> Bisecting:
        """Return the state after the processor failed on the records `first` to `last`, having accepted all before
        them. After `attempts_max` failures in a row on overlapping records a search begins; if one is under way
        already, it is narrowed to these records. After too many rounds without progress (`is_given_up`) it ends without
        a culprit.

        `good` is the position before `first`. `is_next_alone`: there was only one record, and it came right after the
        checkpoint.
        """
        overlap = self.first is not None and self.last is not None and first <= self.last and self.first <= last
        state = replace(self, attempts=self.attempts + 1 if overlap else 1, first=first, last=last)
        if not is_next_alone:  # only a failure during a search counts as a round
            state = replace(state, alone=None, alone_failures=0, rounds=self.rounds + self.is_searching)
        else:
            again = self.alone == first
            state = replace(state, alone=first, alone_failures=self.alone_failures + 1 if again else 1)
        if state.is_given_up:
            return state._over()
        if state.end is None and not 0 < self.attempts_max <= state.attempts:
            return state  # no search yet: too few failures, or searches are off (`attempts_max` is 0)
        end = last if state.end is None else max(state.end, last)
        return replace(state, good=good, bad=last, end=end, size=1)

    def moved(self, checkpoint: Position) -> Bisecting:
        """Return the state after the processor has checkpointed, which is progress. If no search is under way, or the
        checkpoint reaches its `end`, everything is counted anew; otherwise the search continues after the checkpoint.
        """
        if self.end is None or checkpoint >= self.end:
            return Bisecting(self.attempts_max)
        good = checkpoint if self.good is None else max(self.good, checkpoint)
        bad = None if self.bad is not None and checkpoint >= self.bad else self.bad
        return replace(self, good=good, bad=bad, rounds=0)

    def set_aside(self, culprit: Position) -> Bisecting:
        """Return the state after the culprit was written to a dead letter and checkpointed: failures are counted anew,
        and the search continues with the records between the culprit and `end`, if there are any.
        """
        assert culprit == self.culprit
        fresh = Bisecting(self.attempts_max)
        assert self.end is not None
        return fresh if culprit >= self.end else replace(fresh, good=culprit, end=self.end)

    def _over(self) -> Bisecting:
        """Return the state after a search that has ended or was given up."""
        return replace(self, good=None, bad=None, end=None, size=1, alone=None, alone_failures=0)
