"""A batch that Spark writes while the one before it is not committed yet, so that no core waits for a commit or a plan.

Two batches are in flight at most: the older one is committed while the younger one is planned and computed. The younger
one takes for granted that the older one is committed to its ends. If that does not come true for any reason, or if
anything about itself goes wrong, what is staged of it is thrown away, and it is run as if it had never been begun. So
everything that is not a plain success is decided in one place, the engine's attempts.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from mld.processors.spark.batch.micro_batch import MicroBatch
from mld.processors.spark.batch.outcome import BatchFigures
from mld.processors.spark.batch.source import BatchSource
from mld.processors.spark.high_water_marks import ShardSpans
from mld.processors.spark.session.handover import Handed
from mld.processors.spark.sink_port import StagedFrame, StagingSink

IN_FLIGHT_MAX = 2


@dataclass(slots=True)
class Flight:
    """One batch on its way into its only sink."""

    batch: MicroBatch
    file: Path | None
    source: BatchSource
    spans: ShardSpans
    """What the sink misses of it once everything before it is committed."""
    sink: StagingSink
    handed: Handed
    count: int
    figures: BatchFigures
    began_at: float
    staged: Future[StagedFrame | Exception]
    """Done once Spark has written it, or could not; it never raises."""
    resources: ExitStack
    """What is needed for as long as Spark reads the records."""
    is_abandoned: bool = False
    error: Exception | None = None
    """Why it could not be staged or committed."""

    def abandon(self) -> None:
        """Throw away what is staged, once the job has ended."""
        self.is_abandoned = True
        with self.resources:
            staged = self.staged.result()
            if not isinstance(staged, Exception):
                self.sink.discard(staged)


class Stagers:
    """Threads on which Spark writes what is in flight."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(IN_FLIGHT_MAX, "stager")

    def submit(self, stage: Callable[[], StagedFrame]) -> Future[StagedFrame | Exception]:
        """Raise RuntimeError once it has stopped."""

        def caught() -> StagedFrame | Exception:
            try:
                return stage()
            except Exception as error:  # whatever it is, the batch is run again, and that says what is wrong
                return error

        return self._threads.submit(caught)

    def stop(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
