"""`TableStream`: a model of the stream of one DynamoDB table, with its shards. Pure.

Rules: the API reference of Amazon DynamoDB Streams; the developer guide, "Change data capture for DynamoDB Streams". A
shard is open for four hours, and is then followed by one child. Under load, or when a test asks for it, two children
follow. A child has one parent, and shards are never merged. So all records of one item are in order if each shard is
read after its parent. Records are trimmed after 24 hours. Times are epoch seconds; refusals are `DynamoStreamsError`.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence

from mld.local.item_changes import ItemChange, TableStreamKey, ViewType, hash_of, record_json
from mld.local.kinesis_errors import ServiceError
from mld.local.shard_limits import Bucket
from mld.local.shard_log import ShardLog

SHARD_LIFE_S = 4 * 3600.0
RETENTION_S = 24 * 3600.0
SPLIT_RECORDS = 1000
SPLIT_WINDOW_S = 60.0
"""A shard that gets `SPLIT_RECORDS` records within this time splits. In the real service that takes far more
records.
"""
SPLIT_OPEN_MAX = 8
"""If a stream has this many open shards, load does not split them any more."""
DESCRIBE_PER_S = 10.0
GET_RECORDS_PER_S = 10.0
"""GetRecords calls per shard and second, if limits are enforced: enough for two readers with five calls a second
each.
"""
_HASHES = 2**32
_COUNTER_UNIT = 10**20


class DynamoStreamsError(ServiceError):
    """An operation was refused. The code is the one that AWS uses; the message may differ."""

    namespace = "com.amazonaws.dynamodb.v20120810#"


def not_found(what: str) -> DynamoStreamsError:
    """Return the error ResourceNotFound."""
    return DynamoStreamsError("ResourceNotFoundException", f"Requested resource not found: {what}")


def sequence_number(counter: int, index: int) -> int:
    """Return a sequence number of at least 21 digits. The numbers of a stream increase with `counter`; the lower digits
    are the index of the shard.
    """
    return counter * _COUNTER_UNIT + index


def index_of(number: int) -> int:
    """Return the index of the shard to which a sequence number belongs."""
    return number % _COUNTER_UNIT


def shard_id(created_ms: int, arn: str, index: int) -> str:
    """Return a shard id as DynamoDB writes it: the time of creation (milliseconds) in 20 digits, then eight hex
    digits.
    """
    return f"shardId-{created_ms:020d}-{zlib.crc32(f'{arn} {index}'.encode()):08x}"


class ChangeShard:
    """A shard, open until `close` is called. Times are epoch seconds. `span` is the range of hashes of the partition
    keys that belong to the shard; clients never see it.
    """

    __slots__ = (
        "closed_s",
        "created_s",
        "ending",
        "index",
        "log",
        "parent_id",
        "reads",
        "shard_id",
        "span",
        "starting",
        "window_began_s",
        "window_records",
    )

    def __init__(
        self, identity: str, index: int, span: range, starting: int, created_s: float, parent_id: str | None
    ) -> None:
        self.shard_id = identity
        self.index = index
        self.span = span
        self.starting = starting
        self.created_s = created_s
        self.parent_id = parent_id
        self.ending: int | None = None
        self.closed_s: float | None = None
        self.window_began_s = created_s
        self.window_records = 0
        self.reads = Bucket(GET_RECORDS_PER_S)
        self.log = ShardLog()

    @property
    def is_open(self) -> bool:
        return self.closed_s is None

    @property
    def trimmed_through(self) -> int:
        """Sequence number of the newest trimmed record; if none was trimmed, a number below all of the shard."""
        return self.starting - 1 if self.log.trimmed_through is None else self.log.trimmed_through

    @property
    def halves(self) -> tuple[range, range]:
        """The two halves of this shard's span, for two children."""
        middle = (self.span.start + self.span.stop) // 2
        return range(self.span.start, middle), range(middle, self.span.stop)

    def close(self, ending: int, closed_s: float) -> None:
        """End the shard. `ending` is the last sequence number that belongs to it."""
        assert self.is_open and ending >= self.starting
        self.ending = ending
        self.closed_s = max(closed_s, self.created_s)

    def count_write(self, now: float, window_s: float) -> int:
        """Count a record, and return how many records came in the current window of `window_s` seconds."""
        if not 0 <= now - self.window_began_s <= window_s:
            self.window_began_s, self.window_records = now, 0
        self.window_records += 1
        return self.window_records


