"""The producers of a run: they put records one by one, or aggregated as the Kinesis Producer Library does it.

The KPL packs the records of one shard together, by a map of the shards that may be out of date. When the answer names
another shard than the map, all user records of that put have failed and are sent again.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from random import Random

from mld.core.clock import Clock
from mld.core.streams import HashRange
from mld.local.kinesis import Kinesis, KinesisError, PutEntry
from tests.simulation.checkers import Ledger
from tests.simulation.shared_shards import hash_of
from tests.support.fleet import STREAM
from tests.support.kpl import User, aggregate

USERS_MAX = 5
KEYS = ("hot", "hot", "hot", "", *(f"k{number}" for number in range(8)), "\u00fc", "\u732b")
"""Partition keys of user records, by turns, where several children share them. The empty one is for aggregates:
a record of Kinesis must have a key.
"""
OWN_KEY_EVERY = 7
"""Every so many records have a key of their own."""
MAP_REFRESH = 0.1
"""Per aggregate; so a change of shards goes unnoticed for some puts."""


def keys_for_all(children: Iterable[int]) -> list[str]:
    """Keys that give a record to each child of a shard, whichever of these numbers of children it has."""
    wanted = {(count, child) for count in children for child in range(count)}
    keys = []
    for key in map(str, itertools.count()):
        if not wanted:
            return keys
        crc = hash_of(key) or 0
        if gets := {(count, child) for count, child in wanted if crc % count == child}:
            wanted -= gets
            keys.append(key)
    return keys


class Producer:
    """`aggregated` is the share of puts that are aggregates; `rng` is for them alone. `key_of` a shard: its lease."""

    def __init__(
        self,
        kinesis: Kinesis,
        clock: Clock,
        ledger: Ledger,
        aggregated: float,
        rng: Random,
        *,
        stream: str = STREAM,
        key_of: Callable[[str], str] = str,
    ) -> None:
        self._stream = stream
        self._key_of = key_of
        self._kinesis = kinesis
        self._clock = clock
        self._ledger = ledger
        self._aggregated = aggregated
        self._rng = rng
        self.on_put: Callable[[str], None] = lambda shard_id: None
        self.record_bytes = 0
        self.keys: Sequence[str] = ("key",)
        """Partition keys, by turns."""
        self._count = 0
        self._map: list[HashRange] = []

    def put(self, hash_key: int) -> None:
        """One record, or an aggregate whose first user record has this hash key."""
        if self._aggregated and self._rng.random() < self._aggregated:
            self._put_aggregate(hash_key)
        else:
            self.put_one(hash_key)

    def put_one(self, hash_key: int, key: str = "") -> None:
        data, key = self._data(), key or self._key() or "none"
        self._place(PutEntry.of(data, key, hash_key), [key], lambda landed: True)

    def _put_aggregate(self, hash_key: int) -> None:
        rng = self._rng
        if not self._map or rng.random() < MAP_REFRESH:
            stream = self._kinesis.stream(self._stream, self._clock.wall())
            self._map = [shard.hash_range for shard in stream.open_shards]
        meant = next(keys for keys in self._map if keys.start <= hash_key <= keys.end)
        keys = [hash_key, *(rng.randint(meant.start, meant.end) for _ in range(rng.randrange(1, USERS_MAX)))]
        users = [User(self._key(), self._data(), str(key)) for key in keys]
        low, high = min(keys), max(keys)
        entry, user_keys = PutEntry.of(aggregate(users), "a", hash_key), [user.partition_key for user in users]
        if not self._place(entry, user_keys, lambda landed: landed.start <= low and high <= landed.end):
            self._map = []
            for key in keys:
                self.put_one(key)

    def _place(self, entry: PutEntry, keys: Sequence[str], belongs: Callable[[HashRange], bool]) -> bool:
        """False if it landed in a shard to which not all of it belongs."""
        now = self._clock.wall()
        try:
            placed = self._kinesis.put_record(self._stream, entry, now=now)
        except KinesisError:
            return True  # throttled, or the stream is gone: the record does not exist
        shard = self._kinesis.stream(self._stream, now).shard(placed.shard_id)
        assert shard is not None
        self.on_put(placed.shard_id)
        if not belongs(shard.hash_range):
            return False
        self._ledger.put(self._key_of(placed.shard_id), int(placed.sequence), keys)
        return True

    def _key(self) -> str:
        """The key of the next record."""
        if len(self.keys) > 1 and self._count % OWN_KEY_EVERY == 0:
            return f"own {self._count}"
        return self.keys[self._count % len(self.keys)]

    def _data(self) -> bytes:
        self._count += 1
        return (b"record %d" % self._count).ljust(self.record_bytes)
