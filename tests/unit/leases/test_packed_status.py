"""Statuses in two bytes a shard: what comes back, how exactly, and what is never made up."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mld.leases.lease import ShardStatus
from mld.leases.packed_status import ACTIVITIES, HEAD_BYTES, SHARDS_MAX, pack, unpack
from mld.metrics.registry import ShardActivity

NOW_S = 1_763_661_600
WEEK_MS = 365 * 24 * 3600 * 1000  # the longest retention of a stream
STATUSES = st.builds(
    ShardStatus, st.sampled_from(ACTIVITIES), st.just(NOW_S), st.none() | st.integers(min_value=0, max_value=WEEK_MS)
)


def test_every_activity_has_its_number() -> None:
    assert set(ACTIVITIES) == {activity.value for activity in ShardActivity}


@given(st.dictionaries(st.text(min_size=1, max_size=20), STATUSES | st.none(), max_size=20))
def test_what_is_told_comes_back_within_a_percent(statuses: dict[str, ShardStatus | None]) -> None:
    packed = pack(statuses, NOW_S)
    assert packed is not None
    found = unpack(packed, list(statuses))
    assert found.keys() == {key for key, status in statuses.items() if status is not None}
    for key, status in found.items():
        told = statuses[key]
        assert told is not None
        assert (status.activity, status.at_s) == (told.activity, told.at_s)
        if told.behind_ms is None:
            assert status.behind_ms is None
        else:
            assert status.behind_ms is not None
            assert told.behind_ms * 0.992 <= status.behind_ms <= told.behind_ms


def test_other_leases_than_those_told_of_are_unknown() -> None:
    packed = pack({"a": ShardStatus("idle", NOW_S, 0), "b": ShardStatus("idle", NOW_S, 0)}, NOW_S)
    assert packed is not None
    assert unpack(packed, ["a"]) == {}
    assert unpack(packed, ["a", "c"]) == {}
    assert unpack(packed, ["b", "a"]).keys() == {"a", "b"}, "their order does not matter"


@given(st.binary(max_size=40), st.lists(st.text(), max_size=10, unique=True))
def test_damage_is_unknown(packed: bytes, keys: list[str]) -> None:
    for status in unpack(packed, keys).values():
        assert status.activity in ACTIVITIES


def test_a_report_stays_below_a_write_unit() -> None:
    most = {f"shardId-{number:012}": ShardStatus("idle", NOW_S, WEEK_MS) for number in range(SHARDS_MAX)}
    packed = pack(most, NOW_S)
    assert packed is not None
    assert len(packed) == HEAD_BYTES + 2 * SHARDS_MAX
    assert pack(most | {"one more": None}, NOW_S) is None
