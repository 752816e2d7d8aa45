"""What people call streams, and what they may write for a shard."""

from __future__ import annotations

import pytest

from mld.core.stream_ids import keys_meant, shard_of_key
from mld.tracking.stream_list import ListedStream, TrackedList, labels_of

OLD, OLDER, NEW = (f"111111111111:orders:{epoch}" for epoch in (5, 4, 9))
CLICKS = "111111111111:clicks:7"


def listed(stream: str, label: str, former_since_s: int | None = None) -> ListedStream:
    return ListedStream(stream, label, "", None, former_since_s)


def test_every_stream_is_called_differently() -> None:
    labels = labels_of(
        TrackedList(
            1, (listed(NEW, "orders"), listed(OLD, "orders", 1), listed(OLDER, "orders", 1), listed(CLICKS, "c", 1))
        )
    )
    assert labels == {NEW: "orders", OLD: OLD, OLDER: OLDER, CLICKS: "c"}


def test_two_former_ones_of_one_label_are_called_by_their_identifiers() -> None:
    labels = labels_of(TrackedList(1, (listed(OLD, "orders", 1), listed(OLDER, "orders", 1))))
    assert labels == {OLD: OLD, OLDER: OLDER}


@pytest.mark.parametrize("key", ["shardId-1", "shardId-00000001573-abcdef", "a:b", ":"])
def test_the_key_of_a_table_of_one_stream_is_the_shard(key: str) -> None:
    assert shard_of_key(key) == key
    assert keys_meant([key], key) == (key,)


def test_the_shard_of_a_stream_of_dynamodb_is_found() -> None:
    key = "111111111111:eu-west-1$111111111111$T$2026_01:1:shardId-00000001573-abcdef"
    assert shard_of_key(key) == "shardId-00000001573-abcdef"
    assert keys_meant([key], "t:shardId-00000001573-abcdef", {key.rpartition(":")[0]: "t"}) == (key,)
