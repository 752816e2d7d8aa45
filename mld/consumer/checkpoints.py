"""The checkpoints of one shard's child: what it may checkpoint, and what is stored of it.

Rules: protocol#checkpoint-range, protocol#checkpoint-errors and protocol#checkpoint-at-shard-end (at the shard's end
the last delivered position is written as SHARD_END even if it was stored before). `CheckpointRange` is a pure state
machine:

    last      the checkpoint in the row as this consumer knows it; it starts at the value read at initialization
    largest   the highest position a checkpoint may name; it starts at `last`, each delivered batch raises it
    end       set when the shard ends: the position that means the same as SHARD_END from then on
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

from mld.core.clock import Clock
from mld.core.errors import LeaseLostError, TableError, TableMissingError, TableThrottledError
from mld.core.positions import SEQUENCE_DIGITS_MAX, SHARD_END, SUB_MAX, Position, is_position_text
from mld.leases.keeper import LeaseKeeper
from mld.leases.validity import HeldLease
from mld.metrics.shard import ShardMetrics
from mld.protocol.messages import CheckpointErrorName, CheckpointRequest

log = logging.getLogger(__name__)


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


class ShardCheckpoints:
    """One for each consumer. `on_moved` hears of the child's checkpoints, `on_lost` that the lease is gone."""

    def __init__(
        self,
        held: HeldLease,
        keeper: LeaseKeeper,
        clock: Clock,
        part: ShardMetrics,
        *,
        on_moved: Callable[[Position], None],
        on_lost: Callable[[], None],
    ) -> None:
        self.range = CheckpointRange.starting_at(held.lease.checkpoint)
        self.refused = False
        """A request since the last batch that was answered: the child may die of that, not of a record."""
        self._key = held.lease.key
        self._token = held.token
        self._keeper = keeper
        self._clock = clock
        self._part = part
        self._on_moved = on_moved
        self._on_lost = on_lost

    def begin(self, checkpoint: Position) -> None:
        """Note that another child begins, after this checkpoint."""
        self.range = CheckpointRange.starting_at(checkpoint)
        self.refused = False

    def deliver(self, largest: Position | None) -> None:
        """Note that the child has a whole batch up to `largest`."""
        if largest is not None:
            self.range = self.range.deliver(largest)

    def deliver_end(self) -> None:
        """Note that the child has `shardEnded`."""
        self.range = self.range.at_shard_end()

    async def answer(self, request: CheckpointRequest) -> CheckpointErrorName | None:
        """Judge a request of the child by what it has now, and store it; None if that is in the row."""
        error = None
        match self.range.resolve(request.sequence_number, request.sub_sequence_number):
            case Illegal(reason):
                log.warning("checkpoint out of range: %s", reason, extra=self._about("checkpoint_illegal"))
                error = CheckpointErrorName.ILLEGAL_ARGUMENT
            case Write(position):
                error = await self.store(position)
                if error is None:
                    self._on_moved(self.range.last)
        self.refused = self.refused or error is not None
        return error

    async def store(self, position: Position) -> CheckpointErrorName | None:
        """Write the position to the row, fenced; None means that it is there."""
        since = self._clock.monotonic()
        try:
            position = await self._keeper.checkpoint(self._key, self._token, position)
        except LeaseLostError as error:
            self._count("refused", since)
            log.warning("%s", error, extra=self._about("checkpoint_lease_lost"))
            self._on_lost()
            return CheckpointErrorName.SHUTDOWN
        except TableError as error:
            self._count("error", since)
            match error:
                case TableThrottledError():
                    return CheckpointErrorName.THROTTLING
                case TableMissingError():
                    return CheckpointErrorName.INVALID_STATE
            log.warning("checkpoint failed: %s", error, extra=self._about("checkpoint_failed"))
            return CheckpointErrorName.DEPENDENCY
        self._count("stored", since)
        self.range = self.range.written(position)
        log.debug("checkpoint", extra=self._about("checkpoint", position=str(position)))
        return None

    def _count(self, result: str, since: float) -> None:
        self._part.stored(result, since, self._clock.monotonic(), self._clock.wall())

    def _about(self, action: str, **fields: object) -> dict[str, object]:
        return {"action": action, "shard": self._key, **fields}
