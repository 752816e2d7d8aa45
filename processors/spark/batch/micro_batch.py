"""Plans one micro-batch from the pages that all shards have offered.

A page is a file with records of one shard. The pages of a shard are taken in order. A sink has a mark for each shard:
the position of the last record of the shard that is in the sink, with all records before it. This module uses the
lowest mark of all sinks, because records up to there are in every sink and need not run again. A page that ends at or
before that mark is `done` without a job. Of a page that begins at or before the mark, only the records after the mark
are taken. For a sink with a higher mark, the engine drops more records.

Pure: values in, values out.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass, field

from mld.processors.spark.high_water_marks import HighWaterMarks, Preceding, fresh
from mld.processors.spark.positions import RecordPosition, StreamShard


@dataclass(frozen=True, slots=True)
class Offer:
    """One page of one shard, which its child offers. `link` is the number of the child's connection, `number` that of
    the page. `first` and `last` are the positions of its first and last record, `size` is in bytes.
    """

    link: int
    number: int
    shard: StreamShard
    first: RecordPosition
    last: RecordPosition
    records: int
    size: int
    arrived_at: float = 0.0
    preceding: HighWaterMarks = field(default_factory=dict)
    """Marks that a sink must have before it takes this page: the position of the record right before the page (in the
    page before, or of the checkpoint), and the ends of the parent shards."""
    upto: int = 0
    """The number of the last line whose records are in the page, as the child counts lines."""


@dataclass(frozen=True, slots=True)
class Slice:
    """The part of an offer that is in a micro-batch: the records after the position `after`; None means all."""

    offer: Offer
    after: RecordPosition | None = None


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """The parts of offers to run (`slices`), and the offers that all sinks hold already (`done`)."""

    slices: tuple[Slice, ...]
    done: tuple[Offer, ...]

    @property
    def offers(self) -> tuple[Offer, ...]:
        return (*self.done, *(piece.offer for piece in self.slices))

    @property
    def ends(self) -> dict[StreamShard, RecordPosition]:
        """The last position of each shard."""
        return {piece.offer.shard: piece.offer.last for piece in self.slices}

    @property
    def preceding(self) -> Preceding:
        """The marks that a sink must have before the first offer of each shard."""
        return {piece.offer.shard: piece.offer.preceding for piece in reversed(self.slices)}

    @property
    def records(self) -> int:
        """The number of records in the pages, including those that are dropped because the sinks hold them."""
        return sum(piece.offer.records for piece in self.slices)

    @property
    def size(self) -> int:
        return sum(piece.offer.size for piece in self.slices)

    def without(self, shards: Container[StreamShard]) -> MicroBatch:
        """Return a batch without the parts of these shards, and without the offers that are done."""
        return MicroBatch(tuple(piece for piece in self.slices if piece.offer.shard not in shards), ())


def plan(offers: Iterable[Offer], marks: HighWaterMarks) -> MicroBatch:
    """Return one micro-batch of all offers, in their order. `marks` has for each shard the lowest mark of any sink. An
    offer is also `done` if earlier offers have the same records, as after a repeated delivery.
    """
    slices: list[Slice] = []
    done: list[Offer] = []
    reached: dict[StreamShard, RecordPosition] = dict(marks)
    for offer in offers:
        mark = reached.get(offer.shard)
        if not fresh(offer.last, mark):
            done.append(offer)
            continue
        slices.append(Slice(offer, None if fresh(offer.first, mark) else mark))
        reached[offer.shard] = offer.last
    return MicroBatch(tuple(slices), tuple(done))
