"""What becomes of a framed record: other data, and flat keys that tell of its schema. Pure.

Rules: retrieval#framed-records.
"""

from __future__ import annotations

import json
from binascii import a2b_base64, b2a_base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from json.encoder import encode_basestring_ascii as quote

from mld.retrieval.layouts import FRAME_IN_BASE64
from mld.schemas.avro import AvroError, avro_decoder
from mld.schemas.frames import Frame, FrameError, frame_of
from mld.schemas.protobuf import ProtobufError, protobuf_decoder
from mld.schemas.versions import SchemaVersion
from properties.values import SchemaMode
from protocol.framed import FramedRecord

_DATA_START = len(b'{"data":"')
_END = b',"action":"record"}'
DECODERS_KEPT_MAX = 256


class UndecodableError(Exception):
    """A framed record that stays as it is; the text says why, and is told to the child."""


@dataclass(frozen=True, slots=True)
class DecodedRecord(FramedRecord):
    """A record with other data; `original` is as it came."""

    original: bytes = b""

    def as_it_came(self) -> FramedRecord:
        """The record with its frame: for dead letters, which must lose nothing."""
        return FramedRecord(self.sequence, self.sub, self.original)


@dataclass(frozen=True, slots=True)
class SchemaRules:
    """`is_inline`: records bear the definition itself."""

    mode: SchemaMode
    is_inline: bool = False
    validates: bool = False


def frame_in(record: FramedRecord) -> Frame | None:
    """The frame of a record's data; None if it has none. Its base64 is looked at before anything is decoded."""
    text = record.text
    if FRAME_IN_BASE64.match(text, _DATA_START) is None:
        return None
    return frame_of(a2b_base64(text[_DATA_START : text.index(b'"', _DATA_START)]))


def decoded(
    record: FramedRecord, frame: Frame, version: SchemaVersion, rules: SchemaRules, schema_file: str | None
) -> FramedRecord:
    """The record with the payload of its frame as data. Raises UndecodableError."""
    try:
        data = frame.inflated()
        data_format = version.data_format
        if rules.mode is SchemaMode.JSON and data_format == "AVRO":
            data = _avro(version.definition)(data)
            data_format = "JSON"
        elif rules.mode is SchemaMode.JSON and version.descriptors is not None:
            data = _protobuf(version.descriptors)(data)
            data_format = "JSON"
        elif rules.validates and data_format == "JSON":
            _json_validator(version.definition)(data)
    except (FrameError, AvroError, ProtobufError) as error:
        raise UndecodableError(str(error)) from error
    extra = {
        "schemaVersionId": version.version_id,
        "schemaName": version.name,
        "schemaDataFormat": version.data_format,
    }
    if rules.mode is SchemaMode.JSON:
        extra["dataFormat"] = data_format
    if schema_file is not None:
        extra["schemaFile"] = schema_file
    if rules.is_inline:
        extra["schemaDefinition"] = version.definition
    return _rewritten(record, data, extra)


def marked(record: FramedRecord, why: str) -> FramedRecord:
    """The record as it came, with a key that says why its frame was not taken off."""
    return _rewritten(record, None, {"schemaError": why})


def _rewritten(record: FramedRecord, data: bytes | None, extra: Mapping[str, str]) -> FramedRecord:
    text = record.text
    end = text.index(b'"', _DATA_START)
    payload = text[_DATA_START:end] if data is None else b2a_base64(data, newline=False)
    keys = "".join(f",{quote(name)}:{quote(value)}" for name, value in extra.items()).encode("ascii")
    rewritten = b"".join((text[:_DATA_START], payload, text[end : -len(_END)], keys, _END))
    return DecodedRecord(record.sequence, record.sub, rewritten, text)


@lru_cache(maxsize=DECODERS_KEPT_MAX)
def _avro(definition: str) -> Callable[[bytes], bytes]:
    return avro_decoder(definition)


@lru_cache(maxsize=DECODERS_KEPT_MAX)
def _protobuf(descriptors: bytes) -> Callable[[bytes], bytes]:
    return protobuf_decoder(descriptors)


@lru_cache(maxsize=DECODERS_KEPT_MAX)
def _json_validator(definition: str) -> Callable[[bytes], None]:
    """Raises FrameError for data that is not of a JSON schema."""
    from jsonschema import exceptions, validators
    from referencing import Registry

    try:
        schema = json.loads(definition)
        validator = validators.validator_for(schema)(schema, registry=Registry())  # one that fetches nothing
    except Exception as error:
        raise FrameError(f"the schema is no JSON schema: {error}") from error

    def validate(data: bytes) -> None:
        try:
            validator.validate(json.loads(data))
        except exceptions.ValidationError as error:
            raise FrameError(f"the data is not of its JSON schema: {error.message}") from error
        except ValueError as error:
            raise FrameError(f"the data is no JSON: {error}") from error
        except Exception as error:  # a reference that leads nowhere, a pattern that is none, endless nesting
            raise FrameError(f"its JSON schema cannot be applied: {type(error).__name__}: {error}") from error

    return validate
