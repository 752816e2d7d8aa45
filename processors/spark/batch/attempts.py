"""Waits between attempts: what is done if another writer was faster, a sink cannot now, or the host ends.

The sinks of an engine and its dead letter: what each holds.

A sink never gets a part of a batch while it misses what stands before it: its mark would move past records that it
has not got (`BatchSource.follows`).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Protocol, TypeVar

from mld.processors.spark.batch.spool import BatchSource
from mld.processors.spark.high_water_marks import (
    ENDED,
    OF_A_RECORD,
    HighWaterMarks,
    RecordPosition,
    ShardSpans,
    StreamShard,
    fresh,
    gaps,
    lowest,
    spans,
)
from mld.processors.spark.sink_port import Fenced, GoneBack, Sink, SinkError, SinkRefused

log = logging.getLogger("mld.spark")

ATTEMPTS_MAX = 3
"""Attempts at a micro-batch before a record is searched for; none follows a wrong value."""
BACKOFF_S = 0.5
"""Pause before the second attempt; it doubles each time."""
BACKOFF_MAX_S = 30.0
"""Longest pause between attempts at a sink that cannot take anything now."""
FENCED_MAX = 100
"""Times in a row that others may move our shards under one batch; more is a fault, not a fleet."""

Result = TypeVar("Result")


class Stopped(Exception):
    """The host ends; the batch is given up where it is."""


class HealthCheck(Protocol):
    """`spark_session.SessionHealth`; both raise SessionGone."""

    def check(self) -> None: ...
    def probe(self) -> None: ...


def pause_s(failures: int) -> float:
    """Return how long to wait after so many failures in a row."""
    return min(BACKOFF_MAX_S, BACKOFF_S * 2.0 ** min(failures - 1, 20))


def bound_fences(error: Fenced, fenced: int) -> None:
    """Raise SinkRefused if one batch was fenced more often than other workers explain."""
    if fenced > FENCED_MAX:
        raise SinkRefused(f"{error}; this has happened {fenced} times in a row") from error


def until_published(attempt: Callable[[], Result], wait: Callable[[SinkError, int], None]) -> Result:
    """Return what the attempt returns once it succeeds: it is repeated at once if another writer has moved a shard, and
    after `wait(error, waits)` if the sink cannot now. Raises SinkRefused, and what `wait` raises.
    """
    fenced = waits = 0
    while True:
        try:
            return attempt()
        except Fenced as error:
            fenced += 1
            bound_fences(error, fenced)
            log.info("%s", error)
        except SinkRefused:
            raise
        except SinkError as error:
            waits += 1
            wait(error, waits)


class Patience:
    """Waits between attempts, which end when the host ends or its session is gone. `stop` is called on any thread."""

    def __init__(self, health: HealthCheck) -> None:
        self._health = health
        self._stopping = threading.Event()

    def stop(self) -> None:
        """Wake a wait; it ends in Stopped."""
        self._stopping.set()

    def check(self) -> None:
        """Raise SessionGone, or Stopped if the host ends: then no attempt can help."""
        if self._stopping.is_set():
            raise Stopped
        self._health.check()

    def pause(self, failures: int) -> None:
        """Wait before the next attempt. Raises Stopped."""
        if self._stopping.wait(pause_s(failures)):
            raise Stopped

    def wait(self, error: Exception, waits: int) -> None:
        """Say what the next attempt waits for, and pause. Raises SessionGone and Stopped."""
        self.check()
        log.error("%s; trying again", error)
        self.pause(waits)


NAMED_MAX = 3
"""How many shards that are new to a sink a line names."""


def buried_in(shard: StreamShard, sink: str, at: RecordPosition) -> StreamShard:
    """Stand in the marks of the dead letter for a record that was buried because of one sink, until that has got past
    it.

    No mark for several records: which ones fail may be another matter when the sink gets there after a restart."""
    return StreamShard(shard.stream, OF_A_RECORD.join((shard.shard, sink, at.encode())))


class Destinations:
    """Sinks with their marks. Called on the engine's thread only."""

    def __init__(self, sinks: Sequence[Sink], dead: Sink | None, patience: Patience) -> None:
        self.sinks = tuple(sinks)
        self.dead = dead
        self.marks: dict[str, HighWaterMarks] = {}
        self._patience = patience

    def all(self) -> list[Sink]:
        return [*self.sinks, *([self.dead] if self.dead is not None else [])]

    def open(self) -> None:
        """Raise SinkError."""
        for sink in self.all():
            self.marks[sink.name] = sink.open()

    def reopen(self, sink: Sink) -> None:
        """Open again after any failure, before the next attempt. Raises SinkRefused, SessionGone and Stopped."""

        def attempt() -> None:
            self.marks[sink.name] = sink.open()

        until_published(attempt, self._patience.wait)

    def check_continuity(self, source: BatchSource, *, accepts: bool) -> None:
        """Look whether every sink holds what stands before the batch; a sink that seems not to is opened again first,
        because another worker may have had the shard. A sink that has never held anything of a shard begins there; so
        do all if gaps are accepted. A dead letter that lacks the end of a shard is warned of only: that of mld 0.2.0
        need not have it. Raises GoneBack, SinkRefused, SessionGone and Stopped."""
        at = {shard: before[shard] for shard, before in source.preceding.items() if shard in before}
        for sink in self.all():
            is_dead, before = sink is self.dead, source.preceding
            if is_dead:  # which has marks of letters only, until a shard ends
                before = {shard: {**every, shard: RecordPosition(0)} for shard, every in before.items()}
            if not gaps(before, self.marks[sink.name]) and (is_dead or not spans(at, self.marks[sink.name])):
                continue
            self.reopen(sink)
            marks = self.marks[sink.name]
            if lacking := gaps(before, marks):
                error = GoneBack(sink.name, lacking)
                if not accepts and not is_dead:
                    raise error
                for reason in error.reasons.values():
                    log.warning("a gap is accepted: %s", reason)
            if sink.exactly_once and not is_dead and (new := sorted(at.keys() - marks.keys())):
                named = ", ".join(f"{shard.label} after {at[shard]}" for shard in new[:NAMED_MAX])
                log.warning("sink %s holds nothing of %d shards yet, and begins with %s", sink.name, len(new), named)
        if accepts:
            source.preceding = {}

    def groups(self, source: BatchSource) -> Iterator[tuple[ShardSpans, list[Sink]]]:
        """Return sinks that miss the same records, with what they miss."""
        groups: list[tuple[ShardSpans, list[Sink]]] = []
        for sink in self.sinks:
            marks = self.marks[sink.name]
            if not source.follows(marks):
                continue
            missing = spans(source.ends, marks)
            mine = next((sinks for batch, sinks in groups if batch == missing), None)
            if mine is not None:
                mine.append(sink)
            elif missing:
                groups.append((missing, [sink]))
        return iter(groups)

    def held(self, shard: StreamShard, own: HighWaterMarks) -> RecordPosition | None:
        """Return what every sink holds of a shard; where there is none, what a pipeline has written by itself."""
        return lowest([self.marks[sink.name] for sink in self.sinks] or [own], shard)

    def end(self, shards: Collection[StreamShard], batch_id: str) -> None:
        """Have every sink, and the dead letter, keep that these shards have ended, if it holds anything of them. Raises
        SinkError."""
        for sink in self.all():
            held = {shard: mark for shard, mark in self.marks[sink.name].items() if shard in shards and mark != ENDED}
            if held:
                sink.retire(held)
                marks = self.marks[sink.name] = sink.publish(None, {}, batch_id).marks
                sink.retire({})
                if any(marks.get(shard, ENDED) != ENDED for shard in held):
                    raise SinkError(f"sink {sink.name} has gone back in time meanwhile")

    def forget_buried(self) -> None:
        """Tell the dead letter of which buried records the sinks have got past."""
        dead = self.dead
        if dead is not None:
            marks = self.marks[dead.name].items()
            if passed := {one: mark for one, mark in marks if OF_A_RECORD in one.shard and self._is_past(one, mark)}:
                dead.retire(passed)

    def _is_past(self, one: StreamShard, at: RecordPosition) -> bool:
        shard, sink = one.shard.split(OF_A_RECORD)[:2]
        return sink not in self.marks or not fresh(at, self.marks[sink].get(StreamShard(one.stream, shard)))
