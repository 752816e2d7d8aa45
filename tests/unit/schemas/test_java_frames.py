"""Frames that Amazon's own serializers wrote give the values that went in."""

from __future__ import annotations

import base64
import json
import struct
from pathlib import Path

import pytest

from mld.schemas.avro_json import avro_decoder
from mld.schemas.frame import HEADER_BYTES, UndecodableError, frame_of, inflated

RECORDED = json.loads((Path(__file__).resolve().parents[2] / "interop" / "frames" / "frames.json").read_text())
ID = "00112233-4455-6677-8899-aabbccddeeff"
ORDER = {
    "raw": "AP8=",
    "price": "12.50",
    "at": "2026-11-23T07:56:39.667000Z",
    "kind": "OLD",
    "tags": ["a", "b"],
    "sizes": {"s": 1},
    "place": {"x": 1.5},
}


def payloads(data_format: str) -> list[tuple[str, bytes]]:
    found = []
    for one in RECORDED["written"]:
        data = base64.b64decode(one["data"])
        frame = frame_of(data)
        assert frame is not None
        assert frame.version_id == ID
        assert frame.is_compressed is (one["compression"] == "ZLIB")
        if one["format"] == data_format:
            payload = data[HEADER_BYTES:]
            found.append((one["definition"], inflated(payload) if frame.is_compressed else payload))
    assert len(found) >= 2, "plain and compressed"
    return found


def test_avro_of_java_is_the_json_of_its_values() -> None:
    values = [json.loads(avro_decoder(definition)(data)) for definition, data in payloads("AVRO")]
    assert values == 2 * [{"id": 7, "note": "ü", **ORDER}, {"id": -1, "note": None, **ORDER}]


def test_json_of_java_comes_as_it_was() -> None:
    assert [json.loads(data) for _, data in payloads("JSON")] == 2 * [{"id": 7, "x": "ü"}]


def test_protobuf_of_java_keeps_the_index_of_its_message() -> None:
    """`shop.Order.Place` stands between the two."""
    body = b"\x08\x07\x12\x02\xc3\xbc"
    place = b"\x1a\x09\x09" + struct.pack("<d", 1.5)
    assert [data for _, data in payloads("PROTOBUF")] == 2 * [b"\x00" + body + place, b"\x02" + body]


@pytest.mark.parametrize("told", RECORDED["parsed"], ids=lambda told: told["data"])
def test_what_java_takes_for_a_frame_is_one(told: dict[str, str]) -> None:
    assert (frame_of(base64.b64decode(told["data"])) is not None) is (told["verdict"] == "frame")


@pytest.mark.parametrize(
    "told", [told for told in RECORDED["parsed"] if told["verdict"] == "frame"], ids=lambda told: told["data"]
)
def test_what_java_cannot_inflate_is_refused(told: dict[str, str]) -> None:
    """Java's parser never comes back from a zlib stream that is cut off ("endless")."""
    data = base64.b64decode(told["data"])
    frame = frame_of(data)
    assert frame is not None
    if told["payload"] == "read":
        assert not frame.is_compressed or isinstance(inflated(data[HEADER_BYTES:]), bytes)
    else:
        with pytest.raises(UndecodableError, match="cut off" if told["payload"] == "endless" else "damaged"):
            inflated(data[HEADER_BYTES:])
