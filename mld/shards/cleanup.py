"""Deletes the rows of finished shards, when nobody needs them any more.

Rules: shards#cleanup-decision, shards#cleanup-schedule, shards#garbage-rows and shards#deletion-order-of-rows. A
completed row goes once all its children have rows and have left their start, and none of its parents' rows remains; or
once its shard has left retention.

Never deletes a row that is not at SHARD_END (the table refuses), nor on the word of a stream that may be a wrong one,
nor while a child row is missing: the parent row is the proof from which shard sync restores it.
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
from mld.metrics.registry import DELETED
from mld.shards.graph import id_order
from mld.shards.identity import Park, ShardIsListed, ShardIsOver, Survey
from mld.shards.sync import StreamLeases

_log = logging.getLogger(__name__)

TICK_S = 60.0
COMPLETED_INTERVAL_S = 60.0  # Java looks every 5 minutes
GARBAGE_INTERVAL_S = 1800.0
BACKOFF_S_MAX = 600.0  # a child that never checkpoints keeps its parent for a day: few looks do for that
ENTRIES_PER_TICK_MAX = 200  # at about five reads each, a tick stays below 1000 reads
ENTRIES_MAX = 50_000  # finished shards one worker remembers; the next owner of a row queues it again

_START_SENTINELS = (TRIM_HORIZON_NAME, AT_TIMESTAMP_NAME)


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete the row if it is still at SHARD_END."""

    reason: str


@dataclass(frozen=True, slots=True)
class Keep:
    """Look again next time. `missing_child` names a child that has no row although its parent is over."""

    reason: str
    missing_child: str | None = None


@dataclass(frozen=True, slots=True)
class Forget:
    """Take the entry off the queue: there is nothing left to do."""

    reason: str


Decision = Delete | Keep | Forget


