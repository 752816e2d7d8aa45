"""What the assigner tells about its runs, under KCL's names: its share of the worker's metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from mld.fleet.assign.assignment import Plan
from mld.fleet.assign.loads import Why
from mld.fleet.assign.move_writer import Written
from mld.fleet.report.reports import SortedReports
from mld.metrics.java import ASSIGN
from mld.metrics.registry import Metrics


class RunCounters:
    """Verbs for the assigner. `now` gives monotonic seconds."""

    def __init__(self, metrics: Metrics, now: Callable[[], float]) -> None:
        self._worker = metrics.worker
        self._operation = metrics.worker.operation(ASSIGN)
        self._now = now

    def followed(self) -> None:
        """A run in which somebody else leads, which counts as a success."""
        self._operation.done(True, 0.0)

    def running(self) -> AbstractContextManager[None]:
        """Around the run of a leader."""
        return self._operation.timed(self._now)

    def loading(self) -> AbstractContextManager[None]:
        """Around the reading of leases and reports."""
        return self._operation.timed(self._now, "LeaseAndWorkerMetricsLoad")

    def loaded(self, corrupt: int, sorted_out: SortedReports) -> None:
        """What was read; `corrupt`: rows that cannot be."""
        self._worker.table.corrupt = corrupt
        for name, count in (
            ("LeaseDeserializationFailureCount", corrupt),
            ("NumWorkersWithFailingWorkerMetric", len(sorted_out.failing)),
            ("NumWorkersWithInvalidEntry", len(sorted_out.invalid)),
        ):
            if count:
                self._operation.note(name, count)

    @contextmanager
    def deciding(self, *, balance: bool) -> Iterator[None]:
        """Around the decision, which gives away free leases and balances in one."""
        with self._operation.timed(self._now, "AssignExpiredOrUnassignedLeases"):
            if not balance:
                yield
                return
            with self._operation.timed(self._now, "BalanceWorkerVariance"):
                yield

    def decided(self, plan: Plan, *, balance: bool) -> None:
        """What is to be done."""
        note = self._operation.note
        note("TotalLeases", plan.leases)
        note("NumWorkers", plan.workers)
        note("ExpiredLeases", plan.waiting)
        if plan.spillover:
            note("LeaseSpillover", plan.spillover)
        if balance:
            note("NumOfLeasesReassignment", plan.count(Why.BALANCE))
        self._worker.table.workers, self._worker.table.unassigned = plan.workers, plan.waiting

    def wrote(self, written: Written, began_at: float) -> None:
        """The moves were written, or refused."""
        self._operation.step("ParallelyAssignLeases", not written.errors, self._now() - began_at)
        self._operation.note("FailedAssignmentCount", written.refused)

    def stepped_down(self) -> None:
        """Too many runs have failed."""
        self._operation.note("ForceLeaderRelease", 1)
