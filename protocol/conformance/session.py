"""One conversation of an examination: a child, the daemon's half of the protocol, and notes on what the child did.

`ExaminedChild` is the process with deadlines: bytes out, lines in, and a certain end. Checkpoint requests are answered
like the daemon does, by protocol#checkpoint-range, from a lease in memory.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import re
import shutil
import signal
from asyncio.subprocess import PIPE, Process
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from jsonschema import Draft202012Validator
from referencing import Registry
from referencing.jsonschema import DRAFT202012

from mld.protocol import codec
from mld.protocol.codec import LineSplitter
from mld.protocol.conformance.rules import Report, Rule, RuleVerdict
from mld.protocol.conversation import (
    ActionDone,
    CheckpointAsked,
    Conversation,
    Event,
    Noise,
    ProcessorError,
    StaleAnswer,
)
from mld.protocol.messages import (
    ActionName,
    CheckpointErrorName,
    CheckpointRequest,
    Initialize,
    LeaseLost,
    Record,
    ShardEnded,
    ShutdownRequested,
    StreamLabel,
    shell_command,
)

READ_BYTES = 64 * 1024
LINES_WAITING_MAX = 1000
"""A child that floods us is not read further until its lines are handled."""
ERROR_LINES_MAX = 8
REAP_S = 5.0
"""Longest wait after SIGKILL, when only the kernel can delay the end."""


class CommandStartError(Exception):
    """The command cannot be started."""


class ExaminedChild:
    """One running process. Use `started`."""

    def __init__(self, process: Process) -> None:
        assert process.stdin and process.stdout and process.stderr
        self._process = process
        self._stdin, self._stdout, self._stderr = process.stdin, process.stdout, process.stderr
        self._lines: asyncio.Queue[str | None] = asyncio.Queue(LINES_WAITING_MAX)
        self._ended = False
        self.error_lines: deque[str] = deque(maxlen=ERROR_LINES_MAX)
        self._tasks = [asyncio.create_task(self._read_output()), asyncio.create_task(self._read_errors())]

    @property
    def ended(self) -> bool:
        """Whether the end of the output was read."""
        return self._ended

    async def write(self, pieces: Iterable[bytes]) -> None:
        """Write all pieces. Does not raise for a closed pipe, which shows as the end of output or as silence."""
        with suppress(BrokenPipeError, ConnectionResetError):
            for piece in pieces:
                self._stdin.write(piece)
                await self._stdin.drain()

    async def read_line(self, deadline_s: float) -> str | None:
        """Return the next line, None at the end of output. Raises TimeoutError at `deadline_s` of the loop's clock."""
        if self._ended:
            return None
        async with asyncio.timeout_at(deadline_s):
            line = await self._lines.get()
        self._ended = line is None
        return line

    def waiting_line(self) -> str | None:
        """Return a line that has already arrived; None if there is none."""
        with suppress(asyncio.QueueEmpty):
            line = self._lines.get_nowait()
            self._ended = self._ended or line is None
            return line
        return None

    async def end_input(self) -> None:
        with suppress(BrokenPipeError, ConnectionResetError):
            self._stdin.close()

    async def wait(self, timeout_s: float) -> int | None:
        """Return the exit status (negative: a signal), None if it still runs or its output is still open."""
        try:
            async with asyncio.timeout(timeout_s):
                while not self._ended:
                    self._ended = await self._lines.get() is None
                return await self._process.wait()
        except TimeoutError:
            return None

    async def kill(self) -> None:
        """End the process and all others of its group, whatever they do."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        # The public interface cannot let go of pipes that a process outside the group keeps open.
        self._process._transport.close()  # type: ignore[attr-defined]
        with suppress(TimeoutError):
            async with asyncio.timeout(REAP_S):
                await self._process.wait()

    async def _read_output(self) -> None:
        splitter = LineSplitter()
        while data := await self._stdout.read(READ_BYTES):
            for line in splitter.feed(data):
                await self._lines.put(line)
        for line in splitter.eof():
            await self._lines.put(line)
        await self._lines.put(None)

    async def _read_errors(self) -> None:
        splitter = LineSplitter()
        while data := await self._stderr.read(READ_BYTES):
            self.error_lines.extend(splitter.feed(data))
        self.error_lines.extend(splitter.eof())


@asynccontextmanager
async def started(command: Sequence[str]) -> AsyncIterator[ExaminedChild]:
    """Run the command in a process group of its own, killed at the end. Raises CommandStartError."""
    try:
        child = ExaminedChild(await _start(command))
    except (OSError, ValueError) as error:
        raise CommandStartError(f"{error}") from error
    try:
        yield child
    finally:
        await child.kill()


async def _start(command: Sequence[str]) -> Process:
    try:
        return await _exec(command)
    except OSError as error:
        path = shutil.which(command[0])
        if error.errno != errno.ENOEXEC or path is None:
            raise
        return await _exec(shell_command(path, command))


async def _exec(command: Sequence[str]) -> Process:
    return await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, stderr=PIPE, start_new_session=True)


# --- the lease -------------------------------------------------------------------------------------------------------

SHARD_END = "SHARD_END"
SUB_MAX = 2**63 - 1
"""The daemon's bound, as sub-sequence numbers are a `long` in Java."""
_NUMBER = re.compile(r"[0-9]{1,129}", re.ASCII)  # 129 digits are the bound of the Kinesis API, and so the daemon's
_SENTINELS = {"AT_TIMESTAMP": -3, "TRIM_HORIZON": -2, "LATEST": -1}

