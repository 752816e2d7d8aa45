"""`mld.spark.mode = streaming`: micro-batches go to streaming queries, and a shard's checkpoint follows their commits.

A batch is published in the inbox, exactly once, by whichever worker has its shards; then it is waited for until the
queries have committed it, wherever they run. What the inbox holds is not run again, and it is not acknowledged before
its commit either. There is no search for a record that fails: what a stateful query has seen of a batch cannot be
told apart, so a batch that keeps failing stops all shards, with nothing lost.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import count
from typing import TYPE_CHECKING, BinaryIO

from mld.processors.spark.batch.attempts import HealthCheck, Patience, check_continues, until_published
from mld.processors.spark.batch.jobs import Repeats
from mld.processors.spark.batch.micro_batch import MicroBatch
from mld.processors.spark.batch.outcome import BatchFigures, BatchOutcome
from mld.processors.spark.batch.page_file import as_line
from mld.processors.spark.batch.source import BatchSource, source_of
from mld.processors.spark.batch.spool import Spool
from mld.processors.spark.commit.ledger import LedgerEntry
from mld.processors.spark.commit.store import local_directory
from mld.processors.spark.commit_stages import stage
from mld.processors.spark.high_water_marks import HighWaterMarks, RecordPosition, ShardSpans, StreamShard, spans
from mld.processors.spark.pipeline import Pipeline, PipelineError, PipelineFailed
from mld.processors.spark.session import spark_session
from mld.processors.spark.settings import SparkSettings
from mld.processors.spark.sink_port import GoneBack, Sink, SinkRefused
from mld.processors.spark.streaming.inbox import NAME, QUERIES, Inbox, LeadLock, check_not_lost
from mld.processors.spark.streaming.leader import QueryFailed, QueryLeader
from mld.processors.spark.streaming.queries import SparkQueries
from mld.properties.spark import OnGap

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("mld.spark")

KEY = "mld.spark.checkpoint"
GLOB_LETTERS = "*?[]{}"
"""What Spark takes for a pattern in the path of a streaming source."""


class StreamingEngine:
    """As `engine.Engine`: `start` and `run` are called on one thread, `stop` from any."""

    def __init__(
        self,
        settings: SparkSettings,
        inbox: Inbox,
        leader: QueryLeader,
        health: HealthCheck,
        spool: Spool,
    ) -> None:
        self._settings = settings
        self._inbox = inbox
        self._leader = leader
        self._spool = spool
        self._committed: HighWaterMarks = {}
        self._repeats = Repeats(spool)
        self._patience = Patience(settings.retry_backoff_s, health)
        self._ended: deque[StreamShard] = deque()
        self._number = 0
        self._late_rows = 0

    def start(self) -> None:
        """Start the queries. Raises SinkError."""
        self._inbox.open()
        self._leader.start()

    def stop(self) -> None:
        self._patience.stop()
        self._leader.end()

    def mark_of(self, shard: StreamShard) -> RecordPosition | None:
        """Return what the queries are known to have committed of a shard."""
        return self._committed.get(shard)

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
        self._repeats.begin()
        if not batch.slices:
            figures.dropped = self._repeats.counts(batch, {NAME: self._committed})
            return BatchOutcome({}, figures)
        started = time.monotonic()
        try:
            entry = self._publish(source_of(batch, self._spool))
            figures.handover_s = time.monotonic() - started
            stage("inboxed")
            self._leader.wait_for(entry.number, self._patience.check)
        except GoneBack as error:
            others = {shard: self.mark_of(shard) for shard in batch.ends.keys() - error.reasons.keys()}
            return BatchOutcome(error.reasons, figures, others, self._settings.retry_backoff_s)
        except (SinkRefused, QueryFailed) as error:
            return BatchOutcome(dict.fromkeys(batch.ends, str(error)), figures)
        figures.publish_s = time.monotonic() - started - figures.handover_s
        late_rows = self._leader.late_rows()
        figures.late_rows, self._late_rows = late_rows - self._late_rows, late_rows
        figures.watermarks = self._leader.watermarks()
        self._committed = self._inbox.marks(entry)
        figures.dropped = self._repeats.counts(batch, {NAME: self._committed})
        return BatchOutcome({}, figures)

    def _publish(self, source: BatchSource) -> LedgerEntry:
        """Return the entry of the inbox that holds all of the batch, with what was there before."""
        attempts = count()

        def attempt() -> LedgerEntry:
            progress = self._inbox.progress()
            head = self._inbox.open() if next(attempts) else self._inbox.head()
            check_not_lost(head, progress)
            marks = self._inbox.marks(head)
            check_continues(NAME, source.preceding, marks, accepts=self._settings.on_gap is OnGap.ACCEPT)
            missing = spans(source.ends, marks)
            if not missing:
                assert head is not None
                return head
            name = f"{self._settings.application}-{self._number}"
            entry = self._inbox.publish(missing, _writer(source, missing), name)
            self._repeats.published(NAME, missing)
            return entry

        return until_published(attempt, self._patience.wait)


def _writer(source: BatchSource, missing: ShardSpans) -> Callable[[BinaryIO], None]:
    def write(target: BinaryIO) -> None:
        target.writelines(as_line(record) for _, (_, record) in source.each_of(missing))

    return write


def make_engine(
    spark: SparkSession,
    settings: SparkSettings,
    pipeline: Pipeline,
    sinks: Sequence[Sink],
    dead: Sink | None,
    spool: Spool,
) -> StreamingEngine:
    """Make the engine; the pipeline is asked once for its frames. Raises SinkRefused and PipelineError."""
    if not settings.checkpoint:
        raise SinkRefused(f"{KEY} is missing; mld.spark.mode = streaming keeps its state there")
    root = local_directory(settings.checkpoint, KEY)
    if strange := sorted(set(GLOB_LETTERS) & set(str(root))):
        raise SinkRefused(f"{KEY} = {settings.checkpoint}: Spark takes {' '.join(strange)} for a pattern; rename it")
    for sink in sinks:
        if sink.exactly_once and settings.output_modes.get(sink.name) == "complete":
            raise SinkRefused(
                f"mld.spark.sink.{sink.name}.outputMode is complete, which replaces all rows each time, and this "
                "format is appended to; write append or update, or another format with mode = overwrite"
            )
    private = settings.is_local  # executors may be other users
    inbox = Inbox(root, settings.writer, private=private)
    inbox.open()  # before Spark looks for the directory
    inbox.make_home(QUERIES)
    for sink in sinks:
        sink.open()  # what refuses us is to be heard before a query has taken anything
    named = {sink.name: sink for sink in sinks}
    queries = SparkQueries(spark, settings, pipeline, named, dead, root, inbox.directory)
    try:
        queries.frames()
    except PipelineFailed as error:
        raise PipelineError(f"{error}; correct the pipeline") from error
    leader = QueryLeader(
        Inbox(root, settings.writer, private=private),
        LeadLock(root, spark_session.jvm_pid(spark)),
        queries,
        attempts_max=settings.attempts_max,
        backoff_s=settings.retry_backoff_s,
    )
    return StreamingEngine(settings, inbox, leader, spark_session.SessionHealth(spark), spool)
