"""Runs micro-batches on the session, one at a time and on one thread, until every sink holds all records once.

The sinks' high-water marks are the only memory of what was written. A mark is the position up to which the records of a
shard are in a sink. Each sink gets all records past its own mark, and no others. A record is committed when every sink
holds it.

An attempt to publish to a sink may fail in these ways, and this is what the engine does then:

* Another writer moved a mark (Fenced): read the marks again, drop the records that the sink holds, repeat at once.
* A file that the pipeline has read is gone (InputGone): call the pipeline's `setup` again, and repeat.
* The sink cannot take the batch now (SinkError): wait and repeat, for as long as it takes.
* The job or the pipeline failed: repeat, then run smaller parts, down to a single record (`poison`).
* A sink lacks records that it had (GoneBack): stop the shards of which it lacks records.
* The attempt can never succeed (SinkRefused, PipelineError): stop all shards of the batch.
* A task hangs (TaskHangs): repeat; from the second time on, run the batch in parts (`running`).
* The session is gone (SessionGone): the session host ends, and a new one starts from the checkpoints.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING

from mld.processors.spark.batch import attempts
from mld.processors.spark.batch.attempts import HealthCheck, Patience
from mld.processors.spark.batch.batch_source import BatchSource, source_of, source_of_rows
from mld.processors.spark.batch.destinations import Destinations
from mld.processors.spark.batch.jobs import Jobs
from mld.processors.spark.batch.micro_batch import MicroBatch
from mld.processors.spark.batch.outcome import BatchOutcome
from mld.processors.spark.batch.poison import POISON_IN_A_ROW_MAX, PoisonSearch
from mld.processors.spark.batch.record_columns import Row
from mld.processors.spark.batch.running import Running, RunningSpan, Spans
from mld.processors.spark.batch.spool import Spool
from mld.processors.spark.high_water_marks import Preceding, fresh, lowest
from mld.processors.spark.pipeline import Pipeline, PipelineError, PipelineFailed
from mld.processors.spark.positions import RecordPosition, StreamShard
from mld.processors.spark.session_errors import TaskHangs
from mld.processors.spark.settings import SparkSettings
from mld.processors.spark.sink_port import GoneBack, JobFailed, Sink, SinkError, SinkRefused
from mld.properties.spark_values import OnGap

if TYPE_CHECKING:
    from mld.processors.spark.batch.jobs import Frames

log = logging.getLogger("mld.spark")


def _spans_of(batch: MicroBatch, shards: Sequence[StreamShard]) -> dict[StreamShard, RunningSpan]:
    """Return the spans of records of a batch that are about to run, for each of these shards."""
    # Reversed, so that the first slice of a shard decides. The position `after` is just before the first record that
    # runs, which is near enough for a note.
    firsts = {piece.offer.shard: piece.after or piece.offer.first for piece in reversed(batch.slices)}
    return {shard: RunningSpan(firsts[shard], batch.ends[shard]) for shard in shards}


class Engine:
    """Runs batches over one session. `start` and `run` are called on one thread, `stop` on any."""

    def __init__(
        self,
        settings: SparkSettings,
        handover: Frames,
        health: HealthCheck,
        pipeline: Pipeline,
        sinks: Sequence[Sink],
        dead_letter: Sink | None,
        spool: Spool,
        running: Running | None = None,
    ) -> None:
        self._settings = settings
        self._health = health
        self._patience = Patience(health)
        self._destinations = Destinations(sinks, dead_letter, self._patience)
        self._jobs = Jobs(settings, handover, pipeline, self._destinations, spool, self._patience)
        self._running = running or Running()
        self._poison = PoisonSearch(settings, self._jobs, self._destinations, self._patience, self._running)
        self._spool = spool

    def start(self) -> None:
        """Open all sinks. Raises SinkError."""
        self._destinations.open()

    def stop(self) -> None:
        """End a wait between attempts, which then raises Stopped."""
        self._patience.stop()

    def mark_of(self, shard: StreamShard) -> RecordPosition | None:
        """Return the position up to which the records of a shard are in every sink and in the dead letter; None if one
        of them has none.
        """
        of_all = [self._destinations.marks[sink.name] for sink in self._destinations.all()] or [self._jobs.own]
        return lowest(of_all, shard)

    def end(self, shards: Preceding) -> dict[StreamShard, str]:
        """Make every sink note that these shards have ended. Return the shards that cannot end, because a sink lacks
        records of them or refuses, with the reason. `shards` has the marks that each sink must have for that.

        This has to come before the last checkpoints of the shards. Then, when a child shard begins, it can be checked
        whether a sink has lost records of the parent. Raises SessionGone and Stopped."""
        failed: dict[StreamShard, str] = {}
        waits = 0
        while left := {shard: needed for shard, needed in shards.items() if shard not in failed}:
            source = BatchSource({}, lambda _: iter(()), preceding=left)  # no records: only the marks are checked
            try:
                for sink in self._destinations.all() if waits else ():
                    self._destinations.reopen(sink)
                self._destinations.check_continuity(source, accepts=self._settings.on_gap is OnGap.ACCEPT)
                self._destinations.end(left, f"{self._settings.application}-ends")
                break
            except GoneBack as error:
                failed |= error.reasons
            except SinkRefused as error:
                failed |= dict.fromkeys(left, str(error))
            except SinkError as error:
                waits += 1
                self._patience.wait(error, waits)
        return failed

    def run(self, batch: MicroBatch) -> BatchOutcome:
        """Run a batch until each of its shards is committed or has to stop. Raises SessionGone and Stopped.

        All shards run together, except those with records that may have ended earlier sessions (`Running.suspects`).
        Each of these runs alone, after the others. What is not committed after that is run again.
        """
        self._jobs.begin()
        outcome = BatchOutcome({}, self._jobs.figures)
        left = batch
        while left.slices:
            source = source_of(left, self._spool)
            suspects = [shard for shard in self._running.suspects if shard in source.ends]
            unsuspected = [shard for shard in source.ends if shard not in suspects]
            groups = [unsuspected, *([shard] for shard in suspects)]
            try:
                self._patience.check()
                for shards in filter(None, groups):
                    outcome.failed |= self._run(source.of(shards), _spans_of(left, shards))
            except TaskHangs as error:
                log.error("%s", error)
                for sink in self._destinations.all():
                    self._destinations.reopen(sink)
            held = {shard for shard, upto in left.ends.items() if not fresh(upto, self.held(shard))}
            left = left.without(held | outcome.failed.keys())  # usually all; but a sink may have gone back meanwhile
        self._running.forget({})
        self._destinations.forget_buried()
        return outcome

    def held(self, shard: StreamShard) -> RecordPosition | None:
        """Return the position up to which the records of a shard are in every sink, whatever the dead letter has; None
        if one sink has none.
        """
        return self._destinations.held(shard, self._jobs.own)

    def replay(self, shard: StreamShard, rows: Sequence[Row], only: frozenset[str] | None = None) -> BatchOutcome:
        """Run records of dead letters into all sinks, or into the sinks `only`. `rows` has the records with the
        positions of their letters, and `shard` is the name for the marks of these letters (`letters.replay_shard`).
        Records that fail again become new letters, however many fail in a row.

        If the replay has to stop, `failed` has the reason under `shard`, and the sinks' marks show how far the replay
        has come. Raises SessionGone and Stopped."""
        self._jobs.begin()
        source = source_of_rows(shard, rows, only=only)
        return BatchOutcome(self._run(source, {}, math.inf), self._jobs.figures)

    def _run(
        self, source: BatchSource, runs: Spans, in_a_row_max: float = POISON_IN_A_ROW_MAX
    ) -> dict[StreamShard, str]:
        """Run a part of a batch. Return the shards that have to stop, with the reason.

        Meanwhile `runs` is noted in a file as running, so that the next host knows over which records the session
        ended. If more than `in_a_row_max` records in a row fail, they are not blamed. If a sink has gone back in time,
        nothing is run, and only the shards of which it lacks records have to stop."""
        try:
            self._destinations.check_continuity(source, accepts=self._settings.on_gap is OnGap.ACCEPT)
            if self._running.suspects.keys() & source.ends.keys():  # then never run the whole shard in one job
                return self._poison.search(source, in_a_row_max)
            with self._running.noted(runs):
                try:
                    self._jobs.until_done(source, attempts.ATTEMPTS_MAX)
                except (JobFailed, PipelineFailed) as error:
                    return self._failed(source, error, in_a_row_max)
                self._patience.check()
            for _, (_, record) in islice(source.each(source.whole()), 1):  # the first record, if there is one
                self._poison.keep(record)
            return {}
        except GoneBack as error:
            return error.reasons
        except (SinkRefused, PipelineError) as error:
            return dict.fromkeys(source.ends, str(error))

    def _failed(
        self, source: BatchSource, error: JobFailed | PipelineFailed, in_a_row_max: float
    ) -> dict[StreamShard, str]:
        """Find the records to blame in a part that has failed again and again. Return the shards that have to stop.

        If more than `in_a_row_max` records in a row fail, they are not blamed. Raises SinkRefused and PipelineError."""
        log.warning("batch %d fails, searching for the record: %s", self._jobs.number, error)
        self._health.probe()  # if even a job without records fails, no record is to blame
        if isinstance(error, PipelineFailed) and self._jobs.fails_without_records():
            return dict.fromkeys(source.ends, f"{error}; correct the pipeline")
        return self._poison.search(source, in_a_row_max)
