"""What one shard consumer may do, and what comes next. Pure: every change returns a new value; the shell is `consumer`.

*The life of a consumer* as a table: which state follows which, and why.

Rules: shards#consumer-life-cycle, shards#stops-of-a-consumer, protocol#order-of-actions and
leases#handoff-on-the-owner-side.

Theory. A consumer exists for one holding of one lease. In each state it performs one activity, and the
`ActivityOutcome` leads to the next state. Three things may also come from outside at any time, and the strongest wins:
the worker asks the consumer to stop (`StopReason.REQUESTED`), another worker waits for the lease
(`StopReason.HANDOFF`), or the lease is gone (`StopReason.LEASE_LOST`). The activity is told and ends where it safely
can (a batch in the child's hands is always answered first); then the stop decides the next state, not the outcome::

    WAITING_ON_PARENTS -> INITIALIZING -> PROCESSING -> SHARD_ENDING -> FINISHED
                              ^            |    ^ |          |
                              |            |    | v          |
                              |            |   PARKED -------+  (Kinesis says "not found": over, or the wrong stream?)
                              |            v                 v
                              +------- BACKING_OFF <---------+  (the child failed: restart from the last checkpoint,
                              ^                              |   after a pause, or with one record set aside)
                              +------------------------------+  (the end proves nothing: it is read again)

    odd row:        WAITING_ON_PARENTS -> PARKED -> WAITING_ON_PARENTS  (nothing was read, and no child started)
    stop requested: SHUTDOWN_REQUESTED -----------------> LEASE_LOST -> RELEASING -> FINISHED
    handoff:        SHUTDOWN_REQUESTED -> TRANSFERRING -> LEASE_LOST -> RELEASING -> FINISHED  (nothing left to release)
    lease lost:                                           LEASE_LOST --------------> FINISHED

A handoff transfers the lease before the child is told `leaseLost`, because the next owner is waiting. A consumer
without a child to tell transfers at once.

Nothing here may turn an error into progress: only SHARD_ENDING, entered by an end the service named or by positive
evidence, leads to a SHARD_END checkpoint.

*`CheckpointRange`*: what a child may checkpoint.

Rules: protocol#checkpoint-range and protocol#checkpoint-at-shard-end (at the shard's end the last delivered position is
written as SHARD_END even if it was stored before).

    last      the checkpoint in the row as this consumer knows it; it starts at the value read at initialization
    first     the first record that this child was given; None until then
    largest   the last one; it starts at `last`, each delivered batch raises it, the end of the shard to SHARD_END
    end       set when the shard ends: the position that means the same as SHARD_END from then on

A child may name `last`, and whatever lies between `first` and the last record that it was given. The number 0, which
no record has, means `last`: children that count from their own buffer name it when the buffer is empty.

*`Bisecting`* chooses the records to deliver next, until the one that kills its processor is found alone.

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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum, IntEnum
from typing import TypeAlias

from mld.core.positions import SEQUENCE_DIGITS_MAX, SHARD_END, SUB_MAX, Position, is_position_text
from mld.metrics.shard import ShardActivity

PARKED = "Kinesis does not know this shard; nothing is skipped, the log says what may be wrong"
"""What is told as the error of a parked shard."""

ROUNDS_MAX = 64
"""Halving a page of a million user records takes 20 rounds; three times that means that halving does not help."""


class ConsumerState(Enum):
    WAITING_ON_PARENTS = "waiting on parents"
    INITIALIZING = "initializing"
    PROCESSING = "processing"
    SHARD_ENDING = "shard ending"
    BACKING_OFF = "backing off"
    PARKED = "parked"
    SHUTDOWN_REQUESTED = "shutdown requested"
    TRANSFERRING = "transferring"
    LEASE_LOST = "lease lost"
    RELEASING = "releasing"
    FINISHED = "finished"


class ActivityOutcome(Enum):
    """How an activity ended."""

    DONE = "done"
    RETRY = "retry"  # an error of the world; the same activity again after its back-off
    ALREADY_COMPLETE = "already complete"  # the row is at SHARD_END: nothing to read, only to clean up
    SHARD_ENDED = "shard ended"
    END_DOUBTED = "end doubted"  # what was read as the end proves nothing: read it again from the checkpoint
    SHARD_MISSING = "shard missing"
    ROW_ODD = "row odd"  # it cannot be of this shard: nothing is read from there
    ROW_JUDGED = "row judged"  # it is no longer odd, or the shard no longer listed; nothing was read yet
    CHILD_FAILED = "child failed"
    GAVE_UP = "gave up"


class StopReason(IntEnum):
    """Why a consumer must end; the higher rank wins and is never taken back."""

    REQUESTED = 1
    HANDOFF = 2
    LEASE_LOST = 3


_NEXT: dict[tuple[ConsumerState, ActivityOutcome], ConsumerState] = {
    (ConsumerState.WAITING_ON_PARENTS, ActivityOutcome.DONE): ConsumerState.INITIALIZING,
    (ConsumerState.WAITING_ON_PARENTS, ActivityOutcome.RETRY): ConsumerState.WAITING_ON_PARENTS,
    (ConsumerState.WAITING_ON_PARENTS, ActivityOutcome.ROW_ODD): ConsumerState.PARKED,
    (ConsumerState.WAITING_ON_PARENTS, ActivityOutcome.ALREADY_COMPLETE): ConsumerState.FINISHED,
    (ConsumerState.INITIALIZING, ActivityOutcome.DONE): ConsumerState.PROCESSING,
    (ConsumerState.INITIALIZING, ActivityOutcome.RETRY): ConsumerState.INITIALIZING,
    (ConsumerState.INITIALIZING, ActivityOutcome.ALREADY_COMPLETE): ConsumerState.FINISHED,
    (ConsumerState.INITIALIZING, ActivityOutcome.CHILD_FAILED): ConsumerState.BACKING_OFF,
    (ConsumerState.PROCESSING, ActivityOutcome.DONE): ConsumerState.PROCESSING,
    (ConsumerState.PROCESSING, ActivityOutcome.RETRY): ConsumerState.INITIALIZING,
    (ConsumerState.PROCESSING, ActivityOutcome.SHARD_ENDED): ConsumerState.SHARD_ENDING,
    (ConsumerState.PROCESSING, ActivityOutcome.SHARD_MISSING): ConsumerState.PARKED,
    (ConsumerState.PROCESSING, ActivityOutcome.CHILD_FAILED): ConsumerState.BACKING_OFF,
    (ConsumerState.SHARD_ENDING, ActivityOutcome.DONE): ConsumerState.FINISHED,
    (ConsumerState.SHARD_ENDING, ActivityOutcome.RETRY): ConsumerState.SHARD_ENDING,
    (ConsumerState.SHARD_ENDING, ActivityOutcome.END_DOUBTED): ConsumerState.INITIALIZING,
    (ConsumerState.SHARD_ENDING, ActivityOutcome.CHILD_FAILED): ConsumerState.BACKING_OFF,
    (ConsumerState.BACKING_OFF, ActivityOutcome.DONE): ConsumerState.INITIALIZING,
    (ConsumerState.BACKING_OFF, ActivityOutcome.GAVE_UP): ConsumerState.RELEASING,
    (ConsumerState.PARKED, ActivityOutcome.DONE): ConsumerState.PROCESSING,
    (ConsumerState.PARKED, ActivityOutcome.ROW_JUDGED): ConsumerState.WAITING_ON_PARENTS,
    (ConsumerState.PARKED, ActivityOutcome.RETRY): ConsumerState.PARKED,
    (ConsumerState.PARKED, ActivityOutcome.SHARD_ENDED): ConsumerState.SHARD_ENDING,
    (ConsumerState.SHUTDOWN_REQUESTED, ActivityOutcome.DONE): ConsumerState.LEASE_LOST,
    (ConsumerState.SHUTDOWN_REQUESTED, ActivityOutcome.CHILD_FAILED): ConsumerState.LEASE_LOST,
    (ConsumerState.TRANSFERRING, ActivityOutcome.DONE): ConsumerState.LEASE_LOST,
    (ConsumerState.LEASE_LOST, ActivityOutcome.DONE): ConsumerState.FINISHED,
    (ConsumerState.LEASE_LOST, ActivityOutcome.CHILD_FAILED): ConsumerState.FINISHED,
    (ConsumerState.RELEASING, ActivityOutcome.DONE): ConsumerState.FINISHED,
}

_CHILD_RUNS = (
    ConsumerState.INITIALIZING,
    ConsumerState.PROCESSING,
    ConsumerState.SHARD_ENDING,
    ConsumerState.PARKED,
)
_NO_CHILD = (ConsumerState.WAITING_ON_PARENTS, ConsumerState.BACKING_OFF)

# A stop that arrived before or during the activity replaces the outcome's next state. States without an entry go on:
# they already are the way out.
_STOPPED: dict[tuple[ConsumerState, StopReason], ConsumerState] = {
    **{(state, StopReason.REQUESTED): ConsumerState.SHUTDOWN_REQUESTED for state in _CHILD_RUNS},
    **{(state, StopReason.HANDOFF): ConsumerState.SHUTDOWN_REQUESTED for state in _CHILD_RUNS},
    **{(state, StopReason.LEASE_LOST): ConsumerState.LEASE_LOST for state in _CHILD_RUNS},
    **{(state, StopReason.REQUESTED): ConsumerState.RELEASING for state in _NO_CHILD},
    **{(state, StopReason.HANDOFF): ConsumerState.TRANSFERRING for state in _NO_CHILD},
    **{(state, StopReason.LEASE_LOST): ConsumerState.FINISHED for state in _NO_CHILD},
    (ConsumerState.SHUTDOWN_REQUESTED, StopReason.HANDOFF): ConsumerState.TRANSFERRING,
    # A requested shutdown is always followed by leaseLost; the lease is released only if it is still ours.
    (ConsumerState.LEASE_LOST, StopReason.REQUESTED): ConsumerState.RELEASING,
    (ConsumerState.LEASE_LOST, StopReason.HANDOFF): ConsumerState.RELEASING,
    (ConsumerState.RELEASING, StopReason.LEASE_LOST): ConsumerState.FINISHED,
}

# Reaching the end is final: a stop that arrives together with it changes nothing.
_FINAL = frozenset(
    {(ConsumerState.SHARD_ENDING, ActivityOutcome.DONE), (ConsumerState.RELEASING, ActivityOutcome.DONE)}
)


def next_state(state: ConsumerState, outcome: ActivityOutcome, stop: StopReason | None) -> ConsumerState:
    """Return the state after `state`'s activity ended with `outcome` while `stop` was (or was not) set.

    Raises KeyError for a pair that cannot happen: that is a bug, not an event.
    """
    following = _NEXT[state, outcome]
    if stop is None or (state, outcome) in _FINAL or outcome is ActivityOutcome.ALREADY_COMPLETE:
        return following
    return _STOPPED.get((state, stop), following)


ACTIVITIES: Mapping[ConsumerState, ShardActivity] = {
    ConsumerState.PARKED: ShardActivity.PARKED,
    ConsumerState.SHARD_ENDING: ShardActivity.ENDING,
    ConsumerState.BACKING_OFF: ShardActivity.FAILING,
}
ENDINGS = frozenset({ConsumerState.SHARD_ENDING, ConsumerState.SHUTDOWN_REQUESTED})


@dataclass(frozen=True, slots=True)
class Write:
    """Store this position, then tell the range with `written`."""

    position: Position


@dataclass(frozen=True, slots=True)
class NoWrite:
    """The position is stored already: success without a write."""


@dataclass(frozen=True, slots=True)
class Illegal:
    """The processor asked for something out of range or senseless."""

    reason: str


Resolution: TypeAlias = Write | NoWrite | Illegal


@dataclass(frozen=True, slots=True)
class CheckpointRange:
    """The state of one consumer; every change returns a new value."""

    last: Position
    largest: Position
    first: Position | None = None
    end_sequence: Position | None = None

    @classmethod
    def starting_at(cls, checkpoint: Position) -> CheckpointRange:
        """Return the range of a consumer that has just read `checkpoint` from the row."""
        return cls(last=checkpoint, largest=checkpoint)

    @property
    def is_complete(self) -> bool:
        """Whether SHARD_END has been stored."""
        return self.last.is_shard_end

    def deliver(self, first: Position, largest: Position) -> CheckpointRange:
        """Note that a batch from `first` to `largest` goes to the processor. Never narrows the range."""
        assert self.end_sequence is None, "nothing is delivered after the end of the shard"
        return replace(self, first=min(self.first or first, first), largest=max(self.largest, largest))

    def at_shard_end(self) -> CheckpointRange:
        """Note that the processor is told that the shard has ended. Harmless if repeated."""
        if self.end_sequence is not None:
            return self
        return replace(self, end_sequence=self.largest, largest=SHARD_END)

    def resolve(self, sequence: str | None, sub: int | None) -> Resolution:
        """Return what a checkpoint request means. No sequence: everything delivered so far; no sub number: 0."""
        if sequence is None:
            return self._store(self.largest)
        sub = 0 if sub is None else sub
        if not 0 <= sub <= SUB_MAX:
            return Illegal(f"sub-sequence number is not between 0 and {SUB_MAX}")
        if not is_position_text(sequence):
            return Illegal(f"not a sequence number: {sequence[:SEQUENCE_DIGITS_MAX]!r}")
        position = _as_stored(sequence, sub)
        if position.number == 0:
            position = self.last
        if position != self.last and not self._was_given(position):
            given = "no record" if self.first is None else f"{self.first} to {self.end_sequence or self.largest}"
            return Illegal(f"{position} is neither {self.last} (checkpointed) nor within what was delivered ({given})")
        return self._store(position)

    def written(self, position: Position) -> CheckpointRange:
        """Note that `position` is in the row now."""
        return replace(self, last=position)

    def _was_given(self, position: Position) -> bool:
        if position.is_sentinel:
            return position == self.largest
        end = self.end_sequence or self.largest
        return self.first is not None and max(self.last, self.first) <= position <= end

    def _store(self, position: Position) -> Resolution:
        if position == self.end_sequence:
            position = SHARD_END
        return NoWrite() if position == self.last else Write(position)


def _as_stored(sequence: str, sub: int) -> Position:
    """Return the position as a row has it: a number without leading zeros, a sentinel without a sub number.

    Java tests for SHARD_END by equality, sub number included.
    """
    if not sequence.isdigit():
        return Position(sequence)
    return Position(sequence.lstrip("0") or "0", sub)


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
