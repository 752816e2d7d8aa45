"""The `Streams` port: the calls that the daemon makes to Kinesis, and the values that they return.

A port object serves one stream. The real adapter is `mld.aws.kinesis`; the twin is in `tests.twins`. Callers see
records only as `Page` and `ChildBatch`, never one by one. So an adapter can build the line for the child while it reads
the body of an answer, and keep only the pieces of that line.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Any, Protocol

from mld.core.positions import Position
from mld.core.steps import Steps

HASH_KEY_MAX = 2**128 - 1
STREAM_DISABLED = "DISABLED"
A_TURN = b""
"""An empty piece of a line: there is nothing to write yet, and other tasks should run; see `ChildBatch.line`."""


@dataclass(frozen=True, slots=True)
class HashRange:
    """A range of hash keys, 0 to 2**128-1. Both ends belong to it, so start may equal end."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Shard:
    """A shard as ListShards shows it. `ending_sequence` is None while the shard is open."""

    shard_id: str
    hash_range: HashRange
    starting_sequence: str
    ending_sequence: str | None = None
    parent_id: str | None = None
    adjacent_parent_id: str | None = None

    @property
    def is_open(self) -> bool:
        return self.ending_sequence is None

    @property
    def parents(self) -> frozenset[str]:
        return frozenset(p for p in (self.parent_id, self.adjacent_parent_id) if p)


@dataclass(frozen=True, slots=True)
class ChildShard:
    """A child shard, as named in the last answer of its parent."""

    shard_id: str
    parents: frozenset[str]
    hash_range: HashRange


def child_shard_of(item: Mapping[str, Any]) -> ChildShard:
    """Parse a member of ChildShards in an answer. Raises KeyError, TypeError or ValueError."""
    return ChildShard(
        shard_id=item["ShardId"],
        parents=frozenset(item.get("ParentShards") or ()),
        hash_range=hash_range_of(item["HashKeyRange"]),
    )


def hash_range_of(item: Mapping[str, Any]) -> HashRange:
    """Parse a HashKeyRange in an answer. Raises KeyError, TypeError or ValueError."""
    return HashRange(start=int(item["StartingHashKey"]), end=int(item["EndingHashKey"]))


class StreamKind(Enum):
    """The service that a stream belongs to. The two services differ in their shards and in how a shard ends."""

    KINESIS = "Kinesis"
    DYNAMODB = "DynamoDB"
    """A shard lasts some hours and has one parent, one or two children, and no hash keys. Records last 24 hours."""

    @property
    def has_hash_keys(self) -> bool:
        """Whether shards divide the hash keys among them, so that a missing shard leaves a hole."""
        return self is StreamKind.KINESIS


class ShardFilterType(Enum):
    AT_TRIM_HORIZON = "AT_TRIM_HORIZON"
    AT_LATEST = "AT_LATEST"
    AT_TIMESTAMP = "AT_TIMESTAMP"


@dataclass(frozen=True, slots=True)
class ShardFilter:
    type: ShardFilterType
    timestamp_s: float | None = None


@dataclass(frozen=True, slots=True)
class ShardsPage:
    shards: tuple[Shard, ...]
    next_token: str | None = None


@dataclass(frozen=True, slots=True)
class StreamSummary:
    """Description of a stream. `status` is ACTIVE, UPDATING, CREATING or DELETING; for DynamoDB ENABLING, ENABLED,
    DISABLING or DISABLED.
    """

    name: str
    arn: str
    status: str
    created_ms: int | None = None
    """Time of creation in epoch milliseconds; None from stand-ins that do not report it."""
    has_strategy: bool = False
    """Whether the stream has a strategy by which Kinesis may choose a record's shard without regard to its key
    (retrieval#hash-range-rule)."""
    retention_s: float | None = None
    """How long records are kept; None if not reported."""


class IteratorType(Enum):
    LATEST = "LATEST"
    TRIM_HORIZON = "TRIM_HORIZON"
    AT_TIMESTAMP = "AT_TIMESTAMP"
    AT_SEQUENCE_NUMBER = "AT_SEQUENCE_NUMBER"
    AFTER_SEQUENCE_NUMBER = "AFTER_SEQUENCE_NUMBER"


@dataclass(frozen=True, slots=True)
class StartingPoint:
    """A position for GetShardIterator. `sequence` or `timestamp_s` is set for the types that need it."""

    type: IteratorType
    sequence: str | None = None
    timestamp_s: float | None = None


@dataclass(frozen=True, slots=True)
class Misrouted:
    """An aggregate that is not delivered, because one of its user records belongs to another shard.

    `sub_sequence` is the number of the first such record in the aggregate, and `hash_key` is that record's hash key.
    With `is_explicit` the producer gave the hash key; otherwise it is the hash of the partition key, which is
    `key_bytes` long.
    """

    user_records: int
    sub_sequence: int
    hash_key: int
    is_explicit: bool
    key_bytes: int


class CountedRecords(Protocol):
    """How many user records a child was given, their size, and the last position."""

    @property
    def data_bytes(self) -> int:
        """Sum of the payloads in bytes; complete once `line` is exhausted."""
        ...

    @property
    def count(self) -> int:
        """Number of user records; complete once `line` is exhausted."""
        ...

    @property
    def largest(self) -> Position | None:
        """Highest position in the batch; None if it is empty."""
        ...


