"""The prefetch buffer: what was fetched and not yet taken, and whether there is room for one more fetch.

Rules: retrieval spec, 4.3. Room is tested before a fetch, so the buffer may exceed its limits by one answer (10 MB). A
batch leaves the counters when the consumer takes it, before it is processed, so that the peak is one in processing plus
a full buffer. It never waits; the reader does.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")

PAGES_MAX = 4
"""Java's maxPendingProcessRecordsInput under polling."""
BYTES_MAX = 8 * 1024 * 1024
RECORDS_MAX = 30_000


class PrefetchBuffer(Generic[T]):
    """First in, first out, with the sums of what is inside."""

    def __init__(
        self, *, pages_max: int = PAGES_MAX, bytes_max: int = BYTES_MAX, records_max: int = RECORDS_MAX
    ) -> None:
        self._pages_max = pages_max
        self._bytes_max = bytes_max
        self._records_max = records_max
        self._items: deque[tuple[T, int, int]] = deque()
        self._records = 0
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._items)

    @property
    def records(self) -> int:
        return self._records

    @property
    def data_bytes(self) -> int:
        return self._bytes

    @property
    def has_room(self) -> bool:
        """An empty buffer always has room; else every limit must still be open."""
        return not self._items or (
            len(self._items) < self._pages_max and self._bytes < self._bytes_max and self._records < self._records_max
        )

    def put(self, item: T, *, records: int, data_bytes: int) -> None:
        self._items.append((item, records, data_bytes))
        self._records += records
        self._bytes += data_bytes

    def take(self) -> T | None:
        """The oldest item, or None if there is none."""
        if not self._items:
            return None
        item, records, data_bytes = self._items.popleft()
        self._records -= records
        self._bytes -= data_bytes
        return item
