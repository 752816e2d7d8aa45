"""Retrieval spec, 4.3."""

from __future__ import annotations

import pytest

from mld.retrieval.buffer import BYTES_MAX, PAGES_MAX, RECORDS_MAX, PrefetchBuffer


def test_the_limits_are_those_of_java() -> None:
    assert (PAGES_MAX, BYTES_MAX, RECORDS_MAX) == (4, 8_388_608, 30_000)


def test_an_empty_buffer_has_room_whatever_the_limits() -> None:
    assert PrefetchBuffer[str](pages_max=0, bytes_max=0, records_max=0).has_room


@pytest.mark.parametrize(
    ("pages", "records", "data_bytes", "room"),
    [
        (3, 1, 1, True),
        (4, 1, 1, False),
        (1, 29_999, 1, True),
        (1, 30_000, 1, False),
        (1, 1, 8_388_607, True),
        (1, 1, 8_388_608, False),
        (4, 0, 0, False),
    ],
)
def test_room_needs_every_limit_open(pages: int, records: int, data_bytes: int, room: bool) -> None:
    buffer = PrefetchBuffer[str]()
    for _ in range(pages):
        buffer.put("page", records=records, data_bytes=data_bytes)
    assert buffer.has_room is room


def test_items_come_out_in_order_and_leave_the_sums() -> None:
    buffer = PrefetchBuffer[str]()
    buffer.put("a", records=2, data_bytes=10)
    buffer.put("b", records=3, data_bytes=5)
    assert (len(buffer), buffer.records, buffer.data_bytes) == (2, 5, 15)
    assert [buffer.take(), buffer.take(), buffer.take()] == ["a", "b", None]
    assert (len(buffer), buffer.records, buffer.data_bytes) == (0, 0, 0)


def test_taking_an_oversized_page_makes_room_again() -> None:
    buffer = PrefetchBuffer[str]()
    buffer.put("10 MB", records=10_000, data_bytes=10_485_760)
    assert not buffer.has_room
    buffer.take()
    assert buffer.has_room
