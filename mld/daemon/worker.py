"""`Worker`: one worker from start to stop. It joins leases, shards and consumers, and has no rules of its own.

Rules: shards#bootstrap-decision, shards#stop-of-a-worker; leases#holding-tokens, leases#release-on-stop. Its loop
reconciles leases and consumers: whenever the held leases or the running consumers change, each held lease without a
consumer gets one, and each consumer whose lease is lost is informed. A failed call changes nothing; an unexpected
exception in a consumer ends only that consumer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from mld.consumer.consumer import ShardConsumer
from mld.consumer.consumer_parts import ConsumerParts
from mld.core.clock import Clock, millis_since
from mld.core.error_boundary import survived
from mld.core.errors import StartupError, StreamError, TableError, TableForeignError, TableMissingError
from mld.core.tasks import Task, TaskList, Until
from mld.core.waits import unless
from mld.fleet.fleet import Fleet
from mld.leases.table import LeaseTable, TableScan
from mld.leases.validity import HeldLease
from mld.properties.settings import ChildSettings, Settings
from mld.tracking.stream_set import TrackedStreams
from mld.tracking.tracked_stream import Standing

log = logging.getLogger(__name__)

INITIALIZATION_ATTEMPTS_MAX = 20  # as in Java
OLD_CONSUMER_WAIT_S = 15.0  # if a lost lease is acquired again, its old consumer is cancelled after this time
LEAVE_WAIT_S = 2.0  # longest wait to learn who takes over the leases, before children are asked to stop
RELEASE_WAIT_S = 5.0  # longest wait until the remaining leases are given back, when the grace period is over
LAST_WRITES_S = 7.0  # for giving leases back and the fleet's last writes; a process that takes longer is often killed


class WorkerSignals:
    """Events by which the parts of a worker notify the worker. They are made first, because the worker is made last."""

    def __init__(self) -> None:
        self.changed = asyncio.Event()
        """Set when the set of held leases has changed, or a stop was asked for."""
        self.initialized = asyncio.Event()
        """Set when initialization is over."""
        self.stop_asked = asyncio.Event()
        self.failure: str | None = None
        """Why the worker failed; None if it did not."""

    def request_stop(self) -> None:
        self.stop_asked.set()
        self.changed.set()

    def fail(self, why: str) -> None:
        """Ask for a graceful stop, because the worker has failed for this reason."""
        if self.failure is None:
            self.failure = why
            log.error("stopping: %s", why, extra={"action": "worker_failed"})
        self.request_stop()

    def gave_up(self, shard_id: str, why: str) -> None:
        """Fail because a child failed too often."""
        self.fail(
            f"the record processor of shard {shard_id} failed too often without checkpoint progress; the last failure: "
            f"{why}. Repair it, or set mld.childFailurePolicy=park"
        )


class Worker:
    """Runs a consumer for each held lease, until `request_stop` or a failure."""

    def __init__(
        self,
        settings: Settings,
        signals: WorkerSignals,
        table: LeaseTable,
        fleet: Fleet,
        sources: TrackedStreams,
        parts: ConsumerParts,
    ) -> None:
        """Make a worker that does not run yet. `sources` are the streams that it reads; `parts` are the objects that
        all its consumers need, such as the keeper of its leases.
        """
        self.fleet = fleet
        self.parts = parts
        self.table = table
        self.sources = sources
        self._settings = settings
        self.signals = signals
        """Events that other parts of the daemon, too, wait for, to follow the worker's life."""
        self._changed = signals.changed
        self._consumers: dict[str, _Running] = {}
        """The running consumers, by lease key."""
        self._finished_tokens: set[str] = set()
        """The holdings for which no consumer is started any more: it has finished, or none was needed."""
        self._given_back: set[str] = set()
        """The holdings that this worker gives back, so that each is given back once."""
        self._releasing: set[asyncio.Task[bool]] = set()
        """The releases that are under way."""
        self._tasks: TaskList[bool] = TaskList(
            (
                Task("keeping leases", parts.keeper.run, until=Until.CLOSED),
                *(Task(doing, loop, lambda is_initialized: is_initialized) for loop, doing in sources.loops()),
            ),
            parts.clock,
        )

    @property
    def failure(self) -> str | None:
        """Why the worker failed; None if it did not."""
        return self.signals.failure

    @property
    def is_ready(self) -> bool:
        """Whether initialization is over, and no stop has been asked for."""
        return self.signals.initialized.is_set() and not self.signals.stop_asked.is_set()

    def held(self) -> frozenset[str]:
        """Return the keys of the leases that this worker believes it holds now."""
        return frozenset(self.parts.keeper.held())

    def request_stop(self) -> None:
        self.signals.request_stop()

    def adjust(self, settings: ChildSettings) -> None:
        """Let all consumers, running and future ones, use these settings. Only bounds and pauses may have changed."""
        self._settings = replace(self._settings, child=settings)
        for running in self._consumers.values():
            running.consumer.adjust(settings)

    # --- life --------------------------------------------------------------------------------------------------------

    async def run(self, grace_s: float) -> bool:
        """Run until stopped; return whether everything ended gracefully within `grace_s` seconds of the stop.

        The background tasks (`_tasks`) run in two states: False during initialization, True after it. When the worker
        stops, each is ended at its time (`Until`): those that acquire leases first, the others at the very end.
        """
        try:
            await self._tasks.allow(self._on_task_ended)
            await self._tasks.enter(False)
            if not await self._initialize():
                return await self._drain(grace_s)
            await self._tasks.enter(True)
            await self.fleet.run(self._on_task_ended)
            self.signals.initialized.set()
            while not self.signals.stop_asked.is_set():
                self._changed.clear()
                self._reconcile()
                await self._changed.wait()
            await self._tasks.end(Until.LEAVING)
            return await self._drain(grace_s)
        finally:
            await self.fleet.abort()
            await _cancel(running.task for running in self._consumers.values())
            await self._tasks.end(Until.CLOSED)

    def _on_task_ended(self, error: BaseException | None) -> None:
        """Fail, because a task that should run until it is cancelled has ended."""
        log.error("a loop ended unexpectedly", exc_info=error, extra={"action": "loop_failed"})
        self.signals.fail(f"internal error: {error!r}")

    # --- start -------------------------------------------------------------------------------------------------------

    async def _initialize(self) -> bool:
        """Make up to 20 attempts to initialize. Return True after a success, False if a stop was asked for before.

        Raises StartupError if the last attempt fails.
        """
        start = self.parts.metrics.worker.operations.start
        with start.initialize.timed(self.parts.clock.monotonic):
            return bool(await unless(self.signals.stop_asked, self._initialize_patiently()))

    async def _initialize_patiently(self) -> bool:
        """Try to initialize, again after each failure of the table or a stream, up to 20 times. Return True. Raises
        StartupError.
        """
        fault = self.parts.metrics.worker.operations.renewer_start.fault  # KCL's metric LeaseRenewerInitialize.Fault
        for attempt in range(1, INITIALIZATION_ATTEMPTS_MAX + 1):
            try:
                await self._initialize_once()
                fault.note(0)
                return True
            except Exception as error:
                fault.note(1)
                last = survived(error, "starting")
                if isinstance(last, TableForeignError):
                    raise StartupError(str(last)) from error
                if not isinstance(last, TableError | StreamError):
                    raise
                log.warning(
                    "initialization failed: %s", last, extra={"action": "initialization_failed", "attempt": attempt}
                )
            await self.parts.clock.sleep(self._settings.initialization_backoff_s)
        raise StartupError(f"gave up after {INITIALIZATION_ATTEMPTS_MAX} attempts to initialize; last: {last}")

    async def _initialize_once(self) -> None:
        """Make one attempt: scan the lease table, join the fleet, create missing leases, acquire the first ones."""
        scan_started_at = self.parts.clock.monotonic()
        scan = await self._scan_or_create()
        self._log_step("lease table scanned", "table_scanned", scan_started_at)
        self.sources.check(scan)
        await self.fleet.start(scan)
        sync_started_at = self.parts.clock.monotonic()
        if await self.sources.make_leases(scan, leads=self._leads):
            scan = await self._scan()
        scan = self.sources.consumed.visible(scan)  # without the leases of streams that are not consumed here
        self._log_step("shards synced", "shards_synced", sync_started_at)
        reacquire_started_at = self.parts.clock.monotonic()
        await self.parts.keeper.resumer.reacquire(scan.leases)
        await self.fleet.first_leases(scan)
        self._log_step("leases acquired", "leases_acquired", reacquire_started_at)
        self._changed.set()

    def _log_step(self, what: str, action: str, started_at: float) -> None:
        log.debug(what, extra={"action": action, "took_ms": millis_since(self.parts.clock, started_at)})

    async def _scan_or_create(self) -> TableScan:
        """Return a scan of the lease table. If the table is missing, create it, and return an empty scan."""
        try:
            if self._settings.lease_table.point_in_time_recovery:  # `ensure` switches it on for an existing table, too
                await self.table.ensure()
            return await self._scan()
        except TableMissingError:
            await self.table.ensure()
            return TableScan()

    async def _scan(self) -> TableScan:
        return (await self.fleet.views.newer_than(self.parts.clock.monotonic())).scan

    async def _leads(self) -> bool:
        """Return whether this worker may create leases in an empty table.

        In the modes of 2.x every worker may, because the leader is one of the owners of leases, and there are none yet.
        """
        return self.fleet.takes_leases or await self.fleet.leader.is_leader()

    # --- run ---------------------------------------------------------------------------------------------------------

    def _reconcile(self) -> None:
        """Start a consumer for each held lease without one, and end or give back what is no longer needed.

        Each time that a lease is acquired, it gets a new token. So a token stands for one holding of a lease.
        """
        held = self._inform_consumers()
        for key, holding in held.items():
            if key in self._consumers:
                # The lease was lost and acquired again: its new consumer starts when the old one has ended.
                if self._consumers[key].consumer.token != holding.token:
                    self._consumers[key].end_by(self.parts.clock, OLD_CONSUMER_WAIT_S)
            elif holding.token not in self._finished_tokens:
                self._start_or_release(holding)
            elif holding.lease.is_complete and self.sources.standing(holding.lease) is Standing.FORMER:
                self._give_back(holding)  # else it would be renewed for ever, and its row could never be deleted
        tokens = set(self.parts.keeper.tokens().values())  # forget holdings that are over
        self._finished_tokens &= tokens
        self._given_back &= tokens

    def _inform_consumers(self) -> Mapping[str, HeldLease]:
        """Let each consumer know whether its lease is lost, is moving, or is still held; return the held leases.

        A lease is suspended while the keeper has its token, but no answer has confirmed it in time. Its consumer is not
        informed yet.
        """
        held, tokens = self.parts.keeper.held(), self.parts.keeper.tokens()
        for key, running in self._consumers.items():
            if tokens.get(key) != running.consumer.token:
                self.fleet.failover_watcher.gave()  # watch the new owner, who may fail
                running.consumer.lose_lease()
            elif key not in held:  # suspended
                continue
            elif self.sources.standing(held[key].lease) is Standing.FORMER:
                running.consumer.request_stop()
            elif held[key].lease.handoff_to is not None:
                self.fleet.failover_watcher.gave()  # as above
                running.consumer.hand_off()
            else:  # an operator may have asked for something in the row
                running.consumer.heed(held[key].lease)
        return held

    def _start_or_release(self, holding: HeldLease) -> None:
        """Start a consumer for a lease that was acquired, or give the lease back if nothing has to be read."""
        match self.sources.standing(holding.lease):
            case Standing.CONSUMED if holding.lease.handoff_to is None:
                self._start_consumer(holding)
            case Standing.CONSUMED | Standing.FORMER:  # no consumer reads the shard here: the next owner need not wait
                self._finished_tokens.add(holding.token)
                self._give_back(holding)
            case Standing.UNKNOWN:
                pass  # it is not known yet whether the stream is consumed here: keep the lease, and ask again later

    def _give_back(self, holding: HeldLease) -> None:
        """Release a lease that this worker does not need, once."""
        if holding.token not in self._given_back:
            self._given_back.add(holding.token)
            self._release(holding.lease.key, holding.token)

    def _start_consumer(self, holding: HeldLease) -> None:
        """Start the consumer of a lease that is held now."""
        consumer = ShardConsumer(holding, self.parts, self._settings.child)
        task = asyncio.create_task(consumer.run())
        running = _Running(consumer, task)
        self._consumers[consumer.key] = running
        task.add_done_callback(lambda _: self._on_consumer_ended(running))

    def _on_consumer_ended(self, running: _Running) -> None:
        """Forget a consumer that has ended. If it ended with an unexpected exception, release its lease."""
        consumer, task = running.consumer, running.task
        running.cancel_alarm()
        # `_reconcile` starts no consumer again for the holding of this token.
        self._finished_tokens.add(consumer.token)
        if self._consumers.get(consumer.key) is running:
            del self._consumers[consumer.key]
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error(
                "the consumer ended unexpectedly; its lease is released",
                exc_info=error,
                extra={"action": "consumer_failed", "shard": consumer.key},
            )
            self._release(consumer.key, consumer.token)
        self._changed.set()

    def _release(self, key: str, token: str) -> None:
        """Give a lease away, in a task of its own."""
        releasing = asyncio.create_task(self.parts.keeper.give_away(key, token))
        self._releasing.add(releasing)
        releasing.add_done_callback(self._releasing.discard)

    # --- stop --------------------------------------------------------------------------------------------------------

    async def _drain(self, grace_s: float) -> bool:
        """End all consumers, and give their leases to other workers, or free them.

        Return whether all children ended within `grace_s` seconds. Children that take longer are killed.
        """
        running = list(self._consumers.values())
        log.info("stopping", extra={"action": "worker_stopping", "consumers": len(running), "grace_s": grace_s})
        leaving = asyncio.ensure_future(self.fleet.leave())
        try:
            await self._follow_leaving(leaving)
            return await self._end_all(running, leaving, grace_s)
        finally:
            await _cancel([leaving])

    async def _end_all(self, running: list[_Running], leaving: asyncio.Future[None], grace_s: float) -> bool:
        """Ask all consumers to stop, kill children that take longer than `grace_s`, and release the remaining leases.
        Return whether no child had to be killed.
        """
        for one in running:
            one.consumer.request_stop()
        late: set[asyncio.Task[None]] = set()
        if running:
            _, late = await asyncio.wait({one.task for one in running}, timeout=grace_s)
        if late:
            log.warning(
                "not all children ended in time; they are killed",
                extra={"action": "stop_forced", "shards": sorted(r.consumer.key for r in running if r.task in late)},
            )
        await _cancel(late)
        try:
            async with asyncio.timeout(LAST_WRITES_S):
                await self._release_rest()
                await _cancel([leaving])
                await self.fleet.close()
        except TimeoutError:
            log.warning(
                "the tables answer too slowly for the last writes: rows of this worker that are left there expire",
                extra={"action": "farewell_unheard"},
            )
        log.info("stopped", extra={"action": "worker_stopped", "graceful": not late})
        return not late

    async def _follow_leaving(self, leaving: asyncio.Future[None]) -> None:
        """Wait until the fleet knows which workers take over the leases, at most `LEAVE_WAIT_S`.

        Consumers whose leases are lost in the meantime are informed.
        """
        time_limit = asyncio.ensure_future(self.parts.clock.sleep(LEAVE_WAIT_S))
        while not leaving.done() and not time_limit.done():
            self._changed.clear()
            self._inform_consumers()
            changed = asyncio.ensure_future(self._changed.wait())
            awaited: set[asyncio.Future[Any]] = {leaving, time_limit, changed}
            await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
            changed.cancel()
        time_limit.cancel()
        if leaving.done():
            leaving.result()  # raises the error if it failed

    async def _release_rest(self) -> None:
        """Release the leases that no consumer gave away: those of completed shards, and of children
        that were killed.
        """
        self.parts.keeper.resumer.close()
        for key, token in self.parts.keeper.tokens().items():
            self._release(key, token)
        if self._releasing:
            _, late = await asyncio.wait(self._releasing, timeout=RELEASE_WAIT_S)
            await _cancel(late)


class _Running:
    """A consumer, its task, and a timer that cancels the task when a new consumer has waited long
    enough for its end.
    """

    def __init__(self, consumer: ShardConsumer, task: asyncio.Task[None]) -> None:
        self.consumer = consumer
        self.task = task
        self._alarm: asyncio.Task[None] | None = None  # cancels the consumer's task when its time is over

    def end_by(self, clock: Clock, seconds: float) -> None:
        """Cancel the consumer after `seconds`, unless it has ended by then. Further calls do nothing."""
        if self._alarm is None:
            self._alarm = asyncio.create_task(self._end_later(clock, seconds))

    async def _end_later(self, clock: Clock, seconds: float) -> None:
        await clock.sleep(seconds)
        self.task.cancel()

    def cancel_alarm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()


async def _cancel(tasks: Iterable[asyncio.Future[Any]]) -> None:
    """Cancel the tasks and await their ends. Their errors are ignored here: the owners of the tasks handle them."""
    pending = list(tasks)
    for task in pending:
        task.cancel()
    if pending:
        await asyncio.wait(pending)
