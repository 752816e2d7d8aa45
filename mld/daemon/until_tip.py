"""`RunUntilTip`: a worker's run that ends by itself once the stream is read to its tip (`mld run --until-caught-up`).

If other workers are at work, the run ends at once. Otherwise it waits until all shards of the worker have reached the
tip, checks the lease table, and stops the worker as a signal would, so that children may checkpoint, and the leases are
free for the next run. `catching_up` makes the decisions.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
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
    begins_at_latest,
    in_words,
    not_checkpointed,
)
from mld.daemon.other_workers import OtherWorkers
from mld.daemon.worker import Worker
from mld.leases.lease import Lease
from mld.leases.table import TableScan
from mld.metrics.activity import ShardActivity
from mld.metrics.registry import Metrics
from mld.properties.remarks import ConfigurationError, Level, Remark
from mld.properties.settings import Settings
from mld.properties.values import InitialPositionKind

log = logging.getLogger(__name__)

LOOK_S = 1.0
"""Pause between two reads of the lease table while all shards of this worker are at the tip."""
LOOK_LARGE_S = 5.0
"""The same pause for a table with more than `LARGE_LEASES` rows."""
LARGE_LEASES = 1_000
FAILURES_MAX = 5
"""The run fails if this many reads in a row fail before the worker has started."""
LOOK_ANYWAY_S = 15.0
"""Pause between two reads while shards of this worker are not at the tip. These reads show if nothing moves."""


@dataclass(frozen=True, slots=True)
class UntilTip:
    """The command line's options for such a run."""

    time_max_s: float | None = None
    """`--max-time`; None: no limit."""
    properties_file: str = ""
    """Named in error messages."""


