"""What a shard consumer needs: a host for its child, and the other rooms as small interfaces.

`ProcessorHost` starts children: `child` is the real adapter (processes and pipes); tests use in-memory children that
speak the same bytes.

`consumer` may not import `shards`: it asks the shard coordinator, through `ShardCare`, for what must happen in the
lease table when a shard begins and ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from random import Random
from typing import NoReturn, Protocol

from mld.aws.letters import LetterBox
from mld.consumer.dead_letters import Sender
from mld.consumer.protocol_trace import ProtocolTraces
from mld.core.clock import Clock
from mld.core.errors import MldError
from mld.core.positions import InitialPosition, Position
from mld.core.streams import ChildBatch, ChildShard
from mld.leases.keeper import LeaseKeeper
from mld.leases.lease import Lease
from mld.metrics.registry import Metrics
from mld.metrics.shard import ShardMetrics
from mld.properties.settings import PREFETCH_BYTES_MAX, ChildSettings
from mld.protocol.messages import Initialize, StreamLabel
from mld.retrieval.placement import Placement
from mld.retrieval.prefetch import Budget
from mld.retrieval.reader import ShardReader

Written = Callable[[], None]
"""Called when the line of an action is in the child's pipe, and before anything is taken that the child says then."""

Wanted = Callable[[], bool]
"""Asked when the turn of an action has come, as that may take a checkpoint's time: is it still to be sent?"""

Holds = Callable[[], Mapping[str, object]]
"""What the child is working on, as fields of the log; called only for a warning."""


class ChildStartError(MldError):
    """The command cannot be started; the text names the command, the system's reason and the key to change."""


class ChildProcess(Protocol):
    """One running record processor. Lines are decoded and without their ends."""

    @property
    def description(self) -> str:
        """How the log names it, for example ``pid 4711``."""
        ...

    def begin_write(self, pieces: Iterable[bytes]) -> asyncio.Future[None] | None:
        """Write all pieces in order without blocking the loop. None if the pipe has taken them at once.

        Else what is done when it has; it raises BrokenPipeError if the child stopped reading. The next piece, or the
        end, is asked for as soon as a piece is in the pipe.
        """
        ...

    async def read_line(self) -> str | None:
        """Return the next line of its stdout; None when there will be no more (closed, or the process is gone)."""
        ...

    def take_unread(self) -> list[str]:
        """Return lines already read from stdout that nobody asked for yet; they are removed."""
        ...

    @property
    def last_words(self) -> Sequence[str]:
        """The last lines of its stderr, shortened."""
        ...

    async def end(self) -> str:
        """Close stdin, drain, wait; send TERM and then KILL to its process group if it takes too long. Says how it
        ended.

        If cancelled, it kills at once.
        """
        ...

    async def kill(self) -> str:
        """Kill the process group now and reap; say how it ended."""
        ...


@dataclass(frozen=True, slots=True)
class ShardAddress:
    """Which shard a child is for: its lease's key, its own name, its stream if the application reads several, and the
    shards that it follows, its parents first."""

    key: str
    shard_id: str
    stream: StreamLabel | None = None
    ancestors: tuple[str, ...] = ()
    child_number: int = 0
    """Which of the shard's children it is, of `children`."""
    children: int = 1

    def variables(self) -> dict[str, str]:
        """Return what the environment of the child says about it (protocol#child-command)."""
        variables = {"MLD_SHARD_ID": self.shard_id, "MLD_LEASE_KEY": self.key}
        variables["MLD_ANCESTOR_SHARD_IDS"] = " ".join(self.ancestors)
        variables["MLD_CHILD_NUMBER"] = str(self.child_number)
        variables["MLD_CHILDREN_PER_SHARD"] = str(self.children)
        if self.stream is not None:
            label = self.stream
            variables |= {"MLD_STREAM_NAME": label.name, "MLD_STREAM_ARN": label.arn, "MLD_STREAM_ID": label.id}
        return variables


class ProcessorHost(Protocol):
    async def start(self, shard: ShardAddress) -> ChildProcess:
        """Start one child for a shard; raises ChildStartError."""
        ...


