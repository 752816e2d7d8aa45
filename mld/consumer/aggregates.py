"""Says which KPL aggregates a child did not get as their user records: malformed ones, and those of another shard.

Rules: retrieval#hash-range-rule and retrieval#malformed-aggregates.
A malformed one, or one beyond the limits of `retrieval.kpl`, is delivered as it came, which is counted and said once a
minute, as a producer may make nothing else. Of one whose user records do not all
belong to the hash range of the shard nothing is delivered, which is counted and said once a minute. A producer that
packed it before a reshard sends its records again, so nothing is lost. One that does not, because it packs aggregates
by rules of its own or under wrong keys, loses them by this rule for ever; Java says nothing.

Partition keys may be personal data: of a key only its length and the first digits of its hash key are logged, which
show whose shard it belongs to and can be compared with a known key.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from mld.streams import Batch, HashRange, Misrouted

log = logging.getLogger(__name__)

REPORT_INTERVAL_S = 60.0  # a wrong producer misroutes every aggregate it makes
HASH_KEY_BITS = 128
SHOWN_BITS = 32


class AggregateReports:
    """Of one shard, as long as one consumer serves it. The counters may be read at any time.

    What is in a batch that is read again counts once.
    """

    def __init__(self, shard_id: str) -> None:
        self.misrouted_user_records = 0
        """User records that were not delivered."""
        self.misrouted_aggregates = 0
        self.malformed_aggregates = 0
        """Delivered as they came."""
        self._shard_id = shard_id
        self._last_misrouted = -1  # sequence number that was counted last
        self._last_malformed = -1
        self._misrouted_reported = 0  # user records
        self._malformed_reported = 0
        self._misrouted_example = ""
        self._malformed_example = ""
        self._timer: asyncio.TimerHandle | None = None

    def note(self, batch: Batch, hash_range: HashRange | None) -> None:
        """What a batch shows that was delivered, or has nothing to deliver, of a lease with this hash range."""
        if not batch.malformed and not batch.misrouted:
            return
        self._count_malformed(batch.malformed)
        self._count_misrouted(batch.misrouted, hash_range)
        if self._timer is None:
            self._report()

    def _count_malformed(self, malformed: Mapping[str, str]) -> None:
        fresh = {int(sequence): reason for sequence, reason in malformed.items()}
        fresh = {number: reason for number, reason in fresh.items() if number > self._last_malformed}
        if fresh:
            self.malformed_aggregates += len(fresh)
            self._last_malformed = max(fresh)
            self._malformed_example = f"record {self._last_malformed}: {fresh[self._last_malformed]}"

    def _count_misrouted(self, misrouted: Mapping[str, Misrouted], hash_range: HashRange | None) -> None:
        fresh = {int(sequence): found for sequence, found in misrouted.items()}
        fresh = {number: found for number, found in fresh.items() if number > self._last_misrouted}
        if fresh:
            self.misrouted_aggregates += len(fresh)
            self.misrouted_user_records += sum(found.user_records for found in fresh.values())
            self._last_misrouted = max(fresh)
            self._misrouted_example = _example(self._last_misrouted, fresh[self._last_misrouted], hash_range)

    def close(self) -> None:
        """Say what was not said yet."""
        if self._timer is not None:
            self._timer.cancel()
            self._report()
            self._cancel()

    def _report(self) -> None:
        """Report what is new, and no more for a minute; silence ends the reports."""
        self._cancel()
        said = [self._report_malformed(), self._report_misrouted()]
        if any(said):
            self._timer = asyncio.get_running_loop().call_later(REPORT_INTERVAL_S, self._report)

    def _report_malformed(self) -> bool:
        """Whether there was anything to report."""
        fresh = self.malformed_aggregates - self._malformed_reported
        if fresh:
            self._malformed_reported = self.malformed_aggregates
            log.warning(
                "%d KPL aggregates cannot be opened (%s); they were delivered as they came: their producer must be "
                "repaired",
                fresh,
                self._malformed_example,
                extra={
                    "action": "aggregate_malformed",
                    "shard": self._shard_id,
                    "aggregates": fresh,
                    "aggregates_total": self.malformed_aggregates,
                },
            )
        return fresh > 0

    def _report_misrouted(self) -> bool:
        """Whether there was anything to report."""
        dropped = self.misrouted_user_records - self._misrouted_reported
        if dropped:
            self._misrouted_reported = self.misrouted_user_records
            log.warning(
                "%d user records were not delivered, because their aggregates do not belong to this shard: %s. A "
                "producer that packed them before a reshard sends them again; if there was none, it packs them wrongly",
                dropped,
                self._misrouted_example,
                extra={
                    "action": "aggregate_misrouted",
                    "shard": self._shard_id,
                    "user_records": dropped,
                    "user_records_total": self.misrouted_user_records,
                    "aggregates_total": self.misrouted_aggregates,
                },
            )
        return dropped > 0

    def _cancel(self) -> None:
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()


def _example(sequence: int, found: Misrouted, hash_range: HashRange | None) -> str:
    source = "explicit hash key" if found.is_explicit else f"hash of a partition key of {found.key_bytes} bytes"
    within = "" if hash_range is None else f", outside {_shown(hash_range.start)} to {_shown(hash_range.end)}"
    return f"record {sequence}/{found.sub_sequence} has the hash key {_shown(found.hash_key)} ({source}){within}"


def _shown(hash_key: int) -> str:
    """The first digits of a hash key, in hexadecimal. An explicit one may lie outside of what a shard can have."""
    if not 0 <= hash_key < 1 << HASH_KEY_BITS:
        return "out of bounds"
    return f"0x{hash_key >> (HASH_KEY_BITS - SHOWN_BITS):08x}…"
