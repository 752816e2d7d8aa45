"""Notes in a file which records are running, so that a record that ends the JVM is found by the next session host.

A session is one run of Spark's JVM, and a session host is the process that starts it. When a JVM ends, nothing reports
which record ended it. So before a job runs, its span of records of each shard (the first and the last) is written into
a file of the host's directory. When the job is done, the spans are removed from the file. A host that finds spans there
knows that the session before ended while these records ran. After the second such end they are suspected, which means
that one of them may have ended the session. Suspected records are run apart from all others, in small parts, after all
other shards. If the session ends again, the part that was running is cut into smaller parts. If the session has ended
twice while a single record ran alone, that record is to blame, if there is evidence (`poison`).

A job that was cancelled because a task hung (`SessionHealth.watch`) counts as an end of the session, even if the
session survived it.

Most ends of a JVM have other reasons than a record. Then other records are usually running at the next end, and these
are suspected instead of the earlier ones. Records that have run while the session lived on are no longer suspected.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, TypeVar

from mld.processors.spark.batch.record_columns import Row
from mld.processors.spark.positions import RecordPosition, StreamShard
from mld.processors.spark.session_errors import TaskHangs
from mld.properties.named_file import bytes_of

log = logging.getLogger("mld.spark")
FILE = "running.json"
FILE_BYTES_MAX = 64 << 20
"""A larger file is none of ours: a shard takes some 200 bytes."""
PARTS = 16
"""Suspected records are cut into at most this many parts."""
ENDS_MIN = 2
"""After a session has ended this many times while certain records ran, these records run in parts of their own. A
single record that runs alone is to blame after this many more ends.
"""
ZERO = RecordPosition(0)
Other = TypeVar("Other")
Spans: TypeAlias = "Mapping[StreamShard, RunningSpan]"


class RunningSpan(NamedTuple):
    """Records of a shard, from `first` to `last`, and how often (`ends`) a session has ended while they ran."""

    first: RecordPosition
    last: RecordPosition
    ends: int = 0
    ends_alone: int = 0
    """How many of the latest ends in a row happened while a single suspected record was running, and nothing else."""
    is_computed: bool = False
    """Whether at the last end the record had been computed and was being written."""
    others_ran: bool = False
    """Whether other records have been written into every sink since the first of these ends."""
    tried: int = 0
    """How many other records have been tried, to find out whether the pipeline works for any."""


def ended(now: Spans, before: Spans) -> dict[StreamShard, RunningSpan]:
    """Return the suspects after a session has ended while `now` ran. `before` are the suspects of earlier ends.

    The suspected span of a shard is narrowed to the records that ran at this end and at all earlier ones, and its ends
    are counted. If there are no such records, the suspicion begins anew with the records that ran now.
    """
    found = dict(before)
    for shard, ran in now.items():
        new = RunningSpan(ran.first, ran.last)
        known = before.get(shard, new)
        first, last = max(ran.first, known.first), min(ran.last, known.last)
        span = known._replace(first=first, last=last) if known.ends and first <= last else new
        is_alone = len(now) == 1 and ran.first == ran.last and span.ends >= ENDS_MIN
        found[shard] = span._replace(
            ends=span.ends + 1, ends_alone=span.ends_alone + 1 if is_alone else 0, is_computed=ran.is_computed
        )
    return found


def cut(rows: Sequence[Row], suspects: RunningSpan | None) -> list[tuple[int, int]]:
    """Return ranges of indexes of `rows`, to run one range after the other: the rows before the suspected span, parts
    of it, and the rows after it. `suspects` are records that ran when a session ended; None: there are none, so all
    rows are one range.
    """
    inside = [at for at, (position, _) in enumerate(rows) if suspects and suspects.first <= position <= suspects.last]
    if not inside:
        return [(0, len(rows))]
    begin, end = inside[0], inside[-1] + 1
    size = -(-(end - begin) // PARTS)
    edges = sorted({0, *range(begin, end, size), end, len(rows)})
    return list(pairwise(edges))


class Running:
    """Keeps the notes in a file, which all hosts of a daemon use one after the other. Without a file, the notes last
    only as long as this object. Called on the engine's thread only."""

    def __init__(self, file: Path | None = None) -> None:
        self._file = file
        self._now: Spans = {}
        self._spans: dict[StreamShard, RunningSpan] = {}
        if file is None or not file.exists():
            return
        try:
            found = json.loads(bytes_of(file, FILE_BYTES_MAX))
            self._now, self._spans = _decoded(found["now"]), _decoded(found["suspects"])
        except Exception as error:  # the text may be damaged in any way
            log.warning("what ran when a session ended is not known: %s", error)
            with suppress(OSError):
                file.unlink()  # it may be no file, but a pipe
        self._note_end()  # the last session has ended over the records that the file notes as running

    @property
    def suspects(self) -> Spans:
        """By shard, the suspected records that have to run in parts of their own; shards with the most ends last."""
        found = sorted(self._spans.items(), key=lambda item: item[1].ends)
        return {shard: span for shard, span in found if span.ends >= ENDS_MIN}

    def alone(self, shard: StreamShard, rows: Sequence[Row]) -> RunningSpan | None:
        """Return the suspected span if it is a single record and `rows` is exactly this record, else None."""
        span = self.suspects.get(shard)
        return span if span and len(rows) == 1 and rows[0][0] == span.first == span.last else None

    @contextmanager
    def noted(self, spans: Spans) -> Iterator[None]:
        """Note in the file that `spans` run within this block.

        If the block ends normally, the note is removed. Suspects that have run are dropped, and it is noted for the
        others that other records have run. A task that hangs counts as an end of the session. After any other
        exception, and if the process ends, the note stays."""
        self._write(spans)
        try:
            yield
        except TaskHangs:
            self._note_end()
            raise
        if spans:
            self._spans = {shard: span._replace(others_ran=True) for shard, span in self._spans.items()}
        self.forget(spans)

    def note_computed(self) -> None:
        """Note that the running record has been computed and is now being written."""
        self._write({shard: span._replace(is_computed=True) for shard, span in self._now.items()})

    def untried(self, shard: StreamShard, others: Sequence[Other]) -> Iterator[Other]:
        """Yield those of `others` that have not been tried yet.

        When a record of `shard` fails, the caller runs the pipeline over other records, one at a time, to find out
        whether the pipeline works for any. Each such trial is counted in the file before it begins, because that record
        may end the session, too; the next host goes on with the record after it. After the last trial the count is set
        back to zero."""
        span = self._spans.get(shard, RunningSpan(ZERO, ZERO))
        for tried in [*range(span.tried, len(others)), -1]:  # -1 stands for the end, and sets the count to zero
            if shard in self._spans:
                self._spans[shard] = span._replace(tried=tried + 1)
                self._write({})
            if tried >= 0:
                yield others[tried]

    def forget(self, ran: Spans) -> None:
        """Drop the suspects whose last record is at or before the end of `ran`: these records have run, or are in the
        dead letter."""
        self._spans = {
            shard: span for shard, span in self._spans.items() if shard not in ran or ran[shard].last < span.last
        }
        self._write({})

    def _note_end(self) -> None:
        """Note that a session has ended, or hung, over the records that were running."""
        now, self._spans = self._now, ended(self._now, self._spans)
        self._write({})
        for shard in now:
            log.warning("a session has ended, or was held up, over %s: %s", shard.label, self._spans[shard])

    def _write(self, now: Spans) -> None:
        """Store in the file which records run (`now`) and which are suspected of having ended a session."""
        self._now = now
        if self._file is None:
            return
        text = json.dumps({"now": _encoded(now), "suspects": _encoded(self._spans)})
        try:
            self._file.write_text(text, "utf-8")
        except OSError as error:
            log.debug("what runs is not noted: %s", error)


def _encoded(spans: Spans) -> list[list[Any]]:
    return [[*shard, span.first.encode(), span.last.encode(), *span[2:]] for shard, span in spans.items()]


def _decoded(kept: Any) -> dict[StreamShard, RunningSpan]:
    """Return the spans from the JSON of the file. Raises an error of any kind if it is damaged."""
    decode = RecordPosition.decode
    spans: dict[StreamShard, RunningSpan] = {}
    for stream, shard, first, last, *rest in kept:
        span = RunningSpan(decode(first), decode(last), *map(int, rest))  # type: ignore[arg-type]
        spans[StreamShard(str(stream), str(shard))] = span
    return spans
