"""`LeaseCleanup`: deletes the rows of finished shards once nobody needs them.

Rules: shards#cleanup-decision, shards#cleanup-schedule, shards#garbage-rows and shards#deletion-order-of-rows. A
completed row is deleted when all child shards have rows and their reading has begun, and no parent has a row any more.
It is also deleted when its shard has left retention.

A row is never deleted if it is not at SHARD_END (the condition of the write ensures that), or if the stream may be the
wrong one. It is also kept while the row of a child is missing, because only the parent's row makes shard sync create
the child's row again.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass

from mld.core.error_boundary import survived
from mld.core.errors import StreamError, TableMissingError, TableThrottledError
from mld.core.log_fields import about
from mld.core.positions import AT_TIMESTAMP_NAME, TRIM_HORIZON_NAME
from mld.leases import writes
from mld.leases.lease import Lease
from mld.metrics.worker import DELETED
from mld.shards.graph import id_order
from mld.shards.identity import Park, ShardIsListed, ShardIsOver, Survey
from mld.shards.stream_leases import StreamLeases

_log = logging.getLogger(__name__)

TICK_S = 60.0
COMPLETED_INTERVAL_S = 60.0  # Java looks every 5 minutes
GARBAGE_INTERVAL_S = 1800.0
BACKOFF_S_MAX = 600.0  # the longest time between two looks at an entry, as a row may have to be kept for a day
ENTRIES_PER_TICK_MAX = 200  # an entry takes about five reads, so a tick makes about 1000 reads at most
ENTRIES_MAX = 50_000  # how many finished shards one worker remembers; an audit finds the rows of others again

_START_SENTINELS = (TRIM_HORIZON_NAME, AT_TIMESTAMP_NAME)
"""Checkpoints of shards that were not begun yet."""


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete the row if it is still at SHARD_END."""

    reason: str


@dataclass(frozen=True, slots=True)
class Keep:
    """Keep the row and look at it again later. `missing_child` names a child that has no row, although this row's shard
    has ended.
    """

    reason: str
    missing_child: str | None = None


@dataclass(frozen=True, slots=True)
class Forget:
    """Remove the entry from the queue: nothing is left to do."""

    reason: str


Decision = Delete | Keep | Forget


def judge_cleanup(row: Lease | None, family: Mapping[str, Lease | None], *, completed_due: bool) -> Decision | None:
    """Decide from lease rows alone whether to delete the row of a finished shard.

    `row` is the row of the shard; None if it is gone. `family` has the rows of its parents and of the children that it
    names; None for those without a row. `completed_due`: the settings allow the deletion of rows whose children have
    started. Return None if the rows do not suffice, so that the list of shards must decide. A child has started if its
    checkpoint is LATEST, a sequence number or SHARD_END.
    """
    if row is None:
        return Forget("the row is gone")
    if not row.is_complete:
        return Forget("the row is not at SHARD_END; whoever ends the shard queues it again")
    if not completed_due or not row.children:
        return None
    missing = next((child for child in sorted(row.children) if family.get(child) is None), None)
    if missing is not None:
        return Keep(f"child {missing} has no row", missing_child=missing)
    parent = next((parent for parent in sorted(row.parents) if family.get(parent) is not None), None)
    if parent is not None:
        return Keep(f"parent {parent} still has a row")
    children = [child for child in (family[key] for key in sorted(row.children)) if child is not None]
    waiting = next((child.key for child in children if child.checkpoint.sequence in _START_SENTINELS), None)
    if waiting is not None:
        return Keep(f"child {waiting} has not started")
    return Delete("all children have started")


def judge_garbage(row: Lease, survey: Survey) -> Delete | Keep:
    """Decide about a completed `row` by the list of shards: return `Delete` if its shard has left retention, so that
    nobody needs the row any more; else `Keep`.
    """
    match survey.judge(row):
        case Park(reason):
            return Keep(reason)
        case ShardIsListed():
            return Keep("the shard is still listed")
        case ShardIsOver(evidence):
            missing = min(survey.children_of(row.key) - survey.rows.keys(), default=None)
            if missing is not None:
                return Keep(f"child {missing} has no row", missing_child=missing)
            return Delete(evidence)


