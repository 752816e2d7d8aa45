"""`ShardMetrics`: the counts of one shard while this worker holds its lease, and its lag and activity, which are
derived from them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from mld.core.clock import iso_time
from mld.core.positions import Position
from mld.core.stream_ids import shard_of_key, stream_of_key
from mld.core.streams import CountedRecords, Page
from mld.metrics.activity import ShardActivity
from mld.metrics.children import ChildLoads
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
from mld.metrics.failed_reads import FailedReads
from mld.metrics.instruments import Calls, Spread, Tally
from mld.metrics.operations import ShardEndCounts
from mld.metrics.progress import Progress
from mld.metrics.trend import Trend

EMPTY_FETCHES_MAX = 256
"""After this many reads without records, their durations are added to the metrics together."""
LAG_KNOWN_S = 60.0
"""For how long the lag that Kinesis reported is taken as the lag of an idle shard. Later, the time since the report is
added.
"""
SLOW_READ_S = 5.0
"""A read that takes longer counts as slow; an answer of 10 MB takes less than a second."""
SLOW_READS = 3
"""After this many slow reads in a row Kinesis counts as slow for the shard."""
UNREADABLE_AFTER_S = 10.0
"""A shard counts as unreadable once all its reads have failed for this long. A short outage ends earlier."""
HOT_CHILD_FROM_S = 60.0
"""A hot child (`ChildLoads.hot_child`) is named once its shard is this far behind."""
STALLED_AFTER_S = 60.0
"""A shard counts as stalled if its child has records, and has neither answered nor checkpointed for this long."""
STALLED = "its record processor neither answers nor checkpoints"

PROCESS, INITIALIZE, TRACKER = "ProcessTask", "InitializeTask", "ApplicationTracker"
"""KCL's names of the operations on a shard. The one at the shard's end is `ShardEndCounts.OPERATION`."""


class FetchResult(Enum):
    """How a read of a shard ended."""

    RECORDS = "records"
    EMPTY = "empty"
    THROTTLED = "throttled"
    EXPIRED = "expired"
    ERROR = "error"


def none_waits() -> int:
    """Return 0: without a reader, no payload waits in a buffer."""
    return 0


def nobody_asks(_key: str, _is_reached: bool) -> None:
    """Do nothing. This is `on_tip` if nobody wants to know when the shard's tip is reached."""


