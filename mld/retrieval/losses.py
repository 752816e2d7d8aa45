"""`Losses`: finds out whether records were trimmed from the stream before they were read, and reports such a loss.

Rule: retrieval#lost-to-retention. A reader finds a gap if the record that it asked for is not there, or if the first
record that it gets is later than the one that it wanted (`starting_points`). Only then is Kinesis asked for the
retention of the stream and the oldest record of the shard. The gap is harmless if the missing records would be younger
than the retention. It is also harmless if the shard still has older records, because then the missing record never
existed. The report of a loss names the records around the gap, and when they arrived; how many records are lost cannot
be known.
"""

from __future__ import annotations

import asyncio
import logging
import math
from dataclasses import dataclass
from enum import Enum

from mld.core.clock import Clock, iso_time
from mld.core.error_boundary import contained
from mld.core.errors import MldError
from mld.core.log_fields import about
from mld.core.streams import FanOut, IteratorType, Page, StartingPoint, Streams
from mld.metrics.shard import ShardMetrics
from mld.retrieval.starting_points import SAFE_AGE_S, ReadState

logger = logging.getLogger(__name__)

RETENTION_MIN_S = 24 * 3600.0
"""The shortest retention that AWS allows."""
RETENTION_SHARE = 0.95
"""Records that are younger than this share of the retention are certainly kept, even if the clocks of workers
differ."""
EVIDENCE_S = 10.0
"""Longest wait for the retention and the oldest record of the stream. Without them, the gap is reported as a loss."""


class Missing(Enum):
    """What a missing record means."""

    HARMLESS = "nothing that may be missing is old enough to be trimmed"
    NEVER_THERE = "the stream has older records, and never had this one"
    UNKNOWN = "it was trimmed, nothing follows it, and nobody knows for how long the shard was not read"
    LOST = "records were trimmed before they were read"


@dataclass(frozen=True, slots=True)
class Suspicion:
    """A gap that a reader found.

    `asked` is the sequence number of the record that it asked for, or the type of its starting point if that names no
    record. `first` is the record that came instead, and `first_arrival_s` its arrival time; None if no record follows.
    `read_to_s` (epoch seconds): everything that had arrived by then was read; None if unknown.
    """

    asked: str
    first: str | None
    first_arrival_s: float | None
    read_to_s: float | None

    @property
    def names_record(self) -> bool:
        """Whether the reader asked for a certain record."""
        return self.asked.isdigit()


def judge(suspicion: Suspicion, now_s: float, kept_s: float, oldest: str | None) -> Missing:
    """Return what a gap means. Records younger than `kept_s` seconds are certainly in the stream. `oldest` is the
    sequence number of the oldest record of the shard; None if it is unknown, or if the reader asked for no certain
    record (`_evidence`).
    """
    read_to_s = suspicion.read_to_s
    if read_to_s is not None and now_s - read_to_s < kept_s:
        return Missing.HARMLESS
    if oldest is not None and int(oldest) < int(suspicion.asked):
        return Missing.NEVER_THERE
    return Missing.UNKNOWN if suspicion.first is None and read_to_s is None else Missing.LOST


def in_words(suspicion: Suspicion) -> str:
    """Return a description of the records that may be lost: after and before which records, and their arrival.

    Two examples: "whatever came after record 100, and arrived after 2026-01-02T03:04:05Z, before 200, which arrived at
    2026-01-03T03:04:05Z"; "whatever was there, before 200, which arrived at 2026-01-03T03:04:05Z".
    """
    after = "" if suspicion.read_to_s is None else f"arrived after {iso_time(suspicion.read_to_s)}"
    until = "until now, and nothing follows" if suspicion.first is None else f"before {suspicion.first}"
    if suspicion.first_arrival_s is not None:
        until += f", which arrived at {iso_time(suspicion.first_arrival_s)}"
    if suspicion.names_record:
        after = f"came after record {suspicion.asked}" + (after and f", and {after}")
    return f"whatever {after or 'was there'}, {until}"


def report(suspicion: Suspicion, shard_id: str, metrics: ShardMetrics, wall_s: float) -> None:
    """Log a loss, count it and add it to the events. If the same loss was found before, only log it, at DEBUG."""
    records = in_words(suspicion)
    is_new = metrics.lost(suspicion.asked, suspicion.first, records, wall_s)
    logger.log(
        logging.ERROR if is_new else logging.DEBUG,
        "shard %s has lost %s: it left the stream before it was read", shard_id, records,
        extra=about("checkpoint_trimmed", shard_id, checkpoint=suspicion.asked, first=suspicion.first),
    )  # fmt: skip


