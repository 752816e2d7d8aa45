"""What becomes of a framed record: other data, and flat keys that name its schema. Pure.

Rules: retrieval#framed-records.
"""

from __future__ import annotations

from binascii import a2b_base64
from collections.abc import Mapping
from dataclasses import dataclass
from json.encoder import encode_basestring_ascii as quote
from typing import Any

from mld.properties.values import SchemaMode
from mld.protocol.codec import FramedRecord
from mld.retrieval.rawpage import FRAME_IN_BASE64
from mld.schemas.decoder import HEADER_BYTES, Frame, frame_of
from mld.schemas.decoder_process import DecoderJob

_DATA_START = len(b'{"data":"')
_HEADER_CHARS = HEADER_BYTES // 3 * 4  # a whole number of base64's groups, so the payload's base64 begins there
_END = b',"action":"record"}'


@dataclass(frozen=True, slots=True)
class SchemaVersion:
    """A version of a schema. `data_format` is AVRO, JSON or PROTOBUF; `name` is that of the schema."""

    version_id: str
    name: str
    data_format: str
    definition: str


def version_of(version_id: str, answer: Mapping[str, Any]) -> SchemaVersion:
    """Return the version of an answer of GetSchemaVersion. Raises KeyError or TypeError for what is none."""
    arn = answer.get("SchemaArn")
    return SchemaVersion(
        version_id,
        "" if not isinstance(arn, str) else arn.rpartition("/")[2],
        str(answer["DataFormat"]),
        str(answer["SchemaDefinition"]),
    )


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
    keys = "".join(f",{quote(name)}:{quote(value)}" for name, value in extra.items()).encode("ascii")
    rewritten = b"".join((text[:_DATA_START], payload, text[_data_end(text) : -len(_END)], keys, _END))
    return DecodedRecord(record.sequence, record.sub, rewritten, text)
