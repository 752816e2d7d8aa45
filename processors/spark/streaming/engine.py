"""`mld.spark.mode = streaming`: micro-batches go to streaming queries, and a shard's checkpoint follows their commits.

A batch is published in the inbox, exactly once; then the queries run until they have committed it. What the inbox holds
is not published again, and it is not acknowledged before its commit either. There is no search for a record that fails:
what a stateful query has seen of a batch cannot be told apart, so a batch that keeps failing stops all shards, with
nothing lost.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from itertools import count
from typing import TYPE_CHECKING

from mld.processors.spark.batch.attempts import HealthCheck, Patience, check_continues, until_published
from mld.processors.spark.batch.micro_batch import BatchFigures, BatchOutcome, MicroBatch
from mld.processors.spark.batch.spool import BatchSource, Spool, source_of
from mld.processors.spark.commit.ledger import LedgerEntry
from mld.processors.spark.commit.store import local_directory, stage
from mld.processors.spark.high_water_marks import HighWaterMarks, RecordPosition, StreamShard, spans
from mld.processors.spark.pipeline import Pipeline, PipelineError
from mld.processors.spark.session import spark_session
from mld.processors.spark.settings import SparkSettings
from mld.processors.spark.sink_port import GoneBack, JobFailed, Sink, SinkError, SinkRefused
from mld.processors.spark.streaming.inbox import NAME, Inbox, check_not_lost
from mld.processors.spark.streaming.queries import QUERIES, Queries, SparkQueries
from mld.properties.spark import OnGap

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


KEEP_S = 60.0
"""A file stays so long after its commit: Spark syncs none of its checkpoint, and if a power cut takes back the last
batches, Spark repeats them and takes a file that is gone for an empty one."""
END_WAIT_S = 8.0
"""A query that takes longer to stop ends with its JVM."""
KEY = "mld.spark.checkpoint"
GLOB_LETTERS = "*?[]{}"
"""What Spark takes for a pattern in the path of a streaming source."""


class StreamingEngine:
    """As `engine.Engine`: `start` and `run` are called on one thread, `stop` from any."""

    def __init__(
        self,
        settings: SparkSettings,
        inbox: Inbox,
        queries: Queries,
        health: HealthCheck,
        spool: Spool,
        keep_s: float = KEEP_S,
    ) -> None:
        self._settings = settings
        self._inbox = inbox
        self._queries = queries
        self._spool = spool
        self._keep_s = keep_s
        self._committed: HighWaterMarks = {}
        self._patience = Patience(settings.retry_backoff_s, health)
        self._ended: deque[StreamShard] = deque()
        self._kept: deque[tuple[float, int]] = deque()
        """Until when files up to a number are kept."""
        self._number = 0
        self._newest = 0
        """The last number of the inbox that is known."""
        self._late_rows = 0

    def start(self) -> None:
        """Raise SinkError: another worker has the checkpoint, or the inbox refuses or cannot now."""
        self._queries.claim()
        self._newest = self._queries.newest()
        self._inbox.open()

    def stop(self) -> None:
        self._patience.stop()
        ending = threading.Thread(target=self._queries.stop, daemon=True)  # wakes `run` out of a batch
        ending.start()
        ending.join(END_WAIT_S)

    def mark_of(self, shard: StreamShard) -> RecordPosition | None:
        """Return what the queries are known to have committed of a shard."""
        return self._committed.get(shard)

    held = mark_of

    def ended(self, shard: StreamShard) -> None:
        """Note that all of the shard is in the inbox, and nothing of it is new again; called on any thread."""
        self._ended.append(shard)

    def _retire(self) -> None:
        """Retire the shard with the next entry; what is not known to be committed yet waits."""
        while self._ended:
            shard = self._ended.popleft()
            if (mark := self._committed.get(shard)) is not None:
                self._inbox.retire({shard: mark})

    def run(self, batch: MicroBatch) -> BatchOutcome:
        """Run a batch to its end. Raises SessionGone and Stopped."""
        self._retire()
        self._number += 1
        figures = BatchFigures(attempts=1)
        if not batch.slices:
            return BatchOutcome({}, figures)
        started = time.monotonic()
        try:
            entry, failed = self._publish(batch)
            if entry is None:
                return BatchOutcome(failed, figures)
            figures.handover_s = time.monotonic() - started
            stage("inboxed")
            self._process()
        except (SinkRefused, PipelineError) as error:
            self._queries.stop()
            return BatchOutcome(dict.fromkeys(batch.ends, str(error)), figures)
        self._clear(entry.number)
        figures.publish_s = time.monotonic() - started - figures.handover_s
        late_rows = self._queries.late_rows()
        figures.late_rows, self._late_rows = late_rows - self._late_rows, late_rows
        figures.watermarks = self._queries.watermarks()
        self._committed = self._inbox.marks(entry)
        return BatchOutcome(failed, figures)

    def _publish(self, batch: MicroBatch) -> tuple[LedgerEntry | None, dict[StreamShard, str]]:
        """Return the entry of the inbox that holds all of the batch, and which shards have to stop as the inbox has
        gone back in time; of these it holds nothing."""
        failed: dict[StreamShard, str] = {}
        while batch.slices:
            try:
                return self._published_in(source_of(batch, self._spool)), failed
            except GoneBack as error:
                failed |= error.reasons
                batch = batch.without(error.reasons)
        return None, failed

    def _published_in(self, source: BatchSource) -> LedgerEntry:
        """Return the entry of the inbox that holds all of the batch, with what was there before."""
        attempts = count()

        def attempt() -> LedgerEntry:
            head = self._inbox.open() if next(attempts) else self._inbox.head()
            check_not_lost(head, self._newest)
            marks = self._inbox.marks(head)
            check_continues(NAME, source.preceding, marks, accepts=self._settings.on_gap is OnGap.ACCEPT)
            missing = spans(source.ends, marks)
            if not missing:
                assert head is not None
                return head
            name = f"{self._settings.application}-{self._number}"
            records = (record for _, (_, record) in source.each_of(missing))
            entry = self._inbox.publish(missing, records, name)
            self._newest = entry.number
            return entry

        return until_published(attempt, self._patience.wait)

    def _process(self) -> None:
        """Have every query commit all that is in the inbox, with new attempts if need be. Raises SinkRefused,
        PipelineError, SessionGone and Stopped."""
        failures = count(1)

        def attempt() -> None:
            self._patience.check()
            here = self._inbox.settle()
            self._queries.start()
            self._queries.process()
            stage("processed")
            if untaken := self._queries.untaken(here):
                raise SinkRefused(
                    f"the streaming queries have passed over {len(untaken)} batches of the inbox, from {min(untaken)} "
                    f"on; nothing of them is acknowledged: restore {KEY}, or use a new directory"
                )

        def wait(error: SinkError, waits: int) -> None:
            if isinstance(error, JobFailed):
                self._patience.check()
                if next(failures) >= self._settings.attempts_max:
                    raise SinkRefused(
                        f"{error}; a stateful query cannot leave out a record: correct the pipeline"
                    ) from error
            self._patience.wait(error, waits)

        until_published(attempt, wait)

    def _clear(self, committed: int) -> None:
        """Remove what has been committed long enough, and only then let Spark forget that it has taken it."""
        self._kept.append((time.monotonic() + self._keep_s, committed))
        number = 0
        while self._kept and self._kept[0][0] <= time.monotonic():
            _, number = self._kept.popleft()
        if number:
            self._inbox.clear(number)
            self._queries.trim(min([number, *(found - 1 for found in self._inbox.pending())]))


def make_engine(
    spark: SparkSession,
    settings: SparkSettings,
    pipeline: Pipeline,
    sinks: Sequence[Sink],
    dead: Sink | None,
    spool: Spool,
) -> StreamingEngine:
    """Make the engine; the pipeline is asked once for its frames. Raises SinkRefused and PipelineError."""
    assert settings.checkpoint is not None, "checked with the settings"
    root = local_directory(settings.checkpoint, KEY)
    if strange := sorted(set(GLOB_LETTERS) & set(str(root))):
        raise SinkRefused(f"{KEY} = {settings.checkpoint}: Spark takes {' '.join(strange)} for a pattern; rename it")
    for sink in sinks:
        if sink.exactly_once and settings.output_modes.get(sink.name) == "complete":
            raise SinkRefused(
                f"mld.spark.sink.{sink.name}.outputMode is complete, which replaces all rows each time, and this "
                "format is appended to; write append or update, or another format with mode = overwrite"
            )
    inbox = Inbox(root, settings.writer)
    inbox.open()  # before Spark looks for the directory
    inbox.make_home(QUERIES)
    for sink in sinks:
        sink.open()  # what refuses us is to be heard before a query has taken anything
    named = {sink.name: sink for sink in sinks}
    queries = SparkQueries(spark, settings, pipeline, named, dead, root, inbox.directory)
    queries.frames()
    return StreamingEngine(settings, inbox, queries, spark_session.SessionHealth(spark), spool)
