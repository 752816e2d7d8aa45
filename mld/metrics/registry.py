"""What one worker counts: `Metrics` has a part for the worker and one for each shard that it works on.

The shells hold the part that concerns them and raise its instruments; a view reads all of it through `snapshot`. A
shard's part ends with its lease, so that no series outlives what it speaks of; what it counted stays in the worker's
sums.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum

from mld.clock import iso_time
from mld.metrics.instruments import Amounts, Calls, Spread, Tally
from mld.metrics.liveness import Progress
from mld.positions import Position
from mld.stream_ids import shard_of_key, stream_of_key

EMPTY_FETCHES_MAX = 256
"""Reads without records that are counted together."""
ENDED_MAX = 1_000
"""Parts of ended shards that wait for a publisher; beyond that the oldest go unpublished."""
LAG_KNOWN_S = 60.0
"""How long what Kinesis said of a shard that waits for records stands; from then on its lag counts on."""
UNREADABLE_AFTER_S = 10.0
"""A shard cannot be read once all of its reads have failed for so long: a single error of a service ends earlier."""
STALLED_AFTER_S = 60.0
"""A shard is stalled once its child has neither answered nor checkpointed for so long, with records in its hands."""
STALLED = "its record processor neither answers nor checkpoints"
SAID_AGAIN_FIRST_S, SAID_AGAIN_MAX_S = 60.0, 3600.0
"""Reads that go on failing are logged after this time, then after twice that, and so on up to once an hour."""


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


class FetchResult(Enum):
    """How a read of a shard ended."""

    RECORDS = "records"
    EMPTY = "empty"
    THROTTLED = "throttled"
    EXPIRED = "expired"
    ERROR = "error"


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
        """How long reads have failed; 0 while they succeed."""
        return 0.0 if self.since_s is None else max(0.0, wall_s - self.since_s)


def _none_waits() -> int:
    return 0


def _nobody_asks(_key: str, _is_reached: bool) -> None:
    pass


class ShardMetrics:
    """What is counted for one shard while its lease is held. Times are monotonic seconds unless named otherwise."""

    def __init__(self, key: str, now: float, progress: Progress | None = None) -> None:
        self.key = key
        self.stream_id = stream_of_key(key)
        """The stream's identifier, among several; None if there is one."""
        self.shard_id = shard_of_key(key)
        self.stream_label: str | None = self.stream_id
        """What people call the stream, among several."""
        self.since = now
        self.progress = Progress() if progress is None else progress
        """Of the whole worker; the shard's reader tells it of its steps."""
        # --- reading
        self._fetches = Tally()
        self._fetch = Calls()
        self._empty_fetches: list[float] = []  # their seconds; counted a few hundred at a time, when code is warm
        self.failed_reads = FailedReads()
        self.iterator = Calls()
        self.expired_iterators = Spread()
        """1 for each."""
        self.subscriptions = Tally()
        """By how a subscription ended or was refused."""
        self.is_subscribed = False
        self.waiting_bytes: Callable[[], int] = _none_waits
        """Payload in the reader's buffer; its reader sets it."""
        self.behind_ms: int | None = None
        """How far the shard's newest answer was behind the tip; None until Kinesis has said."""
        self.behind_wall_s = 0.0
        """When it said so, in epoch seconds."""
        self.on_tip: Callable[[str, bool], None] = _nobody_asks
        """Is told when the shard's child has answered for everything that there was, and when that is in doubt again,
        because the child has failed."""
        # --- the child
        self.activity = ShardActivity.IDLE
        self.busy_since: float | None = None
        """Since when a batch is in the child's hands."""
        self.oldest_wall_s: float | None = None
        """When the first record arrived that is in hand, in epoch seconds; also while a child that failed on it starts
        again."""
        self.moved_wall_s: float | None = None
        """When records were taken in hand, or the child last moved on with them, in epoch seconds; None without any."""
        self.batches = Spread()
        """Records of each batch, after de-aggregation."""
        self.record_bytes = Spread()
        """Payload bytes of each batch."""
        self.behind = Spread()
        """`behind_ms` at each batch."""
        self.tasks = Calls()
        """A batch from its preparation to the child's answer."""
        self.process_records = Spread()
        self.initialize = Spread()
        self.shutdown = Spread()
        """`leaseLost` and `shardEnded`, from their sending to the child's answer."""
        self.delivered: Position | None = None
        """Position of the newest record given to the child."""
        self.restarts = Tally()
        """By why the child had to be restarted."""
        self.last_error: str | None = None
        self.last_error_wall_s = 0.0
        self.dropped_aggregates = Tally()
        """By why: `range` or `malformed`."""
        # --- the lease
        self.checkpoints = Calls()
        """Counted when the table has answered."""
        self.ending_checkpoints = Calls()
        """Those of `checkpoints` that a child asked for at the end of its shard or of its life."""
        self.checkpoints_by = Tally()
        """By result: `stored`, `refused` or `error`."""
        self.checkpoint_at: float | None = None
        self.renewed_at = now

    def saw_lag(self, behind_ms: int, wall_s: float) -> None:
        """Kinesis said at `wall_s` how far behind the newest page is."""
        self.behind_ms = behind_ms
        self.behind_wall_s = wall_s

    def lag_ms(self, wall_s: float) -> int | None:
        """How far the shard is behind at `wall_s`: the age of its oldest record that is not done; None if nobody knows.

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
        """What the consumer is about at `wall_s`, with what only time shows: that it cannot read, or stands still."""
        if self.activity not in (ShardActivity.IDLE, ShardActivity.PROCESSING):
            return self.activity
        if self.moved_wall_s is not None and wall_s - self.moved_wall_s >= STALLED_AFTER_S:
            return ShardActivity.STALLED
        is_waiting = self.activity is ShardActivity.IDLE
        if is_waiting and self.failed_reads.count and self.failed_reads.for_s(wall_s) >= UNREADABLE_AFTER_S:
            return ShardActivity.UNREADABLE
        return self.activity

    def why_at(self, wall_s: float) -> str | None:
        """Since when the shard is in trouble, and why, in words; None if it is not."""
        match self.activity_at(wall_s):
            case ShardActivity.UNREADABLE:
                since_s, why = self.failed_reads.since_s, self.failed_reads.last
            case ShardActivity.STALLED:
                since_s, why = self.moved_wall_s, STALLED
            case ShardActivity.PARKED if self.last_error is not None:
                since_s, why = self.last_error_wall_s, self.last_error
            case ShardActivity.FAILING if self.last_error is not None:
                return f"at {iso_time(self.last_error_wall_s)}: {self.last_error}"
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
        """A read of the shard has ended."""
        self._fetches.add(result.value)
        self._fetch.note(result in _ANSWERED, seconds)
        if result is FetchResult.EXPIRED:
            self.expired_iterators.note(1)

    def fetched_nothing(self, seconds: float) -> None:
        """A read of the shard has ended and brought no records, as nearly all do at the tip."""
        self._empty_fetches.append(seconds)
        if len(self._empty_fetches) >= EMPTY_FETCHES_MAX:
            self._count_empty_fetches()

    def _count_empty_fetches(self) -> None:
        if self._empty_fetches:
            self._fetches.add(FetchResult.EMPTY.value, len(self._empty_fetches))
            for seconds in self._empty_fetches:
                self._fetch.note(True, seconds)
            self._empty_fetches.clear()


_ANSWERED = (FetchResult.RECORDS, FetchResult.EMPTY)


CREATED, DELETED = "created", "deleted"


class LeaseMove(Enum):
    """How a lease came to this worker or went from it."""

    TAKEN = "taken"
    ASSIGNED = "assigned"
    RESUMED = "resumed"
    HANDED_OFF = "handed_off"
    RELEASED = "released"
    LOST = "lost"
    TWIN = "twin"
    EXPIRED = "expired"


class Operation:
    """One of KCL's units of work, as the `Operation` dimension names them: success and time, and named values."""

    def __init__(self) -> None:
        self.calls = Calls()
        self.steps: dict[str, Calls] = {}
        self.data: dict[str, Spread] = {}

    def step(self, name: str, ok: bool, seconds: float) -> None:
        """One attempt at a step of the operation, such as one renewal of all."""
        calls = self.steps.get(name)
        if calls is None:
            calls = self.steps[name] = Calls()
        calls.note(ok, seconds)

    def done(self, ok: bool, seconds: float) -> None:
        self.calls.note(ok, seconds)

    @contextmanager
    def timed(self, now: Callable[[], float], step: str | None = None) -> Iterator[None]:
        """Count what is done within as one run of the operation, or of one of its steps: failed if it raises.

        What is cancelled is not counted. `now` gives monotonic seconds.
        """
        began_at = now()
        try:
            yield
        except Exception:
            self._count(step, False, now() - began_at)
            raise
        self._count(step, True, now() - began_at)

    def _count(self, step: str | None, ok: bool, seconds: float) -> None:
        if step is None:
            self.done(ok, seconds)
        else:
            self.step(step, ok, seconds)

    def note(self, name: str, value: float) -> None:
        """One value of the metric `name` of this operation; the catalogue has its unit."""
        spread = self.data.get(name)
        if spread is None:
            spread = self.data[name] = Spread()
        spread.note(value)

    def last(self, name: str) -> float | None:
        """The newest value of `name`; None if there was none."""
        spread = self.data.get(name)
        return None if spread is None else spread.last


