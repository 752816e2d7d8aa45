"""`Reporter`: samples this worker's load and writes its report, while the mode of the fleet requires it.

Rules: coordination#report-rhythm. The table of the report is fixed when the worker starts (coordination#table-layout).

*The first report* waits for the first sample, which comes one to two capture periods after the start. It waits two
capture periods at most (Java's fixed delay). A report without figures could be sent earlier, but then the worker would
count as a default worker without any load, and a leader that makes a run at that moment would give it every free lease.
A worker that cannot measure its load is a default worker anyway, and reports at once.

*A failed write* is repeated within the period. Java tries again only a whole period later, so after one lost write the
row reaches its age limit before the next report arrives.

Errors are logged, never raised: a worker that cannot report goes on with its leases.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import KW_ONLY, dataclass, field
from enum import Enum

from mld.core.clock import Clock
from mld.core.error_boundary import survived
from mld.core.waits import wait_for_event
from mld.fleet.report import reports
from mld.fleet.report.cpu_formulas import percent
from mld.fleet.report.platform import CPU, LoadSource, LoadUnreadableError
from mld.fleet.report.reports import WorkerReport
from mld.fleet.report.reports_table import ReportsTable
from mld.metrics.registry import Metrics
from mld.properties.settings import FleetSettings

log = logging.getLogger(__name__)

SAMPLES_MAX = 300  # ten times the samples of a period with default settings
FIRST_REPORT_CAPTURES = 2  # Java's delay before the first report
RETRY_S_MAX = 5.0  # leaves time for several tries before the row expires, with default settings
RETRIES_PER_PERIOD = 6


class Activity(Enum):
    """What the reporter does, as the mode of the fleet requires: nothing (OFF) in phase 1; only measure the load
    (SAMPLING) after a rollback to 2.x; else also write reports (REPORTING).
    """

    OFF = "off"
    SAMPLING = "sampling"
    REPORTING = "reporting"


@dataclass(eq=False)
class Reporter:
    """Measures this worker's load and writes its reports, while `run` runs. If `source` is None, the load is not
    measured. `on_own_row` is called after each write, with this worker's whole row.

    `ends` are the workers that this worker has found dead; each report names them.
    """

    table: ReportsTable
    source: LoadSource | None
    clock: Clock
    rng: random.Random
    _: KW_ONLY
    worker_id: str
    version: str
    settings: FleetSettings
    members: Mapping[str, str] = field(default_factory=dict)
    """Further members that each report gets (`reports.WRITTEN_MEMBERS`)."""
    activity: Activity = Activity.REPORTING
    on_own_row: Callable[[WorkerReport], None] = lambda _: None
    ends: Collection[tuple[str, float]] = ()
    metrics: Metrics = field(default_factory=Metrics)

    def __post_init__(self) -> None:
        self._counts = self.metrics.worker.operations.reports
        self._samples: deque[float] = deque(maxlen=SAMPLES_MAX)
        """The samples of load since the last report."""
        self._means: tuple[float, ...] = ()
        """The mean load in each of the last report intervals."""
        self._sampled = asyncio.Event()  # set when there is a sample
        self._sampling = _Switch()
        self._reporting = _Switch()
        self._write_lock = asyncio.Lock()  # held while the row is written or deleted
        self._sent_at_s: int | None = None
        """The latest time in the reports that were sent; None if none was sent."""
        self._leaving = False
        """Whether reports say that this worker is leaving."""
        self._closed = False
        self._sample_fails = False
        """Whether the last sample failed, and was logged."""
        self.switch(self.activity)

    # --- control ------------------------------------------------------------------------------------------------------

    def switch(self, activity: Activity) -> None:
        """Switch to an activity. An activity that begins again starts without old figures. When reporting ends, the row
        stays.
        """
        if self._sampling.turn(not self._closed and activity is not Activity.OFF):
            self._samples.clear()
            self._sampled.clear()
        if self._reporting.turn(not self._closed and activity is Activity.REPORTING):
            self._means = ()

    async def run(self) -> None:
        """Sample and report, as the present activity requires, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            if self.source is not None:
                tasks.create_task(self._sample_forever(self.source))
            await self._report_forever()

    async def report_now(self) -> bool:
        """Write a report now, between two regular ones, with the figures known so far. Return whether it was certainly
        written.
        """
        figures = self._figures(self._means)
        if self._samples and self.source is not None:
            figures = self._figures(self._means_with(reports.mean(self._samples)))
        return await self._write(figures)

    async def leave(self) -> None:
        """Mark this worker's row, if it has one, so that no other worker gives it leases any more."""
        self._leaving = True
        if self._sent_at_s is not None:
            await self.report_now()

    async def close(self) -> None:
        """Stop, and delete this worker's row, so that no leader gives it leases any more. May be called again."""
        self._closed = True
        self.switch(Activity.OFF)
        async with self._write_lock:
            sent_at_s, self._sent_at_s = self._sent_at_s, None
            if sent_at_s is None:
                return
            try:
                deleted = await self.table.delete_own(self.worker_id, sent_at_s)
            except Exception as error:
                failure = survived(error, "deleting the report")
                log.warning("own report not deleted, it expires: %s", failure, extra={"action": "report_delete_failed"})
                return
        log.debug("own report deleted" if deleted else "no own report left", extra={"action": "report_deleted"})

    # --- sampling -----------------------------------------------------------------------------------------------------

    async def _sample_forever(self, source: LoadSource) -> None:
        """Read the source once in each capture period while sampling is on, and keep the figures. Whenever sampling
        begins, a random part of a period passes first.
        """
        while True:
            await self._sampling.on.wait()
            await wait_for_event(self._sampling.off, self.rng.uniform(0.0, self.settings.capture_period_s))
            await self._read(source)  # begins the first interval; the figure itself covers a time of unknown length
            while not await wait_for_event(self._sampling.off, self.settings.capture_period_s):
                sample = await self._read(source)
                if sample is not None:
                    self._samples.append(sample)
                    self._sampled.set()

    async def _read(self, source: LoadSource) -> float | None:
        """Return a figure of the source; None if there is none. The first of several failures in a row is logged as a
        warning.
        """
        try:
            sample = await source.read()
        except Exception as error:
            self._counts.sample_failed.note(1)
            failure = error if isinstance(error, LoadUnreadableError) else survived(error, "measuring the load")
            level = logging.DEBUG if self._sample_fails else logging.WARNING
            self._sample_fails = True
            log.log(level, "no figure from %s: %s", source.name, failure, extra={"action": "sample_failed"})
            return None
        self._sample_fails = False
        return None if sample is None else percent(sample)

    # --- reporting ----------------------------------------------------------------------------------------------------

    async def _report_forever(self) -> None:
        """Report whenever reporting is on, until cancelled."""
        while True:
            await self._reporting.on.wait()
            await self._wait_for_first_sample()
            await self._report_while_on()

    async def _wait_for_first_sample(self) -> None:
        """Wait for a sample of the load, but only for a limited time, and not if the load is not measured."""
        if self.source is not None:
            limit_s = FIRST_REPORT_CAPTURES * self.settings.capture_period_s
            await wait_for_event(self._sampled, min(limit_s, self.settings.report_period_s))

    async def _report_while_on(self) -> None:
        """Report at a fixed rate until reporting is turned off. Missed ticks are skipped, and failed reports repeated
        before the next tick.
        """
        period_s = self.settings.report_period_s
        tick_at = self.clock.monotonic()
        off = self._reporting.off.is_set()
        while not off:
            self._close_interval()
            written = await self._write(self._figures(self._means))
            late_s = max(0.0, self.clock.monotonic() - tick_at)
            tick_at += period_s * (late_s // period_s + 1)
            off = await self._off_before(tick_at, written)

    async def _off_before(self, tick_at: float, written: bool) -> bool:
        """Wait for the next tick, and repeat a failed report meanwhile. Return True if reporting was turned off before
        the tick, even if it is on again.
        """
        retry_s = min(RETRY_S_MAX, self.settings.report_period_s / RETRIES_PER_PERIOD)
        while True:
            remaining_s = tick_at - self.clock.monotonic()
            if written or remaining_s <= retry_s:
                return await wait_for_event(self._reporting.off, max(0.0, remaining_s))
            if await wait_for_event(self._reporting.off, retry_s):
                return True
            written = await self.report_now()

    def _close_interval(self) -> None:
        """Put the mean of the samples since the last report into `_means`, and begin a new interval."""
        if self.source is not None:
            self._means = self._means_with(reports.mean(self._samples))
            self._samples.clear()

    def _means_with(self, value: float) -> tuple[float, ...]:
        """Return the means of the last intervals, with one more."""
        return reports.extended(self._means, value, self.settings.samples_per_report)

    def _figures(self, means: tuple[float, ...]) -> Mapping[str, tuple[float, ...]]:
        """Return the figures of a report by metric; none if the load cannot be measured."""
        return {} if self.source is None else {CPU: means}

    async def _write(self, figures: Mapping[str, tuple[float, ...]]) -> bool:
        """Write a report with these figures, unless `close` was called. Return whether it was certainly written."""
        async with self._write_lock:
            if self._closed:
                return False
            now_s, ends = self.clock.wall(), tuple(self.ends)
            report = reports.own_report(
                self.worker_id, figures, now_s, self.version, ends, leaving=self._leaving, members=self.members
            )
            self._sent_at_s = max(report.updated_at_s or 0, self._sent_at_s or 0)
            try:
                with self._counts.all.timed(self.clock.monotonic):
                    row = await self.table.write(report)
            except Exception as error:
                failure = survived(error, "writing the report")
                log.warning("report not written: %s", failure, extra={"action": "report_failed"})
                return False
        self.on_own_row(row)
        return True


class _Switch:
    """A switch whose two states, on and off, can both be awaited."""

    def __init__(self) -> None:
        self.on = asyncio.Event()
        self.off = asyncio.Event()
        self.off.set()

    def turn(self, on: bool) -> bool:
        """Turn the switch on or off. Return True if it was off and is on now."""
        begins = on and self.off.is_set()
        rising, falling = (self.on, self.off) if on else (self.off, self.on)
        falling.clear()
        rising.set()
        return begins
