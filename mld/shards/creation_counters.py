"""What is told about the creation of leases, under KCL's names: a share of the worker's metrics."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

from mld.metrics.registry import CREATED, WorkerMetrics
from mld.positions import Position

BY_NUMBER = "SEQUENCE_NUMBER"


class CreationCounters:
    """Of the leases that the operation of this name creates. `now` gives monotonic seconds."""

    def __init__(self, worker: WorkerMetrics, operation: str, now: Callable[[], float]) -> None:
        self._worker = worker
        self._operation = worker.operation(operation)
        self._now = now

    def creating(self) -> AbstractContextManager[None]:
        """Around one conditional write, refused or not."""
        return self._operation.timed(self._now, "CreateLease")

    def created(self, checkpoint: Position) -> None:
        """A lease was created that starts there."""
        kind = checkpoint.sequence if checkpoint.is_sentinel else BY_NUMBER
        self._operation.note(f"CreateLease_{kind}.Success", 1)
        self._worker.rows.add(CREATED)
