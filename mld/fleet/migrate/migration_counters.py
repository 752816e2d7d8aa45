"""What the migration to a single table tells, under KCL's names: its share of the worker's metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from mld.fleet.migrate.single_table import FleetSummary
from mld.fleet.values import TableStatus
from mld.metrics.java import MOVE, TABLE_MIGRATION, TABLE_START
from mld.metrics.registry import Metrics

READ, WRITE, DELETE, COMPLETION = "ReadFault", "WriteFault", "DeleteFault", "CompletionFault"
ORDINALS = {
    TableStatus.INIT: 1,
    TableStatus.DEPLOYED: 2,
    TableStatus.PENDING: 3,
    TableStatus.COMPLETE: 4,
}
UNKNOWN = 0


class MigrationCounters:
    """Verbs for the migration. `now` gives monotonic seconds."""

    def __init__(self, metrics: Metrics, now: Callable[[], float]) -> None:
        self._now = now
        self._start = metrics.worker.operation(TABLE_START)
        self._operation = metrics.worker.operation(TABLE_MIGRATION)
        self._move = metrics.worker.operation(MOVE)

    @contextmanager
    def starting(self) -> Iterator[None]:
        """Around the search for the tables; what fails there is a read."""
        is_fault = True
        try:
            with self._start.timed(self._now):
                yield
            is_fault = False
        finally:
            self._start.note(READ, is_fault)

    @contextmanager
    def attempt(self, fault: str) -> Iterator[None]:
        """Around a request: 1 under the name `fault` if it fails, else 0."""
        try:
            yield
        except Exception:
            self._operation.note(fault, 1)
            raise
        self._operation.note(fault, 0)

    def checked(self, began_at: float) -> None:
        """A check of the leader's has ended, before the migration has."""
        self._operation.note("Time", self._now() - began_at)

    def stored(self, status: TableStatus | None) -> None:
        """What the leader has read."""
        self._operation.note("StatusOrdinal", UNKNOWN if status is None else ORDINALS[status])

    def summarised(self, summary: FleetSummary | None) -> None:
        """What the leader knows of the fleet."""
        if summary is None:
            return
        moved = len(summary.reporting_in_lease_table)
        self._operation.note("PrePhase1Worker", max(0, len(summary.owners) - summary.supporting))
        self._operation.note("Phase1Worker", max(0, summary.supporting - moved))
        self._operation.note("Phase2Worker", moved)

    @contextmanager
    def moving(self) -> Iterator[None]:
        """Around an attempt to move the rows."""
        with self._move.timed(self._now):
            yield

    def moved(self) -> None:
        """A batch of rows has been moved."""
        self._move.note("BatchCount", 1)
