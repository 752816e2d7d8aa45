"""`SchemaPreparer`: takes schema frames off the records of a batch before a child gets it.

Rules: retrieval#framed-records, retrieval#schema-lookups. If the registry does not know a schema, or a record cannot be
decoded, the record is delivered as it arrived, with a key that says why; or its batch waits, if so configured.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence

from mld.consumer.parts import JoinedBatch, Part, PlacedRecord, records_of
from mld.core.clock import Clock
from mld.core.errors import SchemaUnknownError, SchemaUnreachableError
from mld.core.streams import ChildBatch, Misrouted
from mld.metrics.instruments import Tally
from mld.properties.values import SchemaMode
from mld.protocol.framed_records import FramedRecord
from mld.retrieval.rawbatch import RawBatch
from mld.schemas.decoded_record import decoded, frame_in, job_of, marked
from mld.schemas.decoder_process import DecoderJob
from mld.schemas.frame import Frame, UndecodableError
from mld.schemas.registry import SchemaRegistry, SchemaVersion

log = logging.getLogger(__name__)

Decode = Callable[[Sequence[DecoderJob]], Awaitable[list[bytes | UndecodableError]]]
Failure = SchemaUnknownError | SchemaUnreachableError | UndecodableError
DECODED = "decoded"
RESULTS = {SchemaUnknownError: "unknown", SchemaUnreachableError: "unreachable", UndecodableError: "undecodable"}
"""The names under which failures are counted."""
RETRY_FIRST_S = 1.0
RETRY_MAX_S = 30.0
CAUSES_LOGGED_MAX = 1000
RECORDS_PER_TURN = 50
BYTES_PER_TURN = 64 * 1024
FEW_OF = 8
"""If at most one record in this many has a schema frame, only these records are rewritten for the child; else all
are.
"""
BATCH_BYTES_MAX = 256 * 1024 * 1024
"""Longest batch that children get. A page has up to 10 MiB, and each of its records may expand to 32 MiB."""


class UnframedBatch(Part):
    """The records of the batch `of` without their schema frames. It reports the faulty aggregates of that batch,
    too.
    """

    def __init__(self, records: list[PlacedRecord], of: ChildBatch) -> None:
        super().__init__(records, of.millis_behind_latest)
        self.malformed: Mapping[str, str] = of.malformed
        self.misrouted: Mapping[str, Misrouted] = of.misrouted


class SchemaPreparer:
    """Takes schema frames off records, for all shards of a worker.

    `decode` decodes payloads. With `waits` a batch waits for a schema that is not available; without it the record is
    delivered with its frame. `results` counts framed records by outcome.
    """

    def __init__(
        self,
        registry: SchemaRegistry,
        clock: Clock,
        mode: SchemaMode,
        decode: Decode,
        *,
        waits: bool,
        results: Tally | None = None,
    ) -> None:
        self._registry = registry
        self._clock = clock
        self._mode = mode
        self._decode = decode
        self._waits = waits
        self._results = Tally() if results is None else results
        self._causes_logged: set[str] = set()

    async def prepare(self, batch: ChildBatch) -> ChildBatch:
        """Return the batch without schema frames; the same object if no record has one. Cancel the call to stop waiting
        for a schema.
        """
        if batch.largest is None:
            return batch
        if isinstance(batch, RawBatch):
            around = batch.around_frames()
            if sum(is_framed for _, is_framed in around) * FEW_OF <= batch.count:
                return await self._spliced(batch, around)
        records = await records_of(batch)
        unframed = await self._unframed(records)
        return batch if unframed is None else UnframedBatch(unframed, batch)

    async def _spliced(self, batch: RawBatch, around: list[tuple[RawBatch, bool]]) -> ChildBatch:
        """Return the batch with the few records that have a schema frame replaced. All others keep their text."""
        framed = [record for part, is_framed in around if is_framed for record in await records_of(part)]
        unframed = await self._unframed(framed)
        if unframed is None:
            return batch
        replaced = iter(unframed)
        parts = [
            Part([next(replaced)], batch.millis_behind_latest) if is_framed else part for part, is_framed in around
        ]
        return JoinedBatch(parts, batch)

    async def _unframed(self, records: Sequence[PlacedRecord]) -> list[PlacedRecord] | None:
        """Return the records without schema frames; None if no record has one."""
        found = list(records)
        total, start, is_changed = 0, 0, False
        while start < len(found):
            stop, size = start, 0
            while stop < min(len(found), start + RECORDS_PER_TURN) and size <= BYTES_PER_TURN:
                size += len(found[stop].framed.text)
                stop += 1
            framed = {n: frame for n in range(start, stop) if (frame := frame_in(found[n].framed)) is not None}
            if framed:
                is_changed = True
                await self._unframe(found, framed, total)
            total += sum(len(record.framed.text) for record in found[start:stop])
            start = stop
            await asyncio.sleep(0)
        return found if is_changed else None

    async def _unframe(self, records: list[PlacedRecord], framed: Mapping[int, Frame], before: int) -> None:
        """Take the schema frames off the records with the indexes in `framed`, in place. `before` is the number of
        bytes in the batch before the first of them.
        """
        delay_s = RETRY_FIRST_S
        while True:
            results = await self._results_of(records, framed)
            failed: dict[int, Frame] = {}
            for number, result in results.items():
                position, record = records[number]
                outcome = _bounded(result, before, len(record.text))
                if isinstance(outcome, FramedRecord):
                    self._results.add(DECODED)
                    unframed = outcome
                else:
                    self._results.add(RESULTS[type(outcome)])
                    self._log_failure(record, framed[number].version_id, str(outcome))
                    failed[number] = framed[number]
                    if self._waits:
                        continue
                    unframed = marked(record, str(outcome))
                records[number] = PlacedRecord(position, unframed)
                before += len(unframed.text)
            if not failed or not self._waits:
                return
            framed = failed
            await self._clock.sleep(delay_s)
            delay_s = min(2 * delay_s, RETRY_MAX_S)

    async def _results_of(
        self, records: Sequence[PlacedRecord], framed: Mapping[int, Frame]
    ) -> dict[int, FramedRecord | Failure]:
        """Return for each index, in order, the record without its frame, or the reason why it keeps the frame."""
        results: dict[int, FramedRecord | Failure] = {}
        versions: dict[int, tuple[SchemaVersion, str | None]] = {}
        jobs: dict[int, DecoderJob] = {}
        payloads: dict[int, bytes] = {}
        for number, frame in framed.items():
            try:
                versions[number] = await self._registry.version(frame.version_id)
            except (SchemaUnknownError, SchemaUnreachableError) as error:
                results[number] = error
                continue
            job = job_of(records[number].framed, frame, versions[number][0], self._mode)
            if job.is_compressed or job.definition is not None:
                jobs[number] = job
            else:
                payloads[number] = job.text
        if jobs:
            for number, payload in zip(jobs, await self._decode(list(jobs.values())), strict=True):
                if isinstance(payload, UndecodableError):
                    results[number] = payload
                else:
                    payloads[number] = payload
        for number, payload in payloads.items():
            version, file = versions[number]
            results[number] = decoded(records[number].framed, payload, version, self._mode, file)
        return dict(sorted(results.items()))

    def _log_failure(self, record: FramedRecord, version_id: str, why: str) -> None:
        """Warn once for each schema version and cause. Further records are logged at DEBUG only; a key in each of them
        names the cause.
        """
        cause = f"{version_id} {why}"
        level = logging.DEBUG if cause in self._causes_logged else logging.WARNING
        if len(self._causes_logged) >= CAUSES_LOGGED_MAX:
            self._causes_logged.clear()
        self._causes_logged.add(cause)
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


def _bounded(result: FramedRecord | Failure, before: int, size: int) -> FramedRecord | Failure:
    """Return the result; an error if it would make its batch too large. `size` is the length of the record as it
    arrived.
    """
    if isinstance(result, FramedRecord) and before + len(result.text) > max(BATCH_BYTES_MAX, before + size):
        return UndecodableError(f"its page inflates to more than {BATCH_BYTES_MAX} bytes")
    return result