@dataclass(slots=True, eq=False)
class ShardMetrics:
    """The counts of one shard while its lease is held. Times are monotonic seconds unless stated otherwise."""

    key: str
    since: float
    progress: Progress = field(default_factory=Progress)
    """The progress of the whole worker, to which the shard's reader reports its steps."""
    stream_id: str | None = field(init=False)
    """Identifier of the stream if there are several; else None."""
    shard_id: str = field(init=False)
    """The shard's own id, without the stream."""
    stream_label: str | None = field(init=False)
    """Name of the stream for people if there are several; else None."""
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
    """Durations of reads without records, which are not in `_fetch` yet. To add them a few hundred at a time is faster,
    because the code stays in the CPU's cache.
    """
    failed_reads: FailedReads = field(init=False, default_factory=FailedReads)
    slow_reads: int = field(init=False, default=0)
    """How many reads in a row, up to the last one, were slow."""
    read_took_s: float = field(init=False, default=0.0)
    """Duration of the last read that was answered."""
    iterator: Calls = sent(Calls, *success_and_time(PROCESS, "KinesisDataFetcher.getShardIterator", D, SHARD))
    expired_iterators: Spread = sent(Spread, JavaMetric(PROCESS, "ExpiredIterator", COUNT, S, STREAM))
    """1 for each expired iterator."""
    subscriptions: Tally = tally(
        "mld_subscriptions_total",
        "Subscriptions of enhanced fan-out: opened, renewed, ended, refused, broken or taken (another application "
        "subscribed by the same consumer).",
        "result",
    )
    is_subscribed: bool = field(init=False, default=False)
    contested_words: str = field(init=False, default="")
    """A text about the other application that subscribes by our consumer, and so takes over our subscription."""
    contested_until_s: float = field(init=False, default=-math.inf)
    """Until when `contested_words` are reported, in epoch seconds. Each time the subscription is taken over, this is
    set anew.
    """
    waiting_bytes: Callable[[], int] = field(init=False, default=none_waits)
    """Returns the payload bytes in the reader's buffer; set by the reader."""
    behind_ms: int | None = field(init=False, default=None)
    """How far the newest page was behind the tip of the shard, as Kinesis reported; None before the first report."""
    behind_wall_s: float = field(init=False, default=0.0)
    """When Kinesis reported `behind_ms`, in epoch seconds."""
    trend: Trend = field(init=False, default_factory=Trend)
    on_tip: Callable[[str, bool], None] = field(init=False, default=nobody_asks)
    """Called with the lease key and True when the shard's child has processed all records up to the tip, and with False
    when the child fails, because it gets records again then."""
    # --- the child
    forced_activity: ShardActivity | None = field(init=False, default=None)
    """The activity, if the consumer's state alone decides it; None if it depends on what the child does."""
    is_ending: bool = field(init=False, default=False)
    """Whether the child is at its end, or at the end of its shard, so that its checkpoints count as
    `ending_checkpoints`, too.
    """
    is_failing: bool = field(init=False, default=False)
    is_paused: bool = field(init=False, default=False)
    busy_since: float | None = field(init=False, default=None)
    """Time at which the current batch was given to the child; None if it has none."""
    oldest_wall_s: float | None = field(init=False, default=None)
    """Arrival of the oldest record that was taken from the reader and is not processed, in epoch seconds; None if there
    is none. It stays while a child that failed on the record is restarted."""
    moved_wall_s: float | None = field(init=False, default=None)
    """When the child last made progress with the records in hand, in epoch seconds; None if it has none."""
    outstanding: int = field(init=False, default=0)
    """With several children: number of pages with records that a child has and has not answered."""
    _is_tip_taken: bool = field(init=False, default=False)
    """Whether all records up to the tip of the shard were taken from the reader."""
    children: ChildLoads | None = field(init=False, default=None)
    """The load of each of several children; None if the shard has one child."""
    batches: Spread = total(
        "mld_records_total",
        "User records given to the child, after de-aggregation.",
        JavaMetric(PROCESS, "RecordsProcessed", COUNT, S, SHARD),
    )
    """The number of records in each batch."""
    records_per_s: float | None = field(init=False, default=None)
    """Records given to the child, per second, between the last two calls of `sample`; None before the second call."""
    _sampled: tuple[float, float] | None = field(init=False, default=None)
    """Number of records at the last call of `sample`, and its time."""
    record_bytes: Spread = total(
        "mld_record_bytes_total",
        "Payload bytes given to the child.",
        JavaMetric(PROCESS, "DataBytesProcessed", BYTES, S, SHARD),
    )
    """The payload bytes in each batch."""
    behind: Spread = sent(
        Spread,
        JavaMetric(PROCESS, "MillisBehindLatest", MILLIS, S, SHARD),
        JavaMetric(TRACKER, "MillisBehindLatest", MILLIS, S),
    )
    """The value of `behind_ms` when each batch was answered."""
    tasks: Calls = sent(Calls, *success_and_time(PROCESS, "", S, SHARD))
    """Time of each batch, from its preparation to the child's answer."""
    process_records: Spread = histogram(
        "mld_process_records_seconds",
        "From the sending of a batch to the child's answer.",
        seconds(PROCESS, "RecordProcessor.processRecords.Time", S, SHARD),
    )
    initialize: Spread = sent(Spread, seconds(INITIALIZE, "RecordProcessor.initialize.Time", S))
    shutdown: Spread = sent(Spread, seconds(ShardEndCounts.OPERATION, "RecordProcessor.shutdown.Time", S))
    """Time of `leaseLost` and `shardEnded`, from sending to the child's answer."""
    delivered: Position | None = field(init=False, default=None)
    """Position of the newest record given to the child."""
    restarts: Tally = tally(
        "mld_child_restarts_total", "Restarts of the child, by why: start, exit, timeout or protocol.", "reason"
    )
    last_error: str | None = field(init=False, default=None)
    last_error_wall_s: float = field(init=False, default=0.0)
    dropped_aggregates: Tally = tally(
        "mld_aggregates_dropped_total",
        "KPL aggregates that were not opened: `range` are for another shard and not delivered, `malformed` are "
        "delivered as they came.",
        "why",
    )
    budget_refusals: Tally = tally(
        "mld_budget_refusals_total",
        "Work that records of a shard asked for beyond its budget: schema_lookups, decoding, warnings, dead_letters.",
        "budget",
    )
    spent_words: dict[str, tuple[str, float]] = field(init=False, default_factory=dict)
    """For each budget that was used up, a text about that, and until when the text is shown, in epoch seconds."""
    losses: int = counter(
        "mld_retention_losses_total",
        "Times that records left the stream before they were read; how many each time cannot be known.",
    )
    lost_last: tuple[str, str | None] | None = field(init=False, default=None)
    """The last record that was read before the newest loss, and the first record after it."""
    lost_words: str = field(init=False, default="")
    lost_wall_s: float = field(init=False, default=0.0)
    """Time at which the newest loss was found, in epoch seconds."""
    events: EventBuffer = field(init=False, default_factory=EventBuffer)
    """The event buffer of the worker."""
    # --- the lease
    checkpoints: Calls = histogram(
        "mld_checkpoint_seconds",
        "From the child's request to the table's answer.",
        *success_and_time(PROCESS, "UpdateLease", D, SHARD),
        make=Calls,
    )
    """Checkpoints, counted when the table has answered."""
    ending_checkpoints: Calls = sent(Calls, *success_and_time(ShardEndCounts.OPERATION, "UpdateLease", D, SHARD))
    """The part of `checkpoints` that a child requested at the end of its shard or before it ended itself."""
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
        "Age of the oldest record that the child has and has not done; without such a record the lag that Kinesis "
        "reported last; absent before the first report.",
        java="ProcessTask MillisBehindLatest",
    )
    def behind_s(self, at: Instant) -> float | None:
        lag_ms = self.lag_ms(at.wall_s)
        return None if lag_ms is None else lag_ms / 1000

    @shown("mld_shard_behind_age_seconds", "How long ago Kinesis reported the lag of the shard.")
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
        "1 for the state of the shard: processing, idle, stalled, unreadable, failing, parked, ending or paused; 0 for "
        "each other state.",
        "state",
    )
    def states(self, at: Instant) -> Mapping[str, int]:
        is_now = self.activity_at(at.wall_s)
        return {activity.value: int(activity is is_now) for activity in ShardActivity}

    @shown("mld_child_busy_seconds", "Age of the batch that the child has; 0 while it has none.")
    def busy_or_none_s(self, at: Instant) -> float:
        return self.busy_s(at) or 0.0

    def busy_s(self, at: Instant) -> float | None:
        """Return the age of the batch that the child has; None if it has none."""
        return age_s(self.busy_since, at.now)

    @shown(
        "mld_shard_busiest_child_share",
        "With mld.childrenPerShard: the part of the latest records that the busiest child of the shard got, from "
        "1 / children to 1. A hot key cannot be shared out.",
    )
    def busiest_child_share(self, at: Instant) -> float | None:
        return None if self.children is None else self.children.busiest_share

    @shown("mld_lease_renewal_age_seconds", "How long ago the lease was last renewed.")
    def renewal_age_s(self, at: Instant) -> float:
        return max(0.0, at.now - self.renewed_at)

    @shown("mld_shard_unread_seconds", "How long all reads of the shard have failed; 0 while they succeed.")
    def unread_s(self, at: Instant) -> float:
        return self.failed_reads.for_s(at.wall_s)

    # --- what happens

    def entered(self, forced: ShardActivity | None, *, is_ending: bool) -> None:
        """Note that the consumer has changed its state. `forced` is the activity, if that state alone decides it."""
        self.forced_activity, self.is_ending = forced, is_ending

    def paused(self, is_paused: bool) -> None:
        """Note that an operator has paused the shard, or resumed it."""
        self.is_paused = is_paused

    def took(self, page: Page, arrived_ms: int | None, wall_s: float) -> None:
        """Note that a page came from the reader, and how far it is behind. `arrived_ms` is the arrival, by the clock of
        Kinesis, of the first record that will be given to the child; None if there is none.
        """
        if page.millis_behind_latest is not None:
            self.saw_lag(page.millis_behind_latest, wall_s)
        self._is_tip_taken = False
        if page.count:
            self.moved_wall_s = wall_s
            self.oldest_wall_s = min(wall_s, (arrived_ms or math.inf) / 1000)

    def done(self) -> None:
        """Note that the child has answered for all records that were taken from the reader, so that it has none in
        hand. If they reached up to the tip of the shard, the tip is reached.
        """
        self.moved_wall_s = self.oldest_wall_s = None
        self.outstanding = 0
        if self._is_tip_taken:
            self.reached_tip()

    def in_flight(self, pages: int, oldest_wall_s: float | None, moved_wall_s: float | None) -> None:
        """Note the work of several children: they have unanswered records of `pages` pages.

        `oldest_wall_s` is when the oldest of these records arrived, `moved_wall_s` when a child last made progress.
        """
        self.outstanding, self.oldest_wall_s, self.moved_wall_s = pages, oldest_wall_s, moved_wall_s

    def reached_tip(self) -> None:
        """Note that all records up to the tip of the shard were taken from the reader. If no child has unanswered
        records, the tip is reached (`on_tip`); otherwise `done` calls this again when all are answered.
        """
        self._is_tip_taken = True
        if not self.outstanding:
            self.oldest_wall_s = None
            self.on_tip(self.key, True)

    def sample(self, now: float) -> None:
        """Compute `records_per_s` anew. Called every few seconds."""
        records, sampled = self.batches.total, self._sampled
        if sampled is not None and now > sampled[1]:
            self.records_per_s = (records - sampled[0]) / (now - sampled[1])
        self._sampled = records, now

    def handed_over(self, now: float) -> None:
        """Note that a batch is given to the child."""
        self.busy_since = now

    def lost(self, last_read: str, first: str | None, words: str, wall_s: float) -> bool:
        """Note that the records between `last_read`, the last one that was read, and `first`, the oldest one that is
        still kept, are lost. `first` is None if no record is kept.

        Return False if this loss was noted before.
        """
        if self.lost_last == (last_read, first):
            return False
        self.lost_last = last_read, first
        self.lost_words, self.lost_wall_s = words, wall_s
        self.losses += 1
        self.events.note(EventKind.LOST, words, shard=self.key)
        return True

    def answered(self, batch: CountedRecords | None, took_s: float, wall_s: float) -> None:
        """Note the answer to `batch`, which took `took_s`. `batch` is None if the child failed to process it."""
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
            self._note_progress(wall_s)

    def stored(self, result: str, since: float, now: float, wall_s: float) -> None:
        """Note the table's answer to a checkpoint sent at `since`. `result` is stored, refused or error."""
        is_stored = result == "stored"
        self.checkpoints.note(is_stored, now - since)
        if self.is_ending:
            self.ending_checkpoints.note(is_stored, now - since)
        self.checkpoints_by.add(result)
        if is_stored:
            self.checkpoint_at = now
            self._note_progress(wall_s)
            self.recovered()

    def recovered(self) -> None:
        """Note that the child works again, so that the shard is not failing any more."""
        self.is_failing = False

    def failed(self, reason: str, words: str, wall_s: float) -> None:
        """Note that the child failed and will be restarted. `reason` is a label, `words` a text for people."""
        self.moved_wall_s = None
        self.outstanding, self._is_tip_taken = 0, False
        self.on_tip(self.key, False)
        self.restarts.add(reason)
        self.erred(words, wall_s)
        self.is_failing = True

    def erred(self, words: str, wall_s: float) -> None:
        """Keep the text of the last error."""
        self.last_error, self.last_error_wall_s = words, wall_s

    def _note_progress(self, wall_s: float) -> None:
        """Note that the child made progress with the records in hand, if it has any."""
        if self.moved_wall_s is not None:
            self.moved_wall_s = wall_s

    @property
    def activity(self) -> ShardActivity:
        """The current activity, as far as it does not depend on the time."""
        if self.forced_activity is not None:
            return self.forced_activity
        if self.is_failing:
            return ShardActivity.FAILING
        if self.busy_since is not None:
            return ShardActivity.PROCESSING
        return ShardActivity.PAUSED if self.is_paused else ShardActivity.IDLE

    def saw_lag(self, behind_ms: int, wall_s: float) -> None:
        """Note that Kinesis reported at `wall_s` how far the newest page is behind."""
        self.behind_ms = behind_ms
        self.behind_wall_s = wall_s

    def lag_ms(self, wall_s: float) -> int | None:
        """Return the lag of the shard at `wall_s`, the age of its oldest unprocessed record; None if unknown.

        It is the larger of two values, as far as they are known: the age of the oldest record in hand, and the lag that
        Kinesis reported last, plus the time since then. For an idle shard whose reads succeed that time is added only
        if the report is older than LAG_KNOWN_S.
        """
        known = [] if self.oldest_wall_s is None else [wall_s - self.oldest_wall_s]
        if self.behind_ms is not None:
            passed_s = max(0.0, wall_s - self.behind_wall_s)
            is_read = self.activity is ShardActivity.IDLE and not self.failed_reads.count
            known.append(self.behind_ms / 1000 + (0.0 if is_read and passed_s <= LAG_KNOWN_S else passed_s))
        return round(1000 * max(0.0, *known)) if known else None

    def activity_at(self, wall_s: float) -> ShardActivity:
        """Return the activity at `wall_s`. Unlike `activity`, it may be STALLED or UNREADABLE, which depend on time."""
        if self.activity not in (ShardActivity.IDLE, ShardActivity.PROCESSING):
            return self.activity
        if self.moved_wall_s is not None and wall_s - self.moved_wall_s >= STALLED_AFTER_S:
            return ShardActivity.STALLED
        is_waiting = self.activity is ShardActivity.IDLE
        if is_waiting and self.failed_reads.count and self.failed_reads.for_s(wall_s) >= UNREADABLE_AFTER_S:
            return ShardActivity.UNREADABLE
        return self.activity

    def why_at(self, wall_s: float) -> str | None:
        """Return a text that says since when and why the shard is in trouble; None if it is not."""
        match self.activity_at(wall_s):
            case ShardActivity.UNREADABLE:
                since_s, why = self.failed_reads.since_s, self.failed_reads.last
            case ShardActivity.STALLED:
                since_s, why = self.moved_wall_s, STALLED
            case ShardActivity.PARKED if self.last_error is not None:
                since_s, why = self.last_error_wall_s, self.last_error
            case ShardActivity.FAILING if self.last_error is not None:
                return f"at {iso_time(self.last_error_wall_s)}: {self.last_error}"
            case ShardActivity.PROCESSING if self.children is not None:
                return self.children.hot_child if (self.lag_ms(wall_s) or 0) >= 1000 * HOT_CHILD_FROM_S else None
            case ShardActivity.IDLE if self.behind_ms is None and self.failed_reads.count:  # never read successfully
                since_s, why = self.failed_reads.since_s, self.failed_reads.last
            case _:
                return None
        return f"since {iso_time(since_s or 0.0)}: {why}"

    def read_again(self) -> int:
        """Note that a read succeeded, and return how many reads in a row had failed before it."""
        failed = self.failed_reads.count
        if failed:
            self.failed_reads = FailedReads()
        return failed

    @property
    def fetches(self) -> Tally:
        """Number of reads by `FetchResult`."""
        self._count_empty_fetches()
        return self._fetches

    @property
    def fetch(self) -> Calls:
        """Reads with their success and time."""
        self._count_empty_fetches()
        return self._fetch

    def fetched(self, result: FetchResult, seconds: float) -> None:
        """Note how a read of the shard ended, and how many seconds it took."""
        self._fetches.add(result.value)
        self._fetch.note(result in _ANSWERED, seconds)
        if result in _ANSWERED:
            self._note_duration(seconds)
        if result is FetchResult.EXPIRED:
            self.expired_iterators.note(1)

    def fetched_nothing(self, seconds: float) -> None:
        """Note that a read took `seconds` and returned no records.

        This is cheaper than `fetched`, because nearly all reads at the tip return no records.
        """
        self._empty_fetches.append(seconds)
        self._note_duration(seconds)
        if len(self._empty_fetches) >= EMPTY_FETCHES_MAX:
            self._count_empty_fetches()

    def _note_duration(self, seconds: float) -> None:
        """Note how long a read took that was answered."""
        self.read_took_s = seconds
        self.slow_reads = self.slow_reads + 1 if seconds > SLOW_READ_S else 0

    def contested(self, words: str, wall_s: float, for_s: float) -> None:
        """Note that another subscriber took over the subscription again; this is reported for `for_s` seconds."""
        self.contested_words, self.contested_until_s = words, wall_s + for_s

    def spent(self, budget: str, words: str, wall_s: float, for_s: float) -> None:
        """Note that a budget of the shard's records is used up; this is reported for `for_s` seconds."""
        self.spent_words[budget] = words, wall_s + for_s

    def _count_empty_fetches(self) -> None:
        """Add the empty fetches that were only collected until now."""
        if self._empty_fetches:
            self._fetches.add(FetchResult.EMPTY.value, len(self._empty_fetches))
            for seconds in self._empty_fetches:
                self._fetch.note(True, seconds)
            self._empty_fetches.clear()


_ANSWERED = (FetchResult.RECORDS, FetchResult.EMPTY)
"""Results of reads that Kinesis has answered with a page."""
