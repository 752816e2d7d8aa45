"""All streams of all tables, found by ARN: every operation as a method on plain values.

Times are epoch seconds, passed as `now`. Refusals are `errors.DynamoStreamsError`. Limits of throughput are enforced
only if asked; limits of form always.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from mld.core.streams import IteratorType
from mld.local.dynamo_streams import errors
from mld.local.dynamo_streams.changes import ItemChange, TableStreamKey, ViewType
from mld.local.dynamo_streams.shard import ChangePage, ChangeShard, index_of
from mld.local.dynamo_streams.table_stream import TableStream
from mld.local.opaque import pack, unpack

ITERATOR_LIFE_S = 15 * 60.0
PAGE_RECORDS_MAX = 1000
PAGE_BYTES_MAX = 1024 * 1024
LIST_MAX = 100
ITERATOR_TYPES = (
    IteratorType.TRIM_HORIZON,
    IteratorType.LATEST,
    IteratorType.AT_SEQUENCE_NUMBER,
    IteratorType.AFTER_SEQUENCE_NUMBER,
)
_ITERATOR_KIND = "D"


@dataclass(frozen=True, slots=True)
class _ChangeIterator:
    """`position` is the lowest number to deliver; `walked` pages of the empty stretch before it were answered."""

    arn: str
    shard_id: str
    position: int
    issued_s: float
    walked: int = 0

    def encode(self) -> str:
        packed = pack(_ITERATOR_KIND, self.shard_id, self.position, f"{self.issued_s:.3f}", self.walked)
        return f"{self.arn}|1|{packed}"


def _decode(text: str) -> _ChangeIterator:
    arn, _, packed = text.partition("|1|")
    fields = unpack(_ITERATOR_KIND, packed, 4)
    if fields is None:
        raise errors.invalid("Invalid ShardIterator")
    return _ChangeIterator(arn, fields[0], int(fields[1]), float(fields[2]), int(fields[3]))


@dataclass(frozen=True, slots=True)
class DescribedShards:
    """One page; `last_id` if there are more."""

    shards: list[ChangeShard]
    last_id: str | None


class TableStreams:
    """Mutable; `enforce` and `stretch_pages` may be changed at any time.

    So many pages without records are answered before each one with records, and before the end of a shard: the service
    leads through the parts of a shard in which nothing happened.
    """

    def __init__(self, *, enforce: bool = False) -> None:
        self.enforce = enforce
        self.stretch_pages = 0
        self._streams: dict[str, TableStream] = {}

    # --- what happens to the tables ----------------------------------------------------------------------------------

    def enable(
        self, key: TableStreamKey, view: ViewType, key_schema: Sequence[dict[str, str]], *, now: float
    ) -> TableStream:
        return self._streams.setdefault(key.arn, TableStream(key, view, key_schema, now))

    def disable(self, arn: str, *, now: float) -> None:
        stream = self._streams.get(arn)
        if stream is not None and stream.is_enabled:
            stream.disable(now)

    def record(self, arn: str, changes: Sequence[ItemChange], *, now: float) -> None:
        for change in changes:
            self._streams[arn].record(change, now)

    # --- finding -----------------------------------------------------------------------------------------------------

    def stream(self, arn: str, now: float, region: str | None = None) -> TableStream:
        """Return a stream by its ARN, or by `region` the refusal of an endpoint elsewhere. Raises ResourceNotFound."""
        found = self._streams.get(arn)
        if found is not None and found.is_gone(now):
            del self._streams[arn]
            found = None
        if found is None or region not in (None, found.key.region):
            raise errors.stream_not_found(arn)
        return found

    def newest_of(self, table: str, now: float) -> TableStream:
        """Return the newest stream of a table of this name, in any account and region. Raises ResourceNotFound."""
        found = [s for s in self._all(now) if s.key.table == table]
        if not found:
            raise errors.stream_not_found(f"of table {table}")
        return max(found, key=lambda stream: stream.created_s)

    def list_streams(
        self, account: str, region: str, *, now: float, table: str | None = None, after: str | None = None
    ) -> list[TableStream]:
        """List streams in order of their ARNs, after that one."""
        return [
            stream
            for stream in self._all(now)
            if (stream.key.account, stream.key.region) == (account, region)
            and table in (None, stream.key.table)
            and stream.arn > (after or "")
        ]

    def _all(self, now: float) -> list[TableStream]:
        for arn in [arn for arn, stream in self._streams.items() if stream.is_gone(now)]:
            del self._streams[arn]
        return [self._streams[arn] for arn in sorted(self._streams)]

    def describe_shards(
        self, stream: TableStream, *, now: float, after: str | None = None, children_of: str | None = None, limit: int
    ) -> DescribedShards:
        """Return a page of the shards, or of the children of one."""
        if self.enforce:
            if not stream.describes.has(1, now):
                raise errors.limit_exceeded(f"DescribeStream of {stream.arn}")
            stream.describes.take(1)
        found = [
            shard
            for shard in stream.shards(now)
            if shard.shard_id > (after or "") and children_of in (None, shard.parent_id)
        ]
        page = found[:limit]
        return DescribedShards(page, page[-1].shard_id if len(found) > limit else None)

    # --- reading -----------------------------------------------------------------------------------------------------

    def get_shard_iterator(
        self, stream: TableStream, name: str, kind: IteratorType, sequence: str | None, *, now: float
    ) -> str:
        shard = stream.shard(name, now)
        match kind:
            case IteratorType.TRIM_HORIZON:
                position = shard.trimmed_through + 1
            case IteratorType.LATEST:
                position = stream.tip()
            case _:
                position = _own_number(stream, shard, sequence) + (kind is IteratorType.AFTER_SEQUENCE_NUMBER)
                if position <= shard.trimmed_through:
                    raise errors.trimmed()
        return _ChangeIterator(stream.arn, name, position, now).encode()

    def get_records(
        self, iterator: str, *, region: str, now: float, limit: int | None = None, empty: bool = False
    ) -> tuple[ChangePage, str | None]:
        """Return a page and the next iterator, which is None at the end of a closed shard. With `empty` there are no
        records, and the place stays.
        """
        place = _decode(iterator)
        stream = self.stream(place.arn, now, region)
        if now - place.issued_s > ITERATOR_LIFE_S:
            raise errors.expired()
        shard = stream.shard(place.shard_id, now)
        if self.enforce:
            if not shard.reads.has(1, now):
                raise errors.limit_exceeded(f"GetRecords of {shard.shard_id}")
            shard.reads.take(1)
        if place.position <= shard.trimmed_through:
            raise errors.trimmed()
        page = shard.page(place.position, limit=limit or PAGE_RECORDS_MAX, bytes_max=PAGE_BYTES_MAX)
        if empty or (place.walked < self.stretch_pages and (page.fragments or page.ended)):
            return ChangePage([], None, False), replace(place, issued_s=now, walked=place.walked + 1).encode()
        if page.ended:
            return page, None
        if page.last is None:
            return page, replace(place, issued_s=now).encode()
        return page, _ChangeIterator(place.arn, place.shard_id, page.last + 1, now).encode()


def _own_number(stream: TableStream, shard: ChangeShard, text: str | None) -> int:
    if text is None:
        raise errors.invalid("SequenceNumber is required for this ShardIteratorType")
    number = int(text)
    top = stream.tip() if shard.ending is None else shard.ending
    if index_of(number) != shard.index or not shard.starting <= number <= top:
        raise errors.invalid(f"Invalid SequenceNumber: {text} is not of {shard.shard_id}")
    return number
