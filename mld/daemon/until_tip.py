"""A worker's run that ends by itself once the stream is read to its tip: `mld run --until-caught-up`.

It leaves another run alone, follows the worker's shards by the tips they report, looks at the table when all are there,
and then stops the worker as a signal would: the children are told, checkpoint, and the leases are free for the next
run. The decisions are in `catching_up`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass

from mld.core.clock import Clock
from mld.core.error_boundary import survived
from mld.core.errors import MldError, TableError, TableMissingError
from mld.core.periods import RENEWALS_PER_LEASE
from mld.core.positions import Position
from mld.core.waits import unless, wait_for_event
from mld.daemon.catching_up import (
    CatchingUp,
    CatchUpEnd,
    CatchUpLook,
    OtherWorkers,
    begins_at_latest,
    in_words,
    not_checkpointed,
)
from mld.daemon.worker import Worker
from mld.leases.lease import Lease
from mld.leases.table import TableScan
from mld.metrics.registry import Metrics
from mld.metrics.shard import ShardActivity
from mld.properties.remarks import ConfigurationError, Level, Remark
from mld.properties.settings import Settings
from mld.properties.values import InitialPositionKind

log = logging.getLogger(__name__)

LOOK_S = 1.0
"""Between two looks at the table while it may be over."""
LOOK_LARGE_S = 5.0
LARGE_LEASES = 1_000
FAILURES_MAX = 5
"""Looks in a row, before the start, that may fail."""
LOOK_ANYWAY_S = 15.0
"""Between two looks while shards of ours are on their way, for a run that nothing moves."""


@dataclass(frozen=True, slots=True)
class UntilTip:
    """What was asked for on the command line."""

    time_max_s: float | None = None
    properties_file: str = ""


class RunUntilTip:
    """Runs a worker; used in its place. `failure` says after `run` why it is not caught up, None if it is.

    `around` is entered when it is clear that there is something to do.
    """

    def __init__(
        self,
        worker: Worker,
        metrics: Metrics,
        worker_id: str,
        clock: Clock,
        settings: Settings,
        until_tip: UntilTip,
        around: Callable[[], AbstractAsyncContextManager[None]] = nullcontext,
    ) -> None:
        self._worker = worker
        self._metrics = metrics
        self._worker_id = worker_id
        self._clock = clock
        self._settings = settings
        self._properties_file = until_tip.properties_file
        self._around = around
        self._course = CatchingUp(clock.monotonic(), until_tip.time_max_s)
        self._others = OtherWorkers(settings.leases.duration_s)
        self._end: CatchUpEnd | None = None
        self._closed: frozenset[str] = frozenset()
        self._delivered: Mapping[str, Position] = {}
        self._failures_before = 0
        self._failure: str | None = None
        self._due = asyncio.Event()
        self._stopped = asyncio.Event()
        metrics.on_tip = self._on_tip

    @property
    def failure(self) -> str | None:
        return self._worker.failure or self._failure

    def request_stop(self) -> None:
        self._stopped.set()
        self._worker.request_stop()

    async def run(self, grace_s: float) -> bool:
        """Do as `Worker.run`. Raises ConfigurationError if a run that ends would skip records."""
        if await unless(self._stopped, self._is_left_to_others()):
            return True
        if self._course.is_time_over(self._clock.monotonic()) or self._stopped.is_set():
            self._conclude(self._words())
            return True
        watching = asyncio.create_task(self._watch())
        watching.add_done_callback(lambda _: self._worker.request_stop())  # a bug there must not make the run endless
        try:
            async with self._around():
                graceful = await self._worker.run(grace_s)
        finally:
            watching.cancel()
            await asyncio.wait({watching})
        if not watching.cancelled() and (bug := watching.exception()) is not None:
            raise bug
        if self._worker.failure is None:
            await self._judge(graceful)
        return graceful

    # --- before -------------------------------------------------------------------------------------------------------

    async def _is_left_to_others(self) -> bool:
        """Return whether somebody is at work on the leases. A run that died is told by leases that stand still."""
        pause_s = self._settings.leases.duration_s / RENEWALS_PER_LEASE / 2
        failures = 0
        while True:
            try:
                read_from, scan = await self._look()
            except TableMissingError:
                self._refuse_latest(())
                return False
            except TableError as error:
                failures += 1
                if failures >= FAILURES_MAX:
                    raise
                log.warning("the lease table cannot be read: %s", error, extra={"action": "catch_up_unknown"})
                await self._clock.sleep(pause_s)
                continue
            others = self._others.at_work(scan.leases, read_from)
            if others:
                log.info(
                    "%s at work on this application; it is left alone",
                    f"worker {min(others)} is" if len(others) == 1 else f"{len(others)} workers are",
                    extra={"action": "left_to_others", "workers": sorted(others)},
                )
                return True
            if not self._others.undecided(scan.leases, read_from):
                self._refuse_latest(scan.leases)
                return False
            now = self._clock.monotonic()
            if self._course.is_time_over(now):
                return False
            left_s = self._course.time_left_s(now)
            await self._clock.sleep(pause_s if left_s is None else min(pause_s, left_s))

    def _refuse_latest(self, leases: Sequence[Lease]) -> None:
        why = begins_at_latest(leases, self._settings.initial_position.kind is InitialPositionKind.LATEST)
        if why is not None:
            remedy = (
                "set initialPositionInStream=TRIM_HORIZON, or AT_TIMESTAMP with initialPositionInStreamExtended; "
                "`mld reset` moves rows that are there already"
            )
            words = f"{why}, and --until-caught-up would never read what comes between two runs"
            raise ConfigurationError(
                [Remark(Level.ERROR, "initialPositionInStream", self._properties_file, words, remedy)]
            )

    async def _look(self) -> tuple[float, TableScan]:
        """Return when the read began, and what it read; `_others` hears of it."""
        began_at = self._clock.monotonic()
        scan = await self._worker.table.scan()
        self._others.looked(scan.leases, self._clock.monotonic())
        return began_at, scan

    # --- meanwhile ----------------------------------------------------------------------------------------------------

    def _on_tip(self, key: str, is_reached: bool) -> None:
        if self._course.tip(key, is_reached):
            self._due.set()

    async def _watch(self) -> None:
        """Wait until it is over; then stop the worker."""
        spacing_s = LOOK_S
        looked_at = self._clock.monotonic() - LOOK_ANYWAY_S
        while self._end is None:
            self._due.clear()
            left_s = self._course.time_left_s(self._clock.monotonic())
            await wait_for_event(self._due, LOOK_S if left_s is None else min(LOOK_S, left_s))
            now = self._clock.monotonic()
            if self._course.is_time_over(now):
                self._end = CatchUpEnd.TIME_OVER
                self._course.looked(self._seen(await self._table_if_there()))
            elif self._worker.is_ready and now >= looked_at + self._wait_s(spacing_s):
                looked_at = now
                scan = await self._table_if_there()
                if scan is not None:
                    spacing_s = LOOK_LARGE_S if len(scan.leases) > LARGE_LEASES else LOOK_S
                    self._end = await self._end_by(scan)
        log.info("stopping: %s", self._end.value, extra={"action": "run_ends", "why": self._end.name.lower()})
        self._failures_before = self._metrics.child_restarts
        self._delivered = {k: part.delivered for k, part in self._metrics.shards.items() if part.delivered is not None}
        self._worker.request_stop()

    def _wait_s(self, spacing_s: float) -> float:
        """Return how long after a look the next one is due."""
        parts = self._metrics.shards.items()
        held = [key for key, part in parts if part.activity is not ShardActivity.PAUSED]
        return spacing_s if self._course.seems_over(held) else LOOK_ANYWAY_S

    async def _end_by(self, scan: TableScan) -> CatchUpEnd | None:
        end = self._course.looked(self._seen(scan))
        if end is not CatchUpEnd.CAUGHT_UP:
            return end
        if not await self._learn_closed() or await self._has_hidden_children(scan) or not self._worker.is_ready:
            return None
        return self._course.looked(self._seen(scan))

    async def _learn_closed(self) -> bool:
        """List the closed shards again: one that was split may have been at its tip before its end was read."""
        try:
            self._closed = await self._worker.sources.closed_shards()
        except Exception as error:
            failure = survived(error, "listing shards")
            log.warning("the shards cannot be listed: %s", failure, extra={"action": "catch_up_unknown"})
            return False
        return True

    async def _table_if_there(self) -> TableScan | None:
        try:
            return (await self._look())[1]
        except Exception as error:
            failure = survived(error, "looking whether all shards are at the tip")
            log.warning("the lease table cannot be read: %s", failure, extra={"action": "catch_up_unknown"})
            return None

    def _seen(self, scan: TableScan | None) -> CatchUpLook:
        now = self._clock.monotonic()
        leases = () if scan is None else scan.leases
        others = [lease for lease in leases if lease.actual_owner not in (None, self._worker_id)]
        return CatchUpLook(
            at=now,
            leases=leases,
            elsewhere=frozenset(lease.key for lease in others if self._others.is_renewed(lease, now)),
            at_work=self._metrics.shards,
            is_in_sync=self._worker.sources.is_in_sync,
            closed=self._closed,
        )

    async def _has_hidden_children(self, scan: TableScan) -> bool:
        """Return whether shards have ended whose children have rows that the scan does not show yet."""
        there = {lease.key for lease in scan.leases}
        unseen = sorted({child for lease in scan.leases if lease.is_complete for child in lease.children} - there)
        if not unseen:
            return False
        try:
            return bool(await self._worker.table.get_many(unseen))
        except Exception as error:
            survived(error, "looking for the rows of child shards")
            return True

    # --- after --------------------------------------------------------------------------------------------------------

    async def _judge(self, graceful: bool) -> None:
        """Find out whether the promise is kept: everything was given to the children, and they have checkpointed it."""
        if self._end is not CatchUpEnd.CAUGHT_UP:
            self._conclude(self._words())
        elif not graceful:
            self._conclude("not all record processors ended in time (key shutdownGraceMillis)")
        elif self._metrics.child_restarts > self._failures_before:
            self._conclude("a record processor failed when it was told to stop")
        else:
            self._conclude(await self._lacks_checkpoints())

    def _conclude(self, failure: str | None) -> None:
        self._failure = failure
        if self._failure is None:
            log.info("caught up", extra={"action": "caught_up", "records": self._metrics.records})
        else:
            log.error("not caught up: %s", self._failure, extra={"action": "not_caught_up"})

    async def _lacks_checkpoints(self) -> str | None:
        try:
            leases = await self._worker.table.get_many(sorted(self._delivered))
        except MldError as error:
            return f"it is unknown what was checkpointed: {error}"
        lacking = not_checkpointed(leases.values(), self._delivered)
        return f"records come again in the next run: {in_words(lacking)}" if lacking else None

    def _words(self) -> str:
        remaining = in_words(self._course.remaining) or "nothing was read yet"
        match self._end:
            case CatchUpEnd.PAUSED:
                return f"only paused shards are left: {remaining}"
            case CatchUpEnd.STALLED:
                return f"nothing has moved for a while: {remaining}"
            case None if self._stopped.is_set():
                return "stopped before it was done"
            case _:
                return f"the time (--max-time) is over: {remaining}; the next run goes on from the checkpoints"
