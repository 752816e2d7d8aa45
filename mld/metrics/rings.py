"""The last hour of each shard of this worker: lag and records per second, a value a minute. Bounded."""

from __future__ import annotations

from collections import deque

from mld.metrics.snapshot import Snapshot

MINUTES = 60
PERIOD_S = 60.0
SHARDS_MAX = 2_000
"""More than a worker holds; of more, the histories are not kept."""


class History:
    """`note` is called once a minute, with the snapshot of that moment."""

    def __init__(self) -> None:
        self._behind: dict[str, deque[float | None]] = {}
        self._rates: dict[str, deque[float | None]] = {}
        self._records: dict[str, tuple[int, float]] = {}

    def note(self, snapshot: Snapshot) -> None:
        """One more value for each shard; shards that are gone are forgotten."""
        kept = {shard.key for shard in snapshot.shards[:SHARDS_MAX]}
        for rings in (self._behind, self._rates):
            for key in rings.keys() - kept:
                del rings[key]
        for key in self._records.keys() - kept:
            del self._records[key]
        for shard in snapshot.shards[:SHARDS_MAX]:
            self._behind.setdefault(shard.key, deque(maxlen=MINUTES)).append(shard.behind_s)
            self._rates.setdefault(shard.key, deque(maxlen=MINUTES)).append(
                self._rate(shard.key, shard.records, snapshot)
            )
            self._records[shard.key] = (shard.records, snapshot.wall_s)

    def _rate(self, key: str, records: int, snapshot: Snapshot) -> float | None:
        before = self._records.get(key)
        if before is None or records < before[0] or snapshot.wall_s <= before[1]:
            return None  # the first value, another holding, or a clock that was set back
        return (records - before[0]) / (snapshot.wall_s - before[1])

    def behind(self, key: str) -> list[float | None]:
        """Seconds behind, oldest first; None where it was not known."""
        return list(self._behind.get(key, ()))

    def rate(self, key: str) -> list[float | None]:
        """Records per second, oldest first."""
        return list(self._rates.get(key, ()))
