"""The sinks of an engine, its dead letter, and the high-water marks of each.

A mark is the position up to which the records of a shard are in a sink. A sink gets a part of a batch only if it has
all records before that part. Otherwise its mark would move past records that it lacks (`BatchSource.follows`). The dead
letter is a sink for records that cannot be processed; to bury a record means to put it there.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Sequence

from mld.processors.spark.batch.attempts import Patience, until_published
from mld.processors.spark.batch.batch_source import BatchSource
from mld.processors.spark.high_water_marks import ENDED, HighWaterMarks, ShardSpans, fresh, gaps, lowest, spans
from mld.processors.spark.positions import OF_A_RECORD, RecordPosition, StreamShard
from mld.processors.spark.sink_port import GoneBack, Sink, SinkError

log = logging.getLogger("mld.spark")
NAMED_MAX = 3
"""How many shards a line of the log names at most."""


def buried_in(shard: StreamShard, sink: str, at: RecordPosition) -> StreamShard:
    """Return a name, in the form of a shard, for the mark of one buried record in the dead letter.

    The mark records that the record at `at` was buried because `sink` failed over it, and that the mark of that sink
    may not have moved past it yet. Each buried record has a mark of its own, because after a restart other records may
    fail before the sink gets there."""
    return StreamShard(shard.stream, OF_A_RECORD.join((shard.shard, sink, at.encode())))


class Destinations:
    """The sinks with their marks. Called on the engine's thread only."""

    def __init__(self, sinks: Sequence[Sink], dead: Sink | None, patience: Patience) -> None:
        self.sinks = tuple(sinks)
        self.dead = dead
        self.marks: dict[str, HighWaterMarks] = {}
        self._patience = patience

    def all(self) -> list[Sink]:
        """Return the sinks, and after them the dead letter if there is one."""
        return [*self.sinks, *([self.dead] if self.dead is not None else [])]

    def open(self) -> None:
        """Open all sinks. Raises SinkError."""
        for sink in self.all():
            self.marks[sink.name] = sink.open()

    def reopen(self, sink: Sink) -> None:
        """Open a sink again after a failure, before the next attempt. Raises SinkRefused, SessionGone and Stopped."""

        def attempt() -> None:
            self.marks[sink.name] = sink.open()

        until_published(attempt, self._patience.wait)

    def check_continuity(self, source: BatchSource, *, accepts: bool) -> None:
        """Check that every sink holds the records right before the batch. Raises GoneBack, SinkRefused, SessionGone and
        Stopped.

        A sink that seems to lack some is first opened again, because another worker may have had the shard meanwhile. A
        sink without any record of a shard begins with this batch; if `accepts`, so does a sink that lacks records. If
        a dead letter lacks the end of a parent shard, this only causes a warning, because mld 0.2.0 did not record
        these ends."""
        # `needed` has for each shard the marks that a sink must have reached before the batch: that of the shard itself
        # and, if the batch has its first records, those of its parents. `gaps` returns the shards for which a sink has
        # not reached them. `just_before` has only the shard's own mark, the position right before the batch. So
        # `spans(just_before, marks)` returns the shards of which a sink lacks earlier records, or has no records.
        just_before = {shard: marks[shard] for shard, marks in source.preceding.items() if shard in marks}
        for sink in self.all():
            is_dead, needed = sink is self.dead, source.preceding
            if is_dead:  # its marks show only how far records were looked at, so only ends of parents can be checked
                needed = {shard: {**marks, shard: RecordPosition(0)} for shard, marks in needed.items()}
            if not gaps(needed, self.marks[sink.name]) and (is_dead or not spans(just_before, self.marks[sink.name])):
                continue
            self.reopen(sink)
            marks = self.marks[sink.name]
            if lacking := gaps(needed, marks):
                error = GoneBack(sink.name, lacking)
                if not accepts and not is_dead:
                    raise error
                for reason in error.reasons.values():
                    log.warning("a gap is accepted: %s", reason)
            if sink.exactly_once and not is_dead and (new := sorted(just_before.keys() - marks.keys())):
                named = ", ".join(f"{shard.label} after {just_before[shard]}" for shard in new[:NAMED_MAX])
                log.warning("sink %s holds nothing of %d shards yet, and begins with %s", sink.name, len(new), named)
        if accepts:  # the gaps were accepted once, so the next steps of this batch must not find them again
            source.preceding = {}

    def groups(self, source: BatchSource) -> Iterator[tuple[ShardSpans, list[Sink]]]:
        """Yield the spans of records that some sink lacks, each with all sinks that lack exactly these records. So the
        pipeline is run once for all sinks of a group. A sink that lacks records before the source is left out.
        """
        groups: list[tuple[ShardSpans, list[Sink]]] = []
        for sink in self.sinks:
            marks = self.marks[sink.name]
            if not source.follows(marks):
                continue
            missing = spans(source.ends, marks)
            same_group = next((sinks for batch, sinks in groups if batch == missing), None)
            if same_group is not None:
                same_group.append(sink)
            elif missing:
                groups.append((missing, [sink]))
        return iter(groups)

    def held(self, shard: StreamShard, own: HighWaterMarks) -> RecordPosition | None:
        """Return the position up to which the records of a shard are in every sink; None if one sink has none. Without
        sinks, return the position up to which the pipeline, which writes by itself, has run (`own`)."""
        return lowest([self.marks[sink.name] for sink in self.sinks] or [own], shard)

    def end(self, shards: Collection[StreamShard], batch_id: str) -> None:
        """Make each sink, and the dead letter, note that these shards have ended, if it holds records of them. The note
        is written by a commit without rows (`Sink.retire`).

        Raises SinkError, also if a sink does not have the note afterwards."""
        for sink in self.all():
            held = {shard: mark for shard, mark in self.marks[sink.name].items() if shard in shards and mark != ENDED}
            if held:
                sink.retire(held)
                marks = self.marks[sink.name] = sink.publish(None, {}, batch_id).marks
                sink.retire({})  # the note is written, so later commits need not write it again
                # A sink without a ledger forgets the marks of ended shards instead.
                if any(marks.get(shard, ENDED) != ENDED for shard in held):
                    raise SinkError(f"sink {sink.name} has gone back in time meanwhile")

    def forget_buried(self) -> None:
        """Make the dead letter remove, with its next commit, its marks of single buried records (`buried_in`) that are
        no longer needed, because the mark of the sink that failed over the record has moved past the record.
        """
        dead = self.dead
        if dead is not None:
            marks = self.marks[dead.name].items()
            of_records = {buried: at for buried, at in marks if OF_A_RECORD in buried.shard}
            if passed := {buried: at for buried, at in of_records.items() if self._is_past(buried, at)}:
                dead.retire(passed)

    def _is_past(self, buried: StreamShard, at: RecordPosition) -> bool:
        """Return whether the mark `buried` of a record at the position `at` is no longer needed: the sink that failed
        over the record has moved past it, or does not exist any more.
        """
        shard, sink = buried.shard.split(OF_A_RECORD)[:2]
        return sink not in self.marks or not fresh(at, self.marks[sink].get(StreamShard(buried.stream, shard)))
