"""What is counted for one shard while this worker holds its lease, and what a view works out of that."""

from __future__ import annotations

import math
import string
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from mld.core.clock import iso_time
from mld.core.positions import Position
from mld.core.stream_ids import shard_of_key, stream_of_key
from mld.core.streams import ChildBatch, Page
from mld.metrics.declaring import (
    BYTES,
    COUNT,
    MILLIS,
    SHARD,
    STREAM,
    D,
    Instant,
    JavaMetric,
    S,
    age_s,
    counter,
    histogram,
    seconds,
    sent,
    shown,
    success_and_time,
    tally,
    total,
)
from mld.metrics.events import EventBuffer, EventKind
from mld.metrics.instruments import Calls, Spread, Tally
from mld.metrics.operations import ShardEndCounts
from mld.metrics.progress import Progress

EMPTY_FETCHES_MAX = 256
"""Reads without records that are counted together."""
LAG_KNOWN_S = 60.0
"""How long what Kinesis said of a shard that waits for records stands; from then on its lag counts on."""
SLOW_READ_S = 5.0
"""A read that takes longer is slow: one of 10 MB takes less than a second."""
SLOW_READS = 3
"""Answered so in a row, they are no accident."""
UNREADABLE_AFTER_S = 10.0
"""A shard cannot be read once all of its reads have failed for so long: a single error of a service ends earlier."""
STALLED_AFTER_S = 60.0
"""A shard is stalled once its child has neither answered nor checkpointed for so long, with records in its hands."""
STALLED = "its record processor neither answers nor checkpoints"
TREND_STEP_S, TREND_STEPS = 120, 30
"""What a row tells of the last hour."""
NO_LAG = "-"
LAG_LETTERS = string.digits + string.ascii_uppercase + string.ascii_lowercase
"""In the order of their codes, the first for less than a second."""
LEVELS_PER_DOUBLING = 3
SAID_AGAIN_FIRST_S, SAID_AGAIN_MAX_S = 60.0, 3600.0
"""Reads that go on failing are logged after this time, then after twice that, and so on up to once an hour."""

PROCESS, INITIALIZE, TRACKER = "ProcessTask", "InitializeTask", "ApplicationTracker"
"""KCL's operations on a shard; that of its end is `ShardEndCounts.OPERATION`."""


class ShardActivity(Enum):
    """What a shard's consumer is about, in an operator's words."""

    PROCESSING = "processing"
    IDLE = "idle"
    STALLED = "stalled"
    UNREADABLE = "unreadable"
    FAILING = "failing"
    PARKED = "parked"
    ENDING = "ending"
    PAUSED = "paused"


NO_READER = frozenset({ShardActivity.UNREADABLE, ShardActivity.PARKED})
"""What a consumer is about that gets no records from Kinesis."""


class FetchResult(Enum):
    """How a read of a shard ended."""

    RECORDS = "records"
    EMPTY = "empty"
    THROTTLED = "throttled"
    EXPIRED = "expired"
    ERROR = "error"


