"""Where the records of a micro-batch, or of a part of it, are."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from mld.processors.spark.batch.micro_batch import MicroBatch, Offer, Slice
from mld.processors.spark.batch.record_columns import Row
from mld.processors.spark.batch.spool import Spool
from mld.processors.spark.high_water_marks import (
    HighWaterMarks,
    RecordPosition,
    ShardSpan,
    ShardSpans,
    StreamShard,
    fresh,
    gaps,
)

Rows = Mapping[StreamShard, Sequence[Row]]


def no_pages(spans: ShardSpans) -> tuple[Offer, ...] | None:
    """Give no pages, for a source whose records stand in none."""
    return None


@dataclass(slots=True)
class BatchSource:
    """What a batch, or a part of it, holds."""

    ends: HighWaterMarks
    firsts: HighWaterMarks
    count: int
    each: Callable[[ShardSpans], Iterator[tuple[StreamShard, Row]]]
    """All records of the pages that reach into the spans, each shard's in order."""
    pages_of: Callable[[ShardSpans], tuple[Offer, ...] | None] = no_pages
    """Pages with exactly the records that the spans take, if there are such."""
    before: HighWaterMarks = field(default_factory=dict)
    """Of a part of a batch: the record of each shard that stands right before it."""
    preceding: HighWaterMarks = field(default_factory=dict)
    """What stands right before the batch: a sink that lacks it has gone back in time (`high_water_marks.gaps`)."""
    only: frozenset[str] | None = None
    """Sinks that are to get these records, if some are not."""

    def follows(self, marks: HighWaterMarks) -> bool:
        """Return whether a sink with these marks misses nothing that stands before this part: else it must not get
        it.
        """
        misses_part = any(fresh(position, marks.get(shard)) for shard, position in self.before.items())
        return not misses_part and not gaps(self.preceding, marks)

    def begins_in(self, marks: HighWaterMarks) -> bool:
        """Return whether a sink with these marks holds nothing, or not all, of what stands right before some shard's
        part.
        """
        return any(fresh(position, marks.get(shard)) for shard, position in self.preceding.items())

    def each_of(self, spans: ShardSpans) -> Iterator[tuple[StreamShard, Row]]:
        """Yield the records that the spans take, each shard's in order."""
        return ((shard, row) for shard, row in self.each(spans) if fresh(row[0], spans[shard].after))

    def part(self, spans: ShardSpans) -> Rows:
        """Return the records that the spans take, by shard; there may be none."""
        found: dict[StreamShard, list[Row]] = {}
        for shard, row in self.each_of(spans):
            found.setdefault(shard, []).append(row)
        return found

    def without(self, left_out: Collection[tuple[StreamShard, RecordPosition]]) -> BatchSource:
        """Return the same without some records, which are not missed at its ends."""

        def each(spans: ShardSpans) -> Iterator[tuple[StreamShard, Row]]:
            return ((shard, row) for shard, row in self.each(spans) if (shard, row[0]) not in left_out)

        return replace(self, each=each, pages_of=no_pages, count=self.count - len(left_out))

    def whole(self) -> ShardSpans:
        """Return spans that take every record."""
        return {shard: ShardSpan(None, upto) for shard, upto in self.ends.items()}


def source_of(batch: MicroBatch, spool: Spool) -> BatchSource:
    """Return a source of the pages of a batch."""

    def wanted(spans: ShardSpans) -> list[Slice]:
        return [
            piece
            for piece in batch.slices
            if (span := spans.get(piece.offer.shard)) is not None and fresh(piece.offer.last, span.after)
        ]

    def each(spans: ShardSpans) -> Iterator[tuple[StreamShard, Row]]:
        for piece in wanted(spans):
            for row in spool.rows(piece.offer):
                if fresh(row[0], piece.after):
                    yield piece.offer.shard, row

    def pages_of(spans: ShardSpans) -> tuple[Offer, ...] | None:
        pieces = wanted(spans)
        if not pieces or any(
            piece.after or not fresh(piece.offer.first, spans[piece.offer.shard].after) for piece in pieces
        ):
            return None
        return tuple(piece.offer for piece in pieces)

    firsts: dict[StreamShard, RecordPosition] = {}
    for piece in batch.slices:
        firsts.setdefault(piece.offer.shard, piece.offer.first if piece.after is None else piece.after)
    return BatchSource(batch.ends, firsts, batch.records, each, pages_of, preceding=batch.preceding)


def source_of_rows(
    shard: StreamShard,
    rows: Sequence[Row],
    before: RecordPosition | None = None,
    only: frozenset[str] | None = None,
    preceding: HighWaterMarks | None = None,
) -> BatchSource:
    """Return a part of a batch, whose record before it stands at `before`."""
    return BatchSource(
        {shard: rows[-1][0]},
        {shard: rows[0][0]},
        len(rows),
        lambda spans: ((shard, row) for row in rows),
        before={} if before is None else {shard: before},
        preceding=preceding or {},
        only=only,
    )
