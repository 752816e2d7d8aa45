"""The frame of the Glue Schema Registry: what is one, what is none, and payloads that are damaged or too large."""

from __future__ import annotations

import zlib
from base64 import b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mld.retrieval.pieces import FRAME_IN_BASE64
from mld.schemas import frame
from mld.schemas.frame import HEADER_BYTES, UndecodableError, frame_of, inflated

UUID = "00112233-4455-6677-8899-aabbccddeeff"
PLAIN = bytes.fromhex("030000112233445566778899aabbccddeeff7b2261223a317d")
ZLIB = bytes.fromhex("030500112233445566778899aabbccddeeff789cab564a54b232ac0500082a0209")


@pytest.mark.parametrize("data", [PLAIN, ZLIB], ids=["plain", "zlib"])
def test_the_worked_frames_give_their_payload(data: bytes) -> None:
    frame = frame_of(data)
    assert frame is not None
    payload = data[HEADER_BYTES:]
    assert frame.version_id == UUID
    assert (inflated(payload) if frame.is_compressed else payload) == b'{"a":1}'


@pytest.mark.parametrize(
    ("payload", "why"),
    [
        (b"", "cut off"),
        (zlib.compress(b"x" * 100)[:-5], "cut off"),
        (b"no zlib at all", "damaged"),
        (zlib.compress(b"x" * 100)[:-4] + b"\0\0\0\0", "damaged"),
    ],
)
def test_a_damaged_payload_is_an_error(payload: bytes, why: str) -> None:
    with pytest.raises(UndecodableError, match=why):
        inflated(payload)


def test_a_bomb_is_an_error_and_never_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frame, "PAYLOAD_BYTES_MAX", 1000)
    assert len(inflated(zlib.compress(bytes(999)))) == 999
    with pytest.raises(UndecodableError, match="more than 1000 bytes"):
        inflated(zlib.compress(bytes(1_000_000)))


@given(st.binary(min_size=0, max_size=40), st.sampled_from([b"", b"\x03\x00", b"\x03\x05", b"\x03\x01"]))
def test_base64_shows_every_frame(rest: bytes, head: bytes) -> None:
    """The page looks at base64 only: it may take other data for a frame, but never a frame for other data."""
    data = head + rest
    shown = FRAME_IN_BASE64.match(b64encode(data)) is not None
    assert shown or frame_of(data) is None
    assert not shown or data[:1] == b"\x03"
