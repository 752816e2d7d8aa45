"""What a reader has fetched and its consumer has not taken yet: whether there is room for one more answer. Pure.

Rules: retrieval#prefetch-limits. Room is tested before a fetch, so the buffer may exceed its limits by one answer
(10 MB). A batch leaves the counters when the consumer takes it, before it is processed: at the peak one batch is being
processed and the buffer is full. The buffer never waits; the reader does.

Unlike in Java, all readers of a worker share a `Budget` (retrieval#memory-budget) in equal parts. So a thousand shards
that lag do not hold a thousand times 8 MiB, and a slow child stops only its own reader. Shares are counted in memory:
the text of a record is larger than its payload, much larger where payloads are small. One half of a share is for
records that wait. The other half is the most that one answer may take; the reader asks for as many records as will
probably fit. So memory exceeds the share by a half while one answer is framed for the child and the next has arrived.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")

PAGES_MAX = 4
"""Java's maxPendingProcessRecordsInput under polling."""
BYTES_MAX = 8 * 1024 * 1024
RECORDS_MAX = 30_000
ANSWER_BYTES_MAX = 10 * 1024 * 1024
"""Limit of Kinesis for one GetRecords answer."""
ANSWER_RECORDS_MAX = 10_000
ANSWER_RECORDS_MIN = 10
"""Fewer are never asked for, even if these do not fit: calls would cost more than the memory."""
RECORD_BYTES_ASSUMED = 10 * 1024
"""Size of a record before the first was seen: larger than most, as all readers start at once."""
RECORD_OVERHEAD_BYTES = 400
"""Memory of a record besides its base64: the text around it, some 170 bytes, and the places of its columns."""


def memory_bytes(records: int, data_bytes: int) -> int:
    """Return memory that records with this much payload take while they wait."""
    return data_bytes * 4 // 3 + records * RECORD_OVERHEAD_BYTES


ANSWER_MEMORY_BYTES_MAX = memory_bytes(ANSWER_RECORDS_MAX, ANSWER_BYTES_MAX)


class Budget:
    """Bytes that the buffers of all readers may hold together; see the module's page for how they are shared."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._readers = 0

    @property
    def share(self) -> int:
        """Bytes of memory for one reader."""
        return self._bytes_max // max(1, self._readers)

    def join(self) -> None:
        self._readers += 1

    def leave(self) -> None:
        assert self._readers > 0, "who leaves has joined"
        self._readers -= 1


def records_wanted(records_max: int | None, share: int, record_bytes: float | None) -> int | None:
    """Return the Limit of the next GetRecords: `records_max`, or fewer where an answer might exceed half the share.

    `record_bytes` is the mean size of records lately, None before the first.
    """
    if share // 2 >= ANSWER_MEMORY_BYTES_MAX:
        return records_max
    size = RECORD_BYTES_ASSUMED if record_bytes is None else int(record_bytes)
    fitting = max(ANSWER_RECORDS_MIN, share // 2 // memory_bytes(1, size))
    return min(fitting, ANSWER_RECORDS_MAX if records_max is None else records_max)


class PrefetchBuffer(Generic[T]):
    """First in, first out, with the sums of what is inside."""

    def __init__(self, budget: Budget, pages_max: int = PAGES_MAX) -> None:
        self._budget = budget
        self._pages_max = pages_max
        self._items: deque[tuple[T, int, int]] = deque()
        self._records = 0
        self._bytes = 0

    @property
    def has_room(self) -> bool:
        """An empty buffer always has room; else every limit must still be open."""
        return not self._items or (
            len(self._items) < self._pages_max
            and self._bytes < BYTES_MAX
            and self._records < RECORDS_MAX
            and memory_bytes(self._records, self._bytes) < self._budget.share // 2
        )

    @property
    def is_empty(self) -> bool:
        return not self._items

    @property
    def data_bytes(self) -> int:
        """Payload of what is inside."""
        return self._bytes

    def put(self, item: T, *, records: int, data_bytes: int) -> None:
        self._items.append((item, records, data_bytes))
        self._records += records
        self._bytes += data_bytes

    def clear(self) -> None:
        """Forget what is inside."""
        self._items.clear()
        self._records = self._bytes = 0

    def take(self) -> T | None:
        """Return the oldest item, or None if there is none."""
        if not self._items:
            return None
        item, records, data_bytes = self._items.popleft()
        self._records -= records
        self._bytes -= data_bytes
        return item