@dataclass(eq=False)
class LeaseCleanup:
    """Has a queue of finished leases of one stream whose rows this worker has to delete. `run` runs until cancelled.

    `enabled` is the setting cleanupLeasesUponShardCompletion; if it is False, only rows of trimmed shards are deleted.
    Work is done in ticks, every `TICK_S`. There are two schedules: the rows of an entry and its relatives are read
    `completed_interval_s` after it was queued, and then at growing intervals; and every `GARBAGE_INTERVAL_S` all
    entries are compared with the list of shards. `on_missing_child` is called with a child that has no row, so that a
    shard sync creates the row again.
    """

    stream: StreamLeases
    _: KW_ONLY
    enabled: bool = True
    completed_interval_s: float = COMPLETED_INTERVAL_S
    on_missing_child: Callable[[str], None]

    def __post_init__(self) -> None:
        self._queue: dict[str, LookTime] = {}  # when to read the rows of each entry next, by lease key
        self._garbage_round = _Round(self.stream.clock.monotonic())
        self._survey: Survey | None = None  # made at most once in a tick

    @property
    def queued(self) -> tuple[str, ...]:
        """Keys of the leases that wait to be deleted."""
        return tuple(self._queue)

    def enqueue(self, lease: Lease) -> None:
        """Queue a lease whose row is at SHARD_END. Do nothing if the lease is queued already."""
        if lease.key not in self._queue and len(self._queue) >= ENTRIES_MAX:
            _log.warning("lease cleanup queue is full", extra=about("cleanup_queue_full", lease.key))
            return
        now_s = self.stream.clock.monotonic()
        self._queue.setdefault(lease.key, LookTime(now_s + self.completed_interval_s, self.completed_interval_s))

    async def run(self) -> None:
        """Make a tick now and then every `TICK_S`, until cancelled. A slow tick delays the next one."""
        while True:
            started_s = self.stream.clock.monotonic()
            await self.tick()
            await self.stream.clock.sleep(max(0.0, started_s + TICK_S - self.stream.clock.monotonic()))

    async def tick(self) -> None:
        """Look at the entries that are due, at most `ENTRIES_PER_TICK_MAX`: those whose rows are to be read again, and
        then those that are left of the round in which all entries are compared with the list of shards (the *garbage
        round*). An error over one entry does not stop the others, unless the whole table is throttled or missing.
        """
        now_s = self.stream.clock.monotonic()
        self._garbage_round.start_if_due(now_s, GARBAGE_INTERVAL_S, self._queue)
        due = self._due(now_s)
        self._survey = None
        for _ in range(ENTRIES_PER_TICK_MAX):
            key = heapq.heappop(due)[1] if due else self._garbage_round.next_key()
            if key is None:
                return
            if key not in self._queue:
                continue
            # An entry may be due by both schedules; it is looked at only once.
            garbage_due = self._garbage_round.take(key)
            self._queue[key] = self._queue[key].after(now_s)
            try:
                row = await self.stream.table.get(key)
                await self._carry_out(key, await self._decide(row, garbage_due))
            except Exception as error:
                failure = survived(error, "cleaning up a lease", key)
                _log.warning(
                    "lease cleanup failed; it is tried again", extra=about("cleanup_failed", key, error=str(failure))
                )
                if isinstance(failure, (TableThrottledError, TableMissingError)):
                    return  # the whole table has a problem, so the other entries wait
                continue
            for child in row.children if row is not None and key not in self._queue else ():
                if self.enabled and child in self._queue:  # its row may have waited only for the deletion of this one
                    heapq.heappush(due, id_order(child))

    def _due(self, now_s: float) -> list[tuple[int, str]]:
        """Return a heap of the due entries, parents first, so that several generations can be deleted in one tick."""
        if not self.enabled:
            return []
        keys = (key for key, look in self._queue.items() if look.at_s <= now_s)
        return heapq.nsmallest(ENTRIES_PER_TICK_MAX, map(id_order, keys))

    async def _decide(self, row: Lease | None, garbage_due: bool) -> Decision:
        """Decide what happens to an entry. The lease rows decide, if they can; otherwise the list of shards does. With
        `garbage_due`, the list of shards is also asked about a row that would be kept.
        """
        decision = await self._judge_rows(row)
        if isinstance(decision, (Delete, Forget)):
            return decision
        assert row is not None, "an entry without a row is forgotten"
        if decision is None and self.enabled:
            survey = await self._surveyed()
            children = survey.children_of(row.key)
            if children and survey.is_listed(row.key):
                # KCL before 2.3 did not write the children. Once they are recorded, the rows decide.
                await self.stream.table.apply(writes.record_children(row.key, children))
                decision = await self._judge_rows(await self.stream.table.get(row.key))
                return decision or Keep("its children are not known")
            return judge_garbage(row, survey)
        if garbage_due:
            return judge_garbage(row, await self._surveyed())
        return decision or Keep("the service is not asked now")

    async def _surveyed(self) -> Survey:
        """Return the survey of this tick, which is made only once, by a scan and a listing. If listing raises, the
        survey is empty, so that all rows are kept.
        """
        if self._survey is None:
            try:
                _, _, self._survey = await self.stream.survey()
            except StreamError as error:
                _log.warning("cleanup cannot list shards", extra={"action": "cleanup_listing", "error": str(error)})
                self._survey = Survey({})
        return self._survey

    async def _judge_rows(self, row: Lease | None) -> Decision | None:
        """Read the rows of the parents and children of `row`, and decide by them (`judge_cleanup`). Return None if they
        do not suffice, so that the list of shards must decide.
        """
        relatives = sorted(row.children | row.parents) if row is not None and row.is_complete and self.enabled else []
        family = {relative: await self.stream.table.get(relative) for relative in relatives}
        return judge_cleanup(row, family, completed_due=self.enabled)

    async def _carry_out(self, key: str, decision: Decision) -> None:
        """Delete the row, remove the entry from the queue, or keep it, as decided."""
        match decision:
            case Delete(reason):
                deleted = await self.stream.table.apply(writes.delete_completed(key))
                # If the write was refused, another process has deleted the row or uses it again; in both cases there is
                # nothing left to delete.
                self._queue.pop(key, None)
                if deleted:
                    self.stream.metrics.worker.rows.add(DELETED)
                    _log.info("lease deleted", extra=about("lease_deleted", key, reason=reason))
            case Forget(reason):
                self._queue.pop(key, None)
                _log.debug("lease cleanup forgotten", extra=about("cleanup_forgotten", key, why=reason))
            case Keep(reason, missing_child):
                _log.debug("lease kept", extra=about("cleanup_kept", key, why=reason))
                if missing_child is not None:
                    self.on_missing_child(missing_child)


