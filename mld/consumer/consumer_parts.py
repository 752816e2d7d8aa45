"""Objects that consumers share: `ConsumerParts` are those of all consumers of a worker, `ShardSource` those of all
consumers of one stream.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from random import Random

from mld.aws.letters import LetterBox
from mld.consumer.dead_letters import Sender
from mld.consumer.ports import ProcessorHost, ShardAddress
from mld.consumer.protocol_trace import ProtocolTraces
from mld.consumer.record_budgets import RecordBudgets
from mld.consumer.shard_care import ShardCare
from mld.core.clock import Clock
from mld.core.positions import InitialPosition
from mld.core.streams import ChildBatch
from mld.leases.keeper import LeaseKeeper
from mld.leases.lease import Lease
from mld.metrics.registry import Metrics
from mld.metrics.shard import ShardMetrics
from mld.properties.printable import printable
from mld.properties.settings import PREFETCH_BYTES_MAX
from mld.protocol.messages import StreamLabel
from mld.retrieval.placement import Placement
from mld.retrieval.prefetch import Budget
from mld.retrieval.reader import ShardReader


class Signal:
    """Wakes any number of waiters. A waiter calls `current()`, then checks the facts, then waits for the event that it
    got; so it misses no change in between.
    """

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def current(self) -> asyncio.Event:
        """Return the event that the next `notify` sets."""
        return self._event

    def notify(self) -> None:
        """Wake all waiters. Whoever calls `current` from now on waits for the next change."""
        self._event.set()
        self._event = asyncio.Event()


@dataclass(frozen=True, slots=True)
class ShardSource:
    """Facts and functions that all consumers of one stream share. `new_reader` makes the reader of a shard, which
    counts what it reads in the given metrics.

    `label` names the stream to its children; None if the application reads only one stream.
    """

    new_reader: Callable[[str, ShardMetrics], ShardReader]
    initial: InitialPosition
    sender: Sender
    label: StreamLabel | None = None
    prepare: Callable[[ChildBatch, RecordBudgets], Awaitable[ChildBatch]] | None = None
    """Removes the frames of a schema registry from the records of a batch, within the budgets of its shard; None if
    records of the stream have no frames."""
    placement: Placement | None = None
    """Finds out whether the stream's records are in the shards that their hash keys belong to; None if they certainly
    are."""

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
    """Where dead letters are written; None if no record is ever set aside."""
    fit: Callable[[str], str] = printable
    """Makes what a child printed fit for a dead letter: without secrets of the daemon and control characters."""
    budget: Budget = field(default_factory=lambda: Budget(PREFETCH_BYTES_MAX))
    """Memory for waiting records, shared by the readers and by the queues of several children."""
    metrics: Metrics = field(default_factory=Metrics)
    traces: ProtocolTraces = field(default_factory=ProtocolTraces)
