"""Where the records of a micro-batch, or of a part of it, are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from mld.processors.spark.batch import record_lines
from mld.processors.spark.batch.micro_batch import MicroBatch, Offer, Row, Slice
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


class ExactFiles(NamedTuple):
    """Where exactly these records stand: a file of lines, pages, or both."""

    lines: Path | None
    pages: tuple[Offer, ...]
    records: int


def no_files(spans: ShardSpans) -> ExactFiles | None:
    """Give no files, for a source whose records stand in no files."""
    return None


@dataclass(slots=True)
class BatchSource:
    """What a batch, or a part of it, holds."""

    ends: HighWaterMarks
    firsts: HighWaterMarks
    count: int
    load: Callable[[ShardSpans], Rows]
    """All records of the offers that reach into the spans."""
    files_of: Callable[[ShardSpans], ExactFiles | None] = no_files
    """Files with exactly the records that the spans take, if there are such."""
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

    def part(self, spans: ShardSpans) -> Rows:
        """Return the records that the spans take, each shard's in order; there may be none."""
        rows = self.load(spans)
        parts = {
            shard: [row for row in rows[shard] if fresh(row[0], span.after)]
            for shard, span in spans.items()
            if shard in rows
        }
        return {shard: part for shard, part in parts.items() if part}

    def whole(self) -> ShardSpans:
        """Return spans that take every record."""
        return {shard: ShardSpan(None, upto) for shard, upto in self.ends.items()}


def source_of(batch: MicroBatch, spool: Spool, file: Path | None) -> BatchSource:
    """Return a source; `file`, if given, holds exactly the records of all offers of the batch that stand in it."""
    of_lines = [piece for piece in batch.slices if not piece.offer.is_page]
    in_file = [piece for piece in of_lines if file is not None and spool.path(piece.offer.spool) == file]

    def wanted(spans: ShardSpans) -> list[Slice]:
        return [
            piece
            for piece in batch.slices
            if (span := spans.get(piece.offer.shard)) is not None and fresh(piece.offer.last, span.after)
        ]

    def load(spans: ShardSpans) -> Rows:
        rows: dict[StreamShard, list[Row]] = {}
        pieces = wanted(spans)
        data = spool.read(piece.offer for piece in pieces)
        for piece, records in zip(pieces, data, strict=True):
            mine = [row for row in record_lines.rows(records) if piece.after is None or row[0] > piece.after]
            rows.setdefault(piece.offer.shard, []).extend(mine)
        return rows

    def files_of(spans: ShardSpans) -> ExactFiles | None:
        pieces = wanted(spans)
        if any(piece.after or not fresh(piece.offer.first, spans[piece.offer.shard].after) for piece in pieces):
            return None
        lines = [piece for piece in pieces if not piece.offer.is_page]
        pages = tuple(piece.offer for piece in pieces if piece.offer.is_page)
        if not pieces or (lines and lines != in_file):
            return None
        return ExactFiles(file if lines else None, pages, sum(piece.offer.records for piece in pieces))

    firsts: dict[StreamShard, RecordPosition] = {}
    for piece in batch.slices:
        firsts.setdefault(piece.offer.shard, piece.offer.first if piece.after is None else piece.after)
    return BatchSource(batch.ends, firsts, batch.records, load, files_of, preceding=batch.preceding)


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
        lambda spans: {shard: rows},
        before={} if before is None else {shard: before},
        preceding=preceding or {},
        only=only,
    )