class TableMetrics:
    """What reads of the whole lease table have shown last. None: this worker does not look, or does not lead."""

    def __init__(self) -> None:
        self.corrupt: int | None = None
        """Rows that cannot be read."""
        self.without_room: int | None = None
        """Open leases that have had no worker with room for a minute."""
        self.forget_leadership()

    def forget_leadership(self) -> None:
        """What only the leader looks for is unknown from now on."""
        self.workers: int | None = None
        """Live workers."""
        self.unassigned: int | None = None
        """Leases without a live owner."""
        self.holes_of: dict[str | None, int] = {}
        """Gaps in the hash range that no lease covers, by stream; None is the only stream."""

    @property
    def holes(self) -> int | None:
        """Gaps in the hash ranges of all streams."""
        return sum(self.holes_of.values()) if self.holes_of else None


@dataclass(frozen=True, slots=True)
class SparkFigures:
    """What the session host of `mld-spark` told last of its work; times in epoch seconds, counts since its start."""

    written_at: float
    interval_s: float
    """The longest regular time from one trigger to the next."""
    uncommitted_since: float | None
    """When the oldest record that is not in every sink was accepted."""
    trigger_since: float | None
    """Since when a trigger has been at it."""
    sinks_aside: int
    dropped: int
    malformed: int
    poisoned: int


