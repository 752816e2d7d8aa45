"""The rules by which a record processor is examined, the report, and one conversation of an examination.

`Session` is the daemon's half of the protocol over a child of the daemon's own host, with deadlines. Checkpoint
requests are judged as the daemon does, from a lease in memory. It notes for each rule whether the child kept it.
"""

from __future__ import annotations

import asyncio
import json
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from functools import cache
from importlib.resources import files
from typing import Any, TextIO

from jsonschema import Draft202012Validator
from referencing import Registry
from referencing.jsonschema import DRAFT202012

from mld.consumer.checkpoint_range import CheckpointRange, Illegal, Write
from mld.consumer.child import PipeChild
from mld.consumer.processor import settle
from mld.core.positions import Position
from mld.properties.printable import printable
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

REASONS_MAX = 3
"""Reasons shown per rule: the first ones tell, the others repeat."""

SCHEMA_URN = "urn:mld:protocol:"

SHARD_ID = "shardId-000000000042"
REQUESTS_PER_ACTION_MAX = 100
"""More checkpoint requests for one action are an endless loop."""
LINES_PER_ACTION_MAX = 100_000
"""More lines without an answer are an endless loop."""
SETTLE_S = 0.02
"""How long to listen for unsolicited lines between two actions: a child that says too much says it at once."""
_SCHEMAS = {"status": "status", "checkpoint": "checkpoint-request"}

Replies = Callable[[int], CheckpointErrorName | None]
"""The error for the n-th request of a session, counted from 0; None leaves the answer to the lease."""


class RuleLevel(Enum):
    REQUIRED = "required"
    RECOMMENDED = "recommended"


class RuleVerdict(Enum):
    PASS = "pass"  # noqa: S105
    FAIL = "FAIL"
    NOT_OBSERVED = "not observed"


REQUIRED, RECOMMENDED = RuleLevel.REQUIRED, RuleLevel.RECOMMENDED


class Rule(Enum):
    """Name, level, and what the processor does if it keeps the rule."""

    STARTS = ("starts", REQUIRED, "the command can be started")
    MESSAGES = ("messages", REQUIRED, "every message follows its JSON schema, without further keys")
    TURNS = ("turns", REQUIRED, "answers every action once")
    INITIALIZE = ("initialize", REQUIRED, "answers initialize")
    PROCESS_RECORDS = ("processRecords", REQUIRED, "answers processRecords")
    SHUTDOWN_REQUESTED = ("shutdownRequested", REQUIRED, "answers shutdownRequested")
    LEASE_LOST = ("leaseLost", REQUIRED, "answers leaseLost")
    SHARD_ENDED = ("shardEnded", REQUIRED, "answers shardEnded")
    SHARD_END_CHECKPOINT = ("shard-end-checkpoint", REQUIRED, "checkpoints the end of the shard at shardEnded")
    POSITIONS = ("positions", REQUIRED, "asks only for positions between its last checkpoint and the last record")
    UNUSUAL_RECORDS = (
        "unusual-records",
        REQUIRED,
        "handles empty payloads, keys beyond ASCII, sub-sequence numbers, an unknown lag",
    )
    LARGE_BATCH = ("large-batch", REQUIRED, "handles 10 000 records of 1 KB in one message")
    THROTTLING = ("throttling", REQUIRED, "survives ThrottlingException")
    LEASE_GONE = ("lease-gone", REQUIRED, "survives ShutdownException and answers the action and leaseLost")
    INVALID_STATE = ("invalid-state", REQUIRED, "on InvalidStateException answers, or ends with an error")
    END_OF_INPUT = ("end-of-input", REQUIRED, "ends when its input ends")
    EXIT_STATUS = ("exit-status", RECOMMENDED, "then exits with status 0")
    CLEAN_OUTPUT = ("clean-output", RECOMMENDED, "writes nothing but messages to standard output")
    NO_EARLY_CHECKPOINT = (
        "no-early-checkpoint",
        RECOMMENDED,
        "asks for no checkpoint during initialize and leaseLost",
    )
    NAMED_BETWEEN = (
        "named-between",
        RECOMMENDED,
        "names the position if it asks for a checkpoint between two actions",
    )
    SHUTDOWN_CHECKPOINT = ("shutdown-checkpoint", RECOMMENDED, "has checkpointed by the end of shutdownRequested")
    SHARD_END_PLAIN = ("shard-end-plain", RECOMMENDED, "asks at shardEnded without a position, or for SHARD_END")
    RETRIES_THROTTLED = ("retries-throttled", RECOMMENDED, "asks again after ThrottlingException")
    STREAM_KEYS = (
        "stream-keys",
        RECOMMENDED,
        "takes streamName, streamArn and streamId in initialize, and streamName in records",
    )
    SCHEMA_KEYS = ("schema-keys", RECOMMENDED, "takes the keys of the Glue Schema Registry in records")
    NO_RETRY_WHEN_LOST = ("no-retry-when-lost", RECOMMENDED, "does not ask again after ShutdownException")

    def __init__(self, label: str, level: RuleLevel, text: str) -> None:
        self.label = label
        self.level = level
        self.text = text


