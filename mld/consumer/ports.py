"""The interfaces that a shard consumer uses: a host for its child, and small interfaces to the other rooms.

`ProcessorHost` starts children. Its real adapter is `child` (processes and pipes); tests use in-memory children that
exchange the same bytes.

`consumer` may not import `shards`. Through `ShardCare` it asks for the changes of the lease table that are needed when
a shard begins or ends.
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
"""Called when the line of an action has been written to the child's pipe, before any answer of the child is handled."""

Wanted = Callable[[], bool]
"""Called just before an action is sent: is it still wanted? The wait for its turn may take as long as a checkpoint."""

Holds = Callable[[], Mapping[str, object]]
"""Returns the records that a child is working on, as fields of the log; called only for a warning."""


class ChildStartError(MldError):
    """The command cannot be started. The text names the command, the system's reason and the key to change."""


class ChildProcess(Protocol):
    """One running record processor. Lines are decoded, without line ends."""

    @property
    def description(self) -> str:
        """The name of the child in the log, for example ``pid 4711``."""
        ...

    def begin_write(self, pieces: Iterable[bytes]) -> asyncio.Future[None] | None:
        """Write all pieces in order, without blocking the loop. Return None if the pipe has taken them at once.

        Otherwise return a future that is done when the pipe has taken them; it raises BrokenPipeError if the child has
        stopped reading. The iterator is asked for the next piece, or its end, as soon as a piece is in the pipe.
        """
        ...

    async def read_line(self) -> str | None:
        """Return the next line of stdout; None if no more can come (stdout is closed, or the process is gone)."""
        ...

    def take_unread(self) -> list[str]:
        """Remove and return lines of stdout that have come, but that `read_line` has not returned yet."""
        ...

    @property
    def last_words(self) -> Sequence[str]:
        """The last lines of stderr, shortened."""
        ...

    async def end(self) -> str:
        """Close stdin and wait for the exit. If it takes too long, send TERM and then KILL to the process group. Return
        how the child ended.

        If cancelled, kill at once.
        """
        ...

    async def kill(self) -> str:
        """Kill the process group now, and reap the child; return how it ended."""
        ...


@dataclass(frozen=True, slots=True)
class ShardAddress:
    """The shard that a child is for: its lease key, its id, its stream (if the application reads several), and its
    ancestors, parents first."""

    key: str
    shard_id: str
    stream: StreamLabel | None = None
    ancestors: tuple[str, ...] = ()
    child_number: int = 0
    """The number of this child among the shard's `children`, from 0."""
    children: int = 1

    def variables(self) -> dict[str, str]:
        """Return the environment variables by which the child learns this (protocol#child-command)."""
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
    """The record processor of a shard as the consumer sees it: one child, or several that share the shard's records.

    Any misbehaviour of a child is raised as a `ProcessorError`.
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
        """Whether another batch can be given at once."""
        ...

    async def until_room(self) -> None: ...

    async def until_answered(self) -> None:
        """Wait until the children have answered all records that they were given."""
        ...

    @property
    def unanswered(self) -> tuple[ChildBatch, Position] | None:
        """The unanswered records of the children when one of them failed, and the position before these: everything up
        to it was answered. None if the records are not to blame.
        """
        ...

    def adjust(self, settings: ChildSettings) -> None:
        """Use other time limits: the timeout from the next wait on, the warning for the present action too."""
        ...

    async def initialize(self, message: Initialize) -> None: ...

    async def process_records(
        self, batch: ChildBatch, wanted: Wanted, written: Written, holds: Holds, *, alone: bool
    ) -> bool:
        """Give a batch to the processor; `holds` describes it for a warning.

        Return True if the answer has come. False: it comes later, and is reported by another way. With `alone` the
        batch is sent when all earlier ones are answered, and the call returns when this one is answered, too.
        """
        ...

    async def shutdown_requested(self, checkpoint: str) -> None: ...

    async def shard_ended(self, written: Written) -> None: ...

    async def lease_lost(self) -> None: ...

    async def end(self) -> str:
        """End the children as `ChildProcess.end`; return how they ended. Checkpoints under way are stored first."""
        ...

    def kill_soon(self) -> None:
        """Kill the children, even during an exchange, which then fails. Call `end` afterwards."""
        ...

    async def kill(self) -> str: ...


class MissingVerdict(Enum):
    """What the evidence shows about a shard for which Kinesis answered "resource not found", or refused a position."""

    OVER = "over"  # it is the right stream, and the shard has left retention
    LISTED = "listed"  # the shard exists after all: try again
    UNKNOWN = "unknown"  # the stream is missing or may be the wrong one: keep the checkpoint, wait


class EndVerdict(Enum):
    """What to do after the end of a shard was read."""

    READY = "ready"  # its children have rows: SHARD_END may be checkpointed
    WAIT = "wait"  # not yet: ask again later
    READ_AGAIN = "read again"  # the end contradicts itself or the listing, so it proves nothing


class ShardCare(Protocol):
    """Looks after the lease table when a shard begins and ends. Raises TableError or StreamError without an answer."""

    async def parents_complete(self, lease: Lease) -> bool: ...

    def ancestors(self, lease: Lease) -> tuple[str, ...]:
        """Return the ids of the shard's ancestors, as far as they are listed."""
        ...

    async def oddity(self, lease: Lease) -> str | None:
        """Return a sentence that says why the row of `lease` cannot belong to its shard, with the remedy; None if it
        can.
        """
        ...

    async def prepare_end(self, lease: Lease, children: Sequence[ChildShard]) -> EndVerdict:
        """Create the lease rows of the child shards. If `children` is empty, they are looked up in the listing."""
        ...

    async def judge_missing(self, lease: Lease) -> MissingVerdict:
        """Judge a missing shard; the checkpoint of `lease` must be the last position that was read."""
        ...

    def ended(self, lease: Lease) -> None:
        """Note that the row is at SHARD_END: wake consumers of child shards, and queue the row for clean-up."""
        ...


class Signal:
    """A wake-up for any number of waiters: call `current()`, then check the facts, then wait for that event."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def current(self) -> asyncio.Event:
        return self._event

    def notify(self) -> None:
        self._event.set()
        self._event = asyncio.Event()


@dataclass(frozen=True, slots=True)
class ShardSource:
    """Facts and functions that all consumers of one stream share. `new_reader` makes a reader for a shard id; the
    reader counts in the given metrics.

    `label` names the stream to its children; None if the application reads only one stream.
    """

    new_reader: Callable[[str, ShardMetrics], ShardReader]
    initial: InitialPosition
    sender: Sender
    label: StreamLabel | None = None
    prepare: Callable[[ChildBatch], Awaitable[ChildBatch]] | None = None
    """Removes the frames of a schema registry from the records of a batch; None: records have none."""
    placement: Placement | None = None
    """Tells whether records are in the shards that their hash keys belong to; None: they are."""

    @property
    def stream_name(self) -> str | None:
        """The stream's name for the log; None if the application reads only one stream."""
        return None if self.label is None else self.label.name

    def address_of(self, lease: Lease, ancestors: tuple[str, ...]) -> ShardAddress:
        """Return the address for which the child of a lease is started."""
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
    """Where dead letters are written; None: no record is ever set aside."""
    budget: Budget = field(default_factory=lambda: Budget(PREFETCH_BYTES_MAX))
    """Memory for waiting records, shared by the readers and by the queues of several children."""
    metrics: Metrics = field(default_factory=Metrics)
    traces: ProtocolTraces = field(default_factory=ProtocolTraces)
