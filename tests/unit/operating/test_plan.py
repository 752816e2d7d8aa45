"""Names of shards as people write them, and rows as they are stored."""

from __future__ import annotations

import pytest

from mld.core.positions import TRIM_HORIZON
from mld.leases import rows
from mld.leases.lease import Lease
from mld.operating.naming import full_key
from mld.operating.plan import ActRefusedError, raw_table

KEYS = ("shardId-000000000001", "shardId-000000000002", "shardId-000000000012")


@pytest.mark.parametrize(
    ("name", "key"), [("shardId-000000000002", KEYS[1]), ("2", KEYS[1]), ("12", KEYS[2]), ("000000000001", KEYS[0])]
)
def test_a_shard_is_named_by_its_key_or_its_number(name: str, key: str) -> None:
    assert full_key(KEYS, name) == key


@pytest.mark.parametrize("name", ["3", "shardId", "", "²"])
def test_a_shard_that_is_not_there_is_refused_with_those_that_are(name: str) -> None:
    with pytest.raises(ActRefusedError, match=r"there is no shard .*; it has shardId-000000000001, "):
        full_key(KEYS, name)


SEVERAL = ("123:a:1:shardId-000000000001", "123:b:1:shardId-000000000001", "123:b:1:shardId-000000000002")


@pytest.mark.parametrize("name", ["1", "shardId-000000000001"])
def test_a_number_of_two_streams_shards_is_no_name(name: str) -> None:
    with pytest.raises(ActRefusedError, match="2 streams have a shard"):
        full_key(SEVERAL, name)


@pytest.mark.parametrize(
    ("name", "key"), [("a:1", 0), ("b:shardId-000000000001", 1), ("2", 2), (SEVERAL[1], 1), ("b:2", 2)]
)
def test_the_name_of_a_stream_tells_its_shards_apart(name: str, key: int) -> None:
    assert full_key(SEVERAL, name) == SEVERAL[key]


@pytest.mark.parametrize("name", ["c:1", "a:2", "1:a"])
def test_a_shard_that_its_stream_does_not_have_is_refused(name: str) -> None:
    with pytest.raises(ActRefusedError, match="there is no shard"):
        full_key(SEVERAL, name)


def test_an_empty_table_is_said_to_be_empty() -> None:
    with pytest.raises(ActRefusedError, match="no leases at all"):
        full_key((), "1")


def test_rows_keep_what_they_are() -> None:
    lease = rows.new_row(Lease("a", TRIM_HORIZON))
    corrupt = {"leaseKey": {"S": "b"}, "leaseCounter": {"N": "x"}, "checkpoint": {"S": "LATEST"}}
    other = {"leaseKey": {"S": "Leader"}, "entityType": {"S": "LEADER"}}
    table = raw_table([lease, corrupt, other])
    assert [one.key for one in table.scan.leases] == ["a"]
    assert [key for key, _ in table.scan.corrupt] == ["b"]
    assert list(table.scan.others) == [other]
    assert table.row("b") is corrupt
    assert table.row("none") is None


LABELS = {"123:a:1": "first", "123:b:1": "a"}


@pytest.mark.parametrize(("name", "key"), [("first:1", 0), ("a:1", 1), ("123:a:1:1", 0)])
def test_a_label_wins_over_another_streams_own_name(name: str, key: int) -> None:
    assert full_key(SEVERAL, name, LABELS) == SEVERAL[key]


def test_an_ambiguous_shard_is_refused_with_ways_to_say_which() -> None:
    with pytest.raises(ActRefusedError, match="say which one, as first:1, a:1"):
        full_key(SEVERAL, "1", LABELS)