class Report:
    """What was found, rule by rule. A failure stays, whatever else passes."""

    def __init__(self, command: list[str]) -> None:
        self.command = command
        self.reasons: dict[Rule, list[str]] = {}
        """Why a rule was broken; nothing if it was kept; rules that were not observed are absent."""
        self.errors_shown: list[str] = []

    @property
    def holds(self) -> bool:
        """Whether every required rule was seen to be kept."""
        return not self._missed()

    def _missed(self) -> list[str]:
        return [one.label for one in Rule if one.level is REQUIRED and self.verdict(one) is not RuleVerdict.PASS]

    def verdict(self, rule: Rule) -> RuleVerdict:
        reasons = self.reasons.get(rule)
        if reasons is None:
            return RuleVerdict.NOT_OBSERVED
        return RuleVerdict.FAIL if reasons else RuleVerdict.PASS

    def passed(self, rule: Rule) -> None:
        self.reasons.setdefault(rule, [])

    def failed(self, rule: Rule, reason: str) -> None:
        reasons = self.reasons.setdefault(rule, [])
        if reason not in reasons:
            reasons.append(reason)

    def write(self, out: TextIO) -> None:
        """Write the report as text for people."""
        out.write(f"Conformance of: {shlex.join(self.command)}\n\n")
        for rule in Rule:
            out.write(f"  {self.verdict(rule).value:<12}  {rule.level.value:<11}  {rule.label:<20}  {rule.text}\n")
            for reason in self.reasons.get(rule, [])[:REASONS_MAX]:
                out.write(f"  {'':<12}  {'':<11}  {'':<20}  -> {printable(reason)}\n")
        if self.errors_shown:
            out.write("\n  What it said on standard error when it failed first:\n")
            out.writelines(f"    {printable(line)}\n" for line in self.errors_shown)
        out.write(f"\n{self._summary()}\n")

    def _summary(self) -> str:
        if self.holds:
            return "It conforms: every required rule holds."
        return f"It does not conform: required but failed or not observed: {', '.join(self._missed())}."


# --- the session -----------------------------------------------------------------------------------------------------


@cache
def validator(name: str) -> Draft202012Validator:
    """Return the validator of one schema by its file name without the ending, for instance `status`."""
    return Draft202012Validator(_schemas()[SCHEMA_URN + name], registry=_registry())


def flaw(name: str, message: object) -> str | None:
    """Return what is wrong with a message, None if it follows the schema."""
    for error in validator(name).iter_errors(message):
        return str(error.message)
    return None


@cache
def _schemas() -> dict[str, Mapping[str, Any]]:
    loaded = {}
    for file in files("mld.protocol").joinpath("schemas").iterdir():
        if file.name.endswith(".schema.json"):
            schema = json.loads(file.read_text(encoding="utf-8"))
            loaded[schema["$id"]] = schema
    return loaded


@cache
def _registry() -> Registry[bool | Mapping[str, Any]]:
    registry: Registry[bool | Mapping[str, Any]] = Registry()
    return registry.with_resources((urn, DRAFT202012.create_resource(schema)) for urn, schema in _schemas().items())


class SessionOver(Exception):
    """The session cannot go on: the rule broken and how. `ended`: the child has closed its output."""

    def __init__(self, rule: Rule, reason: str, *, ended: bool) -> None:
        super().__init__(reason)
        self.rule = rule
        self.ended = ended