class ShardProcessor(Protocol):
    """What a consumer talks to: one child, or several that share the records of the shard.

    Every way in which a child can go wrong ends in `ProcessorError`.
    """

    initialized: bool

    @property
    def gone(self) -> asyncio.Future[NoReturn]:
        """Done once a child can no longer answer; its exception says why."""
        ...

    @property
    def description(self) -> str: ...

    @property
    def last_words(self) -> Sequence[str]:
        """The last lines that the child which failed, or the only one, wrote to stderr."""
        ...

    @property
    def has_room(self) -> bool:
        """Whether it takes another batch at once."""
        ...

    async def until_room(self) -> None: ...

    async def until_answered(self) -> None:
        """Wait until all records that it was given are answered."""
        ...

    @property
    def unanswered(self) -> tuple[ChildBatch, Position] | None:
        """What its children had when one of them failed: records, all after a position up to which everything was
        answered. None if the records are not to blame.
        """
        ...

    def adjust(self, settings: ChildSettings) -> None:
        """Wait so long from the next wait on, and warn of the action under way by the new bound."""
        ...

    async def initialize(self, message: Initialize) -> None: ...

    async def process_records(
        self, batch: ChildBatch, wanted: Wanted, written: Written, holds: Holds, *, alone: bool
    ) -> bool:
        """Have records processed; `holds` describes them, for a warning. Return whether they are answered already.
        With `alone` they always are: nothing else is under way.
        """
        ...

    async def shutdown_requested(self, checkpoint: str) -> None: ...

    async def shard_ended(self, written: Written) -> None: ...

    async def lease_lost(self) -> None: ...

    async def end(self) -> str:
        """End the children: close stdin, wait, TERM, KILL. Says how they ended. Checkpoints under way are stored."""
        ...

    def kill_soon(self) -> None:
        """Kill them while an exchange may be under way, which fails; then `end` says how they ended."""
        ...

    async def kill(self) -> str: ...


class MissingVerdict(Enum):
    """What "resource not found", or the refusal of a position, means for a shard, judged by evidence."""

    OVER = "over"  # the right stream, and this shard is past its retention
    LISTED = "listed"  # the shard is there after all: try again
    UNKNOWN = "unknown"  # the stream is missing or may be the wrong one: keep the checkpoint, wait


class EndVerdict(Enum):
    """What to do when the end of a shard was read."""

    READY = "ready"  # its children have rows: SHARD_END may be checkpointed
    WAIT = "wait"  # something else must come first: ask again later
    READ_AGAIN = "read again"  # the end contradicts itself or the listing: it proves nothing


class ShardCare(Protocol):
    """The lease table's side of a shard's beginning and end. Raises TableError or StreamError if it cannot tell now."""

    async def parents_complete(self, lease: Lease) -> bool: ...

    def ancestors(self, lease: Lease) -> tuple[str, ...]:
        """Return the ids of the shards that the shard follows, as far as they are listed."""
        ...

    async def oddity(self, lease: Lease) -> str | None:
        """Return why the row of `lease` cannot be of its shard, as a sentence with the remedy; None: it can."""
        ...

    async def prepare_end(self, lease: Lease, children: Sequence[ChildShard]) -> EndVerdict:
        """Make the children's lease rows. Without `children` they are looked up in the listing."""
        ...

    async def judge_missing(self, lease: Lease) -> MissingVerdict:
        """Judge a shard that is missing; the checkpoint of `lease` is the last position that was read."""
        ...

    def ended(self, lease: Lease) -> None:
        """Note that the row is at SHARD_END: wake waiting children, note the row for clean-up."""
        ...


class Signal:
    """A wake-up for any number of waiters. Take `current()` before looking at the facts, then wait on it."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def current(self) -> asyncio.Event:
        return self._event

    def notify(self) -> None:
        self._event.set()
        self._event = asyncio.Event()


@dataclass(frozen=True, slots=True)
class ShardSource:
    """What the consumers of one stream's shards share. `new_reader` is given the shard's id, and counts there.

    `label` is what children are told of the stream; None if the application reads no other.
    """

    new_reader: Callable[[str, ShardMetrics], ShardReader]
    initial: InitialPosition
    sender: Sender
    label: StreamLabel | None = None
    prepare: Callable[[ChildBatch], Awaitable[ChildBatch]] | None = None
    """Takes off what a schema registry put around records; None: nothing does."""
    placement: Placement | None = None
    """Whether records lie where their keys say; None: they do."""

    @property
    def stream_name(self) -> str | None:
        """How the log names the stream, if the application reads others."""
        return None if self.label is None else self.label.name

    def address_of(self, lease: Lease, ancestors: tuple[str, ...]) -> ShardAddress:
        """Return for whom the child of a lease is started."""
        return ShardAddress(lease.key, lease.shard_id, self.label, ancestors)


@dataclass(frozen=True, slots=True)
class ConsumerParts:
    """The collaborators of every consumer of a worker. `on_gave_up(key, why)` must return at once."""

    keeper: LeaseKeeper
    host: ProcessorHost
    source_of: Callable[[Lease], ShardSource]
    care: ShardCare
    parents_changed: Signal
    clock: Clock
    rng: Random
    on_gave_up: Callable[[str, str], None]
    letters: LetterBox | None = None
    """Where records are set aside; None: no record ever is."""
    budget: Budget = field(default_factory=lambda: Budget(PREFETCH_BYTES_MAX))
    """Memory for records that wait, which readers and the children of a shard share."""
    metrics: Metrics = field(default_factory=Metrics)
    traces: ProtocolTraces = field(default_factory=ProtocolTraces)
