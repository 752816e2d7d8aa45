"""When the next GetRecords may go out, what its answer means, and whether there is room for it. Pure: state and `now`
in, seconds out.

Rules: retrieval#pacing-of-reads. At the tip of the shard the idle interval applies; a reader that lags asks again after
the catch-up interval; failures back off exponentially with jitter, where Java waits the idle interval. Times are
monotonic seconds; all intervals count from the end of the previous call.

`reaction_to` and `judge`: what an error or a contradictory answer of Kinesis means for a reader. Rules:
retrieval#valid-answers (the end is read from the answer itself; an end whose children are not named) and
retrieval#polling-errors (ResourceNotFound is no end). No reaction skips a record.

`PrefetchBuffer`: what was fetched and not yet taken, and whether there is room for one more fetch. Rules:
retrieval#prefetch-limits. Room is tested before a fetch, so the buffer may exceed its limits by one answer (10 MB). A
batch leaves the counters when the consumer takes it, before it is processed: at the peak one batch is in processing and
the buffer is full. The buffer never waits; the reader does.

Unlike in Java, all readers of a worker share a `Budget` (retrieval#memory-budget) in equal parts, so that a thousand
shards that lag do not hold a thousand times 8 MiB, and a slow child stops its own reader and no other. Shares are
counted in memory: the text of a record is larger than its payload, much larger where payloads are small. One half of a
share is for what waits. The other half is the most that one answer may take; the reader asks for as many records as
will probably fit. So memory exceeds the share by a half while one answer is framed for the child and the next is there.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, replace
from enum import Enum
from typing import Generic, TypeVar

from mld.core.errors import (
    InvalidStreamArgumentError,
    IteratorExpiredError,
    StreamError,
    StreamNotFoundError,
    StreamThrottledError,
)
from mld.core.streams import Page, validate_end_of_shard

T = TypeVar("T")

ENDS_WITHOUT_CHILDREN_MAX = 5
"""After this many answers in a row that end the shard without usable children, believe it: some stand-ins name none."""

CALL_INTERVAL_MIN_S = 0.2
"""Kinesis allows 5 GetRecords a second and shard, for all consumers together."""
ERROR_BACKOFF_S = 0.5
"""First wait after an error: short, as most are single; doubled with every further one."""
THROTTLE_BACKOFF_S = 1.0
"""First wait after throttling: the limits are per second, and up to 5 s after a full 10 MB answer."""
BACKOFF_MAX_S = 10.0
"""Longest wait: how late a reader may notice the end of an outage. Far below the 5 minutes of an iterator's life."""
BEAT_MAX_S = 0.1
"""The beat of readers with the default interval of 1.5 s."""
BACKOFF_DOUBLINGS_MAX = 10
"""The longest wait is reached long before; this only keeps the power small."""

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


class PollingReaction(Enum):
    """What a polling reader does about an error."""

    SAME_ITERATOR = "same iterator"
    SAME_ITERATOR_SLOWER = "same iterator, slower"
    NEW_ITERATOR = "new iterator"
    ASK_CONSUMER = "ask the consumer"


def reaction_to(error: StreamError) -> PollingReaction:
    match error:
        case IteratorExpiredError() | InvalidStreamArgumentError():
            return PollingReaction.NEW_ITERATOR
        case StreamThrottledError():
            return PollingReaction.SAME_ITERATOR_SLOWER
        case StreamNotFoundError():
            return PollingReaction.ASK_CONSUMER
        case _:
            return PollingReaction.SAME_ITERATOR


class AnswerVerdict(Enum):
    """What an answer means."""

    GOES_ON = "the shard goes on"
    ENDED = "the shard has ended, its children are named"
    ENDED_CHILDREN_UNKNOWN = "the shard has ended, its children have to be looked up"
    INVALID = "discard the answer, ask again"


def judge(page: Page, ends_without_children_before: int) -> AnswerVerdict:
    """Return the verdict on an answer; the invalid answers just before it that ended the shard are counted."""
    ends = page.next_iterator is None
    if validate_end_of_shard(page.next_iterator, page.child_shards) is None:
        return AnswerVerdict.ENDED if ends else AnswerVerdict.GOES_ON
    if ends and ends_without_children_before + 1 >= ENDS_WITHOUT_CHILDREN_MAX:
        return AnswerVerdict.ENDED_CHILDREN_UNKNOWN
    return AnswerVerdict.INVALID


@dataclass(frozen=True, slots=True)
class Pacing:
    """The configured intervals. `reduced_tps_threshold_s`: closer to the tip than this, wait at least this long.
    The catch-up interval is for readers further behind than `catch_up_from_s`.

    With `beat_s` a wait at the tip is extended to its next multiple, the same for all readers: one wake-up of the
    process then serves several shards, which saves a third of the cost of an idle shard.
    """

    idle_interval_s: float
    catch_up_interval_s: float = CALL_INTERVAL_MIN_S
    reduced_tps_threshold_s: float = 0.0
    beat_s: float = 0.0
    catch_up_from_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Pace:
    """What the previous call was like. `failures` counts those in a row, and `first_backoff_s` is the first wait after
    one like the last; `ended_s` None: there was no call yet.
    """

    ended_s: float | None = None
    millis_behind_latest: int | None = None
    failures: int = 0
    first_backoff_s: float = ERROR_BACKOFF_S


def failed(pace: Pace, ended_s: float, first_backoff_s: float) -> Pace:
    return replace(pace, ended_s=ended_s, failures=pace.failures + 1, first_backoff_s=first_backoff_s)


def delay_s(pacing: Pacing, pace: Pace, now_s: float, jitter: float) -> float:
    """Return seconds to wait before the next call, 0 for at once. `jitter` is a fresh random number in [0, 1)."""
    if pace.ended_s is None:
        return 0.0
    interval_s = (
        backoff_s(pace.first_backoff_s, pace.failures, jitter)
        if pace.failures
        else _interval_s(pacing, pace.millis_behind_latest)
    )
    wait_s = max(0.0, max(interval_s, CALL_INTERVAL_MIN_S) - (now_s - pace.ended_s))
    if pacing.beat_s <= 0 or pace.failures or pace.millis_behind_latest or wait_s == 0:
        return wait_s
    return max(wait_s, math.ceil((now_s + wait_s) / pacing.beat_s) * pacing.beat_s - now_s)


def beat_of(idle_interval_s: float) -> float:
    """Return the beat for an interval: it extends a wait by a fifteenth at most, by half of that on average."""
    return min(BEAT_MAX_S, idle_interval_s / 15)


def _interval_s(pacing: Pacing, millis_behind_latest: int | None) -> float:
    if millis_behind_latest is None:
        return pacing.idle_interval_s
    behind_s = millis_behind_latest / 1000
    behind = behind_s > pacing.catch_up_from_s
    usual_s = min(pacing.catch_up_interval_s, pacing.idle_interval_s) if behind else pacing.idle_interval_s
    return max(usual_s, pacing.reduced_tps_threshold_s) if behind_s < pacing.reduced_tps_threshold_s else usual_s


def backoff_s(first_s: float, failures: int, jitter: float) -> float:
    """Return a wait of which half is fixed and half is random, so that readers throttled together do not come back
    together.
    """
    doublings = min(failures - 1, BACKOFF_DOUBLINGS_MAX)
    longest_s = min(BACKOFF_MAX_S, first_s * 2.0**doublings)
    return longest_s * (1 + jitter) / 2


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
