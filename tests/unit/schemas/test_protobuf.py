"""Protobuf of the registry as JSON: the compiler itself, and the library's own messages."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from mld.schemas.compiling import CompileError, compiled_proto
from mld.schemas.decoding import SchemaRules
from mld.schemas.preparer import SchemaPreparer
from mld.schemas.protobuf import ProtobufError, index_of, protobuf_decoder
from properties.values import SchemaMode
from tests.twins.streams import VirtualClock
from tests.unit.schemas.test_java_frames import payloads
from tests.unit.schemas.test_registry import ANSWER, FRAMED, ScriptedGlue, batch, records_in, registry
from tests.virtual_time import virtual

SHOP = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
message Zone { int64 id = 1; string who = 2; }
message Order {
  message Line { bytes raw = 1; double price = 2; }
  enum Kind { OLD = 0; NEW = 1; }
  int64 id = 1; string who = 2; google.protobuf.Timestamp placed_at = 3;
  Kind kind = 4; repeated Line lines = 5; map<string, int32> sizes = 6;
}
"""
JAVA = """
syntax = "proto3";
package shop;
message Zone { int64 id = 1; string who = 2; }
message Order { int64 id = 1; string who = 2; }
"""


@pytest.fixture(scope="module")
def shop() -> bytes:
    return compiled_proto(SHOP)


def test_a_message_is_found_by_the_order_of_names(shop: bytes) -> None:
    """Order, Order.Line, Order.SizesEntry, Zone: as the Java library counts them."""
    decode = protobuf_decoder(shop)
    empty = {"id": "0", "who": "", "kind": "OLD", "lines": [], "sizes": {}}
    assert json.loads(decode(b"\x00")) == empty
    assert json.loads(decode(b"\x01\x0a\x02\x00\xff")) == {"raw": "AP8=", "price": 0.0}
    assert json.loads(decode(b"\x03\x08\x07\x12\x02\xc3\xbc")) == {"id": "7", "who": "\u00fc"}
    full = b"\x00\x08\x07\x1a\x02\x08\x01\x20\x01\x2a\x00\x32\x05\x0a\x01s\x10\x02"
    assert json.loads(decode(full)) == empty | {
        "id": "7",
        "placedAt": "1970-01-01T00:00:01Z",
        "kind": "NEW",
        "lines": [{"raw": "", "price": 0.0}],
        "sizes": {"s": 2},
    }


def test_protobuf_of_java_is_the_json_of_its_values() -> None:
    """By the text that Amazon's serializer registers, whose second message is the third by name."""
    found = [json.loads(protobuf_decoder(compiled_proto(text))(data)) for text, data in payloads("PROTOBUF")]
    assert found == 2 * [{"id": "7", "who": "ü", "place": {"x": 1.5}}, {"id": "7", "who": "ü"}]


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "does not begin"),
        (b"\xff\xff\xff\xff\xff\x01", "does not begin"),
        (b"\x04", "is of message 4, and the schema has 4"),
        (b"\x00\x08", "is no shop.Order"),
        (b"\x03\x12\x02\xff\xfe", "is no shop.Zone"),
    ],
)
def test_damaged_data_is_an_error_of_its_record(shop: bytes, data: bytes, why: str) -> None:
    with pytest.raises(ProtobufError, match=why):
        protobuf_decoder(shop)(data)


def test_the_number_of_a_message_may_have_several_bytes() -> None:
    assert index_of(b"\xac\x02rest") == (300, 2)


@pytest.mark.parametrize("text", ["", "no proto", 'syntax = "proto3"; import "other.proto"; message A { B b = 1; }'])
def test_a_text_that_does_not_compile_says_why(text: str) -> None:
    if not text:
        with pytest.raises(ProtobufError, match="has 0"):
            protobuf_decoder(compiled_proto(text))(b"\x00")
        return
    with pytest.raises(CompileError, match=r"schema\.proto"):
        compiled_proto(text)


@pytest.mark.parametrize(("text", "data_format"), [(JAVA, "JSON"), ("no proto", "PROTOBUF")])
def test_records_tell_what_became_of_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, text: str, data_format: str
) -> None:
    @virtual
    async def prepare() -> None:
        glue = ScriptedGlue({**ANSWER, "DataFormat": "PROTOBUF", "SchemaDefinition": text})
        known = registry(glue, tmp_path / "cache", compiled=compiled_proto)
        found = SchemaPreparer(known, VirtualClock(), SchemaRules(SchemaMode.JSON), waits=False)
        (record,) = records_in(await found.prepare(batch(FRAMED[:18] + b"\x01\x08\x07")))
        assert (record["schemaDataFormat"], record["dataFormat"]) == ("PROTOBUF", data_format)
        data = base64.b64decode(record["data"])
        assert data == (b"\x01\x08\x07" if data_format == "PROTOBUF" else b'{"id":"7","who":""}')

    prepare()
    assert ("does not compile" in caplog.text) is (data_format == "PROTOBUF")
