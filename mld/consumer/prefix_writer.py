"""`PrefixWriter`: stores the checkpoint of a shard that several children share, while the children continue.

It stores the *safe prefix*: the position up to which all records are checkpointed, whichever child had them. Rule:
parallel#safe-prefix. A child's checkpoint is answered as soon as it is noted in memory; the row is written within
`STORE_INTERVAL_S`. One write covers all checkpoints that were noted since the last write, so that eight children cost
no more writes than one child. A failed write is retried as long as the lease is held, because nothing else would retry
it.
"""

from __future__ import annotations

import asyncio

from mld.consumer.checkpoints import ShardCheckpoints
from mld.consumer.safe_prefix import SafePrefix
from mld.core.clock import Clock
from mld.core.positions import Position
from mld.core.turns import in_turns
from mld.core.waits import wait_for_event
from mld.protocol.messages import CheckpointErrorName

STORE_INTERVAL_S = 1.0  # pause between two writes of a row; a crash loses only the checkpoints of this time
RETRY_MAX_S = 20.0  # the pause after a failed write doubles up to this


class PrefixWriter:
    """Serves a shard's children from their start to their end. Only the writer may advance and store `prefix`."""

    def __init__(self, prefix: SafePrefix, checkpoints: ShardCheckpoints, clock: Clock) -> None:
        self.is_closed = False
        """Whether writing has ended, because the lease is lost or the children have ended."""
        self._prefix = prefix
        self._checkpoints = checkpoints
        self._clock = clock
        self._writing: asyncio.Task[None] | None = None  # stores the prefix; the last one may be done
        self._hurried = asyncio.Event()  # set while `flush` waits

    def confirmed(self, child: int, position: Position) -> None:
        """Note a child's checkpoint, and start a write of the row if none is under way."""
        self._prefix.confirmed(child, position)
        self._ensure_writing()

    async def flush(self) -> None:
        """Wait until the row has the prefix, or until the lease is lost. Meanwhile, a failed write is retried after
        `STORE_INTERVAL_S`, without longer pauses.
        """
        self._hurried.set()
        try:
            if (writing := self._ensure_writing()) is not None:
                await asyncio.wait({writing})
                self._raise_bug()
        finally:
            self._hurried.clear()

    async def close(self) -> None:
        """Store the prefix a last time; later checkpoints are not stored."""
        await self.flush()
        await self.cancel()

    async def cancel(self) -> None:
        """Stop at once, without storing the prefix."""
        self.is_closed = True
        if self._writing is not None:
            self._writing.cancel()
            await asyncio.wait({self._writing})

    def _ensure_writing(self) -> asyncio.Task[None] | None:
        """Return the task that stores all checkpoints noted until now; start it if none runs. Return None if nothing is
        stored any more.
        """
        self._raise_bug()
        if (self._writing is None or self._writing.done()) and not self.is_closed:
            self._writing = asyncio.create_task(self._write())
        return self._writing

    def _raise_bug(self) -> None:
        """Raise the error that has ended the writing task, so that the consumer sees it. Only a bug can cause one."""
        if self._writing is not None and self._writing.done() and not self._writing.cancelled():
            self._writing.result()

    async def _write(self) -> None:
        """Write the prefix to the row, again and again, until the row has all noted checkpoints or the lease is lost.
        The pause after a write is STORE_INTERVAL_S; after failures it becomes longer. `flush` ends a pause after a
        success at once (`_hurried`), and keeps those after failures short.
        """
        retry_s = STORE_INTERVAL_S
        while await self._is_owed():
            match await self._checkpoints.advance(self._prefix.position):
                case None:
                    retry_s = STORE_INTERVAL_S
                    await wait_for_event(self._hurried, STORE_INTERVAL_S)
                case CheckpointErrorName.SHUTDOWN:  # the lease is lost
                    self.is_closed = True
                case _ if self._hurried.is_set():
                    await self._clock.sleep(STORE_INTERVAL_S)
                case _:
                    await wait_for_event(self._hurried, retry_s)
                    retry_s = min(2 * retry_s, RETRY_MAX_S)

    async def _is_owed(self) -> bool:
        """Advance the prefix by the children's checkpoints; return whether it is ahead of the row."""
        position = await in_turns(self._prefix.advance(), self._clock)
        return not self.is_closed and position > self._checkpoints.range.last
