"""The stream of one table: its shards over time.

Every shard is succeeded after four hours by one child; under load, or when a test asks, by two. A child has one parent,
shards are never merged. All records of one item are in order along that line.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from mld.local.dynamo_streams import errors
from mld.local.dynamo_streams.changes import ItemChange, TableStreamKey, ViewType, hash_of, record_json
from mld.local.dynamo_streams.shard import ChangeShard, KeySpan, sequence_number, shard_id
from mld.local.kinesis.throttle import Bucket

SHARD_LIFE_S = 4 * 3600.0
RETENTION_S = 24 * 3600.0
SPLIT_RECORDS = 1000
SPLIT_WINDOW_S = 60.0
"""A shard that gets `SPLIT_RECORDS` within this time splits; the service waits for far more."""
SPLIT_OPEN_MAX = 8
"""Load splits no shard of a stream that has so many open ones."""
DESCRIBE_PER_S = 10.0
_HASHES = 2**32


class TableStream:
    """Mutable. `now` is epoch seconds; every method that takes it first lets that time come."""

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
        self._made = 0
        self._make(KeySpan(0, _HASHES), created_s, None)

    # --- looking -----------------------------------------------------------------------------------------------------

    @property
    def is_enabled(self) -> bool:
        return self.disabled_s is None

    def is_gone(self, now: float) -> bool:
        """Return whether it is gone: a disabled stream can be read for as long as its records would live."""
        return self.disabled_s is not None and now >= self.disabled_s + RETENTION_S

    def shards(self, now: float) -> list[ChangeShard]:
        """Return the shards in order of their ids, which is the order of their creation."""
        self._advance(now)
        return [self._shards[name] for name in sorted(self._shards)]

    def shard(self, name: str, now: float) -> ChangeShard:
        """Return the shard of this name. Raises ResourceNotFound."""
        self._advance(now)
        if (found := self._shards.get(name)) is None:
            raise errors.shard_not_found(name)
        return found

    def tip(self) -> int:
        """Return a number above every number given out so far, and below all to come."""
        return sequence_number(self._counter + 1, 0)

    # --- time and load -----------------------------------------------------------------------------------------------

    def record(self, change: ItemChange, now: float) -> None:
        """Note a change; without one, or when disabled, nothing happens."""
        self._advance(now)
        event_name = change.event_name
        if event_name is None or not self.is_enabled:
            return
        place = hash_of({self._partition_key: change.keys[self._partition_key]})
        shard = next(s for s in self._open() if s.span.low <= place < s.span.high)
        number = self._take(shard.index)
        fields, size = record_json(change, event_name, self.key, self.view, number, now)
        shard.append(number, now, size, json.dumps(fields).encode())
        if shard.count_write(now, SPLIT_WINDOW_S) >= SPLIT_RECORDS and len(self._open()) < SPLIT_OPEN_MAX:
            self._succeed(shard, shard.span.halves(), now)

    def split(self, name: str | None, now: float) -> list[str]:
        """Split this open shard, or the first one, into two; the ids of the children. Raises ResourceNotFound."""
        self._advance(now)
        found = [s for s in self._open() if name in (None, s.shard_id)]
        if not found:
            raise errors.shard_not_found(f"{name or 'any'} (open)")
        return self._succeed(found[0], found[0].span.halves(), now)

    def roll(self, now: float) -> list[str]:
        """Let every open shard be succeeded by one child, as after four hours; the ids of the children."""
        self._advance(now)
        return [child for shard in self._open() for child in self._succeed(shard, (shard.span,), now)]

    def trim(self, name: str | None, now: float) -> None:
        """Forget all records of this shard, or of all, as after 24 hours; shards stay."""
        self._advance(now)
        for shard in self._shards.values():
            if name in (None, shard.shard_id):
                shard.trim(float("inf"))

    def disable(self, now: float) -> None:
        """Take no more records; the open shards end without children."""
        self._advance(now)
        for shard in self._open():
            shard.close(self._take(shard.index), now)
        self.disabled_s = now

    def _advance(self, now: float) -> None:
        horizon = now - RETENTION_S
        if self.is_enabled:
            for shard in self._open():
                self._grow_old(shard, now, horizon)
        for shard in list(self._shards.values()):
            shard.trim(horizon)
            if shard.closed_s is not None and shard.closed_s <= horizon:
                del self._shards[shard.shard_id]

    def _grow_old(self, shard: ChangeShard, now: float, horizon: float) -> None:
        """Make the successors up to now. After a leap of the clock, those that would be gone already are left out."""
        while now >= shard.created_s + SHARD_LIFE_S:
            at = max(shard.created_s + SHARD_LIFE_S, horizon - SHARD_LIFE_S)
            (child,) = self._succeed(shard, (shard.span,), at)
            shard = self._shards[child]

    def _succeed(self, shard: ChangeShard, spans: Sequence[KeySpan], now: float) -> list[str]:
        shard.close(self._take(shard.index), now)
        return [self._make(span, max(now, shard.created_s + 0.001), shard.shard_id) for span in spans]

    def _make(self, span: KeySpan, created_s: float, parent_id: str | None) -> str:
        self._made += 1
        name = shard_id(round(created_s * 1000), self.arn, self._made)
        self._shards[name] = ChangeShard(name, self._made, span, self._take(self._made), created_s, parent_id)
        return name

    def _open(self) -> list[ChangeShard]:
        return [shard for shard in self._shards.values() if shard.is_open]

    def _take(self, index: int) -> int:
        self._counter += 1
        return sequence_number(self._counter, index)
