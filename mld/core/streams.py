"""The `Streams` port: what the core asks of Kinesis, and the values it gets back.

One port object serves one stream. The real adapter is `mld.aws.kinesis`; the twin is in `tests.twins`. Callers see a
page of records as `Page` and `ChildBatch` only, never the records themselves, so that an adapter may frame the child's
line while it reads a body, and keep the pieces.
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
"""A piece of a line that only asks for a turn of the event loop; see `ChildBatch.line`."""


@dataclass(frozen=True, slots=True)
class HashRange:
    """Both ends inclusive, 0 .. 2**128-1. A range of one key (start = end) is legal."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Shard:
    """One shard as ListShards shows it. `ending_sequence` is None while the shard is open."""

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
    """A child named at the end of its parent's records."""

    shard_id: str
    parents: frozenset[str]
    hash_range: HashRange


def child_shard_of(item: Mapping[str, Any]) -> ChildShard:
    """Return a member of ChildShards, as the API writes it. Raises KeyError, TypeError or ValueError."""
    return ChildShard(
        shard_id=item["ShardId"],
        parents=frozenset(item.get("ParentShards") or ()),
        hash_range=hash_range_of(item["HashKeyRange"]),
    )


def hash_range_of(item: Mapping[str, Any]) -> HashRange:
    """Return a HashKeyRange, as the API writes it. Raises KeyError, TypeError or ValueError."""
    return HashRange(start=int(item["StartingHashKey"]), end=int(item["EndingHashKey"]))


class StreamKind(Enum):
    """What kind of stream it is; shards and their ends differ."""

    KINESIS = "Kinesis"
    DYNAMODB = "DynamoDB"
    """A shard lasts some hours and has one child or two, one parent, and no hash keys; records last 24 hours."""

    @property
    def has_hash_keys(self) -> bool:
        """Whether shards share out the hash keys, so that one that is missing leaves a hole."""
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
    """`status` is ACTIVE, UPDATING, CREATING or DELETING; of a DynamoDB stream ENABLED, DISABLED or between them."""

    name: str
    arn: str
    status: str
    created_ms: int | None = None
    """When it was made, in milliseconds since the epoch; None from stand-ins that do not say."""
    has_strategy: bool = False
    """Whether it can distribute records over its shards by itself, whatever their keys (retrieval#hash-range-rule)."""
    retention_s: float | None = None
    """How long it keeps records; None if it does not say."""


class IteratorType(Enum):
    LATEST = "LATEST"
    TRIM_HORIZON = "TRIM_HORIZON"
    AT_TIMESTAMP = "AT_TIMESTAMP"
    AT_SEQUENCE_NUMBER = "AT_SEQUENCE_NUMBER"
    AFTER_SEQUENCE_NUMBER = "AFTER_SEQUENCE_NUMBER"


@dataclass(frozen=True, slots=True)
class StartingPoint:
    """A GetShardIterator position; `sequence` or `timestamp_s` accompanies the types that need it."""

    type: IteratorType
    sequence: str | None = None
    timestamp_s: float | None = None


@dataclass(frozen=True, slots=True)
class Misrouted:
    """An aggregate of which nothing is delivered, because one of its user records belongs to another shard.

    `sub_sequence` is that of the first such record, `hash_key` its hash key: given (`is_explicit`), or the hash of its
    partition key, which has `key_bytes`.
    """

    user_records: int
    sub_sequence: int
    hash_key: int
    is_explicit: bool
    key_bytes: int


class ChildBatch(Protocol):
    """User records that are ready for a child: those of one page after de-aggregation and the checkpoint filter."""

    @property
    def millis_behind_latest(self) -> int | None:
        """The lag of the page; None if it told none."""
        ...

    @property
    def data_bytes(self) -> int:
        """Sum of the payload sizes, in bytes; complete when `line` has come to its end."""
        ...

    @property
    def count(self) -> int:
        """How many user records; complete when `data_bytes` is."""
        ...

    @property
    def malformed(self) -> Mapping[str, str]:
        """KPL aggregates that are delivered as they came: sequence number to reason; complete when `data_bytes` is."""
        ...

    @property
    def misrouted(self) -> Mapping[str, Misrouted]:
        """KPL aggregates that are not delivered, by sequence number; complete when `data_bytes` is, or if empty."""
        ...

    def opening(self) -> Steps[None]:
        """Return the work to be done before `largest` is known, in slices; otherwise `largest` does it at once."""
        ...

    @property
    def largest(self) -> Position | None:
        """The highest position in the batch; None if it is empty."""
        ...

    def line(self) -> Iterator[bytes]:
        """Return the `processRecords` line for the child in pieces of about 128 KB, newline included. Callable again.

        A piece may be empty (`A_TURN`): the work so far has produced nothing yet, and others get a turn of the loop.
        """
        ...