class WorkerMetrics:
    """What is counted for the worker as a whole."""

    def __init__(self) -> None:
        self.records = 0
        self.record_bytes = 0
        self.child_restarts = 0
        self.leases_lost = 0
        self.lease_moves = Tally()
        """By `LeaseMove`."""
        self.rows = Tally()
        """Lease rows that this worker `CREATED` and `DELETED`."""
        self.requests = Tally()
        """Requests to AWS, as `service operation result`."""
        self.framed_records = Tally()
        """Records with the frame of the Glue Schema Registry, by what became of them."""
        self.units = Amounts()
        """Capacity units of DynamoDB, `read` and `write`."""
        self.unexpected_errors = 0
        """Exceptions that nobody expected and a loop survived."""
        self.log_lines_dropped = 0
        """Lines of the log for which nobody made room."""
        self.loop_delay = Spread()
        self.spark: SparkFigures | None = None
        """Of this daemon's session host; None where there is none."""
        self.is_leader = False
        self.table = TableMetrics()
        self.operations: dict[str, Operation] = {}

    def operation(self, name: str) -> Operation:
        found = self.operations.get(name)
        if found is None:
            found = self.operations[name] = Operation()
        return found


class Metrics:
    """Everything that one worker counts."""

    def __init__(self) -> None:
        self.worker = WorkerMetrics()
        self.progress = Progress()
        self.shards: dict[str, ShardMetrics] = {}
        self.on_tip: Callable[[str, bool], None] = _nobody_asks
        """That of every part that is begun."""
        self.stream_labels: Mapping[str, str] = {}
        """What people call each of several streams, by identifier."""
        self.is_published = False
        """Whether somebody takes the last values of shards whose leases are gone; else they are not kept."""
        self.ended: list[ShardMetrics] = []
        """Parts whose lease is gone and whose last values nobody has published; emptied by the publisher."""

    def begin(self, key: str, now: float) -> ShardMetrics:
        """The part of a shard whose lease is held from now on."""
        if key in self.shards:
            self.end(self.shards[key])
        part = self.shards[key] = ShardMetrics(key, now, self.progress)
        part.on_tip = self.on_tip
        if part.stream_id is not None:
            part.stream_label = self.stream_labels.get(part.stream_id, part.stream_id)
        return part

    def end(self, part: ShardMetrics) -> None:
        """The lease is gone. A part that another one has followed has ended before."""
        if self.shards.get(part.key) is part:
            del self.shards[part.key]
            part.waiting_bytes = _none_waits  # it holds the reader, and that its buffer
            if self.is_published:
                self.ended.append(part)
                del self.ended[:-ENDED_MAX]
