"""`SchemaPreparer`: takes the frames off the records of a batch before a child gets it. `registry_of` makes it, with
the registry's client and cache, as the settings ask for.

Rules: retrieval#framed-records, retrieval#schema-lookups. It works on records as they are framed for the child, so that
it is all the same whether they came alone or in an aggregate, by polling or by enhanced fan-out.
"""

from __future__ import annotations

import asyncio
import logging
import os
import tempfile
from binascii import a2b_base64
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mld.aws.client_factory import ClientFactory, CountedService, service_of
from mld.consumer.parts import JoinedBatch, Part, PlacedRecord, records_of
from mld.core.clock import Clock
from mld.core.errors import SchemaUnknownError, SchemaUnreachableError
from mld.core.streams import ChildBatch, Misrouted
from mld.metrics.instruments import Tally
from mld.metrics.worker import WorkerMetrics
from mld.properties.settings import Settings
from mld.properties.values import SchemaErrors, SchemaMode
from mld.protocol.codec import RECORD_END, record_keys
from mld.protocol.framed_records import FramedRecord
from mld.retrieval.pieces import FRAME_IN_BASE64
from mld.retrieval.rawbatch import RawBatch
from mld.schemas.decoder import HEADER_BYTES, Frame, UndecodableError, frame_of
from mld.schemas.decoder_process import DecoderJob, DecoderProcess
from mld.schemas.registry import TIMEOUT_S, SchemaRegistry, SchemaVersion

log = logging.getLogger(__name__)

Decode = Callable[[Sequence[DecoderJob]], Awaitable[list[bytes | UndecodableError]]]
Failure = SchemaUnknownError | SchemaUnreachableError | UndecodableError
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

LOOKUPS_AT_ONCE_MAX = 4

_DATA_START = len(b'{"data":"')
_HEADER_CHARS = HEADER_BYTES // 3 * 4  # a whole number of base64's groups, so the payload's base64 begins there


class UnframedBatch(Part):
    """The records of another batch, with other data; what was wrong with its aggregates is told here, too."""

    def __init__(self, records: list[PlacedRecord], of: ChildBatch) -> None:
        super().__init__(records, of.millis_behind_latest)
        self.malformed: Mapping[str, str] = of.malformed
        self.misrouted: Mapping[str, Misrouted] = of.misrouted


class SchemaPreparer:
    """One for all shards of a worker. `decode` makes payloads of jobs. `waits`: a batch waits for a schema that cannot
    be had, instead of being delivered with the frame on the record. `results` counts what became of framed records."""

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
        self._told: set[str] = set()

    async def prepare(self, batch: ChildBatch) -> ChildBatch:
        """Return the batch without frames; the very batch if no record has one. Cancel it to give up waiting."""
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
        """Return the batch with its few framed records replaced; all others stay as the page has them."""
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
        """Return the same records without frames; None if none has one."""
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
        """Take the frames off the records of these numbers. `before`: bytes of their batch before them."""
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
                    self._tell(record, framed[number].version_id, str(outcome))
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
        """Return by number, in order: the record without its frame, or why it cannot be had."""
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


def _bounded(result: FramedRecord | Failure, before: int, size: int) -> FramedRecord | Failure:
    """Return the result, or that its batch becomes too large with it. `size`: of the record as it came."""
    if isinstance(result, FramedRecord) and before + len(result.text) > max(BATCH_BYTES_MAX, before + size):
        return UndecodableError(f"its page inflates to more than {BATCH_BYTES_MAX} bytes")
    return result


# --- from the settings ------------------------------------------------------------------------------------------------


class RegistryPreparer(SchemaPreparer):
    """The one that the settings ask for, with the registry's client and cache; opened and closed with the daemon."""

    def __init__(self, settings: Settings, factory: ClientFactory, clock: Clock, worker: WorkerMetrics) -> None:
        """Make it, not open yet. Does no I/O."""
        asked = settings.schemas
        glue = service_of(
            factory,
            "glue",
            label="schema registry",
            threads_max=LOOKUPS_AT_ONCE_MAX,
            read_timeout_s=TIMEOUT_S,
            access=factory.access_beside_kinesis(asked.region, asked.endpoint),
        )
        self._service = CountedService(glue, "glue", worker)
        self._decoder = DecoderProcess()
        super().__init__(
            SchemaRegistry(self._service, clock, folder=Path(tempfile.gettempdir()) / f"mld-schemas-{os.getuid()}"),
            clock,
            asked.mode,
            self._decoder.decode,
            waits=asked.on_error is SchemaErrors.FAIL,
            results=worker.framed_records,
        )

    async def open(self) -> None:
        """Open the client. Raises StartupError without credentials or a region."""
        await self._service.open()

    async def close(self) -> None:
        self._decoder.close()
        await self._registry.close()
        await self._service.close()


def registry_of(
    settings: Settings, factory: ClientFactory, clock: Clock, worker: WorkerMetrics
) -> RegistryPreparer | None:
    """Make it, not open yet; None if frames stay on records. Does no I/O."""
    return None if settings.schemas.mode is SchemaMode.OFF else RegistryPreparer(settings, factory, clock, worker)


# --- what becomes of a framed record ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DecodedRecord(FramedRecord):
    """A record with other data; `original` is as it came."""

    original: bytes = b""

    def as_it_came(self) -> FramedRecord:
        """Return the record with its frame: for dead letters, which must lose nothing."""
        return FramedRecord(self.sequence, self.sub, self.original)


def frame_in(record: FramedRecord) -> Frame | None:
    """Return the frame of a record's data; None if it has none."""
    text = record.text
    if FRAME_IN_BASE64.match(text, _DATA_START) is None:
        return None
    return frame_of(a2b_base64(text[_DATA_START : min(_DATA_START + _HEADER_CHARS, _data_end(text))]))


def job_of(record: FramedRecord, frame: Frame, version: SchemaVersion, mode: SchemaMode) -> DecoderJob:
    """Return what is to be done with the payload of a record that has this frame."""
    definition = version.definition if mode is SchemaMode.JSON and version.data_format == "AVRO" else None
    return DecoderJob(
        record.text[_DATA_START + _HEADER_CHARS : _data_end(record.text)], frame.is_compressed, definition
    )


def decoded(
    record: FramedRecord, payload: bytes, version: SchemaVersion, mode: SchemaMode, schema_file: str | None
) -> FramedRecord:
    """Return the record with this payload, in base64, as data."""
    extra = {
        "schemaVersionId": version.version_id,
        "schemaName": version.name,
        "schemaDataFormat": version.data_format,
    }
    if mode is SchemaMode.JSON:
        extra["dataFormat"] = "JSON" if version.data_format == "AVRO" else version.data_format
    if schema_file is not None:
        extra["schemaFile"] = schema_file
    return _rewritten(record, payload, extra)


def marked(record: FramedRecord, why: str) -> FramedRecord:
    """Return the record as it came, with a key that says why its frame was not taken off."""
    return _rewritten(record, record.text[_DATA_START : _data_end(record.text)], {"schemaError": why})


def _data_end(text: bytes) -> int:
    return text.index(b'"', _DATA_START)


def _rewritten(record: FramedRecord, payload: bytes, extra: Mapping[str, str]) -> FramedRecord:
    text = record.text
    rest = text[_data_end(text) : -len(RECORD_END)]
    rewritten = b"".join((text[:_DATA_START], payload, rest, record_keys(extra), RECORD_END))
    return DecodedRecord(record.sequence, record.sub, rewritten, text)
