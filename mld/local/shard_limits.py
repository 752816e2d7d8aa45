"""`ShardLimits`: the throughput limits of a shard, as token buckets. Pure.

Rule: retrieval#service-limits. The limits are used only if the model enforces them. No call waits here: it is allowed
or refused.
"""

from __future__ import annotations

READS_PER_S = 5
READ_BYTES_PER_S = 2 * 1024 * 1024
WRITE_BYTES_PER_S = 1024 * 1024
WRITE_RECORDS_PER_S = 1000
FULL_PAGE_PAUSE_S = 5.0
"""For this long after an answer of the full 10 MiB, calls are refused."""


class Bucket:
    """A bucket that gains `rate` tokens a second, and holds at most `rate` tokens."""

    __slots__ = ("_at", "_level", "_rate")

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._level = rate
        self._at: float | None = None

    def level(self, now: float) -> float:
        """Add tokens for the time until `now`, and return its tokens."""
        if self._at is not None and now > self._at:
            self._level = min(self._rate, self._level + (now - self._at) * self._rate)
        if self._at is None or now > self._at:
            self._at = now
        return self._level

    def has(self, amount: float, now: float) -> bool:
        """Return whether there are `amount` tokens. If the bucket cannot hold so many, a full one is enough."""
        return self.level(now) >= min(amount, self._rate)

    def take(self, amount: float) -> None:
        """Take tokens, even more than there are; then it takes longer until calls are allowed again."""
        self._level -= amount


class ShardLimits:
    """Decides which calls one shard allows."""

    __slots__ = ("_iterators", "_read_bytes", "_reads", "_refuse_until", "_write_bytes", "_write_records")

    def __init__(self) -> None:
        self._reads = Bucket(READS_PER_S)
        self._iterators = Bucket(READS_PER_S)
        self._read_bytes = Bucket(READ_BYTES_PER_S)
        self._write_bytes = Bucket(WRITE_BYTES_PER_S)
        self._write_records = Bucket(WRITE_RECORDS_PER_S)
        self._refuse_until = float("-inf")
        """Until when reads are refused, after a page of the full 10 MiB."""

    def admit_iterator(self, now: float) -> bool:
        """Count a GetShardIterator call, and return whether it is allowed."""
        if not self._iterators.has(1, now):
            return False
        self._iterators.take(1)
        return True

    def admit_read(self, now: float) -> bool:
        """Count a GetRecords call, and return whether it is allowed. If so, call `spent` after it."""
        if now < self._refuse_until or self._read_bytes.level(now) <= 0 or not self._reads.has(1, now):
            return False
        self._reads.take(1)
        return True

    def spent(self, size_bytes: int, now: float, *, full_page: bool) -> None:
        """Count the bytes of an answer of GetRecords. `full_page` says that it had the full 10 MiB."""
        self._read_bytes.take(size_bytes)
        if full_page:
            self._refuse_until = now + FULL_PAGE_PAUSE_S

    def admit_write(self, size_bytes: int, now: float) -> bool:
        """Count a record to be written, and return whether it is allowed."""
        if not (self._write_records.has(1, now) and self._write_bytes.has(size_bytes, now)):
            return False
        self._write_records.take(1)
        self._write_bytes.take(size_bytes)
        return True
