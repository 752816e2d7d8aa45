"""`ShardProcessor`: the record processor of a shard as its consumer sees it, whether it is one child or several."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NoReturn, Protocol

from mld.consumer.ports import Holds, Wanted, Written
from mld.core.positions import Position
from mld.core.streams import ChildBatch
from mld.properties.settings import ChildSettings
from mld.protocol.messages import Initialize


class ShardProcessor(Protocol):
    """The record processor of a shard as the consumer sees it: one child, or several that share the shard's records.

    Any misbehaviour of a child is raised as a `ProcessorError`.
    """

    initialized: bool

    @property
    def gone(self) -> asyncio.Future[NoReturn]:
        """Done once a child can no longer answer; its exception says why."""
        ...

    @property
    def description(self) -> str: ...

    @property
    def last_words(self) -> Sequence[str]:
        """The last lines on stderr of the child that failed, or of the only child."""
        ...

    @property
    def has_room(self) -> bool:
        """Whether another batch can be given at once."""
        ...

    async def until_room(self) -> None:
        """Wait until another batch can be given."""
        ...

    async def until_answered(self) -> None:
        """Wait until the children have answered all records that they were given."""
        ...

    @property
    def unanswered(self) -> tuple[ChildBatch, Position] | None:
        """The records that were unanswered when a child failed, and the position before them: everything up to it was
        answered. None if the records are not to blame.
        """
        ...

    def adjust(self, settings: ChildSettings) -> None:
        """Use the time limits of `settings`: the reply timeout from the next wait on, the time before a warning also
        for the action under way.
        """
        ...

    async def initialize(self, message: Initialize) -> None:
        """Send `initialize` to the children, and wait until all have answered."""
        ...

    async def process_records(
        self, batch: ChildBatch, wanted: Wanted, written: Written, holds: Holds, *, alone: bool
    ) -> bool:
        """Give a batch to the processor; `holds` describes the batch for a warning.

        Return True if the answer has come, and the caller has to count it. Return False if `on_answered` of
        `ParallelProcessor` counts it, now or later. If the batch was not wanted (`wanted` returned False), the result
        means nothing. With `alone` the batch is sent when all earlier batches are answered, and the call returns when
        this batch is answered, too.
        """
        ...

    async def shutdown_requested(self, checkpoint: str) -> None:
        """Announce the shutdown to the children, so that they may checkpoint, and wait until all have answered."""
        ...

    async def shard_ended(self, written: Written) -> None:
        """Send `shardEnded` to the children, and wait until all have answered.

        `written` is called each time before a child can answer. From then on its checkpoint at the end is legal.
        """
        ...

    async def lease_lost(self) -> None:
        """Send `leaseLost` to the children, and wait until all have answered."""
        ...

    async def end(self) -> str:
        """End the children as `ChildProcess.end`; return how they ended. Checkpoints under way are stored first."""
        ...

    def kill_soon(self) -> None:
        """Kill the children, even during an action, which then fails. Call `end` afterwards."""
        ...

    async def kill(self) -> str:
        """Kill the children now, without storing checkpoints any more; return how they ended."""
        ...
