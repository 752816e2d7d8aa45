"""Where the records of a micro-batch, or of a part of it, are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from processors.spark.batch import record_lines
from processors.spark.batch.micro_batch import MicroBatch, Row
from processors.spark.batch.spool import Spool
from processors.spark.high_water_marks import HighWaterMarks, RecordPosition, ShardSpans, StreamShard, fresh

Rows = Mapping[StreamShard, Sequence[Row]]


@dataclass(slots=True)
class BatchSource:
    """What a batch, or a part of it, holds. `file` has exactly these records, if there is such a file."""

    ends: HighWaterMarks
    firsts: HighWaterMarks
    count: int
    load: Callable[[], Rows]
    file: Path | None = None

    def is_within(self, spans: ShardSpans) -> bool:
        """Whether the spans take every record of the source."""
        return all(
            (span := spans.get(shard)) is not None and (span.after is None or span.after < first)
            for shard, first in self.firsts.items()
        )

    def part(self, spans: ShardSpans) -> Rows:
        """The records that the spans take, each shard's in order; there may be none."""
        rows = self.load()
        parts = {shard: [row for row in rows[shard] if fresh(row[0], span.after)] for shard, span in spans.items()}
        return {shard: part for shard, part in parts.items() if part}


def source_of(batch: MicroBatch, spool: Spool, file: Path | None) -> BatchSource:
    """`file` holds exactly the records of all offers of the batch."""

    def load() -> Rows:
        rows: dict[StreamShard, list[Row]] = {}
        data = spool.read(piece.offer for piece in batch.slices)
        for piece, records in zip(batch.slices, data, strict=True):
            mine = [row for row in record_lines.rows(records) if piece.after is None or row[0] > piece.after]
            rows.setdefault(piece.offer.shard, []).extend(mine)
        return rows

    firsts: dict[StreamShard, RecordPosition] = {}
    for piece in batch.slices:
        firsts.setdefault(piece.offer.shard, piece.offer.first if piece.after is None else piece.after)
    return BatchSource(batch.ends, firsts, batch.records, load, file if batch.whole else None)


def source_of_rows(shard: StreamShard, rows: Sequence[Row]) -> BatchSource:
    return BatchSource({shard: rows[-1][0]}, {shard: rows[0][0]}, len(rows), lambda: {shard: rows})
