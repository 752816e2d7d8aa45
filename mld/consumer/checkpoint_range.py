"""`CheckpointRange`: the positions that a child may checkpoint. Pure: every change returns a new value.

Rules: protocol#checkpoint-range and protocol#checkpoint-at-shard-end (at the shard's end the last delivered position is
written as SHARD_END even if it was stored before).

    last           the checkpoint in the row as this consumer knows it; at first the value read at initialization
    first          the first record that this child was given; None until then
    largest        the last record; at first `last`, raised by each batch, and to SHARD_END by the end of the shard
    end_sequence   set when the shard ends: the position that means the same as SHARD_END from then on

A child may checkpoint `last`, and any later position from `first` to the last record that it was given. No record has
the sequence number 0. It means `last`, because children that take the position from their own buffer send 0 when the
buffer is empty.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeAlias

from mld.core.positions import SEQUENCE_DIGITS_MAX, SHARD_END, SUB_MAX, Position, is_position_text


@dataclass(frozen=True, slots=True)
class Write:
    """Store this position, and then call `CheckpointRange.written`."""

    position: Position


@dataclass(frozen=True, slots=True)
class NoWrite:
    """The row already has this position: the checkpoint succeeds without a write."""


@dataclass(frozen=True, slots=True)
class Illegal:
    """The position is out of range, or is no position at all."""

    reason: str


Resolution: TypeAlias = Write | NoWrite | Illegal


@dataclass(frozen=True, slots=True)
class CheckpointRange:
    """The state of one consumer; every change returns a new value. The module's header describes the fields."""

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
        """Return the range after a batch from `first` to `largest` was given to the processor. The range never becomes
        narrower.
        """
        assert self.end_sequence is None, "nothing is delivered after the end of the shard"
        first = first if self.first is None else min(self.first, first)
        return CheckpointRange(self.last, max(self.largest, largest), first)

    def at_shard_end(self) -> CheckpointRange:
        """Return the range after `shardEnded` was given to the processor: a checkpoint of everything delivered now
        stores SHARD_END. May be repeated.
        """
        if self.end_sequence is not None:
            return self
        return replace(self, end_sequence=self.largest, largest=SHARD_END)

    def resolve(self, sequence: str | None, sub: int | None) -> Resolution:
        """Decide what to do about a child's checkpoint request. If `sequence` is None, the request is for everything
        delivered so far; `sub` None means 0.
        """
        if sequence is None:
            return self._store(self.largest)
        sub = 0 if sub is None else sub
        if not 0 <= sub <= SUB_MAX:
            return Illegal(f"sub-sequence number is not between 0 and {SUB_MAX}")
        if not is_position_text(sequence):
            return Illegal(f"not a sequence number: {sequence[:SEQUENCE_DIGITS_MAX]!r}")
        position = _as_stored(sequence, sub)
        if position.number == 0:  # no record has this number: the child means `last`
            position = self.last
        if position != self.last and not self._was_given(position):
            given = "no record" if self.first is None else f"{self.first} to {self.end_sequence or self.largest}"
            return Illegal(f"{position} is neither {self.last} (checkpointed) nor within what was delivered ({given})")
        return self._store(position)

    def written(self, position: Position) -> CheckpointRange:
        """Return the range after `position` was written to the row."""
        return replace(self, last=position)

    def _was_given(self, position: Position) -> bool:
        """Return whether a position is within the records that the child was given and has not checkpointed yet."""
        if position.is_sentinel:  # only SHARD_END, after the end of the shard
            return position == self.largest
        end = self.end_sequence or self.largest
        return self.first is not None and max(self.last, self.first) <= position <= end

    def _store(self, position: Position) -> Resolution:
        """Return how to store a legal position: the last position of an ended shard as SHARD_END; no write if the row
        has the position already.
        """
        if position == self.end_sequence:
            position = SHARD_END
        return NoWrite() if position == self.last else Write(position)


def _as_stored(sequence: str, sub: int) -> Position:
    """Return the position in the form that a row has: a number without leading zeros, a sentinel with the
    sub-sequence number 0. Java does not recognize SHARD_END with any other sub-sequence number.
    """
    if not sequence.isdigit():
        return Position(sequence)
    return Position(sequence.lstrip("0") or "0", sub)
