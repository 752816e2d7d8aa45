"""The exchange between the daemon and one child, as a state machine without I/O.

Rules: protocol#half-duplex-turns, protocol#phases-of-a-child, protocol#stale-and-held-lines. It knows nothing of pipes,
processes, clocks or leases: the caller writes the bytes it gets, feeds the lines it reads, and keeps the time.

Theory of operation
-------------------

The protocol is strictly half-duplex. The daemon sends one action; the child answers with any number of checkpoint
requests, each of which waits for its reply, and at last with one status that names the action. So there are few states:

    IDLE --begin--> AWAITING_STATUS --status--> IDLE
                              |          ^
                      checkpoint request | reply
                              v          |
                             CHECKPOINT_PENDING          and from everywhere: end of output, or a fault --> CLOSED

Beside the state stands the *phase* of the child's life, which says what may be sent next: `initialize` comes first and
once; after `shutdownRequested` there are no more records; `leaseLost` is the last action; `shardEnded` may be repeated
only by itself (the improvement on Java: a failed checkpoint at the end of a shard gets a second chance). The phase
moves when the status arrives, never before.

Lines that arrive out of turn:

* While IDLE no answer is due: a message is *stale* (for instance a second status for an answered action, which Java
  would take for the answer to the next one). It is discarded and reported as `StaleAnswer`.
* While CHECKPOINT_PENDING the child should wait for our reply. What it says meanwhile is held (`MessageHeld`);
  `next_event()` hands it out in order after the reply.
* Anything that is no message is `Noise` in every state.

Two kinds of errors: `ProcessorError`, the child broke the protocol and must be ended; `ProtocolMisuse`, our own bug.
After a ProcessorError the conversation is CLOSED.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import Enum, auto
from types import MappingProxyType

from protocol import codec
from protocol.messages import (
    ActionName,
    ActionStatus,
    CheckpointErrorName,
    CheckpointRequest,
    ChildMessage,
    Dialect,
    Ignored,
    Initialize,
    LeaseLost,
    ShardEnded,
    ShutdownRequested,
)

HELD_MESSAGES_MAX = 1000
"""Messages kept while a checkpoint reply is due. A child that follows the protocol sends none at all."""


class ProcessorError(Exception):
    """The child broke the protocol; its text says how in one clause, fit to follow "the record processor ..."."""


class ProcessorGoneError(ProcessorError):
    """It has ended, or closed what it hears or speaks through, when something was due."""


class ProcessorSilentError(ProcessorError):
    """It took longer than it may."""


class ProtocolMisuse(Exception):
    """The daemon asked for something the protocol does not allow: a bug of the caller."""


class ConversationState(Enum):
    IDLE = auto()
    AWAITING_STATUS = auto()
    CHECKPOINT_PENDING = auto()
    CLOSED = auto()


class Phase(Enum):
    NEW = auto()
    READY = auto()
    DRAINING = auto()
    SHARD_ENDED = auto()
    LEASE_LOST = auto()


class ConversationTrigger(Enum):
    ACTION = auto()
    STATUS = auto()
    REQUEST = auto()
    REPLY = auto()
    FAULT = auto()
    END_OF_OUTPUT = auto()


# What may happen in which state, and the state after it. What is not here is stale (IDLE), held (CHECKPOINT_PENDING),
# or misuse.
TRANSITIONS = MappingProxyType(
    {
        (ConversationState.IDLE, ConversationTrigger.ACTION): ConversationState.AWAITING_STATUS,
        (ConversationState.AWAITING_STATUS, ConversationTrigger.STATUS): ConversationState.IDLE,
        (ConversationState.AWAITING_STATUS, ConversationTrigger.REQUEST): ConversationState.CHECKPOINT_PENDING,
        (ConversationState.CHECKPOINT_PENDING, ConversationTrigger.REPLY): ConversationState.AWAITING_STATUS,
        (ConversationState.AWAITING_STATUS, ConversationTrigger.FAULT): ConversationState.CLOSED,
        (ConversationState.CHECKPOINT_PENDING, ConversationTrigger.FAULT): ConversationState.CLOSED,
        (ConversationState.IDLE, ConversationTrigger.END_OF_OUTPUT): ConversationState.CLOSED,
        (ConversationState.AWAITING_STATUS, ConversationTrigger.END_OF_OUTPUT): ConversationState.CLOSED,
        (ConversationState.CHECKPOINT_PENDING, ConversationTrigger.END_OF_OUTPUT): ConversationState.CLOSED,
        (ConversationState.CLOSED, ConversationTrigger.END_OF_OUTPUT): ConversationState.CLOSED,
    }
)

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

# Actions in which a checkpoint request must be answered with InvalidStateException.
CHECKPOINT_REFUSED = frozenset({ActionName.INITIALIZE, ActionName.LEASE_LOST})

# The 1.x `shutdown` message stands for both (protocol#protocol-generations).
_LEGACY_SHUTDOWN = frozenset({ActionName.LEASE_LOST, ActionName.SHARD_ENDED})


# --- events ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ActionDone:
    """The status of the awaited action has come."""

    action: ActionName


@dataclass(frozen=True, slots=True)
class CheckpointAsked:
    """A reply is due. If `refused` is set the reply must be that error: the action allows no checkpoint."""

    request: CheckpointRequest
    action: ActionName
    refused: CheckpointErrorName | None = None


@dataclass(frozen=True, slots=True)
class Noise:
    """A line that is no message. `quiet` ones (empty lines) are part of normal traffic, `is_log` ones of a log."""

    reason: str
    quiet: bool = False
    is_log: bool = False


@dataclass(frozen=True, slots=True)
class StaleAnswer:
    """A message that was not awaited, discarded."""

    message: ChildMessage
    reason: str


@dataclass(frozen=True, slots=True)
class MessageHeld:
    """A message kept until the checkpoint reply is given; `next_event()` hands it out then."""


Event = ActionDone | CheckpointAsked | Noise | StaleAnswer | MessageHeld


# --- the machine -----------------------------------------------------------------------------------------------------


class Conversation:
    """One child's conversation, from `initialize` to the end of its output."""

    __slots__ = ("_awaited", "_dialect", "_held", "_phase", "_request", "_state")

    def __init__(self, dialect: Dialect = Dialect.KCL_2) -> None:
        self._dialect = dialect
        self._state = ConversationState.IDLE
        self._phase = Phase.NEW
        self._awaited: ActionName | None = None
        self._request: CheckpointRequest | None = None
        self._held: deque[ChildMessage] = deque()

    @property
    def state(self) -> ConversationState:
        return self._state

    @property
    def phase(self) -> Phase:
        return self._phase

    @property
    def awaited(self) -> ActionName | None:
        """The action whose status is due; None while idle or closed."""
        return self._awaited

    def begin(self, action: ActionName) -> None:
        """Mark an action as sent; call it before the first byte is written.

        For `processRecords`, whose line the caller streams; `send` does it for all others. Raises ProtocolMisuse, or
        ProcessorError if the child's output has ended.
        """
        if self._state is ConversationState.CLOSED:
            raise ProcessorGoneError(f"closed its output before {action.value}")
        if (self._phase, action) not in PHASES:
            raise ProtocolMisuse(f"{action.value} is not allowed in phase {self._phase.name}")
        self._step(ConversationTrigger.ACTION)
        self._awaited = action

    def send(self, action: Initialize | LeaseLost | ShardEnded | ShutdownRequested) -> bytes:
        """`begin` the action and return its line."""
        self.begin(action.name)
        return codec.encode_action(action, self._dialect)

    def receive_line(self, line: str) -> Event:
        """Take one line of the child's output. Raises ProcessorError if it breaks the protocol."""
        message = codec.parse_child_line(line, self._dialect)
        if isinstance(message, Ignored):
            return Noise(message.reason, message.quiet, message.is_log)
        if self._state is ConversationState.CHECKPOINT_PENDING:
            if len(self._held) >= HELD_MESSAGES_MAX:
                raise self._fault(f"sent {HELD_MESSAGES_MAX} messages without waiting for a checkpoint reply")
            self._held.append(message)
            return MessageHeld()
        return self._receive(message)

    def next_event(self) -> Event | None:
        """The event of the next held message; None if there is none, or if a reply is due (again)."""
        if self._state is ConversationState.CHECKPOINT_PENDING or not self._held:
            return None
        return self._receive(self._held.popleft())

    def reply(self, error: CheckpointErrorName | None = None) -> bytes:
        """The line of the reply to the pending request. Afterwards ask `next_event()` until it says None."""
        request = self._request
        if request is None:
            raise ProtocolMisuse("a checkpoint reply without a request")
        if self._awaited in CHECKPOINT_REFUSED and error is None:
            raise ProtocolMisuse(f"a checkpoint cannot succeed during {self._awaited_name()}")
        self._step(ConversationTrigger.REPLY)
        self._request = None
        return codec.encode_checkpoint_reply(request, error)

    def eof(self) -> None:
        """The child's output has ended. Raises ProcessorError if an answer was due."""
        awaited, pending = self._awaited, self._state is ConversationState.CHECKPOINT_PENDING
        self._step(ConversationTrigger.END_OF_OUTPUT)
        if awaited is None:
            return
        self._awaited = None
        asking = ", with a checkpoint request open" if pending else ""
        raise ProcessorGoneError(f"closed its output before it answered {awaited.value}{asking}")

    def _receive(self, message: ChildMessage) -> Event:
        if self._state is not ConversationState.AWAITING_STATUS or self._awaited is None:
            return StaleAnswer(message, f"no action is waiting for {_describe(message)}")
        if isinstance(message, CheckpointRequest):
            self._step(ConversationTrigger.REQUEST)
            self._request = message
            refused = CheckpointErrorName.INVALID_STATE if self._awaited in CHECKPOINT_REFUSED else None
            return CheckpointAsked(message, self._awaited, refused)
        if message.response_for != self._awaited_name():
            raise self._fault(f"answered {self._awaited_name()} with {_describe(message)}")
        return self._done(self._awaited)

    def _done(self, action: ActionName) -> ActionDone:
        self._step(ConversationTrigger.STATUS)
        self._phase = PHASES[self._phase, action]
        self._awaited = None
        return ActionDone(action)

    def _awaited_name(self) -> str:
        """What the status must say."""
        assert self._awaited is not None
        legacy = self._dialect is Dialect.KCL_1 and self._awaited in _LEGACY_SHUTDOWN
        return "shutdown" if legacy else self._awaited.value

    def _fault(self, text: str) -> ProcessorError:
        self._step(ConversationTrigger.FAULT)
        self._awaited = None
        self._held.clear()
        return ProcessorError(text)

    def _step(self, trigger: ConversationTrigger) -> None:
        try:
            self._state = TRANSITIONS[self._state, trigger]
        except KeyError:
            raise ProtocolMisuse(f"{trigger.name} is not allowed in state {self._state.name}") from None


def _describe(message: ChildMessage) -> str:
    match message:
        case ActionStatus(None):
            return "a status without 'responseFor'"
        case ActionStatus(str(name)):
            return f"a status for {codec.shorten(name)}"
        case _:
            return "a checkpoint request"
