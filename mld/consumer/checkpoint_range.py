"""What a child may checkpoint. Pure: every change of `CheckpointRange` returns a new value.

Rules: protocol#checkpoint-range and protocol#checkpoint-at-shard-end (at the shard's end the last delivered position is
written as SHARD_END even if it was stored before).

    last      the checkpoint in the row as this consumer knows it; it starts at the value read at initialization
    largest   the highest position a checkpoint may name; it starts at `last`, each delivered batch raises it
    end       set when the shard ends: the position that means the same as SHARD_END from then on
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeAlias

from mld.core.positions import SEQUENCE_DIGITS_MAX, SHARD_END, SUB_MAX, Position, is_position_text


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
    end_sequence: Position | None = None

    @classmethod
    def starting_at(cls, checkpoint: Position) -> CheckpointRange:
        """Return the range of a consumer that has just read `checkpoint` from the row."""
        return cls(last=checkpoint, largest=checkpoint)

    @property
    def is_complete(self) -> bool:
        """Whether SHARD_END has been stored."""
        return self.last.is_shard_end

    def deliver(self, largest: Position) -> CheckpointRange:
        """Note that a batch up to `largest` goes to the processor. Never lowers the bound."""
        assert self.end_sequence is None, "nothing is delivered after the end of the shard"
        return replace(self, largest=max(self.largest, largest))

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
        position = Position(sequence, sub)
        if not self.last <= position <= self.largest:
            return Illegal(f"{position} is not between {self.last} (checkpointed) and {self.largest} (delivered)")
        return self._store(position)

    def written(self, position: Position) -> CheckpointRange:
        """Note that `position` is in the row now."""
        return replace(self, last=position)

    def _store(self, position: Position) -> Resolution:
        if position == self.end_sequence:
            position = SHARD_END
        elif position.is_sentinel and position.sub:
            position = Position(position.sequence)  # Java tests for SHARD_END by equality, sub number included
        return NoWrite() if position == self.last else Write(position)
