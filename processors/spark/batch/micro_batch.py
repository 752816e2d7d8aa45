"""What all shards have offered -> one micro-batch.

A shard's pages are taken in their order. What the sinks hold already is dropped: an offer that ends at or below the
shard's mark is `done` without being run; if it begins at or below the mark, only what is past the mark is taken. The
mark used is the lowest of all sinks; for a sink that is ahead of the others the engine trims once more.

Pure: values in, values out.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass, field

from mld.processors.spark.high_water_marks import HighWaterMarks, Preceding, fresh
from mld.processors.spark.positions import RecordPosition, StreamShard


@dataclass(frozen=True, slots=True)
class Offer:
    """One page of one shard, by the number of its child's link and its own."""

    link: int
    number: int
    shard: StreamShard
    first: RecordPosition
    last: RecordPosition
    records: int
    size: int
    arrived_at: float = 0.0
    preceding: HighWaterMarks = field(default_factory=dict)
    """What the daemon delivered, or had checkpointed, right before it, and what its shard follows."""
    upto: int = 0
    """The number of the last line in it, as its child counts them."""


@dataclass(frozen=True, slots=True)
class Slice:
    """An offer as it goes into a micro-batch: all of it, or what comes after `after`."""

    offer: Offer
    after: RecordPosition | None = None


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """`done` are offers that all sinks hold; there is something to run if there are slices."""

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
        """What stands before the first offer of each shard."""
        return {piece.offer.shard: piece.offer.preceding for piece in reversed(self.slices)}

    @property
    def records(self) -> int:
        """At most so many: what is trimmed is counted."""
        return sum(piece.offer.records for piece in self.slices)

    @property
    def size(self) -> int:
        return sum(piece.offer.size for piece in self.slices)

    def without(self, shards: Container[StreamShard]) -> MicroBatch:
        """Return what there is to run of other shards."""
        return MicroBatch(tuple(piece for piece in self.slices if piece.offer.shard not in shards), ())


def plan(offers: Iterable[Offer], marks: HighWaterMarks) -> MicroBatch:
    """Return one micro-batch of everything offered, shard by shard in the order of the offers."""
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
