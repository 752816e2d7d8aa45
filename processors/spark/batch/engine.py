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
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from processors.spark.batch import record_lines
from processors.spark.batch.micro_batch import MicroBatch, Row, by_shard, halves, piece_of
from processors.spark.batch.outcome import BatchFigures, BatchOutcome
from processors.spark.batch.repeats import Repeats
from processors.spark.batch.spool import Spool, SpoolError
from processors.spark.high_water_marks import HighWaterMarks, RecordPosition, ShardSpans, StreamShard, lowest, spans
from processors.spark.pipeline import Batch, Pipeline, PipelineError, PipelineFailed
from processors.spark.session.handover import Handed, SchemaRefused, as_text
from processors.spark.settings import SparkSettings
from processors.spark.sink_port import Fenced, JobFailed, Sink, SinkError, SinkRefused
from processors.spark.spark_errors import first_line
from properties.spark import Format, OnPoison

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

log = logging.getLogger("mld.spark")

BACKOFF_MAX_S = 30.0
"""Longest pause between attempts at a sink that cannot take anything now."""
FOR_EVER = 1 << 60
FENCED_MAX = 100
"""Times in a row that others may move our shards under one batch; more is a fault, not a fleet."""
PIPELINE = "(pipeline)"
"""Stands for a sink where there is none: what a pipeline writes by itself; no sink can be called so."""
POISON_IN_A_ROW_MAX = 20
"""So many records in a row that fail each on its own are no poison: the pipeline does not work."""

Rows = Mapping[StreamShard, Sequence[Row]]


class Stopped(Exception):
    """The host ends; the batch is given up where it is."""


class Frames(Protocol):
    """`handover.Handover`, or its twin in memory."""

    @property
    def reads_files(self) -> bool: ...
    def of_file(self, path: Path) -> Handed: ...
    def of_lines(self, texts: Iterable[bytes]) -> Handed: ...
    def compute(self, frame: DataFrame) -> None: ...


class HealthCheck(Protocol):
    """`session.Health`; both raise SessionGone."""

    def check(self) -> None: ...
    def probe(self) -> None: ...


