"""CBOR as the SDK for Java writes it, against the JSON that the model speaks."""

from __future__ import annotations

import base64
import json

import cbor2
from hypothesis import given
from hypothesis import strategies as st

from mld.local.encodings import CBOR, JSON, encoding_of
from mld.local.kinesis import KinesisError

AT_MS = st.integers(0, 4_000_000_000_000)


@given(data=st.binary(max_size=50), at_ms=AT_MS, number=st.integers(0, 2**53))
def test_a_request_in_cbor_means_what_it_means_in_json(data: bytes, at_ms: int, number: int) -> None:
    fields = {"Data": data, "Limit": number, "Nested": {"Timestamp": cbor2.CBORTag(1, at_ms)}, "Keys": ["a"]}
    for indefinite in (False, True):
        read = json.loads(CBOR.read(cbor2.dumps(fields, indefinite_containers=indefinite)))
        assert base64.b64decode(read.pop("Data")) == data
        assert read == {"Limit": number, "Nested": {"Timestamp": at_ms / 1000}, "Keys": ["a"]}


@given(data=st.binary(max_size=50), at_ms=AT_MS, behind=st.integers(0, 2**53))
def test_an_answer_in_json_is_written_in_cbor_with_bytes_and_milliseconds(data: bytes, at_ms: int, behind: int) -> None:
    record = {"Data": base64.b64encode(data).decode(), "ApproximateArrivalTimestamp": at_ms / 1000, "PartitionKey": "k"}
    written = CBOR.write(json.dumps({"Records": [record], "MillisBehindLatest": behind}).encode())
    fields = cbor2.loads(written, semantic_decoders={1: lambda milliseconds, _: ("ms", milliseconds)})
    found = {"Data": data, "ApproximateArrivalTimestamp": ("ms", at_ms), "PartitionKey": "k"}
    assert fields == {"Records": [found], "MillisBehindLatest": behind}


def test_nothing_stays_nothing() -> None:
    assert CBOR.read(b"") == b"{}"
    assert CBOR.write(b"") == b""


@given(st.binary(max_size=60))
def test_bytes_of_any_kind_are_read_or_refused(body: bytes) -> None:
    try:
        json.loads(CBOR.read(body))
    except KinesisError as error:
        assert error.code == "SerializationException"


def test_the_encoding_of_an_answer_is_that_of_the_request() -> None:
    assert encoding_of({"content-type": "application/x-amz-cbor-1.1"}) is CBOR
    assert encoding_of({"content-type": "application/x-amz-json-1.1"}) is JSON
    assert encoding_of({}) is JSON
