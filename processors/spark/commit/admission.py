"""Which marks in the ledger of a sink are whose, and who may write there.

Every writer has marks of its own, so that none mistakes another's finished records for its own. A writer that is in
the ledger may go on. Another one is admitted if nobody else is in it, or if `mld.spark.sink.<name>.writers = shared`
says that several are meant to be; else it is refused, with its own name and theirs.

Ledgers of version 1 do not say whose their marks are. They become those of the first writer that opens the sink for the
stream of that name, by a commit of its own before anything is dropped by them; unless the entry shows that they are
somebody else's: the stream was made later, or another application wrote the entry.

An application that reads one stream may become one that reads several, and the other way round.
The marks of the stream are taken over from the writer that it was: whoever of the two commits takes them away from the
other in the same entry, so that they are never in two places.

Pure: values in, values out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from mld.processors.spark.commit import ledger
from mld.processors.spark.commit.ledger import LedgerEntry, UnclaimedMarks, retired
from mld.processors.spark.high_water_marks import (
    OF_A_RECORD,
    QUERY,
    HighWaterMarks,
    RecordPosition,
    ShardSpans,
    StreamShard,
    moved,
)
from mld.processors.spark.sink_port import Fenced, SinkRefused
from mld.processors.spark.writer_identity import WriterIdentity, key_of_one

CLOCKS_APART_MAX = timedelta(minutes=5)
"""How far the clock of a host that wrote an entry may differ from that of AWS, which refuses calls beyond that."""
NAMED_MAX = 3
"""How many writers of a sink a sentence names."""


@dataclass(frozen=True, slots=True)
class Admission:
    """One writer at one sink. `place` is the sink for people; `remedy` says how several may share it."""

    writer: WriterIdentity
    sink: str
    place: str
    remedy: str
    shared: bool = False
    ended: HighWaterMarks = field(default_factory=dict)
    """Shards that have ended, as the daemon has confirmed, with the last position of each that was delivered."""

    def marks(self, head: LedgerEntry | None) -> HighWaterMarks:
        """Return the marks of this writer. Raises SinkRefused if it may not write here."""
        if head is None:
            return {}
        passed = passed_on(head, self.writer)
        if self.writer in head.writers:
            return _higher(head.writers[self.writer], passed.marks)
        mine = adoptable(head, self.writer)
        others = [str(other) for other in sorted(passed.left)]
        if left := head.unclaimed.marks.keys() - mine.keys():
            others.append(_named(head.unclaimed, left))
        if others and not self.shared:
            raise SinkRefused(self._refusal(others))
        return _higher(mine, passed.marks)

    def upgrades(self, head: LedgerEntry | None) -> bool:
        """Return whether marks of version 1 are to become this writer's: by a commit, before they are used."""
        return head is not None and self.writer not in head.writers and bool(adoptable(head, self.writer))

    def check(self, head: LedgerEntry | None, batch: ShardSpans) -> None:
        """Check whether the batch may follow this head. Raises SinkRefused and Fenced."""
        if changed := moved(batch, self.marks(head)):
            raise Fenced(self.sink, changed)

    def following(self, head: LedgerEntry | None, batch: ShardSpans, token: str, **said: Any) -> LedgerEntry:
        """Return the entry that follows `head` with this batch. Raises SinkRefused and Fenced."""
        self.check(head, batch)
        entry = ledger.following(head, self.writer, self.marks(head), batch, token, **said)
        left = passed_on(head, self.writer).left if head is not None else {}
        return replace(entry, writers={**left, self.writer: retired(entry.writers[self.writer], self.ended)})

    def _refusal(self, others: list[str]) -> str:
        named = "; ".join(others[:NAMED_MAX]) + (f" and {len(others) - NAMED_MAX} more" if others[NAMED_MAX:] else "")
        return (
            f"sink {self.sink}: {self.place} is written by {named}. This is {self.writer}, and what the sink holds of "
            f"one says nothing about the other; nothing was written or acknowledged. {self.remedy}"
        )


class AdmittedSink:
    """What sinks whose ledger has entries share: shards that have ended are retired with the next commit."""

    _admission: Admission

    def retire(self, ended: HighWaterMarks) -> None:
        """Forget `ended`, which are shards of which nothing new can come, with the position that the sink held of each
        then; or all single records whose marks have no use any more.
        """
        before = {shard: mark for shard, mark in self._admission.ended.items() if OF_A_RECORD not in shard.shard}
        self._admission = replace(self._admission, ended={**before, **ended})


