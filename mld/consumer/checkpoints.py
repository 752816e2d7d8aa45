"""`ShardCheckpoints`: checks each checkpoint that a child asks for against `CheckpointRange`, and stores it.

Rules: protocol#checkpoint-errors. A failed write is answered by one of the error names of the protocol.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from mld.consumer.checkpoint_range import CheckpointRange, Illegal, Write
from mld.consumer.consumer_parts import ConsumerParts
from mld.core.errors import LeaseLostError, TableError, TableMissingError, TableThrottledError
from mld.core.log_fields import about
from mld.core.positions import Position
from mld.leases.validity import HeldLease
from mld.metrics.shard import ShardMetrics
from mld.protocol.messages import CheckpointErrorName, CheckpointRequest

log = logging.getLogger(__name__)


class ShardCheckpoints:
    """The checkpoints of one consumer. `on_moved` is called after each stored checkpoint of the child, `on_lost` when
    the lease is lost.
    """

    def __init__(
        self,
        held: HeldLease,
        parts: ConsumerParts,
        metrics: ShardMetrics,
        on_moved: Callable[[Position], None],
        on_lost: Callable[[], None],
    ) -> None:
        self.range = CheckpointRange.starting_at(held.lease.checkpoint)
        self.refused = False
        """Whether a checkpoint was refused since the last answered batch. A child that then dies may have died of that,
        and not of a record."""
        self._key = held.lease.key
        self._token = held.token
        self._parts = parts
        self._metrics = metrics
        self._on_moved = on_moved
        self._on_lost = on_lost

    def begin(self, checkpoint: Position) -> None:
        """Note that a new child begins after `checkpoint`."""
        self.range = CheckpointRange.starting_at(checkpoint)
        self.refused = False

    def deliver(self, first: str | None, largest: Position | None) -> None:
        """Note that the child has got a batch, from sequence number `first` to position `largest`; both are None if the
        batch is empty.
        """
        if first is not None and largest is not None:
            self.range = self.range.deliver(Position(first), largest)

    def deliver_end(self) -> None:
        """Note that the child has got `shardEnded`."""
        self.range = self.range.at_shard_end()

    async def answer(self, request: CheckpointRequest) -> CheckpointErrorName | None:
        """Check a child's checkpoint against the records that it has got, and store it. Return None on success, else
        the error to send to the child.
        """
        error = None
        match self.range.resolve(request.sequence_number, request.sub_sequence_number):
            case Illegal(reason):
                error = self.refuse(reason)
            case Write(position):
                error = await self.advance(position)
        self.refused = self.refused or error is not None
        return error

    def refuse(self, reason: str) -> CheckpointErrorName:
        """Log why a child may not checkpoint this position; return the error name for the child."""
        log.warning("checkpoint out of range: %s", reason, extra=about("checkpoint_illegal", self._key))
        return CheckpointErrorName.ILLEGAL_ARGUMENT

    async def advance(self, position: Position) -> CheckpointErrorName | None:
        """Store a checkpoint of the child, and report the progress. With several children, the position is the one up
        to which all records are checkpointed (`SafePrefix`). Return None if the row has it, else the error name for the
        child.
        """
        error = await self.store(position)
        if error is None:
            self._on_moved(self.range.last)
        return error

    async def store(self, position: Position) -> CheckpointErrorName | None:
        """Write the position to the row, on condition that we hold the lease. Return None if the row has it, else the
        error name for the child.
        """
        since = self._parts.clock.monotonic()
        try:  # the keeper returns SHARD_END instead of `position` if the row has that already
            position = await self._parts.keeper.checkpoint(self._key, self._token, position)
        except LeaseLostError as error:
            self._count("refused", since)
            log.warning("%s", error, extra=about("checkpoint_lease_lost", self._key))
            self._on_lost()
            return CheckpointErrorName.SHUTDOWN
        except TableError as error:
            self._count("error", since)
            match error:
                case TableThrottledError():
                    return CheckpointErrorName.THROTTLING
                case TableMissingError():
                    return CheckpointErrorName.INVALID_STATE
            log.warning("checkpoint failed: %s", error, extra=about("checkpoint_failed", self._key))
            return CheckpointErrorName.DEPENDENCY
        self._count("stored", since)
        self.range = self.range.written(position)
        log.debug("checkpoint", extra=about("checkpoint", self._key, position=str(position)))
        return None

    def _count(self, result: str, since: float) -> None:
        """Count a write of a checkpoint that was sent at `since` (monotonic) and has ended now; `result` is stored,
        refused or error.
        """
        clock = self._parts.clock
        self._metrics.stored(result, since, clock.monotonic(), clock.wall())
