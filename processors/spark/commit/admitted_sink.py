"""The base class of all sinks that keep a ledger: files, Delta, Iceberg and JDBC.

It writes the entry that follows the newest one, reads entries that stand in a table, and reports what a commit did.
`admission` decides which marks are whose.
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
    """A sink whose ledger records who wrote what."""

    exactly_once = True
    name: str
    _admission: Admission
    _ledger_place: str
    """Names the place of the entry for people, where the ledger is in a table."""

    def retire(self, ended: HighWaterMarks) -> None:
        """Forget shards or single records with the next commit (`Sink.retire`)."""
        self._admission = replace(self._admission, ended=ended)

    def _entry_after(
        self, head: LedgerEntry | None, batch: ShardSpans, batch_id: str, *, token: str = "", **said: Any
    ) -> LedgerEntry:
        """Return the entry that follows `head` with this batch. It names this process and the time, for people. An
        empty `token` is replaced by a new one. Raises SinkRefused and Fenced.
        """
        at = datetime.now(UTC).isoformat(timespec="milliseconds")
        writer = f"{socket.gethostname()} pid {os.getpid()}"
        token = token or uuid4().hex
        return self._admission.following(head, batch, token, batch_id=batch_id, writer=writer, at=at, **said)

    def _decoded(self, text: str) -> LedgerEntry:
        """Decode an entry that stands in a table. Raises SinkRefused."""
        return ledger.decode(text.encode(), f"sink {self.name}: {self._ledger_place}")

    def _without_table(self, head: LedgerEntry | None, batch: ShardSpans) -> Published:
        """Report an empty batch as published before there is a table. Nothing is written: if the batch is delivered
        again, it is as empty."""
        return Published(advanced(self._admission.marks(head), batch))

    def _published(self, entry: LedgerEntry, rows: int | None) -> Published:
        """Return what the commit of the entry did."""
        return Published(self._admission.marks(entry), entry.number, rows)
