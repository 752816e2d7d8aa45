"""How many leases a worker has, and which find nobody with room. Rule: leases#load-of-a-worker.

A finished shard has no reader; its row is kept until its children have begun. If it counted, it would take the place
that its own children need, and keep it until the retention ends. So only open leases are load. One that is being handed
over is load of both workers: the old owner still reads it, and the next one will.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Iterable

from mld.leases.lease import Lease
from mld.metrics.registry import Metrics

log = logging.getLogger(__name__)

PATIENCE_S = 60.0  # others may have room and take it, or a worker may be starting
NAMED_MAX = 5  # shards in a line of the log


def loads_of(leases: Iterable[Lease]) -> Counter[str]:
    """Return how many open leases each worker owns or is promised. Pure."""
    load = [lease for lease in leases if lease.is_load]
    counts = Counter(lease.owner for lease in load if lease.owner is not None)
    counts.update(lease.checkpoint_owner for lease in load if lease.checkpoint_owner is not None)
    return counts


class RoomWatch:
    """Reports open leases that stay without a worker because this one is full, and nobody else takes them."""

    def __init__(self, leases_max: int, metrics: Metrics) -> None:
        self._leases_max = leases_max
        self._table = metrics.worker.table
        self._since: dict[str, float] = {}
        self._reported: set[str] = set()

    def saw(self, left: Collection[str], now: float) -> None:
        """Take note of the leases that a look which ended at `now` left to others, because this worker has no room."""
        self._since = {key: self._since.get(key, now) for key in left}
        unread = {key for key, since in self._since.items() if now - since >= PATIENCE_S}
        self._table.without_room = len(unread)
        self._reported &= unread
        if unread <= self._reported:
            return
        self._reported = unread
        log.error(
            "no worker has had room for %d shards for %.0f s, so nobody reads them: %s%s; this worker has %d, all that "
            "maxLeasesForWorker allows. Start another worker, or raise maxLeasesForWorker",
            len(unread),
            PATIENCE_S,
            ", ".join(sorted(unread)[:NAMED_MAX]),
            ", ..." if len(unread) > NAMED_MAX else "",
            self._leases_max,
            extra={"action": "no_room", "shards": len(unread)},
        )
