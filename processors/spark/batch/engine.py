"""Runs micro-batches on the session: pipeline, sinks, dead letters, attempts, and the search for a poison record.

One batch at a time, on one thread. The sinks say how far they are; whatever happens, a record counts as committed only
when every sink holds it, and every sink gets everything past its own high-water mark, and nothing else.

What an attempt may end in:

* another writer moved a shard (Fenced): read the marks anew, trim, go on at once
* the sink cannot now (SinkError, SinkFull): wait and try again, for as long as it takes; shards wait with us
* the job failed, and computes if nobody writes it: the sink is waited for
* the job or the pipeline failed: try again, then search: shard by shard, then by halves, until the record that fails is
  alone. It goes to the dead letter, or the shard stops in front of it
* it can never succeed (SinkRefused, PipelineError): all shards of the batch stop
* the session is gone: the host ends, and a new one starts from the checkpoints
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from processors.spark.batch.attempts import HealthCheck, Patience, bound_fences, until_published
from processors.spark.batch.micro_batch import MicroBatch, Row
from processors.spark.batch.outcome import BatchFigures, BatchOutcome
from processors.spark.batch.repeats import Repeats
from processors.spark.batch.source import BatchSource, Rows, source_of, source_of_rows
from processors.spark.batch.spool import Spool, SpoolError
from processors.spark.high_water_marks import HighWaterMarks, RecordPosition, ShardSpans, StreamShard, lowest, spans
from processors.spark.pipeline import Batch, Pipeline, PipelineError, PipelineFailed
from processors.spark.session.handover import Handed
from processors.spark.settings import SparkSettings
from processors.spark.sink_port import (
    Blameless,
    DataRefused,
    Fenced,
    JobFailed,
    RetiringSink,
    Sink,
    SinkError,
    SinkRefused,
)
from processors.spark.spark_errors import first_line
from properties.spark import Format, OnPoison

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

log = logging.getLogger("mld.spark")

FOR_EVER = 1 << 60
PIPELINE = "(pipeline)"
"""Stands for a sink where there is none: what a pipeline writes by itself; no sink can be called so."""
POISON_IN_A_ROW_MAX = 20
"""So many records in a row that fail each on its own are no poison: the pipeline does not work."""
NEIGHBOURS_MAX = 8
"""Of a record that fails alone: whether the pipeline works for one of them, right now, says who is to blame."""
KEPT_BYTES_MAX = 1 << 20
"""A longer record is not kept as one that went well."""


class Frames(Protocol):
    """The frames of one session: `session.handover.Handover`, or its twin in memory."""

    @property
    def reads_files(self) -> bool: ...
    def of_file(self, path: Path) -> Handed: ...
    def of_lines(self, texts: Iterable[bytes]) -> Handed: ...
    def compute(self, frame: DataFrame) -> None: ...


class Engine:
    """Sinks and pipeline over one session. `start` and `run` are called on one thread, `stop` from any."""

    def __init__(
        self,
        settings: SparkSettings,
        handover: Frames,
        health: HealthCheck,
        pipeline: Pipeline,
        sinks: Sequence[Sink],
        dead_letter: Sink | None,
        spool: Spool,
    ) -> None:
        self._settings = settings
        self._handover = handover
        self._health = health
        self._pipeline = pipeline
        self._sinks = tuple(sinks)
        self._dead = dead_letter
        self._spool = spool
        self._marks: dict[str, HighWaterMarks] = {}
        self._repeats = Repeats(spool)
        self._own: dict[StreamShard, RecordPosition] = {}  # what a pipeline without sinks has written by itself
        self._patience = Patience(settings.retry_backoff_s, health)
        self._ended: deque[StreamShard] = deque()
        self._went_well: bytes | None = None
        """A record, as a line, of the last batch that was published."""
        self._number = 0
        self._files = 0
        self._figures = BatchFigures()

    def start(self) -> None:
        """Open all sinks. Raises SinkError."""
        self._open()

    def stop(self) -> None:
        """Wake a wait between attempts; it ends in Stopped."""
        self._patience.stop()

    def mark_of(self, shard: StreamShard) -> RecordPosition | None:
        """What every sink holds of a shard."""
        every = [self._marks[sink.name] for sink in self._all()] or [self._own]
        return lowest(every, shard)

    def ended(self, shard: StreamShard) -> None:
        """All of the shard is in every sink, and nothing of it is new again; called on any thread."""
        self._ended.append(shard)

    def _retire(self) -> None:
        """Tell the sinks which shards have ended, each with what that sink holds of it."""
        while self._ended:
            shard = self._ended.popleft()
            for sink in self._all():
                mark = self._marks[sink.name].get(shard)
                if mark is not None and isinstance(sink, RetiringSink):
                    sink.retire({shard: mark})

    def run(self, batch: MicroBatch, file: Path | None) -> BatchOutcome:
        """Run a batch to its end. Raises SessionGone and Stopped. `file` holds exactly the records of the batch."""
        self._retire()
        self._number += 1
        self._figures = BatchFigures()
        self._repeats.begin()
        outcome = self._run(batch, file) if batch.slices else BatchOutcome({}, self._figures)
        every = {sink.name: self._marks[sink.name] for sink in self._sinks} or {PIPELINE: self._own}
        self._figures.dropped = self._repeats.counts(batch, every, outcome.failed)
        return outcome

    def _run(self, batch: MicroBatch, file: Path | None) -> BatchOutcome:
        source = source_of(batch, self._spool, file)
        try:
            self._until_done(source, self._settings.attempts_max)
            if file is not None:
                with file.open("rb") as lines:
                    self._keep(lines.readline(KEPT_BYTES_MAX))
            return BatchOutcome({}, self._figures)
        except (SinkRefused, PipelineError) as error:
            return BatchOutcome(dict.fromkeys(batch.ends, str(error)), self._figures)
        except (JobFailed, PipelineFailed) as error:
            log.warning("batch %d fails again and again, searching for the record: %s", self._number, error)
            self._health.probe()
            if isinstance(error, PipelineFailed) and self._fails_without_records():
                return BatchOutcome(dict.fromkeys(batch.ends, f"{error}; correct the pipeline"), self._figures)
            if isinstance(error, JobFailed) and not isinstance(error, DataRefused) and self._computes(source):
                log.error("%s; the batch can be computed, so the sink is waited for", error)
                return self._wait_for_the_sink(source, batch)
            return BatchOutcome(self._search(source.load()), self._figures)

    def _wait_for_the_sink(self, source: BatchSource, batch: MicroBatch) -> BatchOutcome:
        try:
            self._until_done(source, FOR_EVER)
        except (SinkRefused, PipelineError) as error:
            return BatchOutcome(dict.fromkeys(batch.ends, str(error)), self._figures)
        return BatchOutcome({}, self._figures)

    # --- attempts ----------------------------------------------------------------------------------------------------

    def _until_done(self, source: BatchSource, attempts_max: int) -> None:
        failures = fenced = waits = 0
        while True:
            try:
                self._figures.attempts += 1
                self._attempt(source, failures + 1)
                return
            except Fenced as error:
                fenced += 1
                bound_fences(error, fenced)
                log.info("%s", error)
            except (SinkRefused, PipelineError):
                raise
            except (JobFailed, PipelineFailed) as error:
                self._patience.check()
                self._figures.failures += 1
                failures += 1
                if failures >= attempts_max:
                    self._open_patiently()
                    raise
                log.warning("attempt %d of %d: %s", failures, attempts_max, error)
                self._patience.pause(failures)
            except (SinkError, SpoolError) as error:
                waits += 1
                self._patience.wait(error, waits)
            except Exception as error:
                self._patience.check()
                raise SinkRefused(f"{type(error).__name__}: {first_line(error)}") from error
            self._open_patiently()

    def _attempt(self, source: BatchSource, attempt: int) -> None:
        groups = self._groups(source.ends) if self._sinks else [(spans(source.ends, self._own), [])]
        looked_at = False
        for batch, sinks in groups:
            clean = self._publish(source, batch, sinks, attempt) if batch else False
            looked_at |= clean and source.is_within(batch)
        if self._dead is not None and self._settings.format is not Format.BINARY and not looked_at:
            self._publish_malformed(source)

    def _groups(self, ends: HighWaterMarks) -> list[tuple[ShardSpans, list[Sink]]]:
        """Sinks that miss the same records, with what they miss."""
        groups: list[tuple[ShardSpans, list[Sink]]] = []
        for sink in self._sinks:
            missing = spans(ends, self._marks[sink.name])
            mine = next((sinks for batch, sinks in groups if batch == missing), None)
            if mine is not None:
                mine.append(sink)
            elif missing:
                groups.append((missing, [sink]))
        return groups

    def _publish(self, source: BatchSource, batch: ShardSpans, sinks: Iterable[Sink], attempt: int) -> bool:
        """One job for each sink; whether it is certain that no record is malformed."""
        with self._handed(source, batch) as (handed, count):
            frames = self._frames(handed.records, batch, count, attempt)
            for sink in sinks:
                self._into(sink, frames[sink.name], batch)
            self._repeats.published(PIPELINE, batch)
            self._own.update({shard: span.upto for shard, span in batch.items()})
            return handed.malformed is None or self._counted(handed, count)

    def _counted(self, handed: Handed, count: int) -> bool:
        """Whether the jobs have seen all records and found none malformed; a pipeline may have stopped early."""
        seen, malformed = handed.counts() or (0, 0)
        if malformed and self._dead is None:
            self._figures.malformed += malformed
            log.warning("%d records cannot be decoded; their payload is null (key mld.spark.deadLetter)", malformed)
        return seen == count and malformed == 0

    def _publish_malformed(self, source: BatchSource) -> None:
        assert self._dead is not None
        missing = spans(source.ends, self._marks[self._dead.name])
        if not missing:
            return
        with self._handed(source, missing) as (handed, _):
            rows = self._into(self._dead, handed.malformed() if handed.malformed else None, missing)
        if rows:
            self._figures.malformed += rows
            log.warning("%d records cannot be decoded and are in the dead letter %s", rows, self._settings.dead_letter)

    def _into(self, sink: Sink, frame: DataFrame | None, batch: ShardSpans) -> int:
        started = time.monotonic()
        published = sink.publish(frame, batch, f"{self._settings.application}-{self._number}")
        self._marks[sink.name] = published.marks
        self._repeats.published(sink.name, batch)
        self._figures.publish_s += time.monotonic() - started
        self._figures.jobs += frame is not None
        self._figures.rows += published.rows or 0
        return published.rows or 0

    def _frames(
        self, records: DataFrame, batch: ShardSpans, count: int, attempt: int
    ) -> Mapping[str, DataFrame | None]:
        started = time.monotonic()
        value = Batch(f"{self._number}", dict(batch), count, attempt, int(time.time() * 1000))
        frames = self._pipeline.frames(records, value)
        self._figures.pipeline_s += time.monotonic() - started
        return frames

    # --- frames ------------------------------------------------------------------------------------------------------

    @contextmanager
    def _handed(self, source: BatchSource, batch: ShardSpans) -> Iterator[tuple[Handed, int]]:
        """Frames of what `batch` spans, for as long as they are used, and how many records that are."""
        started = time.monotonic()
        path, temporary, count = source.file, None, source.count
        rows: Rows | None = None
        if path is None or not source.is_within(batch):
            rows = source.part(batch)
            count = sum(map(len, rows.values()))
        if not self._handover.reads_files:
            every = rows if rows is not None else source.load()
            handed = self._handover.of_lines(line[:-1] for shard in sorted(every) for _, line in every[shard])
        else:
            if rows is not None:
                self._files += 1
                path = temporary = self._spool.write_rows(f"part-{self._files:08d}", [rows[s] for s in sorted(rows)])
            assert path is not None
            handed = self._handover.of_file(path)
        self._figures.handover_s += time.monotonic() - started
        try:
            yield handed, count
        finally:
            if temporary is not None:
                temporary.unlink(missing_ok=True)

    # --- the search for a record that fails --------------------------------------------------------------------------

    def _search(self, rows: Rows) -> dict[StreamShard, str]:
        """Commit all that can be; the shards that have to stop, with the reason."""
        failed: dict[StreamShard, str] = {}
        for shard in sorted(rows):
            reason = self._search_shard(shard, rows[shard])
            if reason is not None:
                failed[shard] = reason
        return failed

    def _computes(self, source: BatchSource) -> bool:
        """Whether the frames can be computed when nobody writes them: then no record is to blame, but a sink."""
        try:
            for batch, sinks in self._groups(source.ends):
                with self._handed(source, batch) as (handed, count):
                    frames = self._frames(handed.records, batch, count, 1)
                    for sink in sinks:
                        if (frame := frames[sink.name]) is not None:
                            self._handover.compute(frame)
        except Exception as error:
            log.debug("the batch cannot be computed: %s", error)
            return False
        return True

    def _fails_without_records(self) -> bool:
        """Whether the pipeline raises its exception over no records at all: then no record is to blame."""
        path: Path | None = None
        try:
            if self._handover.reads_files:
                path = self._spool.write_rows("empty", [])
                records = self._handover.of_file(path).records
            else:
                records = self._handover.of_lines([]).records
            self._pipeline.frames(records, Batch(f"{self._number}", {}, 0, 1, int(time.time() * 1000)))
        except (PipelineFailed, PipelineError):
            return True
        finally:
            if path is not None:
                path.unlink(missing_ok=True)
        return False

    def _search_shard(self, shard: StreamShard, rows: Sequence[Row]) -> str | None:
        waiting = [rows]
        in_a_row = 0
        while waiting:
            part = waiting.pop()
            source = source_of_rows(shard, part)
            try:
                self._until_done(source, self._settings.attempts_max if len(part) == 1 else 1)
                self._keep(part[-1][1])
                in_a_row = 0
            except (SinkRefused, PipelineError) as error:
                return str(error)
            except (JobFailed, PipelineFailed) as error:
                if len(part) > 1:
                    middle = len(part) // 2
                    waiting += [part[middle:], part[:middle]]
                    continue
                in_a_row += 1
                at = part[0][0].encode()
                if self._settings.on_poison is OnPoison.STOP:
                    remedy = "correct the pipeline, or set mld.spark.deadLetter"
                    return f"the record {at} of {shard.label} fails: {error}; {remedy}"
                if in_a_row > POISON_IN_A_ROW_MAX:
                    return (
                        f"{in_a_row} records of {shard.label} in a row fail, up to {at}: {error}; correct the pipeline"
                    )
                if (why := self._no_evidence(error, part[0], rows)) is not None:
                    return f"the record {at} of {shard.label} fails, {why}: {error}; correct the pipeline"
                self._bury(source, str(error))
                log.error("the record %s of %s fails and is in the dead letter: %s", at, shard.label, error)
        return None

    def _no_evidence(self, error: Exception, record: Row, rows: Sequence[Row]) -> str | None:
        """Why it may not be the record that is to blame; None if the pipeline works for another one right after.

        A pipeline that writes by itself is not run for this; there any batch that went well is the evidence."""
        if isinstance(error, Blameless):
            return "and no record can cause that"
        if not self._sinks and self._went_well is not None:
            return None
        neighbours = [line for position, line in rows if position != record[0]]
        others = [*([self._went_well] if self._went_well else []), *neighbours[:NEIGHBOURS_MAX]]
        if not others or not self._sinks:
            return "and there is no other one yet to tell whether it is the record or the pipeline"
        if any(self._works_for(line) for line in others):
            return None
        return f"and so do the {len(others)} others that were tried"

    def _works_for(self, line: bytes) -> bool:
        """Whether a record that is not malformed can be computed."""
        path: Path | None = None
        try:
            if self._handover.reads_files:
                path = self._spool.write_rows("another", [[(RecordPosition(0), line)]])
                handed = self._handover.of_file(path)
            else:
                handed = self._handover.of_lines([line[:-1]])
            frames = self._frames(handed.records, {}, 1, 1)
            for frame in frames.values():
                if frame is not None:
                    self._handover.compute(frame)
            return (handed.counts() or (1, 0))[1] == 0
        except Exception as error:  # whatever it is, it is no evidence
            log.debug("another record fails as well: %s", error)
            return False
        finally:
            if path is not None:
                path.unlink(missing_ok=True)

    def _keep(self, line: bytes) -> None:
        if line.endswith(b"\n") and len(line) <= KEPT_BYTES_MAX:
            self._went_well = line

    def _bury(self, source: BatchSource, reason: str) -> None:
        """One record into the dead letter, and past it in the sinks."""
        assert self._dead is not None
        missing = spans(source.ends, self._marks[self._dead.name])
        if missing:
            with self._handed(source, missing) as (handed, _):
                self._into(self._dead, handed.because(self._settings.fit(reason)), missing)
        for batch, sinks in self._groups(source.ends):
            for sink in sinks:
                self._into(sink, None, batch)
        self._repeats.published(PIPELINE, spans(source.ends, self._own))
        self._own.update(source.ends)
        self._figures.poisoned += 1

    # --- state -------------------------------------------------------------------------------------------------------

    def _all(self) -> list[Sink]:
        return [*self._sinks, *([self._dead] if self._dead is not None else [])]

    def _open(self) -> None:
        for sink in self._all():
            self._marks[sink.name] = sink.open()

    def _open_patiently(self) -> None:
        until_published(self._open, self._patience.wait)
