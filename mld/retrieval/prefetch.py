"""`PrefetchBuffer`: holds the records that a reader has fetched and its consumer has not taken yet. Pure.

Rules: retrieval#prefetch-limits. The reader asks before each fetch whether the buffer has room, so the buffer may
exceed its limits by one answer (10 MB). When the consumer takes a batch, the batch no longer counts: at the peak, the
buffer is full while one batch is processed. The buffer never waits; the reader does.

Unlike in Java, all readers of a worker share a `Budget` (retrieval#memory-budget) in equal parts. So a thousand lagging
shards do not hold a thousand times 8 MiB, and a slow child stops only its own reader. Shares count memory, not payload:
the text of a record is larger than its payload, much larger if payloads are small. One half of a share is for waiting
records. The other half is for the next answer; the reader asks for as many records as will probably fit. While one
answer is framed for the child and the next has arrived, memory exceeds the share by a half.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")

PAGES_MAX = 4
"""Most pages in the buffer of a polling reader: Java's maxPendingProcessRecordsInput."""
BYTES_MAX = 8 * 1024 * 1024
RECORDS_MAX = 30_000
ANSWER_BYTES_MAX = 10 * 1024 * 1024
"""Limit of Kinesis for one GetRecords answer."""
ANSWER_RECORDS_MAX = 10_000
ANSWER_RECORDS_MIN = 10
"""Smallest Limit of GetRecords, even if this many records may not fit: more calls would cost more than the memory."""
RECORD_BYTES_ASSUMED = 10 * 1024
"""Assumed size of a record before the reader has seen one. It is larger than most records, because all readers start at
the same time."""
RECORD_OVERHEAD_BYTES = 400
"""Memory of a record besides its base64 payload: some 170 bytes of text, and the places of its fields."""


def memory_bytes(records: int, data_bytes: int) -> int:
    """Return the bytes of memory that `records` waiting records take if their payloads have `data_bytes`."""
    return data_bytes * 4 // 3 + records * RECORD_OVERHEAD_BYTES


ANSWER_MEMORY_BYTES_MAX = memory_bytes(ANSWER_RECORDS_MAX, ANSWER_BYTES_MAX)


class Budget:
    """The bytes of memory that the buffers of all readers may take together. All readers have equal shares."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._readers = 0  # how many share the budget

    @property
    def share(self) -> int:
        """Bytes of memory for one reader."""
        return self._bytes_max // max(1, self._readers)

    def join(self) -> None:
        """Add a reader; all shares shrink."""
        self._readers += 1

    def leave(self) -> None:
        """Remove a reader; all shares grow."""
        assert self._readers > 0, "a reader left that had not joined"
        self._readers -= 1


def records_wanted(records_max: int | None, share: int, record_bytes: float | None) -> int | None:
    """Return the Limit of the next GetRecords: `records_max`, or less if the answer might exceed half the share.

    `record_bytes` is the mean payload of recent records, None before the first record. If the result is None, no Limit
    is sent.
    """
    if share // 2 >= ANSWER_MEMORY_BYTES_MAX:
        return records_max
    size = RECORD_BYTES_ASSUMED if record_bytes is None else int(record_bytes)
    fitting = max(ANSWER_RECORDS_MIN, share // 2 // memory_bytes(1, size))
    return min(fitting, ANSWER_RECORDS_MAX if records_max is None else records_max)


class PrefetchBuffer(Generic[T]):
    """A first-in, first-out queue that knows how many records and bytes it holds."""

    def __init__(self, budget: Budget, pages_max: int = PAGES_MAX) -> None:
        self._budget = budget
        self._pages_max = pages_max
        self._items: deque[tuple[T, int, int]] = deque()  # each with its number of records and payload bytes
        self._records = 0
        self._bytes = 0

    @property
    def has_room(self) -> bool:
        """Whether one more answer may be fetched: the buffer is empty, or no limit is reached yet."""
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
        """Payload bytes of the items inside."""
        return self._bytes

    def put(self, item: T, *, records: int, data_bytes: int) -> None:
        """Append an item, even if there is no room."""
        self._items.append((item, records, data_bytes))
        self._records += records
        self._bytes += data_bytes

    def clear(self) -> None:
        """Drop all items."""
        self._items.clear()
        self._records = self._bytes = 0

    def take(self) -> T | None:
        """Remove and return the oldest item; None if the buffer is empty."""
        if not self._items:
            return None
        item, records, data_bytes = self._items.popleft()
        self._records -= records
        self._bytes -= data_bytes
        return item
