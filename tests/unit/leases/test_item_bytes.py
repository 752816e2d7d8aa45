"""The size of an item from above, and what still fits into its write units."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mld.core.positions import Position
from mld.core.streams import HASH_KEY_MAX, HashRange
from mld.leases.lease import Lease, ShardStatus
from mld.leases.rows import WRITE_UNIT_BYTES, item_bytes, new_row, room_for, status_values
from mld.metrics.shard import TREND_STEPS
from tests.twins import dynamo_prices

NUMBERS = st.integers(-(10**30), 10**30).map(str) | st.decimals(0, 100, places=6).map(str)
PLAIN = (
    st.builds(lambda text: {"S": text}, st.text(max_size=20))
    | st.builds(lambda text: {"N": text}, NUMBERS)
    | st.builds(lambda data: {"B": data}, st.binary(max_size=20))
    | st.builds(lambda texts: {"SS": texts}, st.lists(st.text(min_size=1, max_size=9), min_size=1, max_size=3))
    | st.just({"NULL": True})
)
VALUES = st.recursive(
    PLAIN,
    lambda inner: (
        st.builds(lambda ones: {"L": ones}, st.lists(inner, max_size=4))
        | st.builds(lambda ones: {"M": ones}, st.dictionaries(st.text(max_size=5), inner, max_size=4))
    ),
    max_leaves=12,
)
ITEMS = st.dictionaries(st.text(min_size=1, max_size=12), VALUES, max_size=8)
Item = Mapping[str, Mapping[str, Any]]


@given(ITEMS)
def test_an_item_is_never_taken_for_smaller_than_dynamodb_takes_it(item: Item) -> None:
    assert item_bytes(item) >= dynamo_prices.item_bytes(item)


@given(ITEMS, st.integers(0, 200))
def test_what_fills_the_room_costs_no_unit(item: Item, reserve: int) -> None:
    room = room_for(item, "mldShards", reserve)
    filled = {**item, "mldShards": {"B": bytes(room)}}
    units = -(-(item_bytes(item, without=("mldShards",)) + reserve) // 1024)
    if room:
        assert -(-(item_bytes(filled) + reserve) // 1024) == units
        assert item_bytes({**item, "mldShards": {"B": bytes(room + 1)}}) + reserve > 1024 * units


@pytest.mark.parametrize(
    ("other", "room"), [(0, 1024 - 9), (1, 1023 - 9), (1014, 1), (1015, 0), (1024, 0), (1025, 1023 - 9)]
)
def test_the_room_ends_with_the_unit(other: int, room: int) -> None:
    item = {"": {"B": bytes(other)}, "mldShards": {"B": bytes(500)}}
    expected = 0 if other == 0 else room  # an item without anything costs nothing yet
    assert room_for(item, "mldShards", 0) == expected


def test_a_row_with_all_that_it_tells_people_is_one_write_unit() -> None:
    lease = Lease(
        "shardId-000000000000",
        Position("4" * 56),
        owner=f"ip-10-0-0-123.eu-central-1.compute.internal:{'5f0c9a2e' * 4}",
        hash_range=HashRange(HASH_KEY_MAX - 10, HASH_KEY_MAX),
        parents=frozenset({"shardId-000000000001", "shardId-000000000002"}),
        throughput_kbps=1234.567891,
    )
    told = ShardStatus("unreadable", 1_763_661_600, 123_456_789, lease.checkpoint, "x" * 200, "A" * TREND_STEPS)
    assert item_bytes({**new_row(lease), **status_values(told)}) <= WRITE_UNIT_BYTES
