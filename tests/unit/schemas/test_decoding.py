"""Framed records on their way to a child: payload, keys, and what stays when something is wrong."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import zlib
from copy import copy
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

import fastavro
import pytest

from mld.check.message_schemas import flaw
from mld.properties.values import SchemaMode
from mld.protocol.codec import encode_record
from mld.protocol.framed_records import FramedRecord, Splitter, line_of
from mld.schemas.avro_json import avro_decoder
from mld.schemas.decoded_record import DecodedRecord, decoded, frame_in, job_of, marked
from mld.schemas.frame import UndecodableError
from mld.schemas.registry import SchemaVersion, version_of
from tests.twins.decoding import decode_here

ID = "00112233-4455-6677-8899-aabbccddeeff"
HEAD = bytes.fromhex("00112233445566778899aabbccddeeff")
ORDER: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "long"}, {"name": "note", "type": ["null", "string"]}],
}
STRIP, JSON = SchemaMode.STRIP, SchemaMode.JSON


def framed(data: bytes) -> FramedRecord:
    text = encode_record(data, b'"key"', b"49", b"1700000000000", 3)
    return FramedRecord("49", 3, text)


def avro(schema: Any, value: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(copy(schema)), value)
    return out.getvalue()


def version(data_format: str, definition: object) -> SchemaVersion:
    text = definition if isinstance(definition, str) else json.dumps(definition)
    return SchemaVersion(ID, "orders", data_format, text)


def taken_off(data: bytes, of: SchemaVersion, mode: SchemaMode, file: str | None = None) -> dict[str, Any]:
    record = framed(data)
    frame = frame_in(record)
    assert frame is not None
    (payload,) = asyncio.run(decode_here([job_of(record, frame, of, mode)]))
    if isinstance(payload, UndecodableError):
        raise payload
    found = decoded(record, payload, of, mode, file)
    assert isinstance(found, DecodedRecord)
    assert found.as_it_came() == record, "nothing of it is lost"
    (again,) = Splitter().feed(b"".join(line_of([found], None)))
    assert (again.sequence, again.sub) == ("49", 3), "whatever frames it, its position can be read"
    fields = found.fields()
    assert flaw("record", fields) is None
    fields["data"] = base64.b64decode(str(fields["data"]))
    return fields


def test_strip_gives_the_payload_and_names_the_schema() -> None:
    payload = avro(ORDER, {"id": 7, "note": None})
    for data in (b"\x03\x00" + HEAD + payload, b"\x03\x05" + HEAD + zlib.compress(payload)):
        fields = taken_off(data, version("AVRO", ORDER), STRIP, "/cache/x")
        assert fields == {
            "data": payload,
            "partitionKey": "key",
            "sequenceNumber": "49",
            "approximateArrivalTimestamp": 1700000000000,
            "subSequenceNumber": 3,
            "schemaVersionId": ID,
            "schemaName": "orders",
            "schemaDataFormat": "AVRO",
            "schemaFile": "/cache/x",
            "action": "record",
        }


def test_json_makes_text_of_avro_and_says_so() -> None:
    fields = taken_off(b"\x03\x00" + HEAD + avro(ORDER, {"id": 7, "note": "ü"}), version("AVRO", ORDER), JSON)
    assert fields["data"].decode() == '{"id":7,"note":"ü"}'
    assert (fields["schemaDataFormat"], fields["dataFormat"]) == ("AVRO", "JSON")


@pytest.mark.parametrize("data_format", ["JSON", "PROTOBUF"])
def test_other_formats_are_only_stripped(data_format: str) -> None:
    fields = taken_off(b"\x03\x00" + HEAD + b'{"a":1}', version(data_format, "{}"), JSON)
    assert (fields["data"], fields["dataFormat"]) == (b'{"a":1}', data_format)


@pytest.mark.parametrize(
    ("data", "of", "why"),
    [
        (avro(ORDER, {"id": 7, "note": "x"})[:-1], version("AVRO", ORDER), "not of its Avro schema"),
        (avro(ORDER, {"id": 7, "note": "x"}) + b"more", version("AVRO", ORDER), "4 bytes are left"),
        (b"", version("AVRO", "no schema"), "no Avro schema"),
        (b"", version("AVRO", {"type": "record"}), "no Avro schema"),
    ],
)
def test_what_is_not_of_its_schema_is_an_error(data: bytes, of: SchemaVersion, why: str) -> None:
    with pytest.raises(UndecodableError, match=why):
        taken_off(b"\x03\x00" + HEAD + data, of, JSON)


def test_a_record_that_stays_says_why_and_keeps_its_data() -> None:
    record = framed(b"\x03\x00" + HEAD + b"x")
    fields = marked(record, 'the registry said "no"').fields()
    assert flaw("record", fields) is None
    assert fields["schemaError"] == 'the registry said "no"'
    assert fields["data"] == record.fields()["data"]


def test_a_record_without_a_frame_is_not_looked_into() -> None:
    assert frame_in(framed(b"plain")) is None
    assert frame_in(framed(b"\x03\x00too short")) is None


@pytest.mark.parametrize(
    ("schema", "value", "text"),
    [
        ("null", None, "null"),
        ("boolean", True, "true"),
        ("double", 1.5, "1.5"),
        ("double", float("inf"), '"Infinity"'),
        ("double", float("-inf"), '"-Infinity"'),
        ("double", float("nan"), '"NaN"'),
        ("bytes", b"\x00\xff", '"AP8="'),
        ({"type": "fixed", "name": "F", "size": 2}, b"\x00\xff", '"AP8="'),
        ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, "B", '"B"'),
        ({"type": "array", "items": "int"}, [1, 2], "[1,2]"),
        ({"type": "map", "values": "int"}, {"a": 1}, '{"a":1}'),
        (["null", "int", "string"], "x", '"x"'),
        ({"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}, Decimal("12.50"), '"12.50"'),
        ({"type": "int", "logicalType": "date"}, date(2026, 11, 23), '"2026-11-23"'),
        ({"type": "int", "logicalType": "time-millis"}, time(1, 2, 3), '"01:02:03"'),
        (
            {"type": "long", "logicalType": "timestamp-millis"},
            datetime(2026, 11, 23, 1, 2, 3, 4000, UTC),
            '"2026-11-23T01:02:03.004000Z"',
        ),
        ({"type": "string", "logicalType": "uuid"}, UUID(ID), f'"{ID}"'),
    ],
)
def test_avro_values_have_one_form_in_json(schema: Any, value: Any, text: str) -> None:
    assert avro_decoder(json.dumps(schema))(avro(schema, value)).decode() == text


def test_a_union_that_makes_text_of_everything_is_no_schema_error() -> None:
    with pytest.raises(UndecodableError, match="not of its Avro schema"):
        avro_decoder('["null","string"]')(b"\x09")


def test_the_name_of_a_schema_is_the_last_part_of_its_arn() -> None:
    arn = "arn:aws:glue:eu-west-1:123456789012:schema/registry/orders"
    answer = {"SchemaArn": arn, "DataFormat": "JSON", "SchemaDefinition": "{}"}
    assert version_of(ID, answer) == SchemaVersion(ID, "orders", "JSON", "{}")
    with pytest.raises(KeyError):
        version_of(ID, {"SchemaArn": arn})
