"""`mld.spark.mode = streaming`: micro-batches go to streaming queries, and a shard's checkpoint follows their commits.

A batch is published in the inbox, exactly once, by whichever worker has its shards; then it is waited for until the
queries have committed it, wherever they run. What the inbox holds is not run again, and it is not acknowledged before
its commit either. There is no search for a record that fails: what a stateful query has seen of a batch cannot be
told apart, so a batch that keeps failing stops all shards, with nothing lost.
"""

from __future__ import annotations

import logging
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import BinaryIO

from processors.spark.batch import record_lines
from processors.spark.batch.engine import BACKOFF_MAX_S, FENCED_MAX, HealthCheck, Stopped
from processors.spark.batch.micro_batch import MicroBatch, Row, piece_of
from processors.spark.batch.outcome import BatchFigures, BatchOutcome
from processors.spark.batch.repeats import Repeats
from processors.spark.batch.spool import Spool
from processors.spark.commit.ledger import LedgerEntry
from processors.spark.commit_stages import stage
from processors.spark.high_water_marks import HighWaterMarks, RecordPosition, ShardSpans, StreamShard, merged, spans
from processors.spark.settings import SparkSettings
from processors.spark.sink_port import Fenced, SinkError, SinkRefused
from processors.spark.streaming.inbox import NAME, Inbox, check_not_lost
from processors.spark.streaming.leader import QueryFailed, QueryLeader

log = logging.getLogger("mld.spark")


class StreamingEngine:
    """As `engine.Engine`: `start` and `run` are called on one thread, `stop` from any."""

    def __init__(
        self,
        settings: SparkSettings,
        inbox: Inbox,
        leader: QueryLeader,
        health: HealthCheck,
        spool: Spool,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._inbox = inbox
        self._leader = leader
        self._health = health
        self._spool = spool
        self._monotonic = monotonic
        self._committed: HighWaterMarks = {}
        self._repeats = Repeats(spool)
        self._stopping = threading.Event()
        self._number = 0

    def start(self) -> None:
        """Raises SinkError."""
        self._inbox.open()
        self._leader.start()

    def stop(self) -> None:
        self._stopping.set()
        self._leader.end()

    def mark_of(self, shard: StreamShard) -> RecordPosition | None:
        """What the queries are known to have committed of a shard."""
        return self._committed.get(shard)

    def run(self, batch: MicroBatch, file: Path | None) -> BatchOutcome:
        """Run a batch to its end. Raises SessionGone and Stopped. `file` holds exactly the records of the batch."""
        self._number += 1
        figures = BatchFigures(attempts=1)
        self._repeats.begin()
        if not batch.slices:
            figures.dropped = self._repeats.counts(batch, {NAME: self._committed})
            return BatchOutcome({}, figures)
        started = self._monotonic()
        try:
            entry = self._publish(batch, file if batch.whole else None)
            figures.handover_s = self._monotonic() - started
            stage("inboxed")
            self._leader.wait_for(entry.number, self._check)
        except (SinkRefused, QueryFailed) as error:
            return BatchOutcome(dict.fromkeys(batch.ends, str(error)), figures)
        figures.publish_s = self._monotonic() - started - figures.handover_s
        marks = self._inbox.marks(entry)
        self._committed = merged(self._committed, marks)
        figures.dropped = self._repeats.counts(batch, {NAME: marks})
        return BatchOutcome({}, figures)

    def _publish(self, batch: MicroBatch, file: Path | None) -> LedgerEntry:
        """The entry of the inbox that holds all of the batch, with what was there before."""
        fenced = waits = 0
        while True:
            try:
                progress = self._inbox.progress()
                head = self._inbox.open() if fenced or waits else self._inbox.head()
                check_not_lost(head, progress)
                missing = spans(batch.ends, self._inbox.marks(head))
                if not missing:
                    assert head is not None
                    return head
                name = f"{self._settings.application}-{self._number}"
                entry = self._inbox.publish(missing, self._writer(batch, missing, file), name)
                self._repeats.published(NAME, missing)
                return entry
            except Fenced as error:
                fenced += 1
                if fenced > FENCED_MAX:
                    raise SinkRefused(f"{error}; this has happened {fenced} times in a row") from error
                log.info("%s", error)
            except SinkRefused:
                raise
            except SinkError as error:
                waits += 1
                log.error("%s; trying again", error)
                self._pause(waits)

    def _writer(self, batch: MicroBatch, missing: ShardSpans, file: Path | None) -> Callable[[BinaryIO], None]:
        firsts = {piece.offer.shard: piece.offer.first for piece in reversed(batch.slices)}
        if file is not None and all(
            shard in missing and ((mark := missing[shard].after) is None or mark < first)
            for shard, first in firsts.items()
        ):
            return lambda target: _copy(file, target)
        after = {shard: span.after for shard, span in missing.items() if span.after is not None}
        every = self._rows(batch)
        rows = piece_of({shard: every[shard] for shard in missing}, after).rows

        def write(target: BinaryIO) -> None:
            for shard in sorted(rows):
                target.writelines(line for _, line in rows[shard])

        return write

    def _rows(self, batch: MicroBatch) -> Mapping[StreamShard, list[Row]]:
        rows: dict[StreamShard, list[Row]] = {}
        for piece, data in zip(batch.slices, self._spool.read(s.offer for s in batch.slices), strict=True):
            mine = [row for row in record_lines.rows(data) if piece.after is None or row[0] > piece.after]
            rows.setdefault(piece.offer.shard, []).extend(mine)
        return rows

    def _pause(self, failures: int) -> None:
        base = max(self._settings.retry_backoff_s, 0.01)
        if self._stopping.wait(min(BACKOFF_MAX_S, base * 2 ** min(failures - 1, 20))):
            raise Stopped
        self._health.check()

    def _check(self) -> None:
        """Raises SessionGone, or Stopped if we are asked to end."""
        if self._stopping.is_set():
            raise Stopped
        self._health.check()


def _copy(source: Path, target: BinaryIO) -> None:
    with source.open("rb") as file:
        shutil.copyfileobj(file, target)
