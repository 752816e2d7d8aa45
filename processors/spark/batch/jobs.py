"""Runs the jobs of a part of a batch: hands the records to Spark, calls the pipeline, and publishes its frames.

Attempts are repeated here until one succeeds, or until as many as allowed have failed (`engine` lists the cases).
`poison` decides which record is to blame. The dead letter is a sink for records that cannot be decoded or processed. A
mark is the position up to which the records of a shard are in a sink. A span is a part of a shard, between two
positions.

A job counts the malformed records, which it could not decode, but does not list them, because such a list could be of
any length. Instead it sets one of 32,768 bits for each such record, chosen by a checksum of the record's position
(`handover.BIT`). Then only records whose bit is set are decoded a second time, for the dead letter.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar
from uuid import uuid4

from mld.processors.spark.batch.attempts import Patience, bound_fences
from mld.processors.spark.batch.batch_source import BatchSource
from mld.processors.spark.batch.destinations import Destinations
from mld.processors.spark.batch.micro_batch import Offer
from mld.processors.spark.batch.outcome import BatchFigures
from mld.processors.spark.batch.page_file import SpoolError
from mld.processors.spark.batch.record_columns import SparkRecord
from mld.processors.spark.batch.spool import Spool
from mld.processors.spark.high_water_marks import HighWaterMarks, ShardSpans, fresh, spans
from mld.processors.spark.pipeline import Batch, Pipeline, PipelineError, PipelineFailed
from mld.processors.spark.positions import RecordPosition, ShardSpan, StreamShard
from mld.processors.spark.sentences import first_line
from mld.processors.spark.session.failing_rows import PartitionFailure
from mld.processors.spark.session.handover import BITS, Counted, Handed, Slices
from mld.processors.spark.session.payload_faults import MalformedShare, StrayNames
from mld.processors.spark.session_errors import SessionGone
from mld.processors.spark.settings import SparkSettings
from mld.processors.spark.sink_port import (
    DataRefused,
    Fenced,
    InputGone,
    JobFailed,
    Sink,
    SinkError,
    SinkRefused,
    ValueFailed,
)
from mld.properties.spark_values import Format

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

log = logging.getLogger("mld.spark")
SLICES_FIRST, SLICES_NEXT, SLICES_MAX = 4, 64, 1_000
"""The search for failing records runs jobs over slices, one task for each slice. SLICES_FIRST is the number of slices
in the first job, SLICES_NEXT the least number in the second, SLICES_MAX the most in any. The first job has few, because
it usually reports the failing rows, and a Python task costs more than its rows. If it does not report them, the next
job has smaller slices.
"""
SUSPECTS_PART = 4
"""If more than one in this many records is malformed, all records are decoded a second time, because to leave some out
would save nothing.
"""
JOINED_FROM, JOINED_RECORDS, JOINED_BYTES_MAX = 8, 300, 8 << 20
"""Small pages are joined into one: to open a page costs Spark as much as it costs us to rewrite JOINED_RECORDS records.
They are joined if all together have fewer than JOINED_RECORDS records for each page beyond the first JOINED_FROM, and
less than JOINED_BYTES_MAX bytes, because our memory has to hold them. Only a first attempt joins pages: if joining
fails on a full disk, the next attempt takes the pages as they are.
"""
SPLIT = 4
"""Into how many slices the next job cuts a slice that has failed without a report of its failing rows."""
PIPELINE = "(pipeline)"
"""Takes the place of a sink's name if the pipeline writes by itself. No sink can have this name."""
Kind = TypeVar("Kind")
SinkFailure = tuple[Sink, SinkError]
"""A sink, and the error that it raised."""


