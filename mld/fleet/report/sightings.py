"""`Sightings`: when each worker's report was last seen to change, and which workers' clocks disagree with ours. Pure.

Rule: coordination#reports-and-clocks.
"""

from __future__ import annotations

from collections.abc import Iterable

from mld.core.stillness import NEVER, Stillness
from mld.fleet.report.reports import EXPIRED_AFTER_PERIODS, ReportRules, WorkerReport

CLOCK_OFF_MAX_S = 60.0
"""A difference up to this is not reported: reports may be written late, and clocks are never exact."""


class Sightings:
    """When the report of each worker was last seen to change, by the observer's own clock.

    To judge whether a worker lives, the times in its reports are only compared with each other, never with the
    observer's clock. If the observer's clock was set back, the reports of dead workers seem to come from the future,
    and would never expire by their times (coordination#reports-and-clocks); here they count as unchanged. Only changes
    that were observed count. So a new leader has to watch for as long as a report is valid before it can call a report
    unchanged.
    """

    def __init__(self) -> None:
        self._times: Stillness[str, int | None] = Stillness()
        self._off_s: dict[str, float] = {}
        """By how many seconds the clock of each worker is certainly off."""
        self._saw_at = NEVER
        """When the reports were last read."""

    def saw(self, reports: Iterable[WorkerReport], now: float, wall_s: float | None = None) -> None:
        """Note all present reports, one for each worker; `now` is monotonic. If `wall_s`, our wall clock, is given, the
        clocks of workers that have written a new report are compared with it.
        """
        times = {report.worker: report.updated_at_s for report in reports}
        for worker, reported_s in times.items():
            if self._times.saw(worker, reported_s, now) and self._times.has_moved(worker):
                self._off_s[worker] = 0.0 if wall_s is None else clock_off_s(reported_s, wall_s, now - self._saw_at)
        self._times.keep(times)
        self._off_s = {worker: off_s for worker, off_s in self._off_s.items() if off_s and worker in times}
        self._saw_at = now

    def off(self) -> dict[str, float]:
        """Return by how many seconds workers' clocks are off. Clocks that may be right are left out."""
        return dict(self._off_s)

    def alive(self, now: float, rules: ReportRules) -> frozenset[str]:
        """Return the workers that were seen to write a new report lately."""
        return frozenset(worker for worker in self.moving(now, rules) if self.has_moved(worker))

    def is_still(self, worker: str, now: float, rules: ReportRules) -> bool:
        """Return whether the worker's report has been unchanged for longer than a report is valid."""
        return self._times.is_still(worker, now, EXPIRED_AFTER_PERIODS * rules.report_period_s)

    def moving(self, now: float, rules: ReportRules) -> frozenset[str]:
        """Return the workers whose reports were first seen, or seen to change, within the time that a report is
        valid.
        """
        return frozenset(worker for worker in self._times if not self.is_still(worker, now, rules))

    def time_of(self, worker: str) -> int | None:
        """Return the time in the worker's last report; None if none was seen."""
        return self._times.value(worker)

    def has_moved(self, worker: str) -> bool:
        """Return whether more than one report of the worker was seen."""
        return self._times.has_moved(worker)

    def doubt(self, worker: str) -> None:
        """Forget that the worker's report was seen to change (`has_moved`). From now on only another new report shows
        that the worker lives.
        """
        if worker in self._times:
            self._times.begin(worker, self._times.value(worker), self._times.since(worker))

    def forget(self) -> None:
        """Forget all reports and clocks that were seen."""
        self._times.forget_all()
        self._off_s.clear()


def clock_off_s(reported_s: int | None, wall_s: float, within_s: float) -> float:
    """Return by how many seconds a worker's clock is certainly ahead of ours (negative: behind), from one report.

    The worker's clock showed `reported_s` at some moment of the last `within_s` before our clock showed `wall_s`.
    Return 0 if its clock may be right, or is off by at most a minute.
    """
    ahead_s = 0.0 if reported_s is None else reported_s - wall_s
    if ahead_s > CLOCK_OFF_MAX_S:
        return ahead_s
    return ahead_s + within_s if ahead_s + within_s < -CLOCK_OFF_MAX_S else 0.0
