"""`Processor`: one child as the consumer sees it. It performs actions, answers checkpoints, and ends the child.

It connects the sans-I/O `mld.protocol.conversation` to a `ports.ChildProcess`. Rules: protocol#half-duplex-turns,
protocol#checkpoints-at-any-time, protocol#reply-timeout.

One task reads the child's output as long as the child lives. The task answers checkpoint requests whenever they come,
and wakes the waiting action when its status comes. An action begins only between two reads, so that lines read earlier
are handled first. The action's line is written while the output is read, so that a child cannot block us by printing
before it reads. Any misbehaviour of a child is raised as a `ProcessorError`, whose text says what happened and where to
look.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import NoReturn

from mld.consumer.child_log import ChildLogger
from mld.consumer.overdue import Overdue
from mld.consumer.ports import ChildProcess, Holds, Wanted, Written
from mld.consumer.protocol_trace import ProtocolTrace
from mld.core.clock import Clock
from mld.core.log_fields import about, of_child
from mld.core.streams import ChildBatch
from mld.metrics.shard import ShardMetrics
from mld.properties.settings import ChildSettings
from mld.protocol import child_lines, codec
from mld.protocol.conversation import (
    ActionDone,
    CheckpointAsked,
    Conversation,
    Event,
    ProcessorGoneError,
    ProcessorSilentError,
    StaleAnswer,
)
from mld.protocol.messages import (
    ActionName,
    CheckpointErrorName,
    CheckpointRequest,
    Dialect,
    Ignored,
    Initialize,
    LeaseLost,
    ShardEnded,
    ShutdownRequested,
)

log = logging.getLogger(__name__)

NOTED_PER_STEP = 50
"""How many lines other than statuses are handled before other tasks run; each takes some 20 us with its log line."""

NOTED_CHARACTERS_PER_STEP = 16 * 1024  # fewer lines if they are long, as searching a long one for secrets takes 2 ms

# Stores a child's checkpoint; returns None on success, else the error to send to the child.
CheckpointHandler = Callable[[CheckpointRequest], Awaitable[CheckpointErrorName | None]]


def _no_matter() -> None:
    """Do nothing."""


def _always() -> bool:
    return True


class Processor:
    """A started child. One action is performed at a time; checkpoints are answered one at a time, at any time after
    `initialize`.

    `shard_id`, `stream` and `number` (if the shard has several children) identify the child in the log.
    """

    has_room = True
    unanswered = None  # the consumer waits for each answer, so it knows the unanswered batch itself

    def __init__(
        self,
        child: ChildProcess,
        shard_id: str,
        clock: Clock,
        settings: ChildSettings,
        on_checkpoint: CheckpointHandler,
        *,
        metrics: ShardMetrics | None = None,
        trace: ProtocolTrace | None = None,
        stream: str | None = None,
        number: int | None = None,
    ) -> None:
        self._metrics = ShardMetrics(shard_id, 0.0) if metrics is None else metrics
        self._clock = clock
        self._log = ChildLogger(
            log, "child_stdout", shard_id, as_fields=settings.logs_fields, stream=stream, number=number
        )
        self.child = child
        self._trace = ProtocolTrace(shard_id, clock) if trace is None else trace
        self._trace.started(child.description)
        self._overdue = Overdue(clock, shard_id, child.description, settings, number)
        self._fields = of_child(number)
        self._shard_id = shard_id
        self._dialect = Dialect(settings.protocol_version)
        self._conversation = Conversation(self._dialect)
        self._on_checkpoint = on_checkpoint
        self._reply_timeout_s = settings.reply_timeout_s
        self.initialized = False
        self._killing: asyncio.Future[str] | None = None
        """The kill that `kill_soon` has begun."""
        self._noted = 0
        """How many lines other than statuses were handled since other tasks last ran."""
        self._noted_characters = 0
        """The characters of these lines."""
        self._turn = asyncio.Lock()  # held while lines are handled, and while an action begins
        self._action: ActionName | None = None
        """The action that waits for its status; None between actions."""
        self._answered: asyncio.Future[Exception | None] | None = None
        """Done when this action has been answered; its result is the error with which the action fails, if any."""
        self._writing: asyncio.Future[None] | None = None  # the write of the action's line
        self._timeout: asyncio.TimerHandle | None = None  # the reply timeout, while it runs
        self._is_ending = False
        """Whether `end` was called; from then on the child's lines are ignored."""
        self.gone = asyncio.ensure_future(self._read())
        """Done once the child can no longer answer; its exception says why."""
        self.gone.add_done_callback(_retrieve)

    def adjust(self, settings: ChildSettings) -> None:
        """Use the time limits of `settings`: the reply timeout from the next wait on, the time before a warning also
        for the action under way.
        """
        self._reply_timeout_s = settings.reply_timeout_s
        self._overdue.adjust(settings)

    async def initialize(self, message: Initialize) -> None:
        """Send `initialize` to the child, and wait for its answer. Also measures how long the child takes."""
        since = self._clock.monotonic()
        await self._send(message)
        self._metrics.initialize.note(self._clock.monotonic() - since)
        self.initialized = True

    @property
    def description(self) -> str:
        return self.child.description

    @property
    def last_words(self) -> Sequence[str]:
        return self.child.last_words

    async def process_records(
        self,
        batch: ChildBatch,
        wanted: Wanted = _always,
        written: Written = _no_matter,
        holds: Holds = dict,
        *,
        alone: bool = True,
    ) -> bool:
        """Have a batch processed. Return True when the child has answered, or at once if the batch is not wanted;
        `holds` describes the batch for a warning. `alone` makes no difference, because one batch is processed at a time
        anyway.
        """
        await self._exchange(ActionName.PROCESS_RECORDS, batch.line(), wanted, written, holds)
        return True

    async def until_room(self) -> None:
        """Return at once: when `process_records` has returned, its batch is answered."""

    async def until_answered(self) -> None:
        """Return at once, for the same reason as `until_room`."""

    async def shutdown_requested(self, checkpoint: str) -> None:
        await self._send(ShutdownRequested(checkpoint))

    async def shard_ended(self, written: Written) -> None:
        await self._send_last(ShardEnded(), written)

    async def lease_lost(self) -> None:
        await self._send_last(LeaseLost())

    async def _send_last(self, action: LeaseLost | ShardEnded, written: Written = _no_matter) -> None:
        """Send `leaseLost` or `shardEnded`, and measure how long the child takes to answer."""
        since = self._clock.monotonic()
        await self._send(action, written)
        self._metrics.shutdown.note(self._clock.monotonic() - since)

    async def end(self) -> str:
        """End the child as `ChildProcess.end` does, or wait until `kill_soon` has killed it; return how it ended. A
        checkpoint under way is stored first.
        """
        self._overdue.close()
        self._is_ending = True
        try:
            how_ended = await (self.child.end() if self._killing is None else self._killing)
            await asyncio.wait([self.gone])
        finally:
            self.gone.cancel()
        self._trace.ended(how_ended)
        return how_ended

    def kill_soon(self) -> None:
        """Kill the child, even during an action, which then fails. Call `end` afterwards."""
        self._killing = asyncio.ensure_future(self.child.kill())

    async def kill(self) -> str:
        """Kill the child now, and return how it ended. From now on its exit is no failure."""
        self._overdue.close()
        self.gone.cancel()
        how_ended = await self.child.kill()
        self._trace.ended(how_ended)
        return how_ended

    # --- actions -----------------------------------------------------------------------------------------------------

    async def _send(
        self, action: Initialize | LeaseLost | ShardEnded | ShutdownRequested, written: Written = _no_matter
    ) -> None:
        """Send an action without records, and wait until the child has answered. Raises ProcessorError."""
        await self._exchange(action.name, [codec.encode_action(action, self._dialect)], _always, written)

    async def _exchange(
        self, action: ActionName, line: Iterable[bytes], wanted: Wanted, written: Written, holds: Holds = dict
    ) -> None:
        """Write the line of an action to the child and wait for its status, unless `wanted` returns False. The
        callbacks are described in `ports`. Raises ProcessorError.
        """
        self._overdue.begin(action.value, holds)
        try:
            async with self._turn:
                if self.gone.done():
                    self.gone.result()  # raises the error that says why
                if not wanted():
                    return
                self._conversation.begin(action)
                self._action, self._answered = action, asyncio.get_running_loop().create_future()
                self._writing = self._begin_write(_followed(line, written))
            self._wait_for_child()
            if (error := await self._answered) is not None:
                raise error
            await self._until_line_read()
        finally:
            self._overdue.end()
            self._forget_timeout()
            self._action = self._answered = None
            writing, self._writing = self._writing, None
            if writing is not None:
                await settle(writing)

    def _begin_write(self, line: Iterable[bytes]) -> asyncio.Future[None] | None:
        """Begin to write a line to the child's stdin, and copy it to the protocol trace if somebody listens. Return
        None if the pipe has taken it at once, else a future (`ports.ChildProcess.begin_write`).
        """
        return self.child.begin_write(self._trace.copied(line) if self._trace.listeners else line)

    async def _until_line_read(self) -> None:
        """Wait until the pipe has taken the whole line of the action, because another line to the child, a reply to a
        checkpoint for example, must not be mixed with it.
        """
        if self._writing is not None and self._action is not None:
            await self._bounded_write(self._writing, self._action.value)

    async def _bounded_write(self, writing: asyncio.Future[None], what: str) -> None:
        """Wait until a write is done. The child has as much time to read the line as to answer an action; `what` names
        the line in errors. Raises ProcessorSilentError, ProcessorGoneError.
        """
        done, _ = await asyncio.wait([writing], timeout=self._reply_timeout_s)
        if not done:
            raise ProcessorSilentError(f"did not read {what} within {self._reply_timeout_s} s (key timeoutInSeconds)")
        error = None if writing.cancelled() else writing.exception()
        if writing.cancelled() or isinstance(error, ConnectionError):
            raise ProcessorGoneError(f"closed its stdin before it had read {what}")
        if error is not None:
            raise error

    def _wait_for_child(self) -> None:
        """Start the reply timeout if the child owes a status. Each valid message restarts it; other lines do not."""
        self._forget_timeout()
        if self._reply_timeout_s is not None and self._conversation.awaited is not None:
            self._timeout = asyncio.get_running_loop().call_later(self._reply_timeout_s, self._give_up_waiting)

    def _forget_timeout(self) -> None:
        """Stop the reply timeout, if it runs."""
        timeout, self._timeout = self._timeout, None
        if timeout is not None:
            timeout.cancel()

    def _give_up_waiting(self) -> None:
        """End the wait for a status because the reply timeout has passed."""
        assert self._action is not None
        within = f"within {self._reply_timeout_s} s (key timeoutInSeconds)"
        self._end_wait(ProcessorSilentError(f"did not answer {self._action.value} {within}"))

    def _end_wait(self, error: Exception | None = None) -> None:
        """Wake the waiting action: it was answered if `error` is None, else it fails with `error`."""
        self._forget_timeout()
        if self._answered is not None and not self._answered.done():
            self._answered.set_result(error)

    # --- lines of the child ------------------------------------------------------------------------------------------

    async def _read(self) -> NoReturn:
        """Handle the child's lines in order, until it can no longer answer."""
        try:
            while (line := await self.child.read_line()) is not None:
                async with self._turn:  # no action begins until all lines that have arrived are handled
                    for arrived in (line, *self.child.take_unread()):
                        await self._take(arrived)
            raise self._conversation.eof()
        except Exception as error:
            self._end_wait(error)
            raise

    async def _take(self, line: str) -> None:
        """Handle one line of the child: a status, a checkpoint, or a line to log."""
        if self._is_ending:
            return
        if self._trace.listeners:
            self._trace.heard(line)
        match self._conversation.receive_line(line):
            case ActionDone():
                self._end_wait()
            case CheckpointAsked() as asked:
                self._forget_timeout()
                await self._answer(asked)
                self._wait_for_child()
                await self._give_way(line)
            case event:
                if isinstance(event, Ignored) and "action" in line:  # it may be meant as a message
                    self._overdue.refused = child_lines.shorten(line)
                self._note(event, line)
                await self._give_way(line)

    async def _answer(self, asked: CheckpointAsked) -> None:
        """Store the checkpoint that a child asks for, unless the conversation has refused it (`asked.refused`), and
        reply. Meanwhile the child waits for us, so no timeout runs.
        """
        error = asked.refused
        if error is None:
            self._overdue.heard()
            self._overdue.is_storing = True
            try:
                error = await self._on_checkpoint(asked.request)
            finally:
                self._overdue.is_storing = False
                self._overdue.heard()  # the child was not silent meanwhile, it waited for us
        await self._until_line_read()
        replying = self._begin_write([self._conversation.reply(error)])
        if replying is not None:
            try:
                await self._bounded_write(replying, "the reply to its checkpoint")
            finally:
                await settle(replying)

    async def _give_way(self, line: str) -> None:
        """Let other tasks run after many lines other than statuses, or after a few long ones."""
        self._noted += 1
        self._noted_characters += len(line)
        if self._noted >= NOTED_PER_STEP or self._noted_characters >= NOTED_CHARACTERS_PER_STEP:
            self._noted, self._noted_characters = 0, 0
            await asyncio.sleep(0)

    def _note(self, event: Event, line: str) -> None:
        """Log a line that is neither a status nor a checkpoint."""
        match event:
            case StaleAnswer():
                fields = about("child_stale_answer", self._shard_id, **self._fields)
                log.warning("stale answer discarded: %s", event.reason, extra=fields)
            case Ignored(is_log=True):
                self._log.log(line)
            case Ignored(quiet=False):
                fields = about("child_stdout", self._shard_id, **self._fields)
                log.info("unexpected line on stdout: %s", event.reason, extra=fields)


def _followed(line: Iterable[bytes], written: Written) -> Iterator[bytes]:
    """Yield the pieces of the line, then call `written`: the writer asks for another piece when the last one is
    written.
    """
    yield from line
    written()


def _retrieve(task: asyncio.Future[NoReturn]) -> None:
    """Retrieve the task's exception, so that asyncio does not log it."""
    if not task.cancelled():
        task.exception()


async def settle(writing: asyncio.Future[None]) -> None:
    """Cancel a write if it still runs, and retrieve its error, so that asyncio does not log it."""
    if not writing.done():
        writing.cancel()
        await asyncio.wait([writing])
    if not writing.cancelled():
        writing.exception()
