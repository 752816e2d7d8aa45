"""What the taker tells about its passes, under KCL's names: its share of the worker's metrics."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

from mld.leases.take_plan import TakePlan
from mld.metrics.java import TAKE
from mld.metrics.registry import Metrics


class TakeCounters:
    """Verbs for the taker. `now` gives monotonic seconds."""

    def __init__(self, metrics: Metrics, now: Callable[[], float]) -> None:
        self._worker = metrics.worker
        self._operation = metrics.worker.operation(TAKE)
        self._now = now
        self._taken = self._refused = 0

    def passing(self) -> AbstractContextManager[None]:
        """Around a whole pass."""
        return self._operation.timed(self._now)

    def scanning(self) -> AbstractContextManager[None]:
        """Around the scan of the table."""
        return self._operation.timed(self._now, "ListLeases")

    def taking(self) -> AbstractContextManager[None]:
        """Around one conditional write, refused or not."""
        return self._operation.timed(self._now, "TakeLease")

    def decided(self, plan: TakePlan, leases: int, corrupt: int) -> None:
        """What a pass has seen and is about to do."""
        self._taken = self._refused = 0
        note = self._operation.note
        note("TotalLeases", leases)
        note("NumWorkers", plan.workers)
        note("ExpiredLeases", plan.available)
        note("NeededLeases", max(0, plan.needed))
        note("LeasesToTake", len(plan.choices) - plan.very_old)
        note("VeryOldLeases", plan.very_old)
        note("LeaseSpillover", plan.spillover)
        table = self._worker.table
        table.corrupt = corrupt
        if self._worker.is_leader:
            table.workers, table.unassigned = plan.workers, plan.available

    def settled(self, is_taken: bool) -> None:
        """A take was answered."""
        self._taken += is_taken
        self._refused += not is_taken

    def passed(self) -> None:
        """The takes of a pass have ended."""
        self._operation.note("TakenLeases", self._taken)
        self._operation.note("UntakenLeases", self._refused)