def admission_of(writer: WriterIdentity, sink: str, place: str, *, shared: bool) -> Admission:
    remedy = (
        f"Use another path; or, if both are meant to write there, set mld.spark.sink.{sink}.writers = shared: each "
        "then has marks of its own"
    )
    return Admission(writer, sink, place, remedy, shared)


@dataclass(frozen=True, slots=True)
class PassedOn:
    """What one writer has of others that were it before: their `marks` under its own names, and what is `left`."""

    marks: HighWaterMarks
    left: Mapping[WriterIdentity, HighWaterMarks]
    """All other writers, with the marks that stay theirs; none is empty that was not."""


def passed_on(head: LedgerEntry, writer: WriterIdentity) -> PassedOn:
    """Return the marks that the writer takes over: those of the same application and pipeline, where it read one stream
    and now reads several, or the other way round.
    """
    marks: dict[StreamShard, RecordPosition] = {}
    left: dict[WriterIdentity, HighWaterMarks] = {}
    for other, theirs in head.writers.items():
        if other == writer:
            continue
        names = _other_names(theirs, other, writer)
        marks = _higher(marks, {name: theirs[shard] for shard, name in names.items()})
        rest = {shard: mark for shard, mark in theirs.items() if shard not in names}
        if rest or not names:
            left[other] = rest
    return PassedOn(marks, left)


def _other_names(
    theirs: HighWaterMarks, other: WriterIdentity, writer: WriterIdentity
) -> dict[StreamShard, StreamShard]:
    """Return how `writer` calls the shards of `other` that become its own."""
    if (other.application, other.pipeline) != (writer.application, writer.pipeline):
        return {}
    if other.is_of_several == writer.is_of_several or any(shard.stream == QUERY for shard in theirs):
        return {}  # progress of a query is that of a checkpoint, which is not taken over
    one = writer if other.is_of_several else other
    identifier = key_of_one(one)
    if identifier is None:
        return {}
    old, new = (identifier, one.stream) if other.is_of_several else (one.stream, identifier)
    return {shard: StreamShard(new, shard.shard) for shard in theirs if shard.stream == old}


def _higher(marks: HighWaterMarks, more: HighWaterMarks) -> dict[StreamShard, RecordPosition]:
    """Return all shards of both, each with its higher mark."""
    return {**marks, **{shard: max(mark, marks.get(shard, mark)) for shard, mark in more.items()}}


def adoptable(head: LedgerEntry, writer: WriterIdentity) -> HighWaterMarks:
    """Return the marks without an owner that may become the writer's: those of its stream's name, and of queries."""
    unclaimed = head.unclaimed
    streams = {shard.stream for shard in unclaimed.marks} - {QUERY}
    if streams and writer.stream not in streams:
        return {}
    if _is_older(unclaimed, writer) or (len(streams) < 2 and _is_of_another_application(unclaimed, writer)):
        return {}
    return {shard: mark for shard, mark in unclaimed.marks.items() if shard.stream in (QUERY, writer.stream)}


def _is_older(unclaimed: UnclaimedMarks, writer: WriterIdentity) -> bool:
    """Return whether the marks were written before the stream was made."""
    try:
        return datetime.fromisoformat(unclaimed.at) + CLOCKS_APART_MAX < datetime.fromisoformat(writer.created)
    except (ValueError, TypeError):
        return False  # one of them does not say


def _is_of_another_application(unclaimed: UnclaimedMarks, writer: WriterIdentity) -> bool:
    """Return whether it is another application's: the batches of version 1 are called `<application>-<number>`, or
    `<application>-query-<number>`.
    """
    ours = rf"{re.escape(writer.application)}(-query)?-\d+"
    return bool(re.fullmatch(r".+-\d+", unclaimed.batch_id)) and not re.fullmatch(ours, unclaimed.batch_id)


def _named(unclaimed: UnclaimedMarks, shards: set[StreamShard]) -> str:
    names = ", ".join(sorted({shard.stream for shard in shards} - {QUERY})) or "another checkpoint"
    last = f", last at {unclaimed.at}" if unclaimed.at else ""
    last += f" by batch {unclaimed.batch_id}" if unclaimed.batch_id else ""
    return f"an older version of this program for stream {names}{last}"
