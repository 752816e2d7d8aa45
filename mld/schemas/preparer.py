"""`SchemaPreparer`: takes the frames off the records of a batch before a child gets it.

Rules: retrieval#framed-records, retrieval#schema-lookups. It works on records as they are framed for the child, so that
it is all the same whether they came alone or in an aggregate, by polling or by enhanced fan-out.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from mld.clock import Clock
from mld.consumer.parts import JoinedBatch, Part, PlacedRecord, records_of
from mld.errors import SchemaUnknownError, SchemaUnreachableError
from mld.metrics.instruments import Tally
from mld.retrieval.rawpage import RawBatch
from mld.schemas.decoding import SchemaRules, UndecodableError, decoded, frame_in, marked
from mld.schemas.registry import SchemaRegistry
from mld.streams import ChildBatch, Misrouted
from protocol.framed import FramedRecord

log = logging.getLogger(__name__)

DECODED = "decoded"
RESULTS = {SchemaUnknownError: "unknown", SchemaUnreachableError: "unreachable", UndecodableError: "undecodable"}
"""What became of a framed record, as it is counted."""
RETRY_FIRST_S = 1.0
RETRY_MAX_S = 30.0
CAUSES_TOLD_MAX = 1000
RECORDS_PER_TURN = 50
BYTES_PER_TURN = 64 * 1024
FEW_OF = 8
"""Up to one framed record of so many is replaced by itself; more of them, and all records are framed once more."""
BATCH_BYTES_MAX = 256 * 1024 * 1024
"""Of one batch, as children get it. A page has 10 MiB, and its records may inflate to 32 MiB each."""


class UnframedBatch(Part):
    """The records of another batch, with other data; what was wrong with its aggregates is told here, too."""

    def __init__(self, records: list[PlacedRecord], of: ChildBatch) -> None:
        super().__init__(records, of.millis_behind_latest)
        self.malformed: Mapping[str, str] = of.malformed
        self.misrouted: Mapping[str, Misrouted] = of.misrouted


class SchemaPreparer:
    """One for all shards of a worker. `waits`: a batch waits for a schema that cannot be had, instead of being
    delivered with the frame on the record. `results` counts what became of framed records."""

    def __init__(
        self, registry: SchemaRegistry, clock: Clock, rules: SchemaRules, *, waits: bool, results: Tally | None = None
    ) -> None:
        self._registry = registry
        self._clock = clock
        self._rules = rules
        self._waits = waits
        self._results = Tally() if results is None else results
        self._told: set[str] = set()

    async def prepare(self, batch: ChildBatch) -> ChildBatch:
        """The batch without frames; the very batch if no record has one. Cancel it to give up waiting."""
        if batch.largest is None:
            return batch
        if isinstance(batch, RawBatch):
            around = batch.around_frames()
            if sum(is_framed for _, is_framed in around) * FEW_OF <= batch.count:
                return await self._spliced(batch, around)
        records = await records_of(batch)
        done = 0
        size = 0
        total = 0
        found = False
        for number, (position, framed) in enumerate(records):
            done, size = done + 1, size + len(framed.text)
            if done > RECORDS_PER_TURN or size > BYTES_PER_TURN:
                done = size = 0
                await asyncio.sleep(0)
            unframed = await self._unframed(framed, total)
            total += len(unframed.text)
            if unframed is not framed:
                size += len(unframed.text)
                found = True
                records[number] = PlacedRecord(position, unframed)
        return UnframedBatch(records, batch) if found else batch

    async def _spliced(self, batch: RawBatch, around: list[tuple[RawBatch, bool]]) -> ChildBatch:
        """The batch with its few framed records replaced; all others stay as the page has them."""
        parts: list[ChildBatch] = []
        total, found = 0, False
        for part, is_framed in around:
            if is_framed:
                ((position, framed),) = await records_of(part)
                unframed = await self._unframed(framed, total)
                if unframed is not framed:
                    found = True
                    parts.append(Part([PlacedRecord(position, unframed)], batch.millis_behind_latest))
                    total += len(unframed.text)
                    continue
            parts.append(part)
            total += part.data_bytes
        return JoinedBatch(parts, batch) if found else batch

    async def _unframed(self, record: FramedRecord, before: int) -> FramedRecord:
        """`before`: bytes of the records of its batch before it."""
        frame = frame_in(record)
        if frame is None:
            return record
        delay_s = RETRY_FIRST_S
        while True:
            try:
                version, file = await self._registry.version(frame.version_id)
                unframed = decoded(record, frame, version, self._rules, file)
                if before + len(unframed.text) > max(BATCH_BYTES_MAX, before + len(record.text)):
                    raise UndecodableError(f"its page inflates to more than {BATCH_BYTES_MAX} bytes")
                self._results.add(DECODED)
                return unframed
            except (SchemaUnknownError, SchemaUnreachableError, UndecodableError) as error:
                self._results.add(RESULTS[type(error)])
                self._tell(record, frame.version_id, str(error))
                if not self._waits:
                    return marked(record, str(error))
            await self._clock.sleep(delay_s)
            delay_s = min(2 * delay_s, RETRY_MAX_S)

    def _tell(self, record: FramedRecord, version_id: str, why: str) -> None:
        """Warn once of each schema version and cause; the keys on the records tell the rest."""
        cause = f"{version_id} {why}"
        level = logging.DEBUG if cause in self._told else logging.WARNING
        if len(self._told) >= CAUSES_TOLD_MAX:
            self._told.clear()
        self._told.add(cause)
        what = "its batch waits" if self._waits else "it is delivered with its frame"
        log.log(
            level,
            "record %s of schema version %s: %s; %s",
            record.sequence,
            version_id,
            why,
            what,
            extra={"action": "schema_failed", "schema_version": version_id},
        )