def judge_cleanup(row: Lease | None, family: Mapping[str, Lease | None], *, completed_due: bool) -> Decision | None:
    """Return what the rows alone say about an entry: its own `row`, and those of its parents and recorded children.

    None: they do not decide; the list of shards may. A child counts as started at LATEST, at any sequence number and at
    SHARD_END.
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
    """Return whether the shard of a completed `row` has left retention, so that the row is of no more use."""
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
    """The queue of finished leases of one worker and one stream. `run` ends only by cancellation.

    `enabled` is cleanupLeasesUponShardCompletion: without it only rows of trimmed shards are deleted. Looks happen on
    ticks, `TICK_S` apart: at an entry's rows `completed_interval_s` after it was queued and then ever less often, at
    the list of shards for all of them once every `GARBAGE_INTERVAL_S`. Each look restarts its stopwatch, whatever comes
    of it. `on_missing_child` is told of a child without a row, which a shard sync restores.
    """

    stream: StreamLeases
    _: KW_ONLY
    enabled: bool = True
    completed_interval_s: float = COMPLETED_INTERVAL_S
    on_missing_child: Callable[[str], None]

    def __post_init__(self) -> None:
        self._queue: dict[str, LookTime] = {}
        self._garbage_round = _Round(self.stream.clock.monotonic())
        self._survey: Survey | None = None

    @property
    def queued(self) -> tuple[str, ...]:
        """Keys of the leases that wait for their deletion."""
        return tuple(self._queue)

    def enqueue(self, lease: Lease) -> None:
        """Queue a lease whose row is at SHARD_END; once only, however often it is offered."""
        if lease.key not in self._queue and len(self._queue) >= ENTRIES_MAX:
            _log.warning("lease cleanup queue is full", extra=about("cleanup_queue_full", lease.key))
            return
        now_s = self.stream.clock.monotonic()
        self._queue.setdefault(lease.key, LookTime(now_s + self.completed_interval_s, self.completed_interval_s))

    async def run(self) -> None:
        """Tick for ever, the first time at once; a slow tick delays the next instead of doubling it."""
        while True:
            started_s = self.stream.clock.monotonic()
            await self.tick()
            await self.stream.clock.sleep(max(0.0, started_s + TICK_S - self.stream.clock.monotonic()))

    async def tick(self) -> None:
        """Look at the entries that are due, at most `ENTRIES_PER_TICK_MAX`; an entry's error concerns it alone."""
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
            # One look serves both: the service is not asked twice about an entry in the same round.
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
                    return  # the table is in trouble: the rest waits
                continue
            for child in row.children if row is not None and key not in self._queue else ():
                if self.enabled and child in self._queue:  # it may have waited for nothing but its parent's row
                    heapq.heappush(due, id_order(child))

    def _due(self, now_s: float) -> list[tuple[int, str]]:
        """Return a heap of the entries to look at, parents first, so that a chain of generations goes in one tick."""
        if not self.enabled:
            return []
        keys = (key for key, look in self._queue.items() if look.at_s <= now_s)
        return heapq.nsmallest(ENTRIES_PER_TICK_MAX, map(id_order, keys))

    async def _decide(self, row: Lease | None, garbage_due: bool) -> Decision:
        decision = await self._judge_rows(row)
        if isinstance(decision, (Delete, Forget)):
            return decision
        assert row is not None, "an entry without a row is forgotten"
        if decision is None and self.enabled:
            known = await self._surveyed()
            children = known.children_of(row.key)
            if children and known.is_listed(row.key):
                # Rows written by KCL before 2.3 lack their children; from now on the rows decide.
                await self.stream.table.apply(writes.record_children(row.key, children))
                decision = await self._judge_rows(await self.stream.table.get(row.key))
                return decision or Keep("its children are not known")
            return judge_garbage(row, known)
        if garbage_due:
            return judge_garbage(row, await self._surveyed())
        return decision or Keep("the service is not asked now")

    async def _surveyed(self) -> Survey:
        """Return what is known, by at most one scan and one listing a tick; nothing if the stream cannot be listed."""
        if self._survey is None:
            try:
                _, _, self._survey = await self.stream.survey()
            except StreamError as error:
                _log.warning("cleanup cannot list shards", extra={"action": "cleanup_listing", "error": str(error)})
                self._survey = Survey({})
        return self._survey

    async def _judge_rows(self, row: Lease | None) -> Decision | None:
        relatives = sorted(row.children | row.parents) if row is not None and row.is_complete and self.enabled else []
        family = {relative: await self.stream.table.get(relative) for relative in relatives}
        return judge_cleanup(row, family, completed_due=self.enabled)

    async def _carry_out(self, key: str, decision: Decision) -> None:
        match decision:
            case Delete(reason):
                deleted = await self.stream.table.apply(writes.delete_completed(key))
                # Refused: somebody else deleted it, or it is in use again; either way it is not ours to delete.
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
    """When an entry's rows are looked at next, and how long to wait after that."""

    at_s: float
    then_s: float

    def after(self, now_s: float) -> LookTime:
        """Return the next look after one at `now_s` that came to nothing: twice as long each time, within bounds."""
        return LookTime(now_s + self.then_s, max(self.then_s, min(2 * self.then_s, BACKOFF_S_MAX)))


class _Round:
    """One pass over the queue, spread over ticks. Its stopwatch restarts with the pass, whatever comes of it."""

    def __init__(self, now_s: float) -> None:
        self._started_s = now_s
        self._todo: dict[str, None] = {}

    def start_if_due(self, now_s: float, interval_s: float, keys: Iterable[str]) -> None:
        if not self._todo and now_s - self._started_s >= interval_s:
            self._started_s = now_s
            self._todo = dict.fromkeys(sorted(keys, key=id_order))

    def next_key(self) -> str | None:
        return next(iter(self._todo), None)

    def take(self, key: str) -> bool:
        """Strike `key` off; whether it was still to do."""
        return key in self._todo and self._todo.pop(key) is None