Place = tuple[int, int, int]
"""(0, number or rank of a sentinel, sub-sequence number), or the last place of all."""
_END: Place = (1, 0, 0)


class ExaminedLease:
    """The last checkpoint of one shard and the largest position delivered."""

    def __init__(self, start: str) -> None:
        place = _place(start, 0)
        assert place is not None
        self._last = self._largest = place
        self._shard_end: Place | None = None

    @property
    def at_shard_end(self) -> bool:
        return self._last == _END

    @property
    def checkpointed(self) -> str:
        """The sequence number of the last checkpoint, or the name of a sentinel."""
        number = self._last[1]
        return next((name for name, rank in _SENTINELS.items() if rank == number), str(number))

    @property
    def caught_up(self) -> bool:
        """Whether the last record delivered is checkpointed."""
        return self._last == self._largest

    def deliver(self, record: Record) -> None:
        place = _place(record.sequence_number, record.sub_sequence_number)
        assert place is not None
        self._largest = max(self._largest, place)

    def end_shard(self) -> None:
        self._shard_end = self._largest
        self._largest = _END

    def checkpoint(self, request: CheckpointRequest) -> CheckpointErrorName | None:
        """Carry out a request."""
        if request.sequence_number is None:
            self._last = self._largest
            return None
        sub = request.sub_sequence_number or 0
        place = _place(request.sequence_number, sub)
        if place is None or not 0 <= sub <= SUB_MAX or not self._last <= place <= self._largest:
            return CheckpointErrorName.ILLEGAL_ARGUMENT
        self._last = _END if place == self._shard_end else place
        return None


def _place(sequence: str, sub: int) -> Place | None:
    if sequence == SHARD_END:
        return _END
    if sequence in _SENTINELS:
        return (0, _SENTINELS[sequence], sub)
    return (0, int(sequence), sub) if _NUMBER.fullmatch(sequence) else None


# --- the session -----------------------------------------------------------------------------------------------------

