"""What is delivered again: how many records of a micro-batch its sinks were not given, because their ledgers have them.

After a crash that is what "exactly once" means. After a reset of the checkpoints it is a replay that goes nowhere, and
the only sign of it is this count; so every trigger tells it, sink by sink.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from mld.processors.spark.batch import record_lines
from mld.processors.spark.batch.micro_batch import MicroBatch, held
from mld.processors.spark.batch.spool import Spool
from mld.processors.spark.high_water_marks import HighWaterMarks, RecordPosition, ShardSpans, StreamShard


class Repeats:
    """Counts repeated records, one micro-batch at a time."""

    def __init__(self, spool: Spool) -> None:
        self._spool = spool
        self._before: dict[str, dict[StreamShard, RecordPosition | None]] = {}
        self._counted: set[tuple[int, int]] = set()
        """The offers of the last batch: those that come again as a sink was put aside are no repeats."""

    def begin(self) -> None:
        """Begin another batch."""
        self._before = {}

    def published(self, sink: str, batch: ShardSpans) -> None:
        """Note that the sink has taken this; what its marks say of these shards from now on is our own work."""
        before = self._before.setdefault(sink, {})
        for shard, span in batch.items():
            before.setdefault(shard, span.after)

    def counts(
        self, batch: MicroBatch, sinks: Mapping[str, HighWaterMarks], failed: Collection[StreamShard] = ()
    ) -> dict[str, int]:
        """Return repeated records by sink, from its marks after the batch. Of shards that `failed`, it
        counts only records that are known to be dropped."""
        found = {}
        fresh = [offer for offer in batch.offers if (offer.link, offer.number) not in self._counted]
        self._counted = {(offer.link, offer.number) for offer in batch.offers}
        for sink, marks in sinks.items():
            after = {shard: mark for shard, mark in marks.items() if shard not in failed}
            known = {shard: mark for shard, mark in {**after, **self._before.get(sink, {})}.items() if mark is not None}
            if count := held(fresh, known, lambda offer: record_lines.rows(b"".join(self._spool.read([offer])))):
                found[sink] = count
        return found