class TableStream:
    """The stream of a table. Methods with the parameter `now` (epoch seconds) first do what is due by then: shards get
    children, and old records and shards are removed.
    """

    def __init__(
        self, key: TableStreamKey, view: ViewType, key_schema: Sequence[dict[str, str]], created_s: float
    ) -> None:
        self.key = key
        self.arn = key.arn
        self.view = view
        self.key_schema = list(key_schema)
        self.created_s = created_s
        self.disabled_s: float | None = None
        self.describes = Bucket(DESCRIBE_PER_S)
        self._partition_key = next(k["AttributeName"] for k in key_schema if k["KeyType"] == "HASH")
        self._shards: dict[str, ChangeShard] = {}
        self._counter = 0
        """How many sequence numbers were taken, over all shards."""
        self._made = 0
        """How many shards were made; their indexes begin at 1."""
        self._make(range(_HASHES), created_s, None)

    # --- looking -----------------------------------------------------------------------------------------------------

    @property
    def is_enabled(self) -> bool:
        return self.disabled_s is None

    def is_gone(self, now: float) -> bool:
        """Return whether the stream has been removed. A disabled stream can still be read for `RETENTION_S`."""
        return self.disabled_s is not None and now >= self.disabled_s + RETENTION_S

    def shards(self, now: float) -> list[ChangeShard]:
        """Return the shards, sorted by id. That is the order in which they were created."""
        self._advance(now)
        return [self._shards[name] for name in sorted(self._shards)]

    def shard(self, name: str, now: float) -> ChangeShard:
        """Return the shard with this id. Raises ResourceNotFound."""
        self._advance(now)
        if (found := self._shards.get(name)) is None:
            raise not_found(f"Shard: {name} does not exist")
        return found

    def tip(self) -> int:
        """Return a number above all sequence numbers so far, and below all later ones."""
        return sequence_number(self._counter + 1, 0)

    # --- time and load -----------------------------------------------------------------------------------------------

    def record(self, change: ItemChange, now: float) -> None:
        """Add the record of a change. Nothing happens if the item did not change, or the stream is disabled."""
        self._advance(now)
        event_name = change.event_name
        if event_name is None or not self.is_enabled:
            return
        place = hash_of({self._partition_key: change.keys[self._partition_key]})
        shard = next(s for s in self._open() if place in s.span)
        number = self._take(shard.index)
        fields, size = record_json(change, event_name, self.key, self.view, number, now)
        # Even if the clock is set back, records must expire in order.
        shard.log.append(number, max(now, shard.log.last_arrival), size, json.dumps(fields).encode())
        if shard.count_write(now, SPLIT_WINDOW_S) >= SPLIT_RECORDS and len(self._open()) < SPLIT_OPEN_MAX:
            self._replace_by_children(shard, shard.halves, now)

    def split(self, name: str | None, now: float) -> list[str]:
        """Split the open shard with this id, or the first open one, into two. Return the ids of the children. Raises
        ResourceNotFound.
        """
        self._advance(now)
        found = [s for s in self._open() if name in (None, s.shard_id)]
        if not found:
            raise not_found(f"Shard: {name or 'any'} (open) does not exist")
        return self._replace_by_children(found[0], found[0].halves, now)

    def roll(self, now: float) -> list[str]:
        """Close each open shard and make one child for it, as after four hours. Return the ids of the children."""
        self._advance(now)
        return [child for shard in self._open() for child in self._replace_by_children(shard, (shard.span,), now)]

    def disable(self, now: float) -> None:
        """End the stream: it gets no more records, and its open shards end without children."""
        self._advance(now)
        for shard in self._open():
            shard.close(self._take(shard.index), now)
        self.disabled_s = now

    def _advance(self, now: float) -> None:
        """Do what is due by `now`: make children of old shards, trim records, and remove shards that have no records
        any more.
        """
        horizon = now - RETENTION_S
        if self.is_enabled:
            for shard in self._open():
                self._make_due_children(shard, now, horizon)
        for shard in list(self._shards.values()):
            shard.log.trim(horizon)
            if shard.closed_s is not None and shard.closed_s <= horizon:
                del self._shards[shard.shard_id]

    def _make_due_children(self, shard: ChangeShard, now: float, horizon: float) -> None:
        """Make the child of a shard that is four hours old, and the child's child if that is due, too, and so on.

        If the clock has jumped, children that would be trimmed by now are left out.
        """
        while now >= shard.created_s + SHARD_LIFE_S:
            at = max(shard.created_s + SHARD_LIFE_S, horizon - SHARD_LIFE_S)
            (child,) = self._replace_by_children(shard, (shard.span,), at)
            shard = self._shards[child]

    def _replace_by_children(self, shard: ChangeShard, spans: Sequence[range], now: float) -> list[str]:
        """Close a shard and make a child for each of the spans. Return the ids of the children."""
        shard.close(self._take(shard.index), now)
        # At least 1 ms later than the parent: an id begins with the time of creation, and ids sort parents first.
        return [self._make(span, max(now, shard.created_s + 0.001), shard.shard_id) for span in spans]

    def _make(self, span: range, created_s: float, parent_id: str | None) -> str:
        """Make a shard, and return its id."""
        self._made += 1
        name = shard_id(round(created_s * 1000), self.arn, self._made)
        self._shards[name] = ChangeShard(name, self._made, span, self._take(self._made), created_s, parent_id)
        return name

    def _open(self) -> list[ChangeShard]:
        """Return the open shards, in the order in which they were created."""
        return [shard for shard in self._shards.values() if shard.is_open]

    def _take(self, index: int) -> int:
        """Return the next sequence number of the stream, for the shard with this index."""
        self._counter += 1
        return sequence_number(self._counter, index)
