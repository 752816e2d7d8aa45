"""What was running when a session ended: a file that outlives its host, so that a record that ends the JVM is found.

An end is no answer: nobody says which record it was. So what is about to run is written down before, and taken out once
it has run. A host that finds it there knows that the session before it has ended in the midst of that. After the second
end over the same records they run alone, in parts, after all other shards; whatever part was running at the next end is
cut again. A record over which alone the session has ended twice is to blame, if there is evidence (`poison`).

A job that was cancelled because a task of it did not end (`SessionHealth.watch`) is such an end, too, whether its
session has outlived it or not.

An end has many reasons, and most of them are no record's. Then the next one meets other records, and these are
forgotten.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, TypeVar

from mld.processors.spark.batch.record_columns import Row
from mld.processors.spark.positions import RecordPosition, StreamShard
from mld.processors.spark.session_errors import TaskHangs

log = logging.getLogger("mld.spark")
FILE = "running.json"
PARTS = 16
"""Suspects run in so many parts at most."""
ENDS_MIN = 2
"""So many ends over the same records, and they run alone; and so many over one alone, and it is to blame."""
ZERO = RecordPosition(0)
Other = TypeVar("Other")
Spans: TypeAlias = "Mapping[StreamShard, RunningSpan]"


class RunningSpan(NamedTuple):
    """Records of a shard, from the first to the last one, and how often a session has ended over them."""

    first: RecordPosition
    last: RecordPosition
    ends: int = 0
    ends_alone: int = 0
    """How often while it was one record that was suspected, and nothing else ran."""
    is_computed: bool = False
    """Whether the last time the record had been computed, and was being written."""
    others_ran: bool = False
    """Whether other records have come through, into every sink, since the first of these ends."""
    tried: int = 0
    """Other records on which somebody has tried whether the pipeline works at all."""


def ended(now: Spans, before: Spans) -> dict[StreamShard, RunningSpan]:
    """Return who is suspected after a session has ended over `now`, if these were suspected `before`."""
    found = dict(before)
    for shard, ran in now.items():
        known = before.get(shard, RunningSpan(ran.last, ran.first))
        first, last = max(ran.first, known.first), min(ran.last, known.last)
        span = (
            known._replace(first=first, last=last) if known.ends and first <= last else RunningSpan(ran.first, ran.last)
        )
        is_alone = len(now) == 1 and ran.first == ran.last and span.ends >= ENDS_MIN
        found[shard] = span._replace(
            ends=span.ends + 1, ends_alone=span.ends_alone + 1 if is_alone else 0, is_computed=ran.is_computed
        )
    return found


def cut(rows: Sequence[Row], suspects: RunningSpan | None) -> list[tuple[int, int]]:
    """Return the ranges of records in which they run: those before the suspects, these in parts, those after them."""
    inside = [at for at, (position, _) in enumerate(rows) if suspects and suspects.first <= position <= suspects.last]
    if not inside:
        return [(0, len(rows))]
    begin, end = inside[0], inside[-1] + 1
    size = -(-(end - begin) // PARTS)
    edges = sorted({0, *range(begin, end, size), end, len(rows)})
    return list(pairwise(edges))


class Running:
    """The file of one daemon's hosts; without one nothing outlives this object. Called on the engine's thread only."""

    def __init__(self, file: Path | None = None) -> None:
        self._file = file
        self._now: Spans = {}
        self._spans: dict[StreamShard, RunningSpan] = {}
        if file is None or not file.exists():
            return
        try:
            found = json.loads(file.read_text("utf-8"))
            self._now, self._spans = _decoded(found["now"]), _decoded(found["suspects"])
        except (OSError, ValueError, TypeError, KeyError) as error:
            log.warning("what ran when a session ended is not known: %s", error)
        self._note_end()

    @property
    def suspects(self) -> Spans:
        """The records that run alone, by shard, those last over which most sessions have ended."""
        found = sorted(self._spans.items(), key=lambda one: one[1].ends)
        return {shard: span for shard, span in found if span.ends >= ENDS_MIN}

    def alone(self, shard: StreamShard, rows: Sequence[Row]) -> RunningSpan | None:
        """Return what is known of a record that is suspected alone; None if that is not what `rows` are."""
        span = self.suspects.get(shard)
        return span if span and len(rows) == 1 and rows[0][0] == span.first == span.last else None

    @contextmanager
    def noted(self, spans: Spans) -> Iterator[None]:
        """Note what runs, and that it has run once it has; an end of the session leaves it there."""
        self._write(spans)
        try:
            yield
        except TaskHangs:
            self._note_end()
            raise
        if spans:
            self._spans = {one: span._replace(others_ran=True) for one, span in self._spans.items()}
        self.forget(spans)

    def note_computed(self) -> None:
        """Note that what runs can be computed, so that from here on it is written."""
        self._write({shard: span._replace(is_computed=True) for shard, span in self._now.items()})

    def untried(self, shard: StreamShard, others: Sequence[Other]) -> Iterator[Other]:
        """Yield records on which to try whether the pipeline works, each noted before: it may end the session, too."""
        span = self._spans.get(shard, RunningSpan(ZERO, ZERO))
        for tried in [*range(span.tried, len(others)), -1]:
            if shard in self._spans:
                self._spans[shard] = span._replace(tried=tried + 1)
                self._write({})
            if tried >= 0:
                yield others[tried]

    def forget(self, ran: Spans) -> None:
        """Suspect nobody up to the ends of `ran`: it has run, or is buried."""
        self._spans = {one: span for one, span in self._spans.items() if one not in ran or ran[one].last < span.last}
        self._write({})

    def _note_end(self) -> None:
        now, self._spans = self._now, ended(self._now, self._spans)
        self._write({})
        for shard in now:
            log.warning("a session has ended, or was held up, over %s: %s", shard.label, self._spans[shard])

    def _write(self, now: Spans) -> None:
        self._now = now
        if self._file is None:
            return
        text = json.dumps({"now": _encoded(now), "suspects": _encoded(self._spans)})
        try:
            self._file.write_text(text, "utf-8")
        except OSError as error:
            log.debug("what runs is not noted: %s", error)


def _encoded(spans: Spans) -> list[list[Any]]:
    return [[*one, span.first.encode(), span.last.encode(), *span[2:]] for one, span in spans.items()]


def _decoded(kept: Any) -> dict[StreamShard, RunningSpan]:
    decode = RecordPosition.decode
    return {StreamShard(stream, shard): RunningSpan(decode(a), decode(b), *ends) for stream, shard, a, b, *ends in kept}