class Frames(Protocol):
    """Makes the frames of one session: `session.handover.Handover`, or its twin in memory."""

    def of_pages(self, pages: Sequence[str], slices: Slices | None = None, suspects: bytes | None = None) -> Handed:
        """Make frames of pages, which are given by their URIs.

        With `slices`, cut the one page into slices, each a partition, so that `failing` can search them for failing
        rows. `suspects` is a bitmap: take only records whose bit is set."""

    def compute(self, frame: DataFrame) -> None: ...
    def reporting_functions(self) -> AbstractContextManager[None]:
        """Make the Python functions of frames that are made within this block report rows over which they raise.

        `failing` returns these reports."""

    def failing(self, frame: DataFrame, count: int) -> Sequence[PartitionFailure]:
        """Run a job over a frame of `count` slices, and return the failures, the first one first. Raises ValueError if
        they cannot be found."""

    def shared(self, records: DataFrame, frames: Sequence[DataFrame]) -> AbstractContextManager[None]:
        """Compute the common part of several frames only once, within this block."""


class _FailingSlice(NamedTuple):
    """A slice that failed: the indexes of its records, the index of the record that was reported as failing (None if
    none was), and the text of the exception."""

    records: tuple[int, ...]
    reported: int | None
    text: str


def _reasons(alone: Sequence[_FailingSlice]) -> dict[int, str]:
    """Return the reason for each failing record, by its index, in the order of the records. Each slice has one record;
    if several jobs have failed over a record, the first reason counts."""
    return dict(sorted({piece.records[0]: piece.text for piece in reversed(alone)}.items()))


def _are_small(pages: Sequence[Offer]) -> bool:
    """Return whether these pages have so few records that one joined page is cheaper for Spark."""
    records_max = JOINED_RECORDS * (len(pages) - JOINED_FROM)
    return sum(page.records for page in pages) < records_max and sum(page.size for page in pages) < JOINED_BYTES_MAX


def _first(errors: Sequence[Exception], kind: type[Kind]) -> Kind | None:
    """Return the first error of this kind; None if there is none."""
    return next((error for error in errors if isinstance(error, kind)), None)


