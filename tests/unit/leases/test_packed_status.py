"""Statuses in a few bytes a shard: what comes back, how exactly, and what is never made up."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from mld.core.steps import finish
from mld.leases import lease
from mld.leases.lease import ACTIVITIES, COARSE_LAGS_MS, COARSE_STEP, HEAD_BYTES, Form, ShardStatus, unpack
from mld.metrics.shard import ShardActivity

NOW_S = 1_763_661_600
AMPLE = 100_000
YEAR_MS = 365 * 24 * 3600 * 1000  # the longest retention of a stream
STATUSES = st.builds(
    ShardStatus, st.sampled_from(ACTIVITIES), st.just(NOW_S), st.none() | st.integers(min_value=0, max_value=YEAR_MS)
)


def test_every_activity_has_its_number() -> None:
    assert set(ACTIVITIES) == {activity.value for activity in ShardActivity}


def told_of(statuses: dict[str, ShardStatus | None]) -> set[str]:
    """What stands still has a lag; a number for it without one stands for nothing told."""
    nothing = ("stalled", None)
    return {key for key, status in statuses.items() if status and (status.activity, status.behind_ms) != nothing}


def pack(statuses: dict[str, ShardStatus | None], room: int = AMPLE) -> bytes | None:
    return finish(lease.pack(statuses, NOW_S, room))


def shards(count: int) -> dict[str, ShardStatus | None]:
    return {f"shardId-{number:012}": ShardStatus("idle", NOW_S, 0) for number in range(count)}


@given(st.dictionaries(st.text(min_size=1, max_size=20), STATUSES | st.none(), max_size=20))
def test_what_is_told_comes_back_within_a_percent(statuses: dict[str, ShardStatus | None]) -> None:
    packed = pack(statuses)
    assert packed is not None
    found = unpack(packed, list(statuses))
    assert found.keys() == told_of(statuses)
    for key, status in found.items():
        told = statuses[key]
        assert told is not None
        assert (status.activity, status.at_s) == (told.activity, told.at_s)
        if told.behind_ms is None:
            assert status.behind_ms is None
        else:
            assert status.behind_ms is not None
            assert told.behind_ms * 0.992 <= status.behind_ms <= told.behind_ms


@given(st.dictionaries(st.text(min_size=1, max_size=20), STATUSES | st.none(), min_size=1, max_size=20), st.booleans())
def test_with_less_room_the_lag_is_coarser_and_the_tip_stays_the_tip(
    statuses: dict[str, ShardStatus | None], is_tight: bool
) -> None:
    """Compression may need more room than it saves for so few; then nothing is told, and never something else."""
    packed = pack(statuses, HEAD_BYTES + len(statuses) - is_tight)
    if packed is None:
        assert is_tight
        return
    assert packed[4] == (Form.SQUEEZED if is_tight else Form.COARSE)
    found = unpack(packed, list(statuses))
    assert found.keys() == told_of(statuses)
    for key, status in found.items():
        told = statuses[key]
        assert told is not None
        assert (status.activity, status.behind_ms is None) == (told.activity, told.behind_ms is None)
        if told.behind_ms is not None and status.behind_ms is not None:
            assert (status.behind_ms == 0) is (told.behind_ms == 0)
            if told.behind_ms >= COARSE_LAGS_MS[2]:
                assert told.behind_ms / COARSE_STEP - 1 <= status.behind_ms <= told.behind_ms


def test_a_thousand_quiet_shards_fit_where_a_thousand_bytes_do_not() -> None:
    statuses = shards(1000)
    packed = pack(statuses, 400)
    assert packed is not None
    assert len(packed) <= 400
    assert len(unpack(packed, list(statuses))) == 1000


def test_what_does_not_fit_is_not_told_at_all() -> None:
    rng = Random(1)
    mixed: dict[str, ShardStatus | None] = {
        key: ShardStatus(rng.choice(ACTIVITIES), NOW_S, int(10 ** rng.uniform(2, 10))) for key in shards(1000)
    }
    assert pack(mixed, 400) is None
    assert pack(shards(1), HEAD_BYTES - 1) is None


def test_what_has_no_number_is_unknown() -> None:
    packed = pack({"a": ShardStatus("dancing", NOW_S, 5), "b": ShardStatus("paused", NOW_S, 5)})
    assert packed is not None
    assert unpack(packed, ["a", "b"]) == {"b": ShardStatus("paused", NOW_S, 5)}


def test_other_leases_than_those_told_of_are_unknown() -> None:
    packed = pack({"a": ShardStatus("idle", NOW_S, 0), "b": ShardStatus("idle", NOW_S, 0)})
    assert packed is not None
    assert unpack(packed, ["a"]) == {}
    assert unpack(packed, ["a", "c"]) == {}
    assert unpack(packed, ["b", "a"]).keys() == {"a", "b"}, "their order does not matter"


@given(st.binary(max_size=40), st.lists(st.text(), max_size=10, unique=True))
def test_damage_is_unknown(packed: bytes, keys: list[str]) -> None:
    for status in unpack(lease._digest(sorted(keys)) + packed, keys).values():
        assert status.activity in ACTIVITIES
    assert unpack(packed, keys) == {} or packed[:4] == lease._digest(sorted(keys))


def test_a_compressed_value_cannot_blow_up_its_reader() -> None:
    packed = pack(shards(1000), 100)
    assert packed is not None
    bomb = packed[:HEAD_BYTES] + lease.zlib.compress(bytes(50_000_000))
    assert unpack(bomb, list(shards(1000))) == {}


def test_a_clock_that_is_far_off_is_no_error() -> None:
    for wall_s in (-5, 2**40):
        packed = finish(lease.pack(shards(1), wall_s, AMPLE))
        assert packed is not None
        assert unpack(packed, list(shards(1))).keys() == shards(1).keys()
