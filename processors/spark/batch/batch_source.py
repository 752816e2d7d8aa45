"""`BatchSource`: gives access to the records of a micro-batch or of a part of it, in pages or in memory.

A page is a file with records of one shard, which the shard's child process has offered. A span (`ShardSpan`) is a part
of a shard: the records after one position, up to another one. A mark is the position up to which the records of a shard
are in a sink; a record after the mark is `fresh`, which means that it is not in the sink yet.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from mld.processors.spark.batch.micro_batch import MicroBatch, Offer, Slice
from mld.processors.spark.batch.record_columns import Row
from mld.processors.spark.batch.spool import Spool
from mld.processors.spark.high_water_marks import HighWaterMarks, Preceding, ShardSpans, fresh, gaps
from mld.processors.spark.positions import RecordPosition, ShardSpan, StreamShard

Rows = Mapping[StreamShard, Sequence[Row]]


@dataclass(slots=True)
class BatchSource:
    """The records of a batch, or of a part of it. Spans select some of these records."""

    ends: HighWaterMarks
    """The position of the last record of each shard."""
    each: Callable[[ShardSpans], Iterator[tuple[StreamShard, Row]]]
    """Yields the records of all pages that overlap the spans; the records of each shard in order."""
    pages_of: Callable[[ShardSpans], tuple[Offer, ...] | None] = lambda _: None
    """Returns pages that hold exactly the records in the spans; None if no set of whole pages does."""
    before: HighWaterMarks = field(default_factory=dict)
    """For a part of a batch: by shard, the position of the record right before the part."""
    preceding: Preceding = field(default_factory=dict)
    """The marks that a sink must have before the whole batch, also of parent shards. A sink that lacks one has gone
    back in time (`high_water_marks.gaps`).
    """
    only: frozenset[str] | None = None
    """The sinks that get these records; None means all."""

    def follows(self, marks: HighWaterMarks) -> bool:
        """Return whether a sink with these marks holds all records before this part. If not, the sink must not get the
        part, because its mark would then move past records that it lacks.
        """
        misses_part = any(fresh(position, marks.get(shard)) for shard, position in self.before.items())
        return not misses_part and not gaps(self.preceding, marks)

    def each_of(self, spans: ShardSpans) -> Iterator[tuple[StreamShard, Row]]:
        """Yield exactly the records in the spans; the records of each shard in order."""
        return ((shard, row) for shard, row in self.each(spans) if fresh(row[0], spans[shard].after))

    def part(self, spans: ShardSpans) -> Rows:
        """Return the records in the spans, by shard."""
        found: dict[StreamShard, list[Row]] = {}
        for shard, row in self.each_of(spans):
            found.setdefault(shard, []).append(row)
        return found

    def without(self, left_out: Collection[tuple[StreamShard, RecordPosition]]) -> BatchSource:
        """Return a source without the records `left_out`. Its ends stay the same."""

        def each(spans: ShardSpans) -> Iterator[tuple[StreamShard, Row]]:
            """Yield the same rows as the whole source, but not those left out."""
            return ((shard, row) for shard, row in self.each(spans) if (shard, row[0]) not in left_out)

        return replace(self, each=each, pages_of=lambda _: None)

    def of(self, shards: Sequence[StreamShard]) -> BatchSource:
        """Return a source of these shards only."""
        preceding = {shard: self.preceding[shard] for shard in shards if shard in self.preceding}
        return replace(self, ends={shard: self.ends[shard] for shard in shards}, preceding=preceding)

    def whole(self) -> ShardSpans:
        """Return spans that contain every record."""
        return {shard: ShardSpan(None, upto) for shard, upto in self.ends.items()}


def source_of(batch: MicroBatch, spool: Spool) -> BatchSource:
    """Return a source of a batch, which reads the records from the pages in the spool.

    The batch consists of slices. A slice is one page, or its records after a position, if all sinks hold the others.
    """

    def wanted(spans: ShardSpans) -> list[Slice]:
        """Return the slices of the batch that have records within these spans."""
        return [
            piece
            for piece in batch.slices
            if (span := spans.get(piece.offer.shard)) is not None and fresh(piece.offer.last, span.after)
        ]

    def each(spans: ShardSpans) -> Iterator[tuple[StreamShard, Row]]:
        """Yield the rows of all slices that overlap these spans, each with its shard."""
        for piece in wanted(spans):
            for row in spool.rows(piece.offer):
                if fresh(row[0], piece.after):
                    yield piece.offer.shard, row

    def pages_of(spans: ShardSpans) -> tuple[Offer, ...] | None:
        """Return the offers whose pages together are exactly these spans; None if some page has also records outside
        them.
        """
        pieces = wanted(spans)
        is_cut = any(piece.after or not fresh(piece.offer.first, spans[piece.offer.shard].after) for piece in pieces)
        if not pieces or is_cut:
            return None
        return tuple(piece.offer for piece in pieces)

    return BatchSource(batch.ends, each, pages_of, preceding=batch.preceding)


def source_of_rows(
    shard: StreamShard,
    rows: Sequence[Row],
    upto: RecordPosition | None = None,
    before: RecordPosition | None = None,
    only: frozenset[str] | None = None,
    preceding: Preceding | None = None,
) -> BatchSource:
    """Return a source of a few records of one shard, which are in memory.

    The source ends at the position `upto` (default: that of its last record). `before` is the position of the record
    right before the first one. `only` and `preceding` are as in `BatchSource`.
    """
    return BatchSource(
        {shard: upto or rows[-1][0]},
        lambda spans: ((shard, row) for row in rows),
        before={} if before is None else {shard: before},
        preceding=preceding or {},
        only=only,
    )
