"""One record processor as the consumer sees it: perform an action, answer its checkpoints, end it.

Joins the sans-I/O `protocol.conversation` with a `ports.ChildProcess`. Rules: protocol#half-duplex-turns,
protocol#reply-timeout. The action's line is written while answers are read, so that a child that prints before it reads
cannot block us. Every way in which a child can go wrong ends in `ProcessorError`, whose text names what happened and
what to look at.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence

from mld.clock import Clock
from mld.consumer.child_logger import ChildLogger
from mld.consumer.overdue import Holds, Overdue
from mld.consumer.ports import ChildProcess, ConsumerSettings
from mld.consumer.taps import ShardTap
from mld.metrics.registry import ShardMetrics
from protocol.conversation import (
    ActionDone,
    CheckpointAsked,
    Conversation,
    Event,
    Noise,
    ProcessorGoneError,
    ProcessorSilentError,
    StaleAnswer,
)
from protocol.messages import (
    ActionName,
    CheckpointErrorName,
    CheckpointRequest,
    Dialect,
    Initialize,
    LeaseLost,
    ShardEnded,
    ShutdownRequested,
)

log = logging.getLogger(__name__)

NOTED_PER_STEP = 50
"""Lines that are no answer, handled between two turns of the loop; each takes some 20 us with its log line."""

NOTED_CHARACTERS_PER_STEP = 16 * 1024  # a long line takes 2 ms to look through for secrets

# Carries out a checkpoint request; None means success.
CheckpointHandler = Callable[[CheckpointRequest], Awaitable[CheckpointErrorName | None]]


class Processor:
    """A started child. Actions are performed one at a time.

    `reply_timeout_s` bounds each wait for a message; an action that takes longer than `warn_after_s` gets a warning.
    `shard_id` and `stream` are how the log names it.
    """

    def __init__(
        self,
        child: ChildProcess,
        shard_id: str,
        dialect: Dialect,
        clock: Clock,
        *,
        reply_timeout_s: float | None,
        warn_after_s: float,
        metrics: ShardMetrics | None = None,
        tap: ShardTap | None = None,
        logs_fields: bool = True,
        stream: str | None = None,
    ) -> None:
        self._metrics = ShardMetrics(shard_id, 0.0) if metrics is None else metrics
        self._clock = clock
        self._log = ChildLogger(log, "child_stdout", shard_id, as_fields=logs_fields, stream=stream)
        self._child = child
        self._tap = ShardTap(shard_id, clock) if tap is None else tap
        self._tap.started(child.description)
        is_bounded = reply_timeout_s is not None
        self._overdue = Overdue(clock, shard_id, child.description, warn_after_s, is_bounded=is_bounded)
        self._shard_id = shard_id
        self._conversation = Conversation(dialect)
        self._reply_timeout_s = reply_timeout_s
        self.initialized = False
        self._killing: asyncio.Future[str] | None = None
        self._noted = 0
        self._noted_characters = 0

    def adjust(self, reply_timeout_s: float | None, warn_after_s: float) -> None:
        """Wait so long from the next wait on, and warn of the action under way by the new bound."""
        self._reply_timeout_s = reply_timeout_s
        self._overdue.adjust(warn_after_s, is_bounded=reply_timeout_s is not None)

    @property
    def description(self) -> str:
        return self._child.description

    @property
    def last_words(self) -> Sequence[str]:
        """The last lines of its stderr; complete once it has ended."""
        return self._child.last_words

    @property
    def gone(self) -> asyncio.Future[None]:
        """Done once the child can no longer answer."""
        return self._child.gone

    async def initialize(self, message: Initialize) -> None:
        since = self._clock.monotonic()
        await self._send(message, None)
        self._metrics.initialize.note(self._clock.monotonic() - since)
        self.initialized = True

    async def process_records(
        self, line: Iterable[bytes], on_checkpoint: CheckpointHandler, holds: Holds = dict
    ) -> None:
        """`holds` describes the line, for a warning."""
        await self._discard_stale()
        self._conversation.begin(ActionName.PROCESS_RECORDS)
        await self._exchange(ActionName.PROCESS_RECORDS, line, on_checkpoint, holds)

    async def shutdown_requested(self, on_checkpoint: CheckpointHandler) -> None:
        await self._send(ShutdownRequested(), on_checkpoint)

    async def shard_ended(self, on_checkpoint: CheckpointHandler) -> None:
        await self._send_last(ShardEnded(), on_checkpoint)

    async def lease_lost(self) -> None:
        await self._send_last(LeaseLost(), None)

    async def _send_last(self, action: LeaseLost | ShardEnded, on_checkpoint: CheckpointHandler | None) -> None:
        since = self._clock.monotonic()
        await self._send(action, on_checkpoint)
        self._metrics.shutdown.note(self._clock.monotonic() - since)

    async def end(self) -> str:
        """End the child: close its stdin, wait, TERM, KILL. Says how it ended."""
        self._overdue.close()
        words = await (self._child.end() if self._killing is None else self._killing)
        self._tap.ended(words)
        return words

    def kill_soon(self) -> None:
        """Kill it while an exchange may be under way, which fails; then `end` says how it ended."""
        self._killing = asyncio.ensure_future(self._child.kill())

    async def kill(self) -> str:
        self._overdue.close()
        words = await self._child.kill()
        self._tap.ended(words)
        return words

    # --- one exchange ------------------------------------------------------------------------------------------------

    async def _send(
        self,
        action: Initialize | LeaseLost | ShardEnded | ShutdownRequested,
        on_checkpoint: CheckpointHandler | None,
    ) -> None:
        await self._discard_stale()
        await self._exchange(action.name, [self._conversation.send(action)], on_checkpoint)

    async def _exchange(
        self, action: ActionName, line: Iterable[bytes], on_checkpoint: CheckpointHandler | None, holds: Holds = dict
    ) -> None:
        self._overdue.begin(action.value, holds)
        writing: asyncio.Future[None] | None = None
        try:
            writing = self._begin_write(line)
            while isinstance(event := await self._next_event(action), CheckpointAsked):
                error = event.refused
                if error is None:
                    assert on_checkpoint is not None, "an action without a handler allows no checkpoint"
                    error = await self._stored(event.request, on_checkpoint)
                if writing is not None:
                    await self._bounded_write(writing, action.value)
                replying = self._begin_write([self._conversation.reply(error)])
                if replying is not None:
                    await self._bounded_write(replying, f"the reply to its checkpoint in {action.value}")
            if writing is not None:
                await self._bounded_write(writing, action.value)
        finally:
            self._overdue.end()
            if writing is not None:
                await _settle(writing)

    def _begin_write(self, line: Iterable[bytes]) -> asyncio.Future[None] | None:
        return self._child.begin_write(self._tap.copied(line) if self._tap.listeners else line)

    async def _stored(self, request: CheckpointRequest, on_checkpoint: CheckpointHandler) -> CheckpointErrorName | None:
        """Carry out the checkpoint; meanwhile the child waits for us."""
        self._overdue.heard()
        self._overdue.is_storing = True
        try:
            return await on_checkpoint(request)
        finally:
            self._overdue.is_storing = False
            self._overdue.heard()

    async def _next_event(self, action: ActionName) -> ActionDone | CheckpointAsked:
        """The next request or status. Each valid message restarts the clock; noise does not."""
        while (held := self._conversation.next_event()) is not None:
            if isinstance(held, ActionDone | CheckpointAsked):
                return held
        try:
            async with asyncio.timeout(self._reply_timeout_s):
                while True:
                    line = await self._child.read_line()
                    if line is None:
                        self._conversation.eof()
                        raise AssertionError("a conversation that awaits an answer cannot end quietly")
                    if self._tap.listeners:
                        self._tap.heard(line)
                    event = self._conversation.receive_line(line)
                    if isinstance(event, ActionDone | CheckpointAsked):
                        return event
                    self._note(event, line)
                    await self._give_way(line)
        except TimeoutError:
            raise ProcessorSilentError(
                f"did not answer {action.value} within {self._reply_timeout_s} s (key timeoutInSeconds)"
            ) from None

    async def _bounded_write(self, writing: asyncio.Future[None], what: str) -> None:
        """Wait until a write is done; the child gets as much time to read as to answer."""
        try:
            async with asyncio.timeout(self._reply_timeout_s):
                await asyncio.shield(writing)
        except (BrokenPipeError, ConnectionError):
            raise ProcessorGoneError(f"closed its stdin before it had read {what}") from None
        except TimeoutError:
            raise ProcessorSilentError(
                f"did not read {what} within {self._reply_timeout_s} s (key timeoutInSeconds)"
            ) from None
        finally:
            await _settle(writing)

    # --- unsolicited lines -------------------------------------------------------------------------------------------

    async def _discard_stale(self) -> None:
        """What the child said since its last answer must not be taken for the answer to the next action."""
        while (held := self._conversation.next_event()) is not None:
            self._note(held)
        for line in self._child.take_unread():
            if self._tap.listeners:
                self._tap.heard(line)
            self._note(self._conversation.receive_line(line), line)
            await self._give_way(line)

    async def _give_way(self, line: str) -> None:
        """A turn of the loop for others, after some lines that were no answer, or a few long ones."""
        self._noted += 1
        self._noted_characters += len(line)
        if self._noted >= NOTED_PER_STEP or self._noted_characters >= NOTED_CHARACTERS_PER_STEP:
            self._noted, self._noted_characters = 0, 0
            await asyncio.sleep(0)

    def _note(self, event: Event, line: str = "") -> None:
        match event:
            case StaleAnswer():
                log.warning(
                    "stale answer discarded: %s",
                    event.reason,
                    extra={"action": "child_stale_answer", "shard": self._shard_id},
                )
            case Noise(is_log=True):
                self._log.log(line)
            case Noise(quiet=False):
                log.info(
                    "unexpected line on stdout: %s",
                    event.reason,
                    extra={"action": "child_stdout", "shard": self._shard_id},
                )


async def _settle(writing: asyncio.Future[None]) -> None:
    """Leave no write behind: cancel it if it still runs, and retrieve its error, so that asyncio does not report it."""
    if not writing.done():
        writing.cancel()
        await asyncio.wait([writing])
    if not writing.cancelled():
        writing.exception()


def processor_of(
    child: ChildProcess,
    shard: str,
    clock: Clock,
    settings: ConsumerSettings,
    metrics: ShardMetrics,
    tap: ShardTap,
    stream: str | None,
) -> Processor:
    """The processor of a consumer with these settings."""
    return Processor(
        child,
        shard,
        settings.dialect,
        clock,
        reply_timeout_s=settings.reply_timeout_s,
        warn_after_s=settings.warn_after_s,
        metrics=metrics,
        tap=tap,
        logs_fields=settings.logs_fields,
        stream=stream,
    )