SCHEMA_URN = "urn:mld:protocol:"


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
        self, child: ExaminedChild, report: Report, *, name: str, start: str, replies: Replies, timeout_s: float
    ) -> None:
        self._child = child
        self._report = report
        self._name = name
        self._start = start
        self._replies = replies
        self._timeout_s = timeout_s
        self._conversation = Conversation()
        self.lease = ExaminedLease(start)
        self.answered: list[Answered] = []

    # --- what a script does

    async def initialize(self, stream: StreamLabel | None = None) -> None:
        await self._perform(Initialize(SHARD_ID, self._start, 0, stream))

    async def process(self, records: Sequence[Record], millis_behind_latest: int | None = 0) -> None:
        for record in records:
            self.lease.deliver(record)
        self._conversation.begin(ActionName.PROCESS_RECORDS)
        await self._exchange(ActionName.PROCESS_RECORDS, codec.encode_process_records(records, millis_behind_latest))

    async def request_shutdown(self) -> None:
        await self._perform(ShutdownRequested(self.lease.checkpointed))

    async def lose_lease(self) -> None:
        await self._perform(LeaseLost())

    async def end_shard(self) -> None:
        self.lease.end_shard()
        await self._perform(ShardEnded())

    async def end_input(self) -> None:
        """Close the child's input and look at how it ends."""
        if self._report.verdict(Rule.END_OF_INPUT) is RuleVerdict.FAIL:
            return  # Waiting once is enough.
        await self._child.end_input()
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
        """Read the rest of the child's output; returns its exit status, None if it does not end in time."""
        deadline_s = self._now_s() + self._timeout_s
        try:
            while (line := await self._child.read_line(deadline_s)) is not None:
                if isinstance(self._look_at(line), CheckpointAsked):
                    self._conversation.reply(CheckpointErrorName.SHUTDOWN)  # which nobody reads any more
        except TimeoutError:
            return None
        return await self._child.wait(self._timeout_s)

    def failed(self, rule: Rule, reason: str) -> None:
        self._report.failed(rule, f"{reason} (session: {self._name})")

    # --- the exchange

    async def _perform(self, action: Initialize | LeaseLost | ShardEnded | ShutdownRequested) -> None:
        await self._exchange(action.name, [self._conversation.send(action)])

    async def _exchange(self, action: ActionName, pieces: Iterable[bytes]) -> None:
        rule = Rule[action.name]
        # Written beside the reading: a child may say much before it has read everything.
        writing = asyncio.create_task(self._child.write(pieces))
        try:
            await self._until_done()
            await asyncio.wait_for(writing, self._timeout_s)
        except TimeoutError:
            raise SessionOver(rule, f"no answer within {self._timeout_s:g} s", ended=False) from None
        except ProcessorError as error:
            raise SessionOver(rule, str(error), ended=self._child.ended) from None
        finally:
            writing.cancel()
        self._report.passed(rule)
        await asyncio.sleep(SETTLE_S)
        for line in list(iter(self._child.waiting_line, None)):
            event = self._look_at(line)
            if isinstance(event, CheckpointAsked):
                await self._reply(event)

    async def _until_done(self) -> None:
        asked = 0
        deadline_s = self._now_s() + self._timeout_s
        for _ in range(LINES_PER_ACTION_MAX):
            line = await self._child.read_line(deadline_s)
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
        line = self._conversation.reply(error)
        await asyncio.wait_for(self._child.write([line]), self._timeout_s)

    def _checkpoint(self, request: CheckpointRequest, when: str) -> CheckpointErrorName | None:
        error = self.lease.checkpoint(request)
        if error is None:
            self._report.passed(Rule.POSITIONS)
        else:
            position = f"{request.sequence_number}/{request.sub_sequence_number}"
            self.failed(Rule.POSITIONS, f"asked for {codec.shorten(position)} {when}")
        return error

    # --- watching

    def _look_at(self, line: str) -> Event:
        event = self._conversation.receive_line(line)
        self._note(event)
        self._check_schema(line, event)
        return event

    def _note(self, event: Event) -> None:
        match event:
            case Noise(reason, quiet=False):
                self.failed(Rule.CLEAN_OUTPUT, reason)
            case StaleAnswer(reason):
                self.failed(Rule.TURNS, reason)
            case _:
                pass

    def _check_schema(self, line: str, event: Event) -> None:
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            if not isinstance(event, Noise):
                self.failed(Rule.MESSAGES, f"more than a message on one line: {codec.shorten(line)}")
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
