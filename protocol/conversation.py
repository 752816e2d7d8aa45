"""The exchange between the daemon and one child, as a state machine without I/O.

Rules: protocol#half-duplex-turns, protocol#phases-of-a-child, protocol#stale-answers. It knows nothing of pipes,
processes, clocks or leases: the caller writes the bytes it gets, feeds the lines it reads, and keeps the time.

Theory of operation
-------------------

The daemon sends one action at a time; the child answers it with one status that names it. Beside that the child may ask
for checkpoints, one after the other, each of which is answered by one reply. So an action is *awaited*, or none is. A
request changes nothing of that: it may come in both cases, and its reply may go out in the other one. Lines are taken
in the order in which the child wrote them, the next one after the reply to a request; until then the pipe keeps them.

The *phase* of the child's life says what may be sent next: `initialize` comes first and once; after `shutdownRequested`
there are no more records; `leaseLost` is the last action; `shardEnded` may be repeated only by itself (the improvement
on Java: a failed checkpoint at the end of a shard gets a second chance). The phase moves when the status arrives, never
before; the end of the output, or a fault, makes it CLOSED. A checkpoint is refused before the status of `initialize`
and from `leaseLost` on.

A status while none is awaited is *stale* (for instance a second one for an answered action, which Java would take for
the answer to the next one): it is discarded and reported as `StaleAnswer`. Anything that is no message is `Ignored`.

Two kinds of errors: `ProcessorError`, the child broke the protocol and must be ended; `ProtocolMisuse`, our own bug.
After a ProcessorError the conversation is CLOSED.
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

# Which action may be sent in which phase, and the phase once its status has come.
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
# Phases in which a checkpoint request must be answered with InvalidStateException, as during `leaseLost`.
CHECKPOINT_REFUSED = frozenset({Phase.NEW, Phase.LEASE_LOST})
# The 1.x `shutdown` message stands for both (protocol#protocol-generations).
_LEGACY_SHUTDOWN = frozenset({ActionName.LEASE_LOST, ActionName.SHARD_ENDED})
HINT_OF_1X = ", which programs for KCL 1.x do not know: they need mld.protocolVersion = 1"
Event: TypeAlias = "ActionDone | CheckpointAsked | Ignored | StaleAnswer"


class ProcessorError(Exception):
    """The child broke the protocol; its text says how in one clause, fit to follow "the record processor ..."."""


class ProcessorGoneError(ProcessorError):
    """It has ended, or closed what it hears or speaks through, when something was due."""


class ProcessorSilentError(ProcessorError):
    """It took longer than it may."""


class ProtocolMisuse(Exception):
    """The daemon asked for something the protocol does not allow: a bug of the caller."""


@dataclass(frozen=True, slots=True)
class ActionDone:
    """The status of the awaited action has come."""

    action: ActionName


@dataclass(frozen=True, slots=True)
class CheckpointAsked:
    """A reply is due. If `refused` is set the reply must be that error. `action` is the one that awaits its status."""

    request: CheckpointRequest
    action: ActionName | None
    refused: CheckpointErrorName | None = None


@dataclass(frozen=True, slots=True)
class StaleAnswer:
    """A status that was not awaited, discarded."""

    reason: str


class Conversation:
    """One child's conversation, from `initialize` to the end of its output."""

    __slots__ = ("_asked", "_dialect", "awaited", "phase")

    def __init__(self, dialect: Dialect = Dialect.KCL_2) -> None:
        self._dialect = dialect
        self.phase = Phase.NEW
        self.awaited: ActionName | None = None
        """The action whose status is due; None while idle or closed."""
        self._asked: CheckpointAsked | None = None

    def begin(self, action: ActionName) -> None:
        """Mark an action as sent; call it before the first byte is written.

        For `processRecords`, whose line the caller streams; `send` does it for all others. Raises ProtocolMisuse.
        """
        if (self.phase, action) not in PHASES:
            raise ProtocolMisuse(f"{action.value} is not allowed in phase {self.phase.name}")
        if self.awaited is not None:
            raise ProtocolMisuse(f"{action.value} is not allowed before the status of {self.awaited.value}")
        self.awaited = action

    def send(self, action: Initialize | LeaseLost | ShardEnded | ShutdownRequested) -> bytes:
        """Begin the action and return its line."""
        self.begin(action.name)
        return codec.encode_action(action, self._dialect)

    def receive_line(self, line: str) -> Event:
        """Take the next line of the child's output, not before `reply` if one is due.

        Raises ProcessorError if it breaks the protocol.
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
        """Return the line of the reply to the request."""
        asked = self._asked
        if asked is None:
            raise ProtocolMisuse("a checkpoint reply without a request")
        if asked.refused is not None and error is None:
            raise ProtocolMisuse("a checkpoint that is refused cannot succeed")
        self._asked = None
        return codec.encode_checkpoint_reply(asked.request, error)

    def eof(self) -> ProcessorGoneError:
        """Take the end of the child's output: how it failed."""
        awaited = self._close()
        if awaited is None:
            return ProcessorGoneError("ended while there was nothing to do for it")
        hint = HINT_OF_1X if self._dialect is Dialect.KCL_2 and awaited in _LEGACY_SHUTDOWN else ""
        return ProcessorGoneError(f"closed its output before it answered {awaited.value}{hint}")

    def _name_of(self, action: ActionName) -> str:
        """Return what the status of an action must say."""
        legacy = self._dialect is Dialect.KCL_1 and action in _LEGACY_SHUTDOWN
        return "shutdown" if legacy else action.value

    def _close(self) -> ActionName | None:
        """Return what was awaited when it was closed."""
        awaited, self.awaited, self.phase = self.awaited, None, Phase.CLOSED
        return awaited


def _describe(status: ActionStatus) -> str:
    if status.response_for is None:
        return "a status without 'responseFor'"
    return f"a status for {child_lines.shorten(status.response_for)}"
