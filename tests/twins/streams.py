"""`MemoryStreams`: the `Streams` port in memory, with scripted faults, for unit tests in virtual time.

It keeps to what Kinesis promises (retrieval#service-limits): iterators live 300 s, a page may be empty, the last page
of a closed shard has no next iterator and names the children. Every call is noted with its time.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field

from mld.core.errors import IteratorExpiredError, StreamNotFoundError
from mld.core.streams import (
    HASH_KEY_MAX,
    ChildShard,
    HashRange,
    IteratorType,
    Shard,
    ShardFilter,
    ShardsPage,
    StartingPoint,
    StreamSummary,
)
from mld.protocol.messages import Record
from mld.retrieval.rawpage import RawPage
from tests.support.pages import page_with

WALL_EPOCH_S = 1_700_000_000.0
ITERATOR_LIFE_S = 300.0
FIRST_SEQUENCE = 10**55
"""Real sequence numbers have 56 digits."""

Transform = Callable[[RawPage], RawPage]


class HangError(Exception):
    """As a scripted fault: the call never answers."""


class VirtualClock:
    """The clock of the running loop; wall time is an epoch plus loop time, plus `skew_s`."""

    def __init__(self, skew_s: float = 0.0) -> None:
        self.skew_s = skew_s

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    def wall(self) -> float:
        return WALL_EPOCH_S + self.skew_s + self.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


@dataclass(frozen=True)
class Call:
    """One call as it came in. `argument` is the starting point or the iterator."""

    operation: str
    at_s: float
    argument: object


@dataclass
class MemoryShard:
    shard_id: str
    records: list[Record] = field(default_factory=list)
    children: tuple[ChildShard, ...] | None = None

    def index_of(self, point: StartingPoint) -> int:
        match point.type:
            case IteratorType.TRIM_HORIZON:
                return 0
            case IteratorType.LATEST:
                return len(self.records)
            case IteratorType.AT_TIMESTAMP:
                assert point.timestamp_s is not None
                return bisect_left(self.records, point.timestamp_s * 1000, key=lambda r: r.approximate_arrival_ms)
            case IteratorType.AT_SEQUENCE_NUMBER | IteratorType.AFTER_SEQUENCE_NUMBER:
                assert point.sequence is not None
                number = int(point.sequence) + (point.type is IteratorType.AFTER_SEQUENCE_NUMBER)
                return bisect_left(self.records, number, key=lambda r: int(r.sequence_number))


ARN = "arn:aws:kinesis:eu-west-1:123456789012:stream/stream"


class MemoryStreams:
    """One stream. `fail` scripts errors, `bend` scripts altered answers; each is used up by one call."""

    def __init__(self, *shard_ids: str, latency_s: float = 0.0) -> None:
        self.clock = VirtualClock()
        self.latency_s = latency_s
        self.shards = {shard_id: MemoryShard(shard_id) for shard_id in shard_ids or ("shard-0",)}
        self.calls: list[Call] = []
        self.on_change: list[Callable[[], None]] = []
        """Called when records were put or a shard was closed."""
        self._faults: dict[str, deque[Exception | None]] = defaultdict(deque)
        self._bends: deque[Transform | None] = deque()
        self._sequence = FIRST_SEQUENCE
        self.created_ms: int | None = 1_767_323_045_678

    # --- arranging ----------------------------------------------------------------------------------------------------

    def put(self, count: int = 1, *, shard_id: str = "shard-0", data: bytes = b"x") -> list[str]:
        """Write records now; their sequence numbers."""
        written = []
        for _ in range(count):
            self._sequence += 7
            now_ms = int(self.clock.wall() * 1000)
            self.shards[shard_id].records.append(Record(data, "key", str(self._sequence), 0, now_ms))
            written.append(str(self._sequence))
        self._changed()
        return written

    @property
    def tip(self) -> int:
        """No record put from now on has a lower number."""
        return self._sequence

    def close(self, *children: str, shard_id: str = "shard-0") -> tuple[ChildShard, ...]:
        """End the shard; without names, its children are never told."""
        named = tuple(ChildShard(c, frozenset({shard_id}), HashRange(0, HASH_KEY_MAX)) for c in children)
        self.shards[shard_id].children = named
        self._changed()
        return named

    def _changed(self) -> None:
        for listener in self.on_change:
            listener()

    def fail(self, operation: str, *errors: Exception | None) -> None:
        """The next calls of `operation` raise these; None lets one through."""
        self._faults[operation].extend(errors)

    def bend(self, *transforms: Transform | None) -> None:
        """The next answers of GetRecords pass through these."""
        self._bends.extend(transforms)

    def times(self, operation: str) -> list[float]:
        return [call.at_s for call in self.calls if call.operation == operation]

    def points(self) -> list[StartingPoint]:
        """The starting points asked for, in order."""
        return [call.argument for call in self.calls if isinstance(call.argument, StartingPoint)]

    # --- the port -----------------------------------------------------------------------------------------------------

    async def list_shards(self, shard_filter: ShardFilter | None, next_token: str | None) -> ShardsPage:
        await self._arrive("ListShards", shard_filter)
        return ShardsPage(
            tuple(
                Shard(s.shard_id, HashRange(0, HASH_KEY_MAX), str(FIRST_SEQUENCE), None if s.children is None else "1")
                for s in self.shards.values()
            )
        )

    async def describe(self) -> StreamSummary:
        await self._arrive("DescribeStreamSummary", None)
        return StreamSummary("stream", ARN, "ACTIVE", self.created_ms)

    async def shard_iterator(self, shard_id: str, start: StartingPoint) -> str:
        await self._arrive("GetShardIterator", start)
        return self._iterator(shard_id, self._shard(shard_id).index_of(start))

    async def get_records(self, iterator: str, limit: int | None) -> RawPage:
        await self._arrive("GetRecords", iterator)
        shard_id, index_text, issued_text = iterator.split("|")
        if self.clock.monotonic() - float(issued_text) > ITERATOR_LIFE_S:
            raise IteratorExpiredError("the iterator is older than 300 s")
        page = self._page(self._shard(shard_id), int(index_text), limit)
        bend = self._bends.popleft() if self._bends else None
        return page if bend is None else bend(page)

    def _page(self, shard: MemoryShard, start: int, limit: int | None) -> RawPage:
        end = len(shard.records) if limit is None else min(start + limit, len(shard.records))
        drained = end == len(shard.records)
        ended = drained and shard.children is not None
        behind = 0 if drained else max(1, int(self.clock.wall() * 1000) - shard.records[end].approximate_arrival_ms)
        return page_with(
            records=tuple(shard.records[start:end]),
            next_iterator=None if ended else self._iterator(shard.shard_id, end),
            millis_behind_latest=behind,
            child_shards=(shard.children or ()) if ended else (),
        )

    def _iterator(self, shard_id: str, index: int) -> str:
        return f"{shard_id}|{index}|{self.clock.monotonic()}"

    def _shard(self, shard_id: str) -> MemoryShard:
        if shard_id not in self.shards:
            raise StreamNotFoundError(f"no shard {shard_id}")
        return self.shards[shard_id]

    async def _arrive(self, operation: str, argument: object) -> None:
        self.calls.append(Call(operation, self.clock.monotonic(), argument))
        faults = self._faults[operation]
        fault = faults.popleft() if faults else None
        if isinstance(fault, HangError):
            await asyncio.get_running_loop().create_future()
        if self.latency_s:
            await asyncio.sleep(self.latency_s)
        if fault is not None:
            raise fault