class PlainBatch:
    """What batches have in common that hold no aggregates; see `ChildBatch`."""

    __slots__ = ()
    malformed: Mapping[str, str] = MappingProxyType({})
    misrouted: Mapping[str, Misrouted] = MappingProxyType({})

    def opening(self) -> Steps[None]:
        """Return nothing: nothing has to be opened."""
        yield from ()


class Page(Protocol):
    """One GetRecords answer. If `next_iterator` is None the shard has ended, and `child_shards` names the children."""

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
        """When the first record arrived, in epoch milliseconds; None without records."""
        ...

    def first_arrival_ms_after(self, position: Position) -> int | None:
        """Return when the first record after `position` arrived, in epoch milliseconds; None if there is none.

        In a page with aggregates the record at `position` counts too: some of its user records may come after it.
        """
        ...

    @property
    def last_sequence(self) -> str | None:
        """Sequence number of the last record; None without records."""
        ...

    @property
    def bears_frames(self) -> bool:
        """Whether a record may have the frame of a schema registry; certain only if not."""
        ...

    @property
    def next_iterator(self) -> str | None: ...

    @property
    def millis_behind_latest(self) -> int | None:
        """How far behind the tip of the shard it ends; 0 at the tip. None where the service does not tell: then it is
        not the tip, however empty the page (retrieval#empty-pages)."""
        ...

    @property
    def child_shards(self) -> tuple[ChildShard, ...]: ...

    def after(self, position: Position, hash_range: HashRange | None = None) -> ChildBatch:
        """Return the user records strictly after `position`, in order.

        `hash_range` is the lease's, where producers choose the shards of records by their keys: an aggregate that was
        built for another shard yields nothing (retrieval#hash-range-rule).
        """
        ...


class Streams(Protocol):
    """Kinesis, for one stream. Every method raises a subclass of `errors.StreamError`; none of them retries."""

    async def list_shards(self, shard_filter: ShardFilter | None, next_token: str | None) -> ShardsPage:
        """Fetch one page of ListShards. With `next_token` the filter is not sent again."""
        ...

    async def describe(self) -> StreamSummary: ...

    async def shard_iterator(self, shard_id: str, start: StartingPoint) -> str: ...

    async def get_records(self, iterator: str, limit: int | None) -> Page:
        """Make one GetRecords call; `limit` None leaves the number to the service."""
        ...


@dataclass(frozen=True, slots=True)
class StreamConsumer:
    """A registered consumer of enhanced fan-out. `status` is CREATING, ACTIVE or DELETING."""

    arn: str
    status: str


class Subscription(Protocol):
    """An open SubscribeToShard answer: events are pushed until it ends, after five minutes at the latest."""

    async def next(self) -> Page | None:
        """Return the next event; None when the subscription has come to its ordinary end.

        `next_iterator` of the page is the event's ContinuationSequenceNumber. Raises `errors.StreamError`. Nothing is
        read ahead beyond a bounded buffer. Only cancellation may lose an event.
        """
        ...

    def close(self) -> None:
        """Give it up. May be called at any time, and again."""
        ...


class FanOut(Protocol):
    """Enhanced fan-out of one stream. Every method raises a subclass of `errors.StreamError`; none of them retries."""

    async def describe(self) -> StreamSummary: ...

    async def consumer_named(self, stream_arn: str, name: str) -> StreamConsumer: ...

    async def consumer(self, arn: str) -> StreamConsumer: ...

    async def register_consumer(self, stream_arn: str, name: str) -> StreamConsumer: ...

    async def subscribe(self, consumer_arn: str, shard_id: str, start: StartingPoint) -> Subscription: ...


def validate_end_of_shard(next_token: str | None, children: Sequence[ChildShard]) -> str | None:
    """Return why a page's end marker and child list contradict each other, or None if they agree
    (retrieval#valid-answers).
    """
    if next_token is not None:
        return "child shards named although the shard goes on" if children else None
    if not children:
        return "end of the shard without child shards"
    if any(not child.parents for child in children):
        return "a child shard without parents"
    return None