@dataclass(frozen=True, slots=True)
class Answered:
    """A checkpoint request and what was replied. `action` is None if it came between two."""

    action: ActionName | None
    request: CheckpointRequest
    error: CheckpointErrorName | None

    @property
    def during(self) -> str:
        return during(self.action)


def during(action: ActionName | None) -> str:
    """Return when a checkpoint was asked for, in words."""
    return "between two actions" if action is None else f"during {action.value}"


class Session:
    """Sends actions in the order the script calls for, answers checkpoints, and watches."""

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
        """Whether the end of the child's output was read."""
        self.answered: list[Answered] = []

    # --- what a script does

    async def initialize(self, stream: StreamLabel | None = None) -> None:
        await self._perform(Initialize(SHARD_ID, self._start, 0, stream))

    async def process(self, records: Sequence[Record], millis_behind_latest: int | None = 0) -> None:
        for record in records:
            place = Position(record.sequence_number, record.sub_sequence_number)
            self.range = self.range.deliver(place, place)
        self._conversation.begin(ActionName.PROCESS_RECORDS)
        await self._exchange(ActionName.PROCESS_RECORDS, codec.encode_process_records(records, millis_behind_latest))

    async def request_shutdown(self) -> None:
        await self._perform(ShutdownRequested(self.range.last.sequence))

    async def lose_lease(self) -> None:
        await self._perform(LeaseLost())

    async def end_shard(self) -> None:
        self.range = self.range.at_shard_end()
        await self._perform(ShardEnded())

    async def end_input(self) -> None:
        """Close the child's input and look at how it ends."""
        if self._report.verdict(Rule.END_OF_INPUT) is RuleVerdict.FAIL:
            return  # Waiting once is enough.
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
        """Read the rest of the child's output; return its exit status, None if it does not end in time."""
        deadline_s = self._now_s() + self._timeout_s
        try:
            while (line := await self._next_line(deadline_s)) is not None:
                if isinstance(self._look_at(line), CheckpointAsked):
                    self._conversation.reply(CheckpointErrorName.SHUTDOWN)  # which nobody reads any more
        except TimeoutError:
            return None
        await self._child.end()
        return self._child.exit_status

    def failed(self, rule: Rule, reason: str) -> None:
        self._report.failed(rule, f"{reason} (session: {self._name})")

    # --- the exchange

    async def _perform(self, action: Initialize | LeaseLost | ShardEnded | ShutdownRequested) -> None:
        await self._exchange(action.name, [self._conversation.send(action)])

    async def _exchange(self, action: ActionName, pieces: Iterable[bytes]) -> None:
        rule = Rule[action.name]
        # Written beside the reading: a child may say much before it has read everything.
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
        asked = 0
        deadline_s = self._now_s() + self._timeout_s
        for _ in range(LINES_PER_ACTION_MAX):
            line = await self._next_line(deadline_s)
            if line is None:
                raise self._conversation.eof()
            event = self._look_at(line)
            if isinstance(event, ActionDone):
                return
            if isinstance(event, CheckpointAsked):
                asked += 1
                if asked > REQUESTS_PER_ACTION_MAX:
                    raise ProcessorError(f"asked for more than {REQUESTS_PER_ACTION_MAX} checkpoints in one action")
                await self._reply(event)
                deadline_s = self._now_s() + self._timeout_s
        raise ProcessorError(f"wrote {LINES_PER_ACTION_MAX} lines without an answer")

    async def _reply(self, asked: CheckpointAsked) -> None:
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
        """Wait until it is; a closed pipe shows as the end of output, or as silence."""
        if writing is not None:
            with suppress(ConnectionError):
                await asyncio.wait_for(writing, self._timeout_s)

    async def _next_line(self, deadline_s: float) -> str | None:
        """Return the next line, None at the end of output. Raises TimeoutError at `deadline_s` of the loop's clock."""
        async with asyncio.timeout_at(deadline_s):
            line = await self._child.read_line()
        self.ended = line is None
        return line

    def _checkpoint(self, request: CheckpointRequest, when: str) -> CheckpointErrorName | None:
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
        event = self._conversation.receive_line(line)
        match event:
            case Ignored(reason, quiet=False):
                self.failed(Rule.CLEAN_OUTPUT, reason)
            case StaleAnswer(reason):
                self.failed(Rule.TURNS, reason)
        self._check_schema(line, event)
        return event

    def _check_schema(self, line: str, event: Event) -> None:
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