@dataclass(slots=True)
class BatchSource:
    """What a batch, or a part of it, holds. `file` has exactly these records, if there is such a file."""

    ends: HighWaterMarks
    firsts: HighWaterMarks
    count: int
    load: Callable[[], Rows]
    file: Path | None = None


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
        *,
        now: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._handover = handover
        self._health = health
        self._pipeline = pipeline
        self._sinks = tuple(sinks)
        self._dead = dead_letter
        self._spool = spool
        self._now = now
        self._monotonic = monotonic
        self._marks: dict[str, HighWaterMarks] = {}
        self._repeats = Repeats(spool)
        self._own: dict[
            StreamShard, RecordPosition
        ] = {}  # where there are no sinks: what the pipeline has written by itself
        self._stopping = threading.Event()
        self._number = 0
        self._files = 0
        self._figures = BatchFigures()

    def start(self) -> None:
        """Open all sinks. Raises SinkError."""
        self._open()

    def stop(self) -> None:
        """Wake a wait between attempts; it ends in Stopped."""
        self._stopping.set()

    def mark_of(self, shard: StreamShard) -> RecordPosition | None:
        """What every sink holds of a shard."""
        every = [self._marks[sink.name] for sink in self._all()] or [self._own]
        return lowest(every, shard)

    def run(self, batch: MicroBatch, file: Path | None) -> BatchOutcome:
        """Run a batch to its end. Raises SessionGone and Stopped. `file` holds exactly the records of the batch."""
        self._number += 1
        self._figures = BatchFigures()
        self._repeats.begin()
        outcome = self._run(batch, file) if batch.slices else BatchOutcome({}, self._figures)
        every = {sink.name: self._marks[sink.name] for sink in self._sinks} or {PIPELINE: self._own}
        self._figures.dropped = self._repeats.counts(batch, every, outcome.failed)
        return outcome

    def _run(self, batch: MicroBatch, file: Path | None) -> BatchOutcome:
        source = self._source_of(batch, file)
        try:
            self._until_done(source, self._settings.attempts_max)
            return BatchOutcome({}, self._figures)
        except (SinkRefused, PipelineError, SchemaRefused) as error:
            return BatchOutcome(dict.fromkeys(batch.ends, str(error)), self._figures)
        except (JobFailed, PipelineFailed) as error:
            log.warning("batch %d fails again and again, searching for the record: %s", self._number, error)
            self._health.probe()
            if isinstance(error, PipelineFailed) and self._fails_without_records():
                return BatchOutcome(dict.fromkeys(batch.ends, f"{error}; correct the pipeline"), self._figures)
            if isinstance(error, JobFailed) and self._computes(source):
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
                if fenced > FENCED_MAX:
                    raise SinkRefused(f"{error}; this has happened {fenced} times in a row") from error
                log.info("%s", error)
            except SinkRefused:
                raise
            except (JobFailed, PipelineFailed) as error:
                self._check_session()
                self._figures.failures += 1
                failures += 1
                if failures >= attempts_max:
                    self._open_patiently()
                    raise
                log.warning("attempt %d of %d: %s", failures, attempts_max, error)
                self._pause(failures)
            except (SinkError, SpoolError) as error:
                self._check_session()
                waits += 1
                log.error("%s; trying again", error)
                self._pause(waits)
            except (PipelineError, SchemaRefused):
                raise
            except Exception as error:
                self._check_session()
                raise SinkRefused(f"{type(error).__name__}: {first_line(error)}") from error
            self._open_patiently()

    def _attempt(self, source: BatchSource, attempt: int) -> None:
        groups = self._groups(source.ends) if self._sinks else [(spans(source.ends, self._own), [])]
        looked_at = False
        for batch, sinks in groups:
            clean = self._publish(source, batch, sinks, attempt) if batch else False
            looked_at |= clean and all(self._holds_all(source, shard, batch) for shard in source.ends)
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
        with self._frame(source, batch) as handed_over:
            handed, count = handed_over
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
        with self._frame(source, missing) as (handed, _):
            rows = self._into(self._dead, handed.malformed() if handed.malformed else None, missing)
        if rows:
            self._figures.malformed += rows
            log.warning("%d records cannot be decoded and are in the dead letter %s", rows, self._settings.dead_letter)

    def _into(self, sink: Sink, frame: DataFrame | None, batch: ShardSpans) -> int:
        started = self._monotonic()
        published = sink.publish(frame, batch, f"{self._settings.application}-{self._number}")
        self._marks[sink.name] = published.marks
        self._repeats.published(sink.name, batch)
        self._figures.publish_s += self._monotonic() - started
        self._figures.jobs += frame is not None
        self._figures.rows += published.rows or 0
        return published.rows or 0

    def _frames(
        self, records: DataFrame, batch: ShardSpans, count: int, attempt: int
    ) -> Mapping[str, DataFrame | None]:
        started = self._monotonic()
        value = Batch(f"{self._number}", dict(batch), count, attempt, int(self._now() * 1000))
        frames = self._pipeline.frames(records, value)
        self._figures.pipeline_s += self._monotonic() - started
        return frames

    # --- frames ------------------------------------------------------------------------------------------------------

    def _frame(self, source: BatchSource, batch: ShardSpans) -> _Frame:
        return _Frame(self, source, batch)

    def hand_over(self, source: BatchSource, batch: ShardSpans) -> tuple[Handed, int, Path | None]:
        """Frames of what `batch` spans, how many records that are, and a file to remove afterwards."""
        started = self._monotonic()
        path, temporary, count = source.file, None, source.count
        rows: Rows | None = None
        if path is None or not all(self._holds_all(source, shard, batch) for shard in source.ends):
            after = {shard: span.after for shard, span in batch.items() if span.after is not None}
            loaded = source.load()
            piece = piece_of({shard: loaded[shard] for shard in batch}, after)
            rows, count = piece.rows, piece.count
        if not self._handover.reads_files:
            every = rows if rows is not None else source.load()
            handed = self._handover.of_lines(text for shard in sorted(every) for text in as_text(every[shard]))
        else:
            if rows is not None:
                self._files += 1
                path = temporary = self._spool.write_rows(f"part-{self._files:08d}", [rows[s] for s in sorted(rows)])
            assert path is not None
            handed = self._handover.of_file(path)
        self._figures.handover_s += self._monotonic() - started
        return handed, count, temporary

    def done_with(self, path: Path | None) -> None:
        if path is not None:
            self._spool.remove(path)

    @staticmethod
    def _holds_all(source: BatchSource, shard: StreamShard, batch: ShardSpans) -> bool:
        """Whether a span takes all that the source has of a shard."""
        span = batch.get(shard)
        return span is not None and (span.after is None or span.after < source.firsts[shard])

    def _source_of(self, batch: MicroBatch, file: Path | None) -> BatchSource:
        def load() -> Rows:
            rows: dict[StreamShard, list[Row]] = {}
            data = self._spool.read(piece.offer for piece in batch.slices)
            for piece, records in zip(batch.slices, data, strict=True):
                mine = [row for row in record_lines.rows(records) if piece.after is None or row[0] > piece.after]
                rows.setdefault(piece.offer.shard, []).extend(mine)
            return rows

        firsts: dict[StreamShard, RecordPosition] = {}
        for piece in batch.slices:
            firsts.setdefault(piece.offer.shard, piece.offer.first if piece.after is None else piece.after)
        return BatchSource(batch.ends, firsts, batch.records, load, file if batch.whole else None)

    # --- the search for a record that fails --------------------------------------------------------------------------

    def _search(self, rows: Rows) -> dict[StreamShard, str]:
        """Commit all that can be; the shards that have to stop, with the reason."""
        failed: dict[StreamShard, str] = {}
        for mine in by_shard(rows):
            ((shard, shard_rows),) = mine.items()
            reason = self._search_shard(shard, shard_rows)
            if reason is not None:
                failed[shard] = reason
        return failed

    def _computes(self, source: BatchSource) -> bool:
        """Whether the frames can be computed when nobody writes them: then no record is to blame, but a sink."""
        try:
            for batch, sinks in self._groups(source.ends):
                with self._frame(source, batch) as (handed, count):
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
            self._pipeline.frames(records, Batch(f"{self._number}", {}, 0, 1, int(self._now() * 1000)))
        except (PipelineFailed, PipelineError):
            return True
        finally:
            self.done_with(path)
        return False

    def _search_shard(self, shard: StreamShard, rows: Sequence[Row]) -> str | None:
        waiting = [rows]
        in_a_row = 0
        while waiting:
            part = waiting.pop()
            source = _source_of_rows(shard, part)
            try:
                self._until_done(source, self._settings.attempts_max if len(part) == 1 else 1)
                in_a_row = 0
            except (SinkRefused, PipelineError) as error:
                return str(error)
            except (JobFailed, PipelineFailed) as error:
                if len(part) > 1:
                    first, second = halves(part)
                    waiting += [second, first]
                    continue
                in_a_row += 1
                at = part[0][0].encode()
                if self._settings.on_poison is OnPoison.STOP:
                    remedy = "correct the pipeline, or set mld.spark.deadLetter"
                    return f"the record {at} of {shard.shard} fails: {error}; {remedy}"
                if in_a_row > POISON_IN_A_ROW_MAX:
                    return (
                        f"{in_a_row} records of {shard.shard} in a row fail, up to {at}: {error}; correct the pipeline"
                    )
                self._bury(source, str(error))
                log.error("the record %s of %s fails and is in the dead letter: %s", at, shard.shard, error)
        return None

    def _bury(self, source: BatchSource, reason: str) -> None:
        """One record into the dead letter, and past it in the sinks."""
        assert self._dead is not None
        missing = spans(source.ends, self._marks[self._dead.name])
        if missing:
            with self._frame(source, missing) as (handed, _):
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
        waits = 0
        while True:
            try:
                self._open()
                return
            except SinkRefused:
                raise
            except SinkError as error:
                self._check_session()
                waits += 1
                log.error("%s; trying again", error)
                self._pause(waits)

    def _pause(self, failures: int) -> None:
        base = max(self._settings.retry_backoff_s, 0.01)
        if self._stopping.wait(min(BACKOFF_MAX_S, base * 2 ** min(failures - 1, 20))):
            raise Stopped

    def _check_session(self) -> None:
        """Raises SessionGone, or Stopped if we are asked to end: then no attempt can help."""
        if self._stopping.is_set():
            raise Stopped
        self._health.check()


class _Frame:
    """The frames of a hand-over for as long as they are used."""

    def __init__(self, engine: Engine, source: BatchSource, batch: ShardSpans) -> None:
        self._engine = engine
        self._source = source
        self._batch = batch
        self._temporary: Path | None = None

    def __enter__(self) -> tuple[Handed, int]:
        handed, count, self._temporary = self._engine.hand_over(self._source, self._batch)
        return handed, count

    def __exit__(self, *_: object) -> None:
        self._engine.done_with(self._temporary)


def _source_of_rows(shard: StreamShard, rows: Sequence[Row]) -> BatchSource:
    return BatchSource({shard: rows[-1][0]}, {shard: rows[0][0]}, len(rows), lambda: {shard: rows})