class RunUntilTip:
    """Runs a worker until the tip. It can take the worker's place: it has `run`, `request_stop` and `failure`, too."""

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
        """Make a run of `worker`. The context `around` is open while the worker runs."""
        self._worker = worker
        self._metrics = metrics
        self._worker_id = worker_id
        self._clock = clock
        self._settings = settings
        self._properties_file = until_tip.properties_file
        self._around = around
        self._catching_up = CatchingUp(clock.monotonic(), until_tip.time_max_s)
        self._others = OtherWorkers(settings.leases.duration_s)
        self._end: CatchUpEnd | None = None  # how the run ends; None while it goes on
        self._closed: frozenset[str] = frozenset()  # shards that get no more records, as last listed
        self._delivered: Mapping[str, Position] = {}  # how far each shard was delivered when the worker was stopped
        self._failures_before = 0  # restarts of children before the worker was stopped
        self._failure: str | None = None
        self._due = asyncio.Event()  # set when a shard reaches the tip, or must reach it again
        self._stopped = asyncio.Event()  # set when a signal asks for a stop
        metrics.on_tip = self._on_tip

    @property
    def failure(self) -> str | None:
        """Why the worker failed or did not catch up; None if it caught up."""
        return self._worker.failure or self._failure

    def request_stop(self) -> None:
        self._stopped.set()
        self._worker.request_stop()

    async def run(self, grace_s: float) -> bool:
        """Run the worker until the tip. Return whether everything ended gracefully within `grace_s` seconds of the
        stop; True if there was nothing to do. Raises ConfigurationError if records that arrive before the next run
        would be skipped.
        """
        if await unless(self._stopped, self._is_left_to_others()):
            return True
        if self._catching_up.is_time_over(self._clock.monotonic()) or self._stopped.is_set():
            self._conclude(self._why_not_caught_up())
            return True
        watching = asyncio.create_task(self._watch())
        watching.add_done_callback(lambda _: self._worker.request_stop())  # after a bug in `_watch`, too, the run ends
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
        """Return whether other workers are at work. An owner that does not renew its leases counts as dead.

        The lease table is read again and again, until a renewal was seen, or each lease was watched for long enough, or
        the time of the run is over. Raises TableError if too many reads fail, and ConfigurationError as `run` does.
        """
        pause_s = self._settings.leases.duration_s / RENEWALS_PER_LEASE / 2  # half of the time between two renewals
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
            if others := self._others.at_work(scan.leases, read_from):
                self._log_others(others)
                return True
            if not self._others.undecided(scan.leases, read_from):
                self._refuse_latest(scan.leases)
                return False
            now = self._clock.monotonic()
            if self._catching_up.is_time_over(now):
                return False
            left_s = self._catching_up.time_left_s(now)
            await self._clock.sleep(pause_s if left_s is None else min(pause_s, left_s))

    def _log_others(self, others: Collection[str]) -> None:
        """Log that nothing is done, because other workers are at work on the application."""
        log.info(
            "nothing to do: %s at work on this application",
            f"worker {min(others)} is" if len(others) == 1 else f"{len(others)} workers are",
            extra={"action": "left_to_others", "workers": sorted(others)},
        )

    def _refuse_latest(self, leases: Sequence[Lease]) -> None:
        """Raise ConfigurationError if records that arrive between two runs would never be read."""
        why = begins_at_latest(leases, self._settings.initial_position.kind is InitialPositionKind.LATEST)
        if why is not None:
            remedy = (
                "set initialPositionInStream=TRIM_HORIZON, or AT_TIMESTAMP with initialPositionInStreamExtended; "
                "move existing rows with `mld reset`"
            )
            fault = f"{why}, so records that arrive between two runs with --until-caught-up would never be read"
            raise ConfigurationError(
                [Remark(Level.ERROR, "initialPositionInStream", self._properties_file, fault, remedy)]
            )

    async def _look(self) -> tuple[float, TableScan]:
        """Read the lease table, and note in `_others` which rows were renewed. Return when the read began, and the
        rows.
        """
        view = await self._worker.fleet.views.newer_than(self._clock.monotonic())
        self._others.looked(view.scan.leases, view.ended_at)
        return view.began_at, view.scan

    # --- meanwhile ----------------------------------------------------------------------------------------------------

    def _on_tip(self, key: str, is_reached: bool) -> None:
        """Note whether a shard has reached the tip; a change makes `_watch` check whether the run may end."""
        if self._catching_up.tip(key, is_reached):
            self._due.set()

    async def _watch(self) -> None:
        """Wait until the run may end, then stop the worker. The lease table shows whether it may: it is read as soon as
        the worker is ready, and then again and again (see `_wait_s`).
        """
        spacing_s = LOOK_S
        looked_at = self._clock.monotonic() - LOOK_ANYWAY_S
        while self._end is None:
            self._due.clear()
            left_s = self._catching_up.time_left_s(self._clock.monotonic())
            await wait_for_event(self._due, LOOK_S if left_s is None else min(LOOK_S, left_s))
            now = self._clock.monotonic()
            if self._catching_up.is_time_over(now):
                self._end = CatchUpEnd.TIME_OVER
                # The result is not needed; the call notes the unfinished shards (`remaining`) for the last message.
                self._catching_up.looked(self._look_from(await self._table_if_there()))
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
        """Return the seconds between two reads of the lease table. They are fewer once all held
        shards are at the tip.
        """
        parts = self._metrics.shards.items()
        held = [key for key, part in parts if part.activity is not ShardActivity.PAUSED]
        return spacing_s if self._catching_up.seems_over(held) else LOOK_ANYWAY_S

    async def _end_by(self, scan: TableScan) -> CatchUpEnd | None:
        """Return how the run ends, by this scan of the lease table; None if it goes on.

        If the run seems to be caught up, the shards are listed, as a shard that was split may still have records. Then
        the same scan is judged again, with the closed shards that the list shows. The run also goes on if child shards
        have rows that this scan does not show yet, or if the worker is not ready any more.
        """
        end = self._catching_up.looked(self._look_from(scan))
        if end is not CatchUpEnd.CAUGHT_UP:
            return end
        if not await self._learn_closed() or await self._has_hidden_children(scan) or not self._worker.is_ready:
            return None
        return self._catching_up.looked(self._look_from(scan))

    async def _learn_closed(self) -> bool:
        """List the closed shards again; return False if that fails.

        A shard that was split during the run may have reached its tip although the worker has not read it to its end.
        """
        try:
            self._closed = await self._worker.sources.closed_shards()
        except Exception as error:
            failure = survived(error, "listing shards")
            log.warning("the shards cannot be listed: %s", failure, extra={"action": "catch_up_unknown"})
            return False
        return True

    async def _table_if_there(self) -> TableScan | None:
        """Return a scan of the lease table; None if it cannot be read now."""
        try:
            return (await self._look())[1]
        except Exception as error:
            failure = survived(error, "looking whether all shards are at the tip")
            log.warning("the lease table cannot be read: %s", failure, extra={"action": "catch_up_unknown"})
            return None

    def _look_from(self, scan: TableScan | None) -> CatchUpLook:
        """Return the state of the table and of this worker's consumers now, for `CatchingUp.looked`."""
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
        """Return whether child shards of ended shards have rows that are missing in the scan. If the rows cannot be
        read, return True.
        """
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
        """Find out whether the children got all records and checkpointed them, and log the result."""
        if self._end is not CatchUpEnd.CAUGHT_UP:
            self._conclude(self._why_not_caught_up())
        elif not graceful:
            self._conclude("raise shutdownGraceMillis: not all record processors ended within that time")
        elif self._metrics.child_restarts > self._failures_before:
            self._conclude("a record processor failed when it was told to stop")
        else:
            self._conclude(await self._lacks_checkpoints())

    def _conclude(self, failure: str | None) -> None:
        """Note how the run ended: with `failure`, or caught up if that is None. Log it."""
        self._failure = failure
        if self._failure is None:
            log.info("caught up", extra={"action": "caught_up", "records": self._metrics.records})
        else:
            log.error("not caught up: %s", self._failure, extra={"action": "not_caught_up"})

    async def _lacks_checkpoints(self) -> str | None:
        """Return in words which records come again in the next run, because no checkpoint covers them; else None."""
        try:
            leases = await self._worker.table.get_many(sorted(self._delivered))
        except MldError as error:
            return f"the checkpoints cannot be read: {error}"
        lacking = not_checkpointed(leases.values(), self._delivered)
        return f"records come again in the next run: {in_words(lacking)}" if lacking else None

    def _why_not_caught_up(self) -> str:
        """Return in words why the run has ended without having caught up."""
        remaining = in_words(self._catching_up.remaining) or "nothing was read yet"
        match self._end:
            case CatchUpEnd.PAUSED:
                return f"only paused shards are left: {remaining}"
            case CatchUpEnd.STALLED:
                return f"no shard has made progress for a while: {remaining}"
            case None if self._stopped.is_set():
                return "stopped before it had caught up"
            case _:
                return f"the time (--max-time) is over: {remaining}; the next run continues from the checkpoints"
