"""Decides which marks in a sink's ledger belong to a writer, and whether the writer may write to the sink.

A ledger has one entry for each commit, and its newest entry, the head, has the marks of all writers. A mark is the
position up to which the records of a shard are in the sink. A writer is an application with its pipeline and stream
(`writer_identity`). Every writer has marks of its own, so that no writer takes another's finished records for its own.
A writer that is in the ledger may continue. A new writer is admitted if the ledger has no other, or if
`mld.spark.sink.<name>.writers = shared` allows several. Otherwise it is refused, in a sentence with its own name and
the names of the others.

Pure: values in, values out.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from mld.processors.spark.commit.ended_shards import retired
from mld.processors.spark.commit.ledger import LedgerEntry
from mld.processors.spark.high_water_marks import HighWaterMarks, ShardSpans, advanced, moved
from mld.processors.spark.sink_port import Fenced, SinkRefused
from mld.processors.spark.writer_identity import WriterIdentity

NAMED_MAX = 3
"""How many writers of a sink a sentence names at most."""


@dataclass(frozen=True, slots=True)
class Admission:
    """One writer at one sink. `place` describes the sink to people; `shared` means that it may have other writers."""

    writer: WriterIdentity
    sink: str
    place: str
    shared: bool = False
    ended: HighWaterMarks = field(default_factory=dict)
    """Shards that the next entry marks as ended, each with the position up to which its records are in the sink."""

    def marks(self, head: LedgerEntry | None) -> HighWaterMarks:
        """Return the marks of this writer. `head` is the ledger's newest entry. Raises SinkRefused if this writer may
        not write to the sink."""
        if head is None:
            return {}
        if self.writer not in head.writers and head.writers and not self.shared:
            raise SinkRefused(self._refusal([str(other) for other in sorted(head.writers)]))
        return head.writers.get(self.writer, {})

    def check(self, head: LedgerEntry | None, batch: ShardSpans) -> None:
        """Check that the batch may be committed after this head. Raises Fenced if the head's marks are not those by
        which the batch was trimmed, because another process has written these shards; SinkRefused as `marks` does."""
        if changed := moved(batch, self.marks(head)):
            raise Fenced(self.sink, changed)

    def following(self, head: LedgerEntry | None, batch: ShardSpans, token: str, **fields: Any) -> LedgerEntry:
        """Return the entry that follows `head` and commits this batch. Raises SinkRefused and Fenced."""
        self.check(head, batch)
        number, writers = (head.number + 1, head.writers) if head is not None else (1, {})
        marks = retired(advanced(writers.get(self.writer, {}), batch), self.ended)
        return LedgerEntry(number, token, {**writers, self.writer: marks}, **fields)

    def _refusal(self, others: list[str]) -> str:
        """Return the sentence that refuses this writer, because `others` write to the sink."""
        named = "; ".join(others[:NAMED_MAX]) + (f" and {len(others) - NAMED_MAX} more" if others[NAMED_MAX:] else "")
        return (
            f"sink {self.sink}: {self.place} is written by {named}. This is {self.writer}, and what the sink holds of "
            "one says nothing about the other; nothing was written or acknowledged. Name another path or table; or, if "
            f"both are meant to write there, set mld.spark.sink.{self.sink}.writers = shared: each then has marks of "
            "its own"
        )
