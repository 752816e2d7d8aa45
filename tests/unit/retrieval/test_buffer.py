"""Rules: retrieval#prefetch-limits and retrieval#memory-budget."""

from __future__ import annotations

import pytest

from mld.retrieval.prefetch import (
    ANSWER_MEMORY_BYTES_MAX,
    Budget,
    PrefetchBuffer,
    memory_bytes,
    records_wanted,
)

PLENTY = Budget(10**12)


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
    buffer = PrefetchBuffer[str](PLENTY)
    for _ in range(pages):
        buffer.put("page", records=records, data_bytes=data_bytes)
    assert buffer.has_room is room


def test_items_come_out_in_order_and_make_room_again() -> None:
    buffer = PrefetchBuffer[str](PLENTY)
    buffer.put("a", records=2, data_bytes=10)
    buffer.put("10 MB", records=10_000, data_bytes=10_485_760)
    assert not buffer.has_room
    assert [buffer.take(), buffer.take(), buffer.take()] == ["a", "10 MB", None]
    buffer.put("b", records=3, data_bytes=5)
    assert buffer.has_room


# --- the budget that readers share ------------------------------------------------------------------------------------


def filled(budget: Budget, data_bytes: int) -> PrefetchBuffer[str]:
    buffer = PrefetchBuffer[str](budget)
    budget.join()
    buffer.put("page", records=1, data_bytes=data_bytes)
    return buffer


def test_readers_share_a_budget_equally_and_what_waits_may_take_half_a_share() -> None:
    budget = Budget(40_000)
    assert budget.share == 40_000
    below, at = filled(budget, 7197), filled(budget, 7200)
    assert memory_bytes(1, 7197) == 9_996
    assert memory_bytes(1, 7200) == 10_000
    assert (below.has_room, at.has_room) == (True, False)
    budget.leave()
    assert at.has_room


def test_small_records_count_for_what_is_around_them() -> None:
    budget = Budget(2 * 1000 * 600)
    budget.join()
    buffer = PrefetchBuffer[str](budget)
    buffer.put("page", records=1000, data_bytes=149_000)
    assert buffer.has_room
    buffer.put("page", records=1, data_bytes=1000)
    assert not buffer.has_room


def test_an_empty_buffer_has_room_however_small_its_share() -> None:
    budget = Budget(1)
    buffer = filled(budget, 5)
    buffer.take()
    assert buffer.has_room


@pytest.mark.parametrize(
    ("records_max", "share", "record_bytes", "wanted"),
    [
        (10_000, 2 * ANSWER_MEMORY_BYTES_MAX, 1e6, 10_000),
        (None, 2 * ANSWER_MEMORY_BYTES_MAX, None, None),
        (10_000, 4_194_304, None, 149),
        (10_000, 4_194_304, 1024.0, 1188),
        (10_000, 4_194_304, 100.0, 3934),
        (10_000, 16_777_216, 100.0, 10_000),
        (100, 4_194_304, 100.0, 100),
        (None, 4_194_304, 0.0, 5242),
        (10_000, 268_435, 1e6, 10),
        (5, 268_435, 1e6, 5),
    ],
)
def test_as_many_records_are_asked_for_as_fit_into_a_share(
    records_max: int | None, share: int, record_bytes: float | None, wanted: int | None
) -> None:
    assert records_wanted(records_max, share, record_bytes) == wanted
