"""What was running when a session ended: a file that outlives its host, so that a record that ends the JVM is found.

An end is no answer: nobody says which record it was. So what is about to run is written down before, and taken out once
it has run. A host that finds it there knows that the session before it has ended in the midst of that. After the second
end over the same records they run alone, in parts, after all other shards; whatever part was running at the next end is
cut again. A record over which alone the session has ended twice is told by `is_to_blame`.

An end has many reasons, and most of them are no record's. Then the next one meets other records, and these are
forgotten.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from mld.processors.spark.batch.record_columns import Row
from mld.processors.spark.high_water_marks import RecordPosition, StreamShard
from mld.processors.spark.sink_port import GoneBack

log = logging.getLogger("mld.spark")

FILE = "running.json"
PARTS = 16
"""Suspects run in so many parts at most."""
ENDS_MIN = 2
"""So many ends over the same records, and they run alone; and so many over one alone, and it is to blame."""


class Span(NamedTuple):
    """Records of a shard, from the first to the last one, and how often a session has ended over them."""

    first: RecordPosition
    last: RecordPosition
    ends: int = 0
    ends_alone: int = 0
    """How often while it was one record, and nothing else ran."""


Spans = Mapping[StreamShard, Span]


def ended(now: Spans, before: Spans) -> dict[StreamShard, Span]:
    """Return who is suspected after a session has ended over `now`, if these were suspected `before`."""
    found = dict(before)
    for shard, (first, last, *_) in now.items():
        known = before.get(shard, Span(last, first))
        both = Span(max(first, known.first), min(last, known.last), known.ends + 1)
        span = both if both.first <= both.last and known.ends else Span(first, last, 1)
        is_alone = len(now) == 1 and first == last
        found[shard] = span._replace(ends_alone=(known.ends_alone if span is both else 0) + 1 if is_alone else 0)
    return found


def cut(rows: Sequence[Row], suspects: Span) -> list[Sequence[Row]]:
    """Return records in their order: those before the suspects, these in parts, and those after them."""
    inside = [at for at, (position, _) in enumerate(rows) if suspects.first <= position <= suspects.last]
    if not inside:
        return [rows] if rows else []
    begin, end = inside[0], inside[-1] + 1
    size = -(-(end - begin) // PARTS)
    parts = [rows[:begin], *(rows[at : min(at + size, end)] for at in range(begin, end, size)), rows[end:]]
    return [part for part in parts if part]


class Running:
    """The file of one daemon's hosts; without one nothing is known. Called on the engine's thread only."""

    def __init__(self, file: Path | None = None) -> None:
        self._file = file
        self._spans: dict[StreamShard, Span] = {}
        if file is None or not file.exists():
            return
        try:
            found = json.loads(file.read_text("utf-8"))
            now = _decoded(found["now"])
            self._spans = ended(now, _decoded(found["suspects"]))
        except (OSError, ValueError, TypeError, KeyError) as error:
            log.warning("what ran when a session ended is not known: %s", error)
            return
        for shard in now:
            log.warning("a session has ended while %s was running: %s", shard.label, self._spans[shard])

    @property
    def suspects(self) -> Spans:
        """The records that run alone, by shard, those last over which most sessions have ended."""
        found = sorted(self._spans.items(), key=lambda one: one[1].ends)
        return {shard: span for shard, span in found if span.ends >= ENDS_MIN}

    def is_to_blame(self, shard: StreamShard, rows: Sequence[Row]) -> bool:
        """Return whether these are one record, over which alone sessions have ended."""
        span = self._spans.get(shard)
        return span is not None and span.ends_alone >= ENDS_MIN and rows[0][0] == rows[-1][0] == span.first

    @contextmanager
    def noted(self, spans: Spans) -> Iterator[None]:
        """Note what runs, and that it has run once it has; an end of the session leaves it there."""
        self._write(spans)
        try:
            yield
        except GoneBack:
            self._write({})
            raise
        self.forget(spans)

    def forget(self, ran: Spans) -> None:
        """Suspect nobody up to the ends of `ran`: it has run, or is buried."""
        self._spans = {one: span for one, span in self._spans.items() if one not in ran or ran[one].last < span.last}
        self._write({})

    def _write(self, now: Spans) -> None:
        if self._file is None:
            return
        text = json.dumps({"now": _encoded(now), "suspects": _encoded(self._spans)})
        try:
            self._file.write_text(text, "utf-8")
        except OSError as error:
            log.debug("what runs is not noted: %s", error)


def _encoded(spans: Spans) -> list[list[Any]]:
    return [[*one, span.first.encode(), span.last.encode(), *span[2:]] for one, span in spans.items()]


def _decoded(kept: Any) -> dict[StreamShard, Span]:
    decode = RecordPosition.decode
    return {StreamShard(stream, shard): Span(decode(a), decode(b), *ends) for stream, shard, a, b, *ends in kept}