@dataclass(frozen=True, slots=True)
class LookTime:
    """When to read an entry's rows next (`at_s`), and how long to wait after that for the following time (`then_s`)."""

    at_s: float
    then_s: float

    def after(self, now_s: float) -> LookTime:
        """Return the next time after the rows were read at `now_s`. The wait doubles each time, up to BACKOFF_S_MAX."""
        return LookTime(now_s + self.then_s, max(self.then_s, min(2 * self.then_s, BACKOFF_S_MAX)))


class _Round:
    """A pass over all entries of the queue, spread over several ticks. The next pass is due a fixed time after the
    start of this one, or when this one is finished, if that is later.
    """

    def __init__(self, now_s: float) -> None:
        self._started_s = now_s
        self._todo: dict[str, None] = {}  # the keys that are left in this pass, in order

    def start_if_due(self, now_s: float, interval_s: float, keys: Iterable[str]) -> None:
        """Begin a pass over `keys` if the last pass is finished and began at least `interval_s` ago."""
        if not self._todo and now_s - self._started_s >= interval_s:
            self._started_s = now_s
            self._todo = dict.fromkeys(sorted(keys, key=id_order))

    def next_key(self) -> str | None:
        """Return the key that the pass looks at next, and leave it there (`take` removes it); None if the pass is
        finished.
        """
        return next(iter(self._todo), None)

    def take(self, key: str) -> bool:
        """Remove `key` from the pass; return whether it was still in the pass."""
        was_left = key in self._todo
        self._todo.pop(key, None)
        return was_left
