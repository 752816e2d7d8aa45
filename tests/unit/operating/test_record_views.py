"""What records look like to people."""

from __future__ import annotations

import base64
import gzip
import json
import zlib

import pytest

from mld.operating import record_view
from mld.operating.record_view import Payload, body, headline, open_payload, record_value, view_of

PLAIN = b'{"a": 1}'


@pytest.mark.parametrize(
    ("data", "opened", "names"),
    [
        (PLAIN, PLAIN, ()),
        (gzip.compress(PLAIN, mtime=0), PLAIN, ("gzip",)),
        (zlib.compress(PLAIN), zlib.compress(PLAIN), ()),
        (b"", b"", ()),
        (b"x\x9c", b"x\x9c", ()),
    ],
)
def test_gzip_is_opened(data: bytes, opened: bytes, names: tuple[str, ...]) -> None:
    assert open_payload(data) == Payload(opened, names)


@pytest.mark.parametrize(
    ("data", "note"),
    [
        (b"\x1f\x8bnot gzip", "looks like gzip, but cannot be opened"),
        (gzip.compress(b"x" * 100, mtime=0)[:-9], "gzip, cut off"),
    ],
)
def test_what_only_looks_compressed_stays_as_it_is(data: bytes, note: str) -> None:
    payload = open_payload(data)
    assert payload.data == data
    assert note in payload.note


def test_a_bomb_is_not_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_view, "OPENED_BYTES_MAX", 1_000)
    data = gzip.compress(b"0" * 1_000_000)
    payload = open_payload(data)
    assert payload.data == data
    assert "is not opened" in payload.note


def test_json_is_laid_out_text_is_text_and_the_rest_is_hex() -> None:
    assert body(Payload(b'{"a":"\xc3\xbc"}')) == '{\n  "a": "ü"\n}'
    assert body(Payload(b"{not json")) == "{not json"
    assert body(Payload(b"two\nlines")) == "two\nlines"
    assert body(Payload(bytes(range(16)))).endswith("0e 0f  ................")
    assert "\x1b" not in body(Payload(b"\x1b[31m red"))
    assert "\x1b" not in body(Payload(b'{"a": "\\u001b[31m"}'))


@pytest.mark.parametrize("form", ["[%b]", '{"a":%b}'])
def test_json_that_is_nested_deeply_is_text_on_all_pythons(form: str) -> None:
    """Where Python's parser gives up depends on its version. Laid out, 60,000 levels would take gigabytes."""
    before, after = form.encode().split(b"%b")

    def kind_of(levels: int) -> str:
        return record_view.read(before * levels + b"1" + after * levels)[0]

    depths = (1, record_view.JSON_DEPTH_MAX, record_view.JSON_DEPTH_MAX + 1, 900, 5_000, 60_000)
    assert [kind_of(levels) for levels in depths] == ["json", "json", "text", "text", "text", "text"]


def test_long_payloads_are_cut_for_people() -> None:
    assert body(Payload(b"a" * 200_000)).endswith("… 100000 characters more")
    assert body(Payload(b"\xff" * 2_000)).endswith("… 976 bytes more")


FIELDS = {
    "data": base64.b64encode(gzip.compress(b'{"a":1}')).decode(),
    "partitionKey": "key\x1b",
    "sequenceNumber": "5",
    "subSequenceNumber": 2,
    "approximateArrivalTimestamp": 1_792_000_000_123,
}


def test_a_headline_has_place_time_and_key_and_steers_no_terminal() -> None:
    line = headline(view_of(FIELDS))
    assert line.startswith("5/2  2026-10-14T17:46:40.123Z  key=key\\x1b  ")
    assert line.endswith("bytes [gzip]")


def test_a_value_is_json_text_or_base64() -> None:
    assert record_value("s", view_of(FIELDS))["json"] == {"a": 1}
    assert record_value("s", view_of({**FIELDS, "data": base64.b64encode(b"x").decode()}))["text"] == "x"
    value = record_value("s", view_of({**FIELDS, "data": base64.b64encode(b"\xff").decode()}))
    assert (value["subSequenceNumber"], value["opened"], value["base64"]) == (2, [], "/w==")
    json.dumps(value)