class ChildBatch(CountedRecords, Protocol):
    """User records of one page, ready for a child: aggregates are opened, and records before the checkpoint are
    removed.
    """

    @property
    def millis_behind_latest(self) -> int | None:
        """How far the page was behind the tip of the shard, in milliseconds; None if that is unknown."""
        ...

    @property
    def malformed(self) -> Mapping[str, str]:
        """KPL aggregates that are delivered unopened, as a map from sequence number to reason; complete once `line` is
        exhausted.
        """
        ...

    @property
    def misrouted(self) -> Mapping[str, Misrouted]:
        """KPL aggregates that are not delivered, by sequence number; complete once `line` is exhausted, or if the batch
        is empty.
        """
        ...

    def opening(self) -> Steps[None]:
        """Return, as steps, the work that must be done before `largest` is known. If the steps are not run, reading
        `largest` does all of that work at once.
        """
        ...

    def line(self) -> Iterator[bytes]:
        """Return the `processRecords` line in pieces of about 128 KB, newline included. May be called again.

        A piece may be empty (`A_TURN`): there is nothing to write yet, and other tasks should get a turn.
        """
        ...


class PlainBatch:
    """Base of batches without aggregates; see `ChildBatch`."""

    __slots__ = ()
    malformed: Mapping[str, str] = MappingProxyType({})
    misrouted: Mapping[str, Misrouted] = MappingProxyType({})

    def opening(self) -> Steps[None]:
        """Return no steps: there is nothing to open."""
        yield from ()


class Page(Protocol):
    """The records of one answer of GetRecords, or of one fan-out event. If `next_iterator` is None, the shard has
    ended, and `child_shards` names its children.
    """

    @property
    def count(self) -> int: ...

    @property
    def data_bytes(self) -> int: ...

    @property
    def first_sequence(self) -> str | None:
        """Sequence number of the first record; None without records."""
        ...

    @property
    def first_arrival_ms(self) -> int | None:
        """Arrival of the first record in epoch milliseconds; None without records."""
        ...

    def first_arrival_ms_after(self, position: Position) -> int | None:
        """Return the arrival of the first record after `position`, in epoch milliseconds; None if no record comes after
        it.

        In a page with aggregates the record at `position` counts too, because some of its user records may come after
        it.
        """
        ...

    @property
    def last_sequence(self) -> str | None:
        """Sequence number of the last record; None without records."""
        ...

    @property
    def bears_frames(self) -> bool:
        """False if certainly no record has the frame of a schema registry; True if one may have it."""
        ...

    @property
    def next_iterator(self) -> str | None: ...

    @property
    def millis_behind_latest(self) -> int | None:
        """How far the end of the page is behind the tip of the shard; 0 at the tip. None if the service does not report
        it; then the page is not at the tip, even if it is empty (retrieval#empty-pages).
        """
        ...

    @property
    def child_shards(self) -> tuple[ChildShard, ...]: ...

    def after(self, position: Position, hash_range: HashRange | None = None) -> ChildBatch:
        """Return the user records strictly after `position`, in order.

        `hash_range` is the range of the lease, if producers choose the shards of records by their keys. Then an
        aggregate that was built for another shard yields nothing (retrieval#hash-range-rule).
        """
        ...


class Streams(Protocol):
    """Kinesis for one stream. All methods raise subclasses of `errors.StreamError`; none retries."""

    async def list_shards(self, shard_filter: ShardFilter | None, next_token: str | None) -> ShardsPage:
        """Fetch one page of ListShards. If `next_token` is given, the filter is not sent again."""
        ...

    async def describe(self) -> StreamSummary: ...

    async def shard_iterator(self, shard_id: str, start: StartingPoint) -> str: ...

    async def get_records(self, iterator: str, limit: int | None) -> Page:
        """Call GetRecords once. `limit` None: the service decides how many records it returns."""
        ...


@dataclass(frozen=True, slots=True)
class StreamConsumer:
    """A registered consumer of enhanced fan-out. `status` is CREATING, ACTIVE or DELETING."""

    arn: str
    status: str


class Subscription(Protocol):
    """An open SubscribeToShard call: events arrive until it ends, after five minutes at the latest."""

    async def next(self) -> Page | None:
        """Return the next event as a page; None when the subscription has ended normally.

        `next_iterator` of the page is the event's ContinuationSequenceNumber. Raises `errors.StreamError`. Only a
        bounded amount is read ahead. An event can be lost only if this call is cancelled.
        """
        ...

    def close(self) -> None:
        """Close the subscription. May be called at any time, and repeatedly."""
        ...


class FanOut(Protocol):
    """Enhanced fan-out of one stream. All methods raise subclasses of `errors.StreamError`; none retries."""

    async def describe(self) -> StreamSummary: ...

    async def consumer_named(self, stream_arn: str, name: str) -> StreamConsumer: ...

    async def consumer(self, arn: str) -> StreamConsumer: ...

    async def register_consumer(self, stream_arn: str, name: str) -> StreamConsumer: ...

    async def subscribe(self, consumer_arn: str, shard_id: str, start: StartingPoint) -> Subscription: ...


def validate_end_of_shard(next_token: str | None, children: Sequence[ChildShard]) -> str | None:
    """Return why the end marker and the children of a page contradict each other; None if they do not
    (retrieval#valid-answers).
    """
    if next_token is not None:
        return "child shards named although the shard goes on" if children else None
    if not children:
        return "end of the shard without child shards"
    if any(not child.parents for child in children):
        return "a child shard without parents"
    return None