@dataclass(eq=False, slots=True)
class Proofs:
    """Shared by the readers of a worker: whether one of them has warned that the stream cannot be asked for its
    retention and oldest record.
    """

    is_lack_logged: bool = False


class Losses:
    """Judges the gaps that the reader of one shard finds, and reports losses.

    `source` is asked for the retention, and `streams` for the oldest record; None: the oldest record stays unknown.
    """

    def __init__(
        self,
        source: Streams | FanOut,
        streams: Streams | None,
        shard_id: str,
        clock: Clock,
        metrics: ShardMetrics,
        proofs: Proofs,
    ) -> None:
        """Make the judge of one shard's gaps. The class describes `source` and `streams`; `proofs` is shared by all
        shards.
        """
        self._source = source
        self._streams = streams
        self._shard_id = shard_id
        self._clock = clock
        self._metrics = metrics
        self._proofs = proofs

    async def look_into(self, read: ReadState, page: Page) -> None:
        """Find out why `page` does not begin with the record that was asked for, and report it if records were lost."""
        assert read.asked is not None
        arrival_ms = page.first_arrival_ms
        suspicion = Suspicion(
            read.asked, page.first_sequence, None if arrival_ms is None else arrival_ms / 1000, read.read_to_s
        )
        now_s = self._clock.wall()
        verdict = Missing.HARMLESS
        # If everything that arrived until a short time ago was read, nothing can have been trimmed: AWS is not asked.
        # A start without a record nearly always looks like a gap, so then AWS is asked only after RETENTION_MIN_S.
        safe_s = SAFE_AGE_S if suspicion.names_record else RETENTION_MIN_S
        if read.read_to_s is None or now_s - read.read_to_s >= safe_s:
            verdict = judge(suspicion, now_s, *await self._evidence(suspicion, now_s))
        if verdict is not Missing.LOST:
            logger.log(
                logging.INFO if suspicion.names_record else logging.DEBUG,
                "record %s of shard %s is not there: %s", suspicion.asked, self._shard_id, verdict.value,
                extra=about("record_missing", self._shard_id, checkpoint=suspicion.asked, first=suspicion.first),
            )  # fmt: skip
            return
        report(suspicion, self._shard_id, self._metrics, now_s)

    async def _evidence(self, suspicion: Suspicion, now_s: float) -> tuple[float, str | None]:
        """Return the age in seconds below which records are certainly in the stream, and the oldest record of the
        shard.

        The oldest record is None if it is unknown or not needed.
        """
        kept_s, oldest = RETENTION_MIN_S, None
        try:
            async with asyncio.timeout(EVIDENCE_S):
                summary = await contained(self._source.describe(), "describing the stream", self._shard_id)
                if not suspicion.names_record:
                    # A stream that is younger than its retention has trimmed nothing yet.
                    kept_s = summary.retention_s or kept_s
                    is_younger = summary.created_ms is not None and now_s - summary.created_ms / 1000 < kept_s
                    return math.inf if is_younger else kept_s, None
                # The retention may have been raised since records were trimmed, so only the minimum is certain. A
                # stand-in of Kinesis may report less than the minimum.
                kept_s = min(kept_s, summary.retention_s or kept_s)
                oldest = await contained(self._oldest(), "reading the oldest record", self._shard_id)
        except (MldError, TimeoutError) as error:
            logger.log(
                logging.INFO if self._proofs.is_lack_logged else logging.WARNING,
                "cannot ask what was trimmed from shard %s, so that whatever may be lost is reported as lost: %s (`mld "
                "iam-policy` prints the permissions that it takes)", self._shard_id, error or "no answer",
                extra=about("retention_unknown", self._shard_id),
            )  # fmt: skip
            self._proofs.is_lack_logged = True
        return RETENTION_SHARE * kept_s, oldest

    async def _oldest(self) -> str | None:
        """Return the sequence number of the oldest record in the shard; None if it cannot be asked for, or there is no
        record.
        """
        if self._streams is None:
            return None
        iterator = await self._streams.shard_iterator(self._shard_id, StartingPoint(IteratorType.TRIM_HORIZON))
        return (await self._streams.get_records(iterator, 1)).first_sequence
