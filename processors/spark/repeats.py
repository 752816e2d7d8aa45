"""What is delivered again: how many records of a micro-batch its sinks were not given, because their ledgers have them.

After a crash that is what "exactly once" means. After a reset of the checkpoints it is a replay that goes nowhere, and
the only sign of it is this count; so every trigger tells it, sink by sink.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from processors.spark import lines
from processors.spark.batching import MicroBatch, held
from processors.spark.positions import Marks, Position, Shard, Spans
from processors.spark.spool import Spool


class Repeats:
    """Of one micro-batch at a time."""

    def __init__(self, spool: Spool) -> None:
        self._spool = spool
        self._before: dict[str, dict[Shard, Position | None]] = {}

    def begin(self) -> None:
        """Another batch begins."""
        self._before = {}

    def published(self, sink: str, batch: Spans) -> None:
        """The sink has taken this; what its marks say of these shards from now on is our own work."""
        before = self._before.setdefault(sink, {})
        for shard, span in batch.items():
            before.setdefault(shard, span.after)

    def counts(self, batch: MicroBatch, sinks: Mapping[str, Marks], failed: Collection[Shard] = ()) -> dict[str, int]:
        """By sink, with its marks after the batch; of shards that have `failed` only what is known to be dropped."""
        found = {}
        for sink, marks in sinks.items():
            after = {shard: mark for shard, mark in marks.items() if shard not in failed}
            known = {shard: mark for shard, mark in {**after, **self._before.get(sink, {})}.items() if mark is not None}
            if count := held(batch.offers, known, lambda offer: lines.rows(b"".join(self._spool.read([offer])))):
                found[sink] = count
        return found
