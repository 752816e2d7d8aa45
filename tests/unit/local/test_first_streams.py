"""Streams that are made when the embedded AWS starts."""

from __future__ import annotations

import pytest

from mld.local.server import FirstStream, FirstStreamError, first_stream

PARTNER = "arn:aws:kinesis:eu-west-1:222222222222:stream/payments"


@pytest.mark.parametrize(
    ("text", "stream"),
    [
        ("orders", FirstStream("orders")),
        ("orders:4", FirstStream("orders", 4)),
        (PARTNER, FirstStream("payments", 1, "222222222222", "eu-west-1")),
        (f"{PARTNER}:10000", FirstStream("payments", 10_000, "222222222222", "eu-west-1")),
    ],
)
def test_a_name_or_an_arn_and_a_number_of_shards(text: str, stream: FirstStream) -> None:
    assert first_stream(text) == stream


@pytest.mark.parametrize(
    "text",
    [
        "",
        ":4",
        "orders:0",
        "orders:x",
        "orders:10001",
        "two words",
        "arn:aws:sqs:eu-west-1:2:q",
        f"{PARTNER}/x",
    ],
)
def test_what_is_no_stream_is_refused_with_the_form(text: str) -> None:
    with pytest.raises(FirstStreamError, match="write NAME:SHARDS"):
        first_stream(text)
