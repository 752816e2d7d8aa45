"""One record processor as the consumer sees it: perform an action, answer its checkpoints, end it.

Joins the sans-I/O `protocol.conversation` with a `host.Child`. Rules: protocol spec, 5, 6, 11. The action's line is
written while answers are read, so that a child that prints before it reads cannot block us. Every way in which a child
can go wrong ends in `ProcessorError`, whose text names what happened and what to look at.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable

from mld.consumer.host import Child
from protocol.codec import encode
from protocol.conversation import (
    ActionDone,
    CheckpointAsked,
    Conversation,
    Dialect,
    Noise,
    ProcessorError,
    StaleAnswer,
)
from protocol.messages import (
    Action,
    CheckpointErrorName,
    CheckpointReply,
    Initialize,
    LeaseLost,
    ShardEnded,
    ShutdownRequested,
)

log = logging.getLogger(__name__)

NOISE_LOG_CHARS_MAX = 500  # of an unexpected line on stdout; the rest says nothing more

# Answers a checkpoint request (sequence number, sub-sequence number); None means success.
CheckpointHandler = Callable[[str | None, int | None], Awaitable[CheckpointErrorName | None]]


async def refuse_checkpoint(sequence: str | None, sub: int | None) -> CheckpointErrorName:
    """The handler for phases without a checkpointer: initialize and leaseLost."""
    return CheckpointErrorName.INVALID_STATE


class Processor:
    """A started child. Actions are performed one at a time; `reply_timeout_s` bounds each wait for a message."""

    def __init__(self, child: Child, shard_id: str, dialect: Dialect, reply_timeout_s: float | None) -> None:
        self._child = child
        self._shard_id = shard_id
        self._dialect = dialect
        self._conversation = Conversation(dialect)
        self._reply_timeout_s = reply_timeout_s
        self.initialized = False

    @property
    def description(self) -> str:
        return self._child.description

    async def initialize(self, message: Initialize) -> None:
        await self._perform(Action.INITIALIZE, [encode(message, self._dialect)], refuse_checkpoint)
        self.initialized = True

    async def process_records(self, line: Iterable[bytes], on_checkpoint: CheckpointHandler) -> None:
        await self._perform(Action.PROCESS_RECORDS, line, on_checkpoint)

    async def shutdown_requested(self, on_checkpoint: CheckpointHandler) -> None:
        await self._perform(
            Action.SHUTDOWN_REQUESTED, [encode(ShutdownRequested(), self._dialect)], on_checkpoint
        )

    async def shard_ended(self, on_checkpoint: CheckpointHandler) -> None:
        await self._perform(Action.SHARD_ENDED, [encode(ShardEnded(), self._dialect)], on_checkpoint)

    async def lease_lost(self) -> None:
        await self._perform(Action.LEASE_LOST, [encode(LeaseLost(), self._dialect)], refuse_checkpoint)

    async def end(self) -> str:
        return await self._child.end()

    async def kill(self) -> str:
        return await self._child.kill()

    async def _perform(self, action: Action, line: Iterable[bytes], on_checkpoint: CheckpointHandler) -> None:
        for unread in self._child.take_unread():
            self._note(self._conversation.receive_line(unread))
        self._conversation.begin(action)
        writing = asyncio.ensure_future(self._child.write(line))
        try:
            await self._answer(action, on_checkpoint, writing)
            await self._written(writing, action)
        finally:
            await _settle(writing)

    async def _answer(self, action: Action, on_checkpoint: CheckpointHandler, writing: asyncio.Future[None]) -> None:
        while True:
            event = await self._next_event(action)
            if isinstance(event, ActionDone):
                return
            error = await on_checkpoint(event.sequence_number, event.sub_sequence_number)
            if error is not None:
                log.warning(
                    "checkpoint refused",
                    extra={"action": "checkpoint_refused", "shard": self._shard_id, "error": error.value},
                )
            await self._written(writing, action)
            reply = self._conversation.reply(
                CheckpointReply(event.sequence_number, event.sub_sequence_number, error.value if error else None)
            )
            try:
                await self._child.write([reply])
            except (BrokenPipeError, ConnectionError) as failure:
                raise ProcessorError(f"the child closed its stdin before the reply to its checkpoint: {failure}") from None

    async def _next_event(self, action: Action) -> ActionDone | CheckpointAsked:
        """The next message that means something. Each valid message restarts the clock; noise does not."""
        try:
            async with asyncio.timeout(self._reply_timeout_s):
                while True:
                    line = await self._child.read_line()
                    if line is None:
                        self._conversation.eof()
                        raise AssertionError("a conversation that awaits an answer must not end quietly")
                    event = self._conversation.receive_line(line)
                    if isinstance(event, ActionDone | CheckpointAsked):
                        return event
                    self._note(event)
        except TimeoutError:
            raise ProcessorError(
                f"no answer to {action.value} within {self._reply_timeout_s} s (key timeoutInSeconds)"
            ) from None

    async def _written(self, writing: asyncio.Future[None], action: Action) -> None:
        try:
            async with asyncio.timeout(self._reply_timeout_s):
                await asyncio.shield(writing)
        except (BrokenPipeError, ConnectionError):
            raise ProcessorError(f"the child closed its stdin before it had read {action.value}") from None
        except TimeoutError:
            raise ProcessorError(
                f"the child did not read {action.value} within {self._reply_timeout_s} s (key timeoutInSeconds)"
            ) from None

    def _note(self, event: object) -> None:
        match event:
            case StaleAnswer():
                log.warning(
                    "stale answer discarded: %s",
                    event.reason[:NOISE_LOG_CHARS_MAX],
                    extra={"action": "child_stale_answer", "shard": self._shard_id},
                )
            case Noise() if event.reason:
                log.info(
                    "unexpected line on stdout: %s",
                    event.reason[:NOISE_LOG_CHARS_MAX],
                    extra={"action": "child_stdout", "shard": self._shard_id},
                )


async def _settle(writing: asyncio.Future[None]) -> None:
    """Leave no write behind: cancel it if it still runs, and look at its error so that nobody reports it as lost."""
    writing.cancel()
    await asyncio.wait([writing])
    if not writing.cancelled():
        writing.exception()
