"""The base class of all sinks that keep a ledger: files, Delta, Iceberg and JDBC.

It makes the ledger entry for a commit, decodes entries that are kept in a table, and makes the result of a commit. An
entry has the marks after its commit. A mark is the position up to which the records of a shard are in the sink. The
newest entry is the head. `admission` decides which marks belong to a writer.
"""

from __future__ import annotations

import os
import socket
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

from mld.processors.spark.commit import ledger
from mld.processors.spark.commit.admission import Admission
from mld.processors.spark.commit.ledger import LedgerEntry
from mld.processors.spark.high_water_marks import HighWaterMarks, ShardSpans, advanced
from mld.processors.spark.sink_port import Published


class AdmittedSink:
    """A sink whose ledger records which writer wrote which records."""

    exactly_once = True
    name: str
    _admission: Admission
    _ledger_place: str
    """The place of the ledger entry as messages name it; only for sinks that keep the ledger in a table."""

    def retire(self, ended: HighWaterMarks) -> None:
        """Note in the ledger, with the next commit, that these shards have ended. For single records, which only a dead
        letter has in its marks, remove the marks instead (`Sink.retire`)."""
        self._admission = replace(self._admission, ended=ended)

    def _entry_after(
        self, head: LedgerEntry | None, batch: ShardSpans, batch_id: str, *, token: str = "", **fields: Any
    ) -> LedgerEntry:
        """Return the entry that follows `head` and commits this batch. It also has this process and the time, for
        people. An empty `token` is replaced by a new one. Raises SinkRefused and Fenced.
        """
        at = datetime.now(UTC).isoformat(timespec="milliseconds")
        writer = f"{socket.gethostname()} pid {os.getpid()}"
        token = token or uuid4().hex
        return self._admission.following(head, batch, token, batch_id=batch_id, writer=writer, at=at, **fields)

    def _decoded(self, text: str) -> LedgerEntry:
        """Decode an entry that is kept in a table. Raises SinkRefused."""
        return ledger.decode(text.encode(), f"sink {self.name}: {self._ledger_place}")

    def _without_table(self, head: LedgerEntry | None, batch: ShardSpans) -> Published:
        """Report a batch without rows as published although there is no table yet. Nothing is written: if the records
        are delivered again, they make no rows again."""
        return Published(advanced(self._admission.marks(head), batch))

    def _published(self, entry: LedgerEntry, rows: int | None) -> Published:
        """Return the result of the entry's commit, which has written `rows` rows (None: unknown)."""
        return Published(self._admission.marks(entry), entry.number, rows)
