"""`AggregateReports`: reports KPL aggregates that are malformed, or whose user records belong to another shard.

Rules: retrieval#hash-range-rule and retrieval#malformed-aggregates. An aggregate that is malformed, or exceeds the
limits of `retrieval.kpl`, is delivered unopened. An aggregate with a user record outside the shard's hash range is not
delivered at all. If the producer packed it before a reshard, the producer sends its records again, so nothing is lost.
If the producer packs aggregates by rules of its own, or under wrong keys, the records are lost for good; Java does not
report that. Both kinds of faulty aggregates are counted. They are logged at most once a minute, because a broken
producer may send nothing else.

Partition keys may be personal data. So only the length of a key and the first digits of its hash key are logged. These
digits show which shard the key belongs to, and can be compared with those of a known key.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Generic, TypeVar

from mld.core.log_fields import about
from mld.core.streams import ChildBatch, HashRange, Misrouted
from mld.metrics.instruments import Tally

log = logging.getLogger(__name__)

T = TypeVar("T")

REPORT_INTERVAL_S = 60.0  # a faulty producer misroutes all its aggregates, which would fill the log
HASH_KEY_BITS = 128
SHOWN_BITS = 32  # leading bits of a hash key that are logged

MALFORMED = "%d KPL aggregates cannot be opened (%s); they were delivered as they came: their producer must be repaired"
MISROUTED = (
    "%d user records were not delivered, because their aggregates do not belong to this shard: %s. A producer that "
    "packed them before a reshard sends them again; if there was none, it packs them wrongly"
)


class SeenAggregates(Generic[T]):
    """The faulty aggregates of one kind (malformed or misrouted). Each is counted once, however often its batch is
    read.
    """

    def __init__(self, action: str, counted: str, message: str) -> None:
        self.action = action
        self.counted = counted
        """The log field with the count: `aggregates` or `user_records`."""
        self.message = message
        self.aggregates = 0  # how many aggregates were counted
        self.count = 0  # aggregates or user records, as `counted` says
        self.reported = 0  # how many of `count` were logged
        self.example = ""  # describes the latest such aggregate
        self._last = -1  # the highest sequence number that was counted

    def fresh(self, found: Mapping[str, T]) -> dict[int, T]:
        """Count those of the aggregates in `found` that were not counted before, and return them. `found` maps sequence
        numbers, as texts, to what is known of each aggregate.

        A batch may be read again. The records of a shard come in the order of their sequence numbers, so an aggregate
        was counted before if its number is not above the highest one counted so far.
        """
        numbered = {int(sequence): what for sequence, what in found.items() if int(sequence) > self._last}
        self.aggregates += len(numbered)
        self._last = max(numbered, default=self._last)
        return numbered


class AggregateReports:
    """Reports the faulty aggregates of one shard during the life of one consumer. `dropped` is the metric that counts
    them.
    """

    def __init__(self, shard_id: str, dropped: Tally | None = None) -> None:
        self._dropped = Tally() if dropped is None else dropped
        self._malformed = SeenAggregates[str]("aggregate_malformed", "aggregates", MALFORMED)
        self._misrouted = SeenAggregates[Misrouted]("aggregate_misrouted", "user_records", MISROUTED)
        self._shard_id = shard_id
        self._timer: asyncio.TimerHandle | None = None
        """The timer for the next report; None if nothing was reported within the last minute."""

    def note(self, batch: ChildBatch, hash_range: HashRange | None) -> None:
        """Count the faulty aggregates of a batch that was delivered. Log them now, unless there was a report within the
        last minute; then the timer logs them.

        `hash_range` is the hash range of the lease; the log shows it next to the hash key of a misrouted record.
        """
        if not batch.malformed and not batch.misrouted:
            return
        if malformed := self._malformed.fresh(batch.malformed):
            last = max(malformed)
            self._malformed.example = f"record {last}: {malformed[last]}"
            self._malformed.count += len(malformed)
            self._dropped.add("malformed", len(malformed))
        if misrouted := self._misrouted.fresh(batch.misrouted):
            last = max(misrouted)
            self._dropped.add("range", len(misrouted))
            self._misrouted.example = _example(last, misrouted[last], hash_range)
            self._misrouted.count += sum(found.user_records for found in misrouted.values())
        if self._timer is None:
            self._report()

    def close(self) -> None:
        """Log now what the timer would have logged later, because the consumer ends."""
        if self._timer is not None:
            self._report()
            self._cancel()

    def _report(self) -> None:
        """Log the aggregates that were counted since the last report, and start a timer for the next report in a
        minute. If none were counted, no timer is started.
        """
        self._cancel()
        unreported = [kind for kind in (self._malformed, self._misrouted) if kind.count > kind.reported]
        for kind in unreported:
            fresh = kind.count - kind.reported
            kind.reported = kind.count
            fields = {kind.counted: fresh, f"{kind.counted}_total": kind.count, "aggregates_total": kind.aggregates}
            log.warning(kind.message, fresh, kind.example, extra=about(kind.action, self._shard_id, **fields))
        if unreported:
            self._timer = asyncio.get_running_loop().call_later(REPORT_INTERVAL_S, self._report)

    def _cancel(self) -> None:
        """Cancel the timer for the next report, if one is set."""
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()


def _example(sequence: int, found: Misrouted, hash_range: HashRange | None) -> str:
    """Return a text for the log that describes a misrouted aggregate by one of its user records: its hash key, whether
    that was explicit or is the hash of a partition key, and the hash range of the shard. `sequence` is the aggregate's
    sequence number.
    """
    source = "explicit hash key" if found.is_explicit else f"hash of a partition key of {found.key_bytes} bytes"
    within = "" if hash_range is None else f", outside {_shown(hash_range.start)} to {_shown(hash_range.end)}"
    return f"record {sequence}/{found.sub_sequence} has the hash key {_shown(found.hash_key)} ({source}){within}"


def _shown(hash_key: int) -> str:
    """Return the first digits of a hash key, in hexadecimal. An explicit hash key may be larger than any valid one."""
    if not 0 <= hash_key < 1 << HASH_KEY_BITS:
        return "out of bounds"
    return f"0x{hash_key >> (HASH_KEY_BITS - SHOWN_BITS):08x}…"
