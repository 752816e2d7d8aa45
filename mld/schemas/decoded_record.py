"""`DecodedRecord`: a record without its schema frame, with a decoded payload. Pure.

Rules: retrieval#framed-records. The functions here work on records framed for the child, not on records as Kinesis
sends them. So it makes no difference whether a record came alone or in an aggregate, by polling or by fan-out.
"""

from __future__ import annotations

from binascii import a2b_base64
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from mld.properties.values import SchemaMode
from mld.protocol.codec import RECORD_END, record_keys
from mld.protocol.framed_records import FramedRecord
from mld.retrieval.pieces import FRAME_IN_BASE64
from mld.schemas.decoder_process import DecoderJob
from mld.schemas.frame import HEADER_BYTES, Frame, frame_of
from mld.schemas.registry import SchemaVersion

FRAMES_KEPT_MAX = 1_000
"""Parsed frames that are kept: records of the same schema version have equal ones."""
_DATA_START = len(b'{"data":"')
_HEADER_CHARS = HEADER_BYTES // 3 * 4  # 18 bytes are whole groups of base64, so the payload's base64 begins after these


@dataclass(frozen=True, slots=True)
class DecodedRecord(FramedRecord):
    """A record with decoded data. `original` is the text of the record as it arrived."""

    original: bytes = b""

    def as_it_came(self) -> FramedRecord:
        """Return the record as it arrived, with its schema frame, for dead letters."""
        return FramedRecord(self.sequence, self.sub, self.original)


def frame_in(record: FramedRecord) -> Frame | None:
    """Return the schema frame of a record's data; None if it has none."""
    text = record.text
    if FRAME_IN_BASE64.match(text, _DATA_START) is None:
        return None
    return _frame_in_base64(text[_DATA_START : min(_DATA_START + _HEADER_CHARS, _data_end(text))])


@lru_cache(maxsize=FRAMES_KEPT_MAX)
def _frame_in_base64(header: bytes) -> Frame | None:
    """Return the frame in `header`, the base64 text of a payload's first bytes; None if these are no frame."""
    return frame_of(a2b_base64(header))


def job_of(record: FramedRecord, frame: Frame, version: SchemaVersion, mode: SchemaMode) -> DecoderJob:
    """Return the job that decodes the payload of a record with this frame."""
    definition = version.definition if mode is SchemaMode.JSON and version.data_format == "AVRO" else None
    return DecoderJob(
        record.text[_DATA_START + _HEADER_CHARS : _data_end(record.text)], frame.is_compressed, definition
    )


def decoded(
    record: FramedRecord, payload: bytes, version: SchemaVersion, mode: SchemaMode, schema_file: str | None
) -> FramedRecord:
    """Return the record with `payload`, which is base64, as its data, and with keys that describe its schema."""
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
    """Return the record as it arrived, with an additional key that says why its frame was not taken off."""
    return _rewritten(record, record.text[_DATA_START : _data_end(record.text)], {"schemaError": why})


def _data_end(text: bytes) -> int:
    """Return where the base64 text of a record's payload ends in the record's JSON text."""
    return text.index(b'"', _DATA_START)


def _rewritten(record: FramedRecord, payload: bytes, extra: Mapping[str, str]) -> FramedRecord:
    """Return the record with another payload, and with more keys at its end."""
    text = record.text
    rest = text[_data_end(text) : -len(RECORD_END)]
    rewritten = b"".join((text[:_DATA_START], payload, rest, record_keys(extra), RECORD_END))
    return DecodedRecord(record.sequence, record.sub, rewritten, text)
