"""`Session`: one conversation of `mld conformance` with a child, in which this program takes the place of the daemon.

It speaks the daemon's half of the protocol with a real child, with deadlines. It judges checkpoint requests as the
daemon does, against a lease in memory. For each rule it notes whether the child keeps it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from mld.check.conformance_rules import Report, Rule, RuleVerdict
from mld.check.message_schemas import flaw
from mld.consumer.checkpoint_range import CheckpointRange, Illegal, Write
from mld.consumer.child import PipeChild
from mld.consumer.processor import settle
from mld.core.positions import Position
from mld.protocol import child_lines, codec
from mld.protocol.conversation import (
    ActionDone,
    CheckpointAsked,
    Conversation,
    Event,
    ProcessorError,
    StaleAnswer,
)
from mld.protocol.messages import (
    ActionName,
    CheckpointErrorName,
    CheckpointRequest,
    Ignored,
    Initialize,
    LeaseLost,
    Record,
    ShardEnded,
    ShutdownRequested,
    StreamLabel,
)

SHARD_ID = "shardId-000000000042"
REQUESTS_PER_ACTION_MAX = 100
"""A child that asks for more checkpoints than this during one action counts as being in an endless loop."""
LINES_PER_ACTION_MAX = 100_000
"""A child that writes more lines than this without an answer counts as being in an endless loop."""
SETTLE_S = 0.02
"""How long the session listens between two actions for lines that the child must not write then. A child that writes
such lines does so at once.
"""
_SCHEMAS = {"status": "status", "checkpoint": "checkpoint-request"}
"""The JSON schema for each `action` that a child may write."""

Replies = Callable[[int], CheckpointErrorName | None]
"""A function that returns the error in the reply to the n-th checkpoint of a session, counted from 0. If it returns
None, the reply depends on the lease in memory.
"""


class SessionOver(Exception):
    """Raised if the session cannot go on, with the rule that the child broke. `ended` says whether the child has closed
    its output.
    """

    def __init__(self, rule: Rule, reason: str, *, ended: bool) -> None:
        super().__init__(reason)
        self.rule = rule
        self.ended = ended


@dataclass(frozen=True, slots=True)
class Answered:
    """A checkpoint request, with its reply."""

    action: ActionName | None
    """The action during which the child asked; None if it asked between two actions."""
    request: CheckpointRequest
    error: CheckpointErrorName | None
    """The error in the reply; None if the checkpoint was accepted."""

    @property
    def during(self) -> str:
        return during(self.action)


def during(action: ActionName | None) -> str:
    """Return in words when a checkpoint was asked for."""
    return "between two actions" if action is None else f"during {action.value}"


class Session:
    """Sends the actions that a script asks for, answers checkpoints, and notes which rules the child keeps."""

    def __init__(
        self, child: PipeChild, report: Report, *, name: str, start: str, replies: Replies, timeout_s: float
    ) -> None:
        self._child = child
        self._report = report
        self._name = name
        self._start = start
        self._replies = replies
        self._timeout_s = timeout_s
        self._conversation = Conversation()
        self.range = CheckpointRange.starting_at(Position(start))
        self.ended = False
        """Whether the child's output was read to its end."""
        self.answered: list[Answered] = []
        """The checkpoint requests that were judged so far, with their replies; not those that came too early."""

    # --- what a script does

    async def initialize(self, stream: StreamLabel | None = None) -> None:
        await self._perform(Initialize(SHARD_ID, self._start, 0, stream))

    async def process(self, records: Sequence[Record], millis_behind_latest: int | None = 0) -> None:
        """Deliver a batch of records. From then on the child may checkpoint them."""
        for record in records:
            place = Position(record.sequence_number, record.sub_sequence_number)
            self.range = self.range.deliver(place, place)
        # The codec writes a batch in pieces; the conversation only has to know that the action begins.
        self._conversation.begin(ActionName.PROCESS_RECORDS)
        await self._exchange(ActionName.PROCESS_RECORDS, codec.encode_process_records(records, millis_behind_latest))

    async def request_shutdown(self) -> None:
        await self._perform(ShutdownRequested(self.range.last.sequence))

    async def lose_lease(self) -> None:
        await self._perform(LeaseLost())

    async def end_shard(self) -> None:
        """Tell the child that its shard has ended. From then on the child may checkpoint SHARD_END."""
        self.range = self.range.at_shard_end()
        await self._perform(ShardEnded())

    async def end_input(self) -> None:
        """Close the child's input, and judge how the child ends."""
        if self._report.verdict(Rule.END_OF_INPUT) is RuleVerdict.FAIL:
            return  # an earlier session has waited in vain for the exit
        self._child.close_input()
        status = await self.exit_status()
        if status is None:
            self.failed(Rule.END_OF_INPUT, f"still running {self._timeout_s:g} s after the end of its input")
            return
        self._report.passed(Rule.END_OF_INPUT)
        if status == 0:
            self._report.passed(Rule.EXIT_STATUS)
        else:
            self.failed(Rule.EXIT_STATUS, f"exit status {status}")

    async def exit_status(self) -> int | None:
        """Read the rest of the child's output, and return the exit status; None if the child does not exit in time."""
        deadline_s = self._now_s() + self._timeout_s
        try:
            while (line := await self._next_line(deadline_s)) is not None:
                if isinstance(self._look_at(line), CheckpointAsked):
                    self._conversation.reply(CheckpointErrorName.SHUTDOWN)  # not sent: the child no longer reads
        except TimeoutError:
            return None
        await self._child.end()
        return self._child.exit_status

    def failed(self, rule: Rule, reason: str) -> None:
        """Note that the child breaks a rule in this session."""
        self._report.failed(rule, f"{reason} (session: {self._name})")

    # --- the exchange

    async def _perform(self, action: Initialize | LeaseLost | ShardEnded | ShutdownRequested) -> None:
        """Send an action without records, and wait until the child has answered it."""
        await self._exchange(action.name, [self._conversation.send(action)])

    async def _exchange(self, action: ActionName, pieces: Iterable[bytes]) -> None:
        """Send an action, answer checkpoint requests until the child has answered the action, and judge what it writes
        after that. Raises SessionOver if there is no answer in time, or if the child breaks the protocol.
        """
        rule = Rule[action.name]
        # The child is read while the action is written, because it may write much before it has read everything.
        writing = self._child.begin_write(pieces)
        try:
            await self._until_done()
            await self._written(writing)
        except TimeoutError:
            raise SessionOver(rule, f"no answer within {self._timeout_s:g} s", ended=False) from None
        except ProcessorError as error:
            raise SessionOver(rule, str(error), ended=self.ended) from None
        finally:
            if writing is not None:
                await settle(writing)
        self._report.passed(rule)
        await asyncio.sleep(SETTLE_S)
        for line in self._child.take_unread():
            event = self._look_at(line)
            if isinstance(event, CheckpointAsked):
                await self._reply(event)

    async def _until_done(self) -> None:
        """Read lines until the child has answered the action, and reply to its checkpoint requests."""
        requests = 0
        deadline_s = self._now_s() + self._timeout_s
        for _ in range(LINES_PER_ACTION_MAX):
            line = await self._next_line(deadline_s)
            if line is None:
                raise self._conversation.eof()
            event = self._look_at(line)
            if isinstance(event, ActionDone):
                return
            if isinstance(event, CheckpointAsked):
                requests += 1
                if requests > REQUESTS_PER_ACTION_MAX:
                    raise ProcessorError(f"asked for more than {REQUESTS_PER_ACTION_MAX} checkpoints in one action")
                await self._reply(event)
                deadline_s = self._now_s() + self._timeout_s
        raise ProcessorError(f"wrote {LINES_PER_ACTION_MAX} lines without an answer")

    async def _reply(self, asked: CheckpointAsked) -> None:
        """Judge a checkpoint request, and send the reply."""
        when = during(asked.action)
        if asked.refused is not None:
            self.failed(Rule.NO_EARLY_CHECKPOINT, f"asked {when}")
            error: CheckpointErrorName | None = asked.refused
        else:
            if asked.action is None and asked.request.sequence_number is None:
                self.failed(Rule.NAMED_BETWEEN, "asked without a position")
            error = self._replies(len(self.answered)) or self._checkpoint(asked.request, when)
            self.answered.append(Answered(asked.action, asked.request, error))
        await self._written(self._child.begin_write([self._conversation.reply(error)]))

    async def _written(self, writing: asyncio.Future[None] | None) -> None:
        """Wait until the write is done. A closed pipe is no error here: whoever reads the child's output then finds
        that it has ended, or that no answer comes.
        """
        if writing is not None:
            with suppress(ConnectionError):
                await asyncio.wait_for(writing, self._timeout_s)

    async def _next_line(self, deadline_s: float) -> str | None:
        """Return the next line; None at the end of the output, which sets `ended`. Raises TimeoutError at `deadline_s`
        of the loop's clock.
        """
        async with asyncio.timeout_at(deadline_s):
            line = await self._child.read_line()
        self.ended = line is None
        return line

    def _checkpoint(self, request: CheckpointRequest, when: str) -> CheckpointErrorName | None:
        """Checkpoint in the lease in memory as the daemon would; return the error if the request is not legal."""
        resolution = self.range.resolve(request.sequence_number, request.sub_sequence_number)
        if isinstance(resolution, Illegal):
            position = f"{request.sequence_number}/{request.sub_sequence_number}"
            self.failed(Rule.POSITIONS, f"asked for {child_lines.shorten(position)} {when}")
            return CheckpointErrorName.ILLEGAL_ARGUMENT
        if isinstance(resolution, Write):
            self.range = self.range.written(resolution.position)
        self._report.passed(Rule.POSITIONS)
        return None

    # --- watching

    def _look_at(self, line: str) -> Event:
        """Pass a line of the child to the conversation, and judge it by the rules for lines and messages."""
        event = self._conversation.receive_line(line)
        match event:
            case Ignored(reason, quiet=False):
                self.failed(Rule.CLEAN_OUTPUT, reason)
            case StaleAnswer(reason):
                self.failed(Rule.TURNS, reason)
        self._check_schema(line, event)
        return event

    def _check_schema(self, line: str, event: Event) -> None:
        """Judge whether the line is one message that follows its JSON schema. `event` is what the conversation made of
        the line: if it accepted a line that is no JSON document, the line has more than one message.
        """
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            if not isinstance(event, Ignored):
                self.failed(Rule.MESSAGES, f"more than a message on one line: {child_lines.shorten(line)}")
            return
        action = value.get("action") if isinstance(value, dict) else None
        schema = _SCHEMAS.get(action) if isinstance(action, str) else None
        if schema is None:
            return
        problem = flaw(schema, value)
        if problem is None:
            self._report.passed(Rule.MESSAGES)
        else:
            self.failed(Rule.MESSAGES, f"{action}: {problem}")

    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()
