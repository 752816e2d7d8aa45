"""`mld.spark.mode = streaming`: micro-batches go to streaming queries, and a shard's checkpoint follows their commits.

A batch is published in the inbox, exactly once, by whichever worker has its shards; then it is waited for until the
queries have committed it, wherever they run. What the inbox holds is not run again, and it is not acknowledged before
its commit either. There is no search for a record that fails: what a stateful query has seen of a batch cannot be
told apart, so a batch that keeps failing stops all shards, with nothing lost.

The leader: the one host at a time that runs the queries over the inbox, on a thread of its own.

Every host of the streaming mode has this thread. While somebody waits in its host for a batch, it tries to take the
lead; once it has it, it goes on for all workers until the queries fail or the host ends. `Progress` in the checkpoint
tells everybody how far the queries are.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import TYPE_CHECKING, BinaryIO

from mld.processors.spark.batch.attempts import (
    BACKOFF_MIN_S,
    HealthCheck,
    Patience,
    check_continues,
    pause_s,
    until_published,
)
from mld.processors.spark.batch.jobs import Repeats
from mld.processors.spark.batch.micro_batch import BatchFigures, BatchOutcome, MicroBatch
from mld.processors.spark.batch.page_file import as_line
from mld.processors.spark.batch.spool import BatchSource, Spool, source_of
from mld.processors.spark.commit.ledger import LedgerEntry
from mld.processors.spark.commit.store import local_directory, stage
from mld.processors.spark.high_water_marks import HighWaterMarks, RecordPosition, ShardSpans, StreamShard, spans
from mld.processors.spark.pipeline import Pipeline, PipelineError, PipelineFailed
from mld.processors.spark.session import spark_session
from mld.processors.spark.settings import SparkSettings
from mld.processors.spark.sink_port import GoneBack, JobFailed, Sink, SinkError, SinkRefused
from mld.processors.spark.streaming.inbox import NAME, QUERIES, Inbox, LeadLock, check_not_lost
from mld.processors.spark.streaming.queries import Queries, SparkQueries
from mld.properties.spark import OnGap

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


POLL_S = 0.1
"""How often those who wait look for the progress of a leader elsewhere, and a leader for batches of others."""
KEEP_S = 60.0
"""A file stays so long after its commit: the last batch of a leader that has just been killed may still look for it on
another machine, and Spark takes a file that is gone for an empty one."""
END_WAIT_S = 8.0
"""A query that takes longer to stop ends with its JVM."""


class QueryFailed(Exception):
    """The queries have failed again and again, or can never succeed; one sentence."""


class QueryLeader:
    """`wait_for` is called on the host's working thread, `end` on any."""

    def __init__(
        self,
        inbox: Inbox,
        lead: LeadLock,
        queries: Queries,
        *,
        attempts_max: int,
        backoff_s: float,
        poll_s: float = POLL_S,
        keep_s: float = KEEP_S,
    ) -> None:
        self._inbox = inbox
        self._lead = lead
        self._queries = queries
        self._attempts_max = attempts_max
        self._backoff_s = max(backoff_s, BACKOFF_MIN_S)
        self._poll_s = poll_s
        self._keep_s = keep_s
        self._kept: deque[tuple[float, int]] = deque()
        self._leads = False
        self._wanted = 0
        self._failures = 0
        self._failure = ""
        self._done = 0
        self._stopping = threading.Event()
        self._wake = threading.Event()
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="streaming", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        self._stopping.set()
        self._wake.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            threading.Thread(target=self._queries.stop, daemon=True).start()  # wakes it out of a batch
            self._thread.join(END_WAIT_S)

    def wait_for(self, number: int, check: Callable[[], None]) -> None:
        """Wait until every query has committed this number of the inbox. Raises QueryFailed, and what `check` does."""
        with self._changed:
            failures = self._failures
            self._wanted = max(self._wanted, number)
            self._wake.set()
            while max(self._done, self._inbox.progress()) < number:
                if self._failures > failures:
                    raise QueryFailed(self._failure)
                check()
                self._changed.wait(self._poll_s)

    def late_rows(self) -> int:
        """Return how many rows the queries of this host have left out as late, since it started."""
        return self._queries.late_rows()

    def watermarks(self) -> Mapping[str, str]:
        """Return the watermarks of the queries of this host, while it leads."""
        return self._queries.watermarks() if self._leads else {}

    # --- on the thread -----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._step()
            except SinkError as error:
                log.error("%s", error)
                self._stopping.wait(self._backoff_s)
            except Exception as error:
                log.exception("the streaming queries have a fault")
                self._give_up(f"the streaming queries have a fault: {type(error).__name__}: {error}")
            self._wake.wait(self._poll_s)
            self._wake.clear()
        self._queries.stop()
        self._lead.release()

    def _step(self) -> None:
        if not self._leads:
            if self._wanted <= self._inbox.progress() or not self._lead.take():
                return
            self._leads = True
            self._done = self._inbox.progress()
            self._kept = deque([(time.monotonic() + self._keep_s, self._done)])
            log.info("this host runs the streaming queries", extra={"action": "lead_taken"})
        self._clear()
        if self._inbox.number() <= self._done:
            return
        try:
            self._process(self._done)
        except (SinkRefused, PipelineError) as error:
            self._give_up(str(error))

    def _process(self, progress: int) -> None:
        """Have everything committed that is in the inbox now, with new attempts if need be."""
        failures = 0
        while not self._stopping.is_set():
            try:
                self._attempt(progress)
                return
            except SinkRefused:
                raise
            except (JobFailed, PipelineFailed) as error:
                if self._stopping.is_set():
                    return
                failures += 1
                if failures >= self._attempts_max:
                    self._give_up(f"{error}; a stateful query cannot leave out a record: correct the pipeline")
                    return
                log.warning("attempt %d of %d: %s", failures, self._attempts_max, error)
            except SinkError as error:
                log.error("%s; trying again", error)
            self._stopping.wait(pause_s(self._backoff_s, failures + 1))

    def _attempt(self, progress: int) -> None:
        head = self._inbox.open()
        assert head is not None
        here = self._inbox.pending()
        self._inbox.settle()
        self._queries.start()
        self._queries.process()
        stage("processed")
        mine = [number for number in here if progress < number <= head.number]
        if untaken := self._queries.untaken(mine):
            raise SinkRefused(
                f"the streaming queries have passed over {len(untaken)} batches of the inbox, from {min(untaken)} on; "
                "nothing of them is acknowledged: restore mld.spark.checkpoint, or use a new directory"
            )
        self._inbox.advance(head.number)
        stage("advanced")
        self._kept.append((time.monotonic() + self._keep_s, head.number))
        self._clear()
        with self._changed:
            self._done = head.number
            self._changed.notify_all()

    def _clear(self) -> None:
        """Remove what has been committed long enough, and only then let Spark forget that it has taken it."""
        number = 0
        while self._kept and self._kept[0][0] <= time.monotonic():
            _, number = self._kept.popleft()
        if number:
            self._inbox.clear(number)
            self._queries.trim(min([number, *(found - 1 for found in self._inbox.pending())]))

    def _give_up(self, reason: str) -> None:
        """Let others try; who waits here hears the reason."""
        self._queries.stop()
        self._lead.release()
        self._leads = False
        with self._changed:
            self._wanted = 0
            self._failure = reason
            self._failures += 1
            self._changed.notify_all()


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
