"""The exchange between the daemon and one child, as a state machine without I/O.

Rules: protocol#half-duplex-turns, protocol#phases-of-a-child, protocol#stale-answers. The machine knows nothing of
pipes, processes, clocks or leases: its caller writes the lines that it returns, passes it the lines that the child
wrote, and watches the time limits.

Theory of operation
-------------------

The daemon sends one action at a time, and the child answers it with one status that names the action. Until the status
arrives, the action is *awaited*. At any time, with or without an awaited action, the child may request a checkpoint;
each request gets one reply before the next line is read. Lines are handled in the order in which the child wrote them.

The *phase* of the child's life decides which action may be sent next. `initialize` comes first, and only once. After
`shutdownRequested` the child gets no more records. `leaseLost` is the last action. `shardEnded` may be followed only by
another `shardEnded`: unlike in Java, a child whose checkpoint failed at the end of a shard thus gets a second chance.
The phase changes when the status of an action arrives, and not before. When the child's output ends or breaks the
protocol, the phase becomes CLOSED. A checkpoint is refused before the status of `initialize`, and from `leaseLost` on.

A status that arrives while no action is awaited is *stale*: for example, a second status for one action, which Java
would take for the answer to the next action. A stale status is discarded and reported as `StaleAnswer`. A line that is
not a message is reported as `Ignored`.

There are two kinds of errors. `ProcessorError` means that the child broke the protocol and must be ended; the phase is
then CLOSED. `ProtocolMisuse` is a bug of the caller.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeAlias

from mld.protocol import child_lines, codec
from mld.protocol.messages import (
    ActionName,
    ActionStatus,
    CheckpointErrorName,
    CheckpointRequest,
    Dialect,
    Ignored,
    Initialize,
    LeaseLost,
    ShardEnded,
    ShutdownRequested,
)
from mld.protocol.phases import Phase

# Maps each phase and each action that may be sent in it to the phase after the status of that action.
PHASES = MappingProxyType(
    {
        (Phase.NEW, ActionName.INITIALIZE): Phase.READY,
        (Phase.READY, ActionName.PROCESS_RECORDS): Phase.READY,
        (Phase.READY, ActionName.SHUTDOWN_REQUESTED): Phase.DRAINING,
        (Phase.READY, ActionName.SHARD_ENDED): Phase.SHARD_ENDED,
        (Phase.READY, ActionName.LEASE_LOST): Phase.LEASE_LOST,
        (Phase.DRAINING, ActionName.SHARD_ENDED): Phase.SHARD_ENDED,
        (Phase.DRAINING, ActionName.LEASE_LOST): Phase.LEASE_LOST,
        (Phase.SHARD_ENDED, ActionName.SHARD_ENDED): Phase.SHARD_ENDED,
    }
)
# Phases in which a checkpoint request gets InvalidStateException. The same holds while `leaseLost` is awaited.
CHECKPOINT_REFUSED = frozenset({Phase.NEW, Phase.LEASE_LOST})
# In KCL 1.x the message `shutdown` stands for both of these actions (protocol#protocol-generations).
_LEGACY_SHUTDOWN = frozenset({ActionName.LEASE_LOST, ActionName.SHARD_ENDED})
HINT_OF_1X = ", which programs for KCL 1.x do not know: they need mld.protocolVersion = 1"
Event: TypeAlias = "ActionDone | CheckpointAsked | Ignored | StaleAnswer"


class ProcessorError(Exception):
    """The child broke the protocol. The text is a clause that continues "the record processor ..."."""


class ProcessorGoneError(ProcessorError):
    """The child exited, or closed its stdin or stdout, although it still had to read or to answer."""


class ProcessorSilentError(ProcessorError):
    """The child did not answer, or did not read, within the time limit."""


class ProtocolMisuse(Exception):
    """The daemon asked for something that the protocol forbids: a bug of the caller."""


@dataclass(frozen=True, slots=True)
class ActionDone:
    """The status of the awaited action arrived."""

    action: ActionName


@dataclass(frozen=True, slots=True)
class CheckpointAsked:
    """The child requested a checkpoint, and must get a reply. If `refused` is set, the reply must have that error.
    `action` is the awaited action, if any.
    """

    request: CheckpointRequest
    action: ActionName | None
    refused: CheckpointErrorName | None = None


@dataclass(frozen=True, slots=True)
class StaleAnswer:
    """A status arrived although no action was awaited; it was discarded."""

    reason: str


class Conversation:
    """The conversation with one child, from `initialize` to the end of its output."""

    __slots__ = ("_asked", "_dialect", "awaited", "phase")

    def __init__(self, dialect: Dialect = Dialect.KCL_2) -> None:
        self._dialect = dialect
        self.phase = Phase.NEW
        self.awaited: ActionName | None = None
        """The action whose status the child owes; None if no action is awaited."""
        self._asked: CheckpointAsked | None = None
        """The checkpoint request that has no reply yet; None if there is none."""

    def begin(self, action: ActionName) -> None:
        """Note that an action is sent. Call this before the first byte is written. Raises ProtocolMisuse.

        `send` calls it for you. Only `processRecords` is not sent by `send`, because its line is written in pieces.
        """
        if (self.phase, action) not in PHASES:
            raise ProtocolMisuse(f"{action.value} is not allowed in phase {self.phase.name}")
        if self.awaited is not None:
            raise ProtocolMisuse(f"{action.value} is not allowed before the status of {self.awaited.value}")
        self.awaited = action

    def send(self, action: Initialize | LeaseLost | ShardEnded | ShutdownRequested) -> bytes:
        """Begin the action and return its line. Raises ProtocolMisuse."""
        self.begin(action.name)
        return codec.encode_action(action, self._dialect)

    def receive_line(self, line: str) -> Event:
        """Handle the next line of the child's output, and return what it means. After a checkpoint request, call
        `reply` first.

        Raises ProcessorError if the line breaks the protocol.
        """
        if self._asked is not None:
            raise ProtocolMisuse("a line before the reply to the request before it")
        message = child_lines.parse_child_line(line, self._dialect)
        if isinstance(message, Ignored):
            return message
        if isinstance(message, CheckpointRequest):
            refused = self.phase in CHECKPOINT_REFUSED or self.awaited is ActionName.LEASE_LOST
            error = CheckpointErrorName.INVALID_STATE if refused else None
            self._asked = CheckpointAsked(message, self.awaited, error)
            return self._asked
        if self.awaited is None:
            return StaleAnswer(f"no action is waiting for {_describe(message)}")
        if message.response_for != (due := self._name_of(self.awaited)):
            self._close()
            raise ProcessorError(f"answered {due} with {_describe(message)}")
        action, self.awaited = self.awaited, None
        self.phase = PHASES[self.phase, action]
        return ActionDone(action)

    def reply(self, error: CheckpointErrorName | None = None) -> bytes:
        """Return the line that replies to the checkpoint request. `error` None: the checkpoint is stored. Raises
        ProtocolMisuse if no request is open, or if the checkpoint was refused at once and `error` is None.
        """
        asked = self._asked
        if asked is None:
            raise ProtocolMisuse("a checkpoint reply without a request")
        if asked.refused is not None and error is None:
            raise ProtocolMisuse("a checkpoint that is refused cannot succeed")
        self._asked = None
        return codec.encode_checkpoint_reply(asked.request, error)

    def eof(self) -> ProcessorGoneError:
        """Close the conversation at the end of the child's output, and return the error for it."""
        awaited = self._close()
        if awaited is None:
            return ProcessorGoneError("ended while there was nothing to do for it")
        # A program for KCL 1.x ends at an action that it does not know.
        hint = HINT_OF_1X if self._dialect is Dialect.KCL_2 and awaited in _LEGACY_SHUTDOWN else ""
        return ProcessorGoneError(f"closed its output before it answered {awaited.value}{hint}")

    def _name_of(self, action: ActionName) -> str:
        """Return the name that the status of an action must have."""
        legacy = self._dialect is Dialect.KCL_1 and action in _LEGACY_SHUTDOWN
        return "shutdown" if legacy else action.value

    def _close(self) -> ActionName | None:
        """Close the conversation, and return the action whose status was awaited; None if none was."""
        awaited, self.awaited, self.phase = self.awaited, None, Phase.CLOSED
        return awaited


def _describe(status: ActionStatus) -> str:
    if status.response_for is None:
        return "a status without 'responseFor'"
    return f"a status for {child_lines.shorten(status.response_for)}"