class Trend:
    """The lag of a shard in the last hour, in one letter for each step; it goes with the lease to the next worker.

    A letter stands for a lag and all up to 1.26 times as much, from a second to twelve days. `text` and `at_s` are what
    the row has told so far.
    """

    def __init__(self, text: str = "", at_s: int = 0) -> None:
        self._text = text[-TREND_STEPS:]
        self._step = at_s // TREND_STEP_S

    def noted(self, lag_ms: int | None, wall_s: float) -> str:
        """Return the letters with this lag; the greatest of a step stays."""
        letter = NO_LAG
        if lag_ms is not None:
            level = 0 if lag_ms < 1000 else 1 + int(LEVELS_PER_DOUBLING * math.log2(lag_ms / 1000))
            letter = LAG_LETTERS[min(level, len(LAG_LETTERS) - 1)]
        step = max(self._step, int(wall_s) // TREND_STEP_S)
        passed = min(step - self._step, TREND_STEPS) if self._text else 1
        before, last = (self._text, NO_LAG) if passed else (self._text[:-1], self._text[-1])
        self._text = f"{before}{NO_LAG * (passed - 1)}{max(last, letter)}"[-TREND_STEPS:]
        self._step = step
        return self._text

    def values(self, wall_s: float) -> list[float | None]:
        """Return what `trend_values` makes of it."""
        return trend_values(self._text, self._step * TREND_STEP_S, wall_s)


def trend_values(text: str, at_s: int, wall_s: float) -> list[float | None]:
    """Return the seconds behind in the last hour, a value for each step, the oldest first; None where nobody knew."""
    passed = max(0, int(wall_s) // TREND_STEP_S - at_s // TREND_STEP_S)
    values = []
    for letter in (text + NO_LAG * min(passed, TREND_STEPS))[-TREND_STEPS:]:
        level = LAG_LETTERS.find(letter)
        values.append(None if level < 0 else 0.0 if level == 0 else round(2 ** ((level - 1) / LEVELS_PER_DOUBLING), 1))
    return values


class FailedReads:
    """The reads of a shard that have failed since the last one that succeeded. Times are epoch seconds."""

    def __init__(self) -> None:
        self.count = 0
        self.since_s: float | None = None
        """When the first of them failed; None while reads succeed."""
        self.last = ""
        """Why the last one failed."""
        self._kinds: set[type[Exception]] = set()
        self._say_at_s = math.inf
        self._pause_s = SAID_AGAIN_FIRST_S

    def failed(self, error: Exception, wall_s: float) -> bool:
        """Count one; True if the log is to say it: the first of its kind, and then one at growing intervals."""
        self.count += 1
        self.last = str(error)
        if self.since_s is None:
            self.since_s, self._say_at_s = wall_s, wall_s + self._pause_s
        is_due = wall_s >= self._say_at_s
        if is_due:
            self._pause_s = min(2 * self._pause_s, SAID_AGAIN_MAX_S)
            self._say_at_s = wall_s + self._pause_s
        is_new = type(error) not in self._kinds
        self._kinds.add(type(error))
        return is_due or is_new

    def for_s(self, wall_s: float) -> float:
        """Return how long reads have failed; 0 while they succeed."""
        return 0.0 if self.since_s is None else max(0.0, wall_s - self.since_s)


def none_waits() -> int:
    return 0


def nobody_asks(_key: str, _is_reached: bool) -> None:
    pass


@dataclass(slots=True, eq=False)
class ShardMetrics:
    """What is counted for one shard while its lease is held. Times are monotonic seconds unless named otherwise."""

    key: str
    since: float
    progress: Progress = field(default_factory=Progress)
    """Of the whole worker; the shard's reader tells it of its steps."""
    stream_id: str | None = field(init=False)
    """The stream's identifier, among several; None if there is one."""
    shard_id: str = field(init=False)
    """The shard's own name."""
    stream_label: str | None = field(init=False)
    """What people call the stream, among several."""
    # --- reading
    _fetches: Tally = tally(
        "mld_fetches_total",
        "Reads of the shard: records, empty, throttled, expired or error.",
        "result",
        java="ProcessTask KinesisDataFetcher.getRecords.Success",
    )
    _fetch: Calls = histogram(
        "mld_fetch_seconds",
        "Time of a read.",
        *success_and_time(PROCESS, "KinesisDataFetcher.getRecords", D, SHARD),
        make=Calls,
    )
    _empty_fetches: list[float] = field(init=False, default_factory=list)
    """Their seconds; counted a few hundred at a time, when code is warm."""
    failed_reads: FailedReads = field(init=False, default_factory=FailedReads)
    slow_reads: int = field(init=False, default=0)
    """Reads in a row that were answered, and slowly."""
    read_took_s: float = field(init=False, default=0.0)
    """The last one that was answered."""
    iterator: Calls = sent(Calls, *success_and_time(PROCESS, "KinesisDataFetcher.getShardIterator", D, SHARD))
    expired_iterators: Spread = sent(Spread, JavaMetric(PROCESS, "ExpiredIterator", COUNT, S, STREAM))
    """1 for each."""
    subscriptions: Tally = tally(
        "mld_subscriptions_total",
        "Subscriptions of enhanced fan-out: opened, renewed, ended, refused, broken or taken (by somebody who "
        "subscribed by the same consumer).",
        "result",
    )
    is_subscribed: bool = field(init=False, default=False)
    contested_words: str = field(init=False, default="")
    """Who else takes the subscription, by the consumer of this application."""
    contested_until_s: float = field(init=False, default=-math.inf)
    """In epoch seconds: not told any more if nobody has taken it again by then."""
    waiting_bytes: Callable[[], int] = field(init=False, default=none_waits)
    """Payload in the reader's buffer; its reader sets it."""
    behind_ms: int | None = field(init=False, default=None)
    """How far the shard's newest answer was behind the tip; None until Kinesis has said."""
    behind_wall_s: float = field(init=False, default=0.0)
    """When it said so, in epoch seconds."""
    trend: Trend = field(init=False, default_factory=Trend)
    on_tip: Callable[[str, bool], None] = field(init=False, default=nobody_asks)
    """Is told when the shard's child has answered for everything that there was, and when that is in doubt again,
    because the child has failed."""
    # --- the child
    forced_activity: ShardActivity | None = field(init=False, default=None)
    """What the state of the consumer makes it, whatever its child does."""
    is_ending: bool = field(init=False, default=False)
    """Whether checkpoints are those of an end."""
    is_failing: bool = field(init=False, default=False)
    is_paused: bool = field(init=False, default=False)
    busy_since: float | None = field(init=False, default=None)
    """Since when a batch is in the child's hands."""
    oldest_wall_s: float | None = field(init=False, default=None)
    """When the first record arrived that is in hand, in epoch seconds; also while a child that failed on it starts
    again."""
    moved_wall_s: float | None = field(init=False, default=None)
    """When records were taken in hand, or the child last moved on with them, in epoch seconds; None without any."""
    batches: Spread = total(
        "mld_records_total",
        "User records given to the child, after de-aggregation.",
        JavaMetric(PROCESS, "RecordsProcessed", COUNT, S, SHARD),
    )
    """Records of each batch."""
    record_bytes: Spread = total(
        "mld_record_bytes_total",
        "Payload bytes given to the child.",
        JavaMetric(PROCESS, "DataBytesProcessed", BYTES, S, SHARD),
    )
    """Payload bytes of each batch."""
    behind: Spread = sent(
        Spread,
        JavaMetric(PROCESS, "MillisBehindLatest", MILLIS, S, SHARD),
        JavaMetric(TRACKER, "MillisBehindLatest", MILLIS, S),
    )
    """`behind_ms` at each batch."""
    tasks: Calls = sent(Calls, *success_and_time(PROCESS, "", S, SHARD))
    """A batch from its preparation to the child's answer."""
    process_records: Spread = histogram(
        "mld_process_records_seconds",
        "From the sending of a batch to the child's answer.",
        seconds(PROCESS, "RecordProcessor.processRecords.Time", S, SHARD),
    )
    initialize: Spread = sent(Spread, seconds(INITIALIZE, "RecordProcessor.initialize.Time", S))
    shutdown: Spread = sent(Spread, seconds(ShardEndCounts.OPERATION, "RecordProcessor.shutdown.Time", S))
    """`leaseLost` and `shardEnded`, from their sending to the child's answer."""
    delivered: Position | None = field(init=False, default=None)
    """Position of the newest record given to the child."""
    restarts: Tally = tally(
        "mld_child_restarts_total", "Restarts of the child, by why: start, exit, timeout or protocol.", "reason"
    )
    last_error: str | None = field(init=False, default=None)
    last_error_wall_s: float = field(init=False, default=0.0)
    dropped_aggregates: Tally = tally(
        "mld_aggregates_dropped_total",
        "KPL aggregates that were not opened: `range` are lost to this application, `malformed` are delivered closed.",
        "why",
    )
    losses: int = counter(
        "mld_retention_losses_total",
        "Times that records left the stream before they were read; how many each time cannot be known.",
    )
    lost_last: tuple[str, str | None] | None = field(init=False, default=None)
    """The last record that was read before the newest loss, and the first one after it."""
    lost_words: str = field(init=False, default="")
    lost_wall_s: float = field(init=False, default=0.0)
    """When the newest loss was found, in epoch seconds."""
    events: EventBuffer = field(init=False, default_factory=EventBuffer)
    """Those of the worker."""
    # --- the lease
    checkpoints: Calls = histogram(
        "mld_checkpoint_seconds",
        "From the child's request to the table's answer.",
        *success_and_time(PROCESS, "UpdateLease", D, SHARD),
        make=Calls,
    )
    """Counted when the table has answered."""
    ending_checkpoints: Calls = sent(Calls, *success_and_time(ShardEndCounts.OPERATION, "UpdateLease", D, SHARD))
    """Those of `checkpoints` that a child asked for at the end of its shard or of its life."""
    checkpoints_by: Tally = tally(
        "mld_checkpoints_total",
        "Checkpoints, counted when the table has answered: stored, refused or error.",
        "result",
        java="ProcessTask UpdateLease.Success",
    )
    checkpoint_at: float | None = field(init=False, default=None)
    renewed_at: float = field(init=False)

    def __post_init__(self) -> None:
        self.shard_id = shard_of_key(self.key)
        self.stream_label = self.stream_id = stream_of_key(self.key)
        self.renewed_at = self.since

    @shown(
        "mld_shard_behind_seconds",
        "Age of the oldest record that is not done: the first one in the child's hands, else what Kinesis said last, "
        "counted on from then; absent until it has said it.",
        java="ProcessTask MillisBehindLatest",
    )
    def behind_s(self, at: Instant) -> float | None:
        lag_ms = self.lag_ms(at.wall_s)
        return None if lag_ms is None else lag_ms / 1000

    @shown("mld_shard_behind_age_seconds", "How long ago Kinesis said how far behind the shard is.")
    def behind_age_s(self, at: Instant) -> float | None:
        return None if self.behind_ms is None else max(0.0, at.wall_s - self.behind_wall_s)

    @shown(
        "mld_shard_checkpoint_age_seconds",
        "How long ago the last checkpoint was stored by this worker; absent before the first.",
    )
    def checkpoint_age_s(self, at: Instant) -> float | None:
        return age_s(self.checkpoint_at, at.now)

    @shown(
        "mld_shard_state",
        "1 for what the shard's consumer is about: processing, idle, stalled, unreadable, failing, parked, ending or "
        "paused; 0 for everything else.",
        "state",
    )
    def states(self, at: Instant) -> Mapping[str, int]:
        is_now = self.activity_at(at.wall_s)
        return {activity.value: int(activity is is_now) for activity in ShardActivity}

    @shown("mld_child_busy_seconds", "Age of the batch in the child's hands; 0 while it has none.")
    def busy_or_none_s(self, at: Instant) -> float:
        return self.busy_s(at) or 0.0

    def busy_s(self, at: Instant) -> float | None:
        """Return the age of the batch in the child's hands; None while it has none."""
        return age_s(self.busy_since, at.now)

    @shown("mld_lease_renewal_age_seconds", "How long ago the lease was last renewed.")
    def renewal_age_s(self, at: Instant) -> float:
        return max(0.0, at.now - self.renewed_at)

    @shown("mld_shard_unread_seconds", "How long all reads of the shard have failed; 0 while they succeed.")
    def unread_s(self, at: Instant) -> float:
        return self.failed_reads.for_s(at.wall_s)

    # --- what happens

    def entered(self, forced: ShardActivity | None, *, is_ending: bool) -> None:
        """Note that the consumer is in another state now."""
        self.forced_activity, self.is_ending = forced, is_ending

    def paused(self, is_paused: bool) -> None:
        """Note that an operator has paused the shard, or lets it go on."""
        self.is_paused = is_paused

    def took(self, page: Page, delivered: Position, wall_s: float) -> None:
        """Note that a page came from the reader; what comes after `delivered` is to be given to the child."""
        if page.millis_behind_latest is not None:
            self.saw_lag(page.millis_behind_latest, wall_s)
        if page.count:
            self.moved_wall_s = wall_s
            arrival_ms = page.first_arrival_ms_after(delivered)  # of Kinesis's clock
            self.oldest_wall_s = min(wall_s, (arrival_ms or math.inf) / 1000)

    def done(self) -> None:
        """Note that the page that was taken last is delivered."""
        self.moved_wall_s = self.oldest_wall_s = None

    def handed_over(self, now: float) -> None:
        """Note that a batch goes to the child."""
        self.busy_since = now

    def lost(self, asked: str, first: str | None, words: str, wall_s: float) -> bool:
        """Note records that left the stream between `asked`, which was read, and `first`; False if that is known."""
        if self.lost_last == (asked, first):
            return False
        self.lost_last = asked, first
        self.lost_words, self.lost_wall_s = words, wall_s
        self.losses += 1
        self.events.note(EventKind.LOST, words, shard=self.key)
        return True

    def answered(self, batch: ChildBatch | None, took_s: float, wall_s: float) -> None:
        """Note that the child has answered for `batch`; None: it did not, or not well."""
        self.busy_since = None
        self.process_records.note(took_s)
        self.tasks.note(batch is not None, took_s)
        if batch is not None:
            self.batches.note(batch.count)
            self.record_bytes.note(batch.data_bytes)
            if self.behind_ms is not None:
                self.behind.note(self.behind_ms)
            if batch.largest is not None:
                self.delivered = batch.largest
            self._moved(wall_s)

    def stored(self, result: str, since: float, now: float, wall_s: float) -> None:
        """Note that the table has answered a checkpoint, sent at `since`, with this result: stored, refused or
        error.
        """
        is_stored = result == "stored"
        self.checkpoints.note(is_stored, now - since)
        if self.is_ending:
            self.ending_checkpoints.note(is_stored, now - since)
        self.checkpoints_by.add(result)
        if is_stored:
            self.checkpoint_at = now
            self._moved(wall_s)
            self.recovered()

    def recovered(self) -> None:
        """Note that the child works again, or still does."""
        self.is_failing = False

    def failed(self, reason: str, words: str, wall_s: float) -> None:
        """Note that the child has failed, and is to be started again."""
        self.moved_wall_s = None
        self.on_tip(self.key, False)
        self.restarts.add(reason)
        self.erred(words, wall_s)
        self.is_failing = True

    def erred(self, words: str, wall_s: float) -> None:
        """Keep what went wrong last, in words."""
        self.last_error, self.last_error_wall_s = words, wall_s

    def _moved(self, wall_s: float) -> None:
        if self.moved_wall_s is not None:
            self.moved_wall_s = wall_s

    @property
    def activity(self) -> ShardActivity:
        """What the consumer is about, as far as it has said so."""
        if self.forced_activity is not None:
            return self.forced_activity
        if self.is_failing:
            return ShardActivity.FAILING
        if self.busy_since is not None:
            return ShardActivity.PROCESSING
        return ShardActivity.PAUSED if self.is_paused else ShardActivity.IDLE

    def saw_lag(self, behind_ms: int, wall_s: float) -> None:
        """Note that Kinesis reported at `wall_s` how far behind the newest page is."""
        self.behind_ms = behind_ms
        self.behind_wall_s = wall_s

    def lag_ms(self, wall_s: float) -> int | None:
        """Return how far the shard is behind at `wall_s`: the age of its oldest record that is not done; None if
        nobody knows.

        That record is the first one in hand. Else what Kinesis said last counts on with the time, unless the shard is
        idle and Kinesis has just said it.
        """
        known = [] if self.oldest_wall_s is None else [wall_s - self.oldest_wall_s]
        if self.behind_ms is not None:
            passed_s = max(0.0, wall_s - self.behind_wall_s)
            is_read = self.activity is ShardActivity.IDLE and not self.failed_reads.count
            known.append(self.behind_ms / 1000 + (0.0 if is_read and passed_s <= LAG_KNOWN_S else passed_s))
        return round(1000 * max(0.0, *known)) if known else None

    def activity_at(self, wall_s: float) -> ShardActivity:
        """Return what the consumer is about at `wall_s`, with what only time shows: that it cannot read, or stands
        still.
        """
        if self.activity not in (ShardActivity.IDLE, ShardActivity.PROCESSING):
            return self.activity
        if self.moved_wall_s is not None and wall_s - self.moved_wall_s >= STALLED_AFTER_S:
            return ShardActivity.STALLED
        is_waiting = self.activity is ShardActivity.IDLE
        if is_waiting and self.failed_reads.count and self.failed_reads.for_s(wall_s) >= UNREADABLE_AFTER_S:
            return ShardActivity.UNREADABLE
        return self.activity

    def why_at(self, wall_s: float) -> str | None:
        """Return since when the shard is in trouble, and why, in words; None if it is not."""
        match self.activity_at(wall_s):
            case ShardActivity.UNREADABLE:
                since_s, why = self.failed_reads.since_s, self.failed_reads.last
            case ShardActivity.STALLED:
                since_s, why = self.moved_wall_s, STALLED
            case ShardActivity.PARKED if self.last_error is not None:
                since_s, why = self.last_error_wall_s, self.last_error
            case ShardActivity.FAILING if self.last_error is not None:
                return f"at {iso_time(self.last_error_wall_s)}: {self.last_error}"
            case ShardActivity.IDLE if self.behind_ms is None and self.failed_reads.count:  # from its first read on
                since_s, why = self.failed_reads.since_s, self.failed_reads.last
            case _:
                return None
        return f"since {iso_time(since_s or 0.0)}: {why}"

    def read_again(self) -> int:
        """Note that a read succeeded; returns how many had failed before it."""
        failed = self.failed_reads.count
        if failed:
            self.failed_reads = FailedReads()
        return failed

    @property
    def fetches(self) -> Tally:
        """Reads of the shard, by `FetchResult`."""
        self._count_empty_fetches()
        return self._fetches

    @property
    def fetch(self) -> Calls:
        """Reads of the shard."""
        self._count_empty_fetches()
        return self._fetch

    def fetched(self, result: FetchResult, seconds: float) -> None:
        """Note that a read of the shard has ended."""
        self._fetches.add(result.value)
        self._fetch.note(result in _ANSWERED, seconds)
        if result in _ANSWERED:
            self._took(seconds)
        if result is FetchResult.EXPIRED:
            self.expired_iterators.note(1)

    def fetched_nothing(self, seconds: float) -> None:
        """Note that a read of the shard has ended and brought no records, as nearly all do at the tip."""
        self._empty_fetches.append(seconds)
        self._took(seconds)
        if len(self._empty_fetches) >= EMPTY_FETCHES_MAX:
            self._count_empty_fetches()

    def _took(self, seconds: float) -> None:
        self.read_took_s = seconds
        self.slow_reads = self.slow_reads + 1 if seconds > SLOW_READ_S else 0

    def contested(self, words: str, wall_s: float, for_s: float) -> None:
        """Note that somebody else has taken the subscription once more; it counts as so for `for_s`."""
        self.contested_words, self.contested_until_s = words, wall_s + for_s

    def _count_empty_fetches(self) -> None:
        if self._empty_fetches:
            self._fetches.add(FetchResult.EMPTY.value, len(self._empty_fetches))
            for seconds in self._empty_fetches:
                self._fetch.note(True, seconds)
            self._empty_fetches.clear()


_ANSWERED = (FetchResult.RECORDS, FetchResult.EMPTY)