class Jobs:
    """The jobs of one engine."""

    def __init__(
        self,
        settings: SparkSettings,
        frames: Frames,
        pipeline: Pipeline,
        destinations: Destinations,
        spool: Spool,
        patience: Patience,
    ) -> None:
        self._settings = settings
        self._handover = frames
        self._pipeline = pipeline
        self._destinations = destinations
        self.spool = spool
        self._patience = patience
        self.own: dict[StreamShard, RecordPosition] = {}
        """For a pipeline without sinks, which writes by itself: by shard, the position up to which it has run."""
        self.figures = BatchFigures()
        self.number = 0
        self._run = uuid4().hex[:12]
        """Part of the id of each batch. It makes the id unique among all hosts and all their starts."""
        self.took_rows: set[str] = set()
        """Sinks that have taken rows since `poison` last cleared this."""
        self._looked: dict[StreamShard, RecordPosition] = {}
        """By shard, the position up to which no malformed record is missing in the dead letter, as a job has shown. The
        dead letter's own mark may be lower or higher."""
        self._suspects: tuple[frozenset[StreamShard], bytes] | None = None
        """The shards all of whose malformed records a job has seen, and the bitmap with the bits of these records."""
        self._stray_names = StrayNames()
        self._malformed_share = MalformedShare(settings.malformed_share_max)
        self._counted: Counted | None = None
        """Counts of this attempt's jobs, if they have seen all of its records."""

    @property
    def _batch_id(self) -> str:
        return f"{self._run}-{self.number}"

    def begin(self) -> None:
        """Begin the next batch."""
        self.number += 1
        self.figures = BatchFigures()

    # --- attempts ----------------------------------------------------------------------------------------------------

    def until_done(self, source: BatchSource, attempts_max: int) -> None:
        """Run attempts until every sink holds the whole source, or `attempts_max` attempts have failed. After a failure
        over a value there is no further attempt. Raises SinkRefused, PipelineError, JobFailed and PipelineFailed; also
        SessionGone and Stopped, after which the host ends."""
        failures = fenced = waits = 0
        while True:
            try:
                self.figures.attempts += 1
                sink_failures = self.attempt(source, failures + 1)
                errors: list[Exception] = [error for _, error in sink_failures]
            except (PipelineFailed, SpoolError) as error:
                sink_failures, errors = [], [error]
            except (PipelineError, SessionGone):
                raise
            except Exception as error:
                self._patience.check()
                raise SinkRefused(f"{type(error).__name__}: {first_line(error)}") from error
            if not errors:
                return
            if (refused := _first(errors, SinkRefused)) is not None:
                raise refused
            if (moved := _first(errors, Fenced)) is not None:
                fenced += 1
                bound_fences(moved, fenced)
                log.info("%s", moved)
            failed = _first(errors, DataRefused) or _first(errors, JobFailed) or _first(errors, PipelineFailed)
            unavailable = next(  # an error of a sink or of the spool itself, whatever the records are
                (error for error in errors if not isinstance(error, (Fenced, JobFailed, PipelineFailed))), None
            )
            if failed is not None:
                self._patience.check()
                self.figures.failures += 1
                failures += 1
                if isinstance(failed, (ValueFailed, DataRefused)):  # the same value would fail again
                    attempts_max = failures
                if failures < attempts_max:
                    log.warning("attempt %d of %d: %s", failures, attempts_max, failed)
                    self._patience.pause(failures)
            if unavailable is not None:  # wait for this sink before a record is blamed: the record may fail there, too
                waits += 1
                self._patience.wait(unavailable, waits)
            if _first(errors, InputGone) is not None:
                self._pipeline.read_again()
            for sink, _ in sink_failures:
                self._destinations.reopen(sink)
            if failed is not None and unavailable is None and failures >= attempts_max:
                if isinstance(failed, DataRefused):
                    refusing = (sink for sink, error in sink_failures if isinstance(error, DataRefused))
                    failed.sinks = frozenset(sink.name for sink in refusing)
                raise failed

    def attempt(self, source: BatchSource, attempt: int) -> list[SinkFailure]:
        """Publish to every sink the records that it lacks. If no sink failed, put malformed records into the dead
        letter. Return the errors of the sinks. Raises PipelineFailed, PipelineError and SpoolError.

        Without sinks the pipeline writes by itself: it is run over the records past `own`."""
        self._suspects = self._counted = None
        failures: list[SinkFailure] = []
        if self._destinations.sinks:
            for batch, sinks in self._destinations.groups(source):
                failures += self._publish(source, batch, sinks, attempt)
        elif batch := spans(source.ends, self.own):
            self._publish(source, batch, [], attempt)
        if self._destinations.dead is not None and self._settings.format is not Format.BINARY and not failures:
            dead = self._destinations.dead
            try:
                self._publish_malformed(source, dead)
            except SinkError as error:
                failures.append((dead, error))
                self._patience.check()
        return failures

    def _publish(
        self, source: BatchSource, batch: ShardSpans, sinks: Sequence[Sink], attempt: int
    ) -> list[SinkFailure]:
        """Call the pipeline once for sinks that lack the same records, and run one job for each of these sinks. A sink
        that must not get these records (`source.only`) only moves its mark. Return the errors of the sinks.
        """
        wanting = [sink for sink in sinks if source.only is None or sink.name in source.only]
        failures: list[SinkFailure] = []
        if sinks and not wanting:
            self.into_each(sinks, {}, batch, failures)
            return failures
        with self.handed(source, batch) as (handed, count):
            frames = self.frames(handed.records, batch, count, attempt)
            wanted = {sink.name: frame for sink in wanting if (frame := frames[sink.name]) is not None}
            with self._handover.shared(handed.records, list(wanted.values())):
                self.into_each(sinks, wanted, batch, failures)
            self.own.update({shard: span.upto for shard, span in batch.items()})
            # The counts are those of a whole job, so at least one sink must not have failed.
            if handed.malformed is not None and len(failures) < max(1, len(sinks)):
                self._take_note(source, batch, handed, count)
        return failures

    def into_each(
        self,
        sinks: Iterable[Sink],
        frames: Mapping[str, DataFrame],
        batch: ShardSpans,
        failures: list[SinkFailure],
    ) -> None:
        """Publish to each sink, and add the errors to `failures`. Raises SessionGone and Stopped."""
        for sink in sinks:
            try:
                self.into(sink, frames.get(sink.name), batch)
            except SinkError as error:
                failures.append((sink, error))
                self._patience.check()

    def into(self, sink: Sink, frame: DataFrame | None, batch: ShardSpans) -> int:
        """Publish a frame to one sink, and return the number of its rows. Raises SinkError."""
        started = time.monotonic()
        published = sink.publish(frame, batch, f"{self._settings.application}-{self._batch_id}")
        self._destinations.marks[sink.name] = published.marks
        self.figures.publish_s += time.monotonic() - started
        self.figures.jobs += frame is not None
        self.figures.rows += published.rows or 0
        if frame is not None and published.rows != 0:  # None: unknown, and taken for some rows
            self.took_rows.add(sink.name)
        return published.rows or 0

    # --- malformed records -------------------------------------------------------------------------------------------

    def _take_note(self, source: BatchSource, batch: ShardSpans, handed: Handed, count: int) -> None:
        """Note how many malformed and stray records the jobs have seen, out of `count` records in the batch.

        Stray records have fields that the schema does not name. If the jobs have seen all records (the pipeline may
        have read only some), also note where malformed records can be: nowhere up to the ends of these shards
        (`_looked`), or, if there are few, only among the records whose bit is set (`_suspects`)."""
        counted = handed.counts()
        if counted is None:
            return
        self.figures.stray += counted.stray
        if self._settings.rescued_column is None and (
            news := self._stray_names.warning(counted.stray, counted.stray_names)
        ):
            log.warning("%s", news)
        if counted.malformed and self._destinations.dead is None:
            self.figures.malformed += counted.malformed
            log.warning(
                "%d records cannot be decoded; their payload is null (key mld.spark.deadLetter)", counted.malformed
            )
        if counted.seen != count:
            return
        self._counted = counted
        covered = frozenset(shard for shard in source.ends if self._covers(source, batch, shard))
        if not counted.malformed:
            self._malformed_share.excess(counted.seen, 0)
            self._looked.update({shard: source.ends[shard] for shard in covered})
        elif counted.bitmap is not None and SUSPECTS_PART * counted.malformed <= min(counted.seen, BITS):
            self._suspects = covered, counted.bitmap

    def _covers(self, source: BatchSource, batch: ShardSpans, shard: StreamShard) -> bool:
        """Return whether the jobs over `batch` have seen all records of the shard that no earlier job has looked at:
        the batch must not begin after the last record that was looked at."""
        after = batch[shard].after if shard in batch else source.ends[shard]  # not in the batch: no record was seen
        return after is None or not fresh(after, self._looked_at(shard))

    def _looked_at(self, shard: StreamShard) -> RecordPosition | None:
        """Return the position up to which no malformed record of a shard is missing in the dead letter; None if this is
        not known for any record of the shard.
        """
        dead = self._destinations.dead
        marks: HighWaterMarks = self._destinations.marks[dead.name] if dead is not None else {}
        known = [mark for mark in (self._looked.get(shard), marks.get(shard)) if mark is not None]
        return max(known, default=None)

    def _publish_malformed(self, source: BatchSource, dead: Sink) -> None:
        """Put the malformed records of the source into the dead letter, except those that are known to be there. If a
        job has seen all these records, only the records whose bit it has set are decoded again. Raises SinkError.
        """
        looked = {shard: mark for shard in source.ends if (mark := self._looked_at(shard)) is not None}
        missing = spans(source.ends, looked)
        if not missing:
            return
        marks = self._destinations.marks[dead.name]
        # `missing` are the records to decode. The commit has to begin at the dead letter's own marks, which may be
        # lower.
        batch = {shard: ShardSpan(marks.get(shard), span.upto) for shard, span in missing.items()}
        shards, bits = self._suspects or ((), None)
        with self.handed(source, missing, bits if missing.keys() <= set(shards) else None) as (handed, _):
            self._check_share(handed)
            count = self.into(dead, handed.malformed() if handed.malformed else None, batch)
        if count:
            self.figures.malformed += count
            log.warning("%d records cannot be decoded and are in the dead letter %s", count, self._settings.dead_letter)

    def _check_share(self, handed: Handed) -> None:
        """Raise SinkRefused if too many records are malformed: if the producers change their schema, the whole stream
        must not go into the dead letter."""
        if self._settings.malformed_share_max >= 1:
            return
        counted = self._counted or handed.look()
        if excess := self._malformed_share.excess(counted.seen, counted.malformed):
            raise SinkRefused(
                f"{excess}: {counted.reason or handed.look().reason}. Correct mld.spark.schema; to bury them, start "
                "once with -D mld.spark.malformedShareMax=1"
            )

    # --- frames ------------------------------------------------------------------------------------------------------

    @contextmanager
    def handed(
        self, source: BatchSource, batch: ShardSpans, suspects: bytes | None = None
    ) -> Iterator[tuple[Handed, int]]:
        """Yield frames of the records in `batch`, and the number of these records. With the bitmap `suspects`, the
        frames have only the records whose bit is set.

        If whole pages have exactly these records, Spark reads the children's pages. Otherwise, or if the pages are
        small, the records are first written into one page. The frames are valid within this block. Raises
        SpoolError."""
        pages = source.pages_of(batch)
        if pages is None or (self.figures.attempts < 2 and _are_small(pages)):
            part = [record for _, rows in sorted(source.part(batch).items()) for _, record in rows]
            with self.handed_records(part, suspects=suspects) as handed:
                yield handed, len(part)
            return
        started = time.monotonic()
        handed = self._handover.of_pages(self.spool.uris(pages), suspects=suspects)
        self.figures.handover_s += time.monotonic() - started
        yield handed, sum(page.records for page in pages)

    @contextmanager
    def handed_records(
        self, records: Sequence[SparkRecord], slices: Slices | None = None, suspects: bytes | None = None
    ) -> Iterator[Handed]:
        """Write these records into a page of their own, and yield frames of it; the page is removed after the block.
        `slices` and `suspects` are as for `Handover.of_pages`. Raises SpoolError.
        """
        started = time.monotonic()
        with self.spool.written(records) as page:
            handed = self._handover.of_pages([page], slices, suspects)
            self.figures.handover_s += time.monotonic() - started
            yield handed

    def frames(self, records: DataFrame, batch: ShardSpans, count: int, attempt: int) -> Mapping[str, DataFrame | None]:
        """Call the pipeline, and return its frames by sink. Raises PipelineFailed and PipelineError."""
        started = time.monotonic()
        value = Batch(self._batch_id, dict(batch), count, attempt, int(time.time() * 1000))
        frames = self._pipeline.frames(records, value)
        self.figures.pipeline_s += time.monotonic() - started
        return frames

    # --- who is to blame ---------------------------------------------------------------------------------------------

    def computes(self, source: BatchSource) -> bool:
        """Return whether all frames for this source can be computed if they are not written. If so, no record fails in
        the pipeline, and a failure of the whole attempt is a sink's."""
        try:
            for batch, sinks in self._destinations.groups(source):
                with self.handed(source, batch) as (handed, count):
                    self._compute(handed, batch, count, sinks)
        except Exception as error:
            self._patience.check()
            log.debug("the batch cannot be computed: %s", error)
            return False
        return True

    def _compute(self, handed: Handed, batch: ShardSpans, count: int, sinks: Sequence[Sink]) -> None:
        """Compute the frames of the pipeline for these sinks without writing them."""
        frames = self.frames(handed.records, batch, count, 1)
        for sink in sinks:
            if (frame := frames[sink.name]) is not None:
                self._handover.compute(frame)

    def failing(self, records: Sequence[SparkRecord], sinks: Sequence[Sink]) -> Mapping[int, str]:
        """Return the indexes of the records that fail when each is computed alone for these sinks, with Spark's reason.

        The records are cut into slices, which one job computes. If each failing slice reports a row, the reported rows
        are computed again, each as a slice of its own, to confirm that they fail. Otherwise the failing slices are cut
        into smaller ones, until each has one record. Return an empty mapping if the records cannot be found, for
        instance because the pipeline combines records."""
        left, slices_max, trusts_reports = list(range(len(records))), SLICES_FIRST, True
        try:
            while True:
                failing = self._failing_slices(records, left, slices_max, sinks)
                if all(len(piece.records) == 1 for piece in failing):
                    return _reasons(failing)
                reported = {piece.reported for piece in failing if piece.reported is not None}
                all_report = all(piece.reported is not None for piece in failing)
                if trusts_reports and all_report and len(reported) <= SLICES_MAX:
                    alone = _reasons(self._failing_slices(records, sorted(reported), SLICES_MAX, sinks))
                    if len(alone) == len(reported):
                        return alone
                    trusts_reports = False  # the pipeline gathers or sorts rows first, so the reports name wrong rows
                suspects = {at for piece in failing for at in piece.records}
                if len(suspects) == len(left) and slices_max != SLICES_FIRST:
                    return {}  # nearly all slices fail, so smaller slices do not narrow it down
                slices_max = min(SLICES_MAX, max(SLICES_NEXT, SPLIT * len({piece.records for piece in failing})))
                left = sorted(suspects)
        except Exception as error:
            self._patience.check()
            log.info("which records fail cannot be told at once: %s", first_line(error))
        return {}

    def _failing_slices(
        self, records: Sequence[SparkRecord], which: Sequence[int], slices_max: int, sinks: Sequence[Sink]
    ) -> list[_FailingSlice]:
        """Run one job for each sink over the records with the indexes `which`, cut into at most `slices_max` slices.
        Return the slices that fail."""
        size = -(-len(which) // slices_max)  # both divisions round up
        slices = Slices(-(-len(which) // size), size)
        found: list[PartitionFailure] = []
        with self.handed_records([records[at] for at in which], slices) as handed, self._handover.reporting_functions():
            frames = self.frames(handed.records, {}, len(which), 1)
            for sink in sinks:
                if (frame := frames[sink.name]) is not None:
                    found += self._handover.failing(frame, slices.number)
        cut = [tuple(which[begin : begin + size]) for begin in range(0, len(which), size)]
        return [
            _FailingSlice(cut[failure.partition], None if failure.row is None else which[failure.row], failure.text)
            for failure in found
        ]

    def fails_without_records(self) -> bool:
        """Return whether the pipeline raises an exception even without records, so that no record is to blame. False
        also if that could not be tried, which is logged.
        """
        try:
            with self.handed_records([]) as handed:
                self.frames(handed.records, {}, 0, 1)
        except (PipelineFailed, PipelineError):
            return True
        except SpoolError as error:
            log.warning("whether the pipeline works without records is not known: %s", error)
        return False

    def works_for(self, records: Sequence[SparkRecord], sinks: Sequence[Sink]) -> bool:
        """Return whether these records can be computed for these sinks, and none of them is malformed. Then the
        pipeline works, which is evidence against another record over which it fails.
        """
        try:
            with self.handed_records(records) as handed:
                self._compute(handed, {}, len(records), sinks)
                counted = handed.counts()
                return counted is None or counted.malformed == 0
        except Exception as error:  # any exception only shows that these records cannot be used as evidence
            self._patience.check()
            log.debug("they cannot be computed: %s", error)
            return False
