"""The leader lock: row, requests, and every line of the table of decisions (coordination#leader-lock)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mld.core.stillness import Stillness
from mld.fleet.leader import lock
from mld.fleet.leader.lock import (
    GIVEN_UP,
    LEASE_S,
    LOCK_KEY,
    VERSIONS_MAX,
    DamagedLock,
    HeldLock,
    LockRow,
    Versions,
    WatchedLock,
    judge,
    judge_refused_heartbeat,
    parse_lock,
)
from mld.leases.rows import Place

LEASES = Place("app", "leaseKey")
LEGACY = Place("app-CoordinatorState", "key")
ROW = {
    "leaseKey": {"S": "Leader"},
    "entityType": {"S": "LEADER"},
    "ownerName": {"S": "host-1:9f3c"},
    "leaseDuration": {"S": "120000"},
    "recordVersionNumber": {"S": "6f1d3c8e-0b0e-4b6e-9a55-6d6a0c8f4f10"},
}
THEIRS = LockRow("them", 120.0, "v1")


def ours(**sent_at: float) -> Versions:
    versions = Versions("me")
    for version, at in sent_at.items():
        versions = versions.sending(version, at)
    return versions


def decide(
    seen: lock.SeenLock, now: float, before: WatchedLock | None = None, **sent_at: float
) -> HeldLock | float | None:
    return judge(seen, watched() if before is None else before, ours(**sent_at), now)


def watched(*looks: tuple[LockRow | DamagedLock, float]) -> WatchedLock:
    seen: WatchedLock = Stillness()
    for row, at in looks:
        seen.saw(LOCK_KEY, row, at)
    return seen


# --- reading


def test_the_row_of_the_specification_is_read() -> None:
    assert parse_lock(ROW) == LockRow("host-1:9f3c", 120.0, "6f1d3c8e-0b0e-4b6e-9a55-6d6a0c8f4f10")


def test_a_row_of_an_older_version_has_no_entity_type() -> None:
    row = {name: value for name, value in ROW.items() if name not in ("entityType", "leaseKey")} | {"key": {"S": "L"}}
    assert parse_lock(row) == parse_lock(ROW)


@pytest.mark.parametrize("value", [{"S": "1"}, {"S": "0"}, {"N": "1"}, {"BOOL": True}])
def test_only_the_string_1_means_released(value: dict[str, Any]) -> None:
    read = parse_lock(ROW | {"isReleased": value, "data": {"B": b"x"}})
    assert isinstance(read, LockRow)
    assert read.is_released == (value == {"S": "1"})


@pytest.mark.parametrize("row", [None, {}])
def test_no_row_is_none(row: dict[str, Any] | None) -> None:
    assert parse_lock(row) is None


@pytest.mark.parametrize("name", ["ownerName", "leaseDuration", "recordVersionNumber"])
@pytest.mark.parametrize("value", [None, {"N": "120000"}, {"NULL": True}, {"M": {}}])
def test_a_damaged_row_is_named_and_does_not_raise(name: str, value: dict[str, Any] | None) -> None:
    row = {key: content for key, content in ROW.items() if key != name} | ({name: value} if value else {})
    damaged = parse_lock(row)
    assert isinstance(damaged, DamagedLock)
    assert name in damaged.reason
    assert damaged.attributes.get(name) == value


@pytest.mark.parametrize("text", ["", "120 s", "1e5", "-1", "0", "120000.0", "1_000", "\u0661", "9" * 19])
def test_a_duration_that_is_no_positive_number_is_damage(text: str) -> None:
    assert isinstance(parse_lock(ROW | {"leaseDuration": {"S": text}}), DamagedLock)


@given(st.dictionaries(st.sampled_from(sorted(ROW)), st.dictionaries(st.sampled_from("SNB"), st.text(), max_size=1)))
def test_no_row_makes_the_reader_fail(row: dict[str, Any]) -> None:
    parse_lock(row)


# --- deciding


def test_an_absent_row_is_claimed() -> None:
    assert decide(None, 0.0) is None


def test_a_released_row_is_claimed_at_once() -> None:
    released = LockRow("them", 120.0, "v1", is_released=True)
    assert decide(released, 0.0) is None


def test_a_row_first_seen_is_observed_from_the_end_of_the_read() -> None:
    assert decide(THEIRS, 7.0) == 127.0


def test_an_unchanged_row_is_stale_after_more_than_its_own_duration() -> None:
    short = LockRow("them", 40.0, "v1")
    before = watched((short, 7.0))
    assert decide(short, 47.0, before) == 47.0
    assert decide(short, 47.001, before) is None


def test_the_duration_of_the_row_counts_and_not_ours() -> None:
    long = LockRow("them", 600.0, "v1")
    assert decide(long, 500.0, watched((long, 7.0))) == 607.0


def test_a_new_version_starts_the_observation_anew() -> None:
    next_row = LockRow("them", 120.0, "v2")
    assert decide(next_row, 500.0, watched((THEIRS, 7.0))) == 620.0


def test_our_version_is_held_until_its_time_is_over_counted_from_sending() -> None:
    row = LockRow("me", 120.0, "mine")
    assert decide(row, 119.9, mine=0.0) == HeldLock("mine", 0.0, 120.0)
    assert decide(row, 120.0, mine=0.0) is None


def test_our_version_is_not_held_once_a_release_was_sent() -> None:
    row = LockRow("me", 120.0, "mine")
    versions = ours(mine=0.0)
    versions = versions.giving_up("mine")
    assert judge(row, watched(), versions, 1.0) is None


def test_our_name_without_our_version_is_a_stranger() -> None:
    row = LockRow("me", 120.0, "of the run before")
    assert decide(row, 0.0) == 120.0


def test_our_version_under_another_name_is_a_stranger() -> None:
    row = LockRow("edited by hand", 120.0, "mine")
    assert decide(row, 1.0, mine=0.0) == 121.0
    assert judge_refused_heartbeat(row, ours(mine=0.0)) is None


def test_a_damaged_row_is_claimed_after_our_own_duration_if_nothing_moves() -> None:
    damaged = parse_lock({name: value for name, value in ROW.items() if name != "leaseDuration"})
    assert isinstance(damaged, DamagedLock)
    before = watched((damaged, 0.0))
    assert decide(damaged, 0.0) == LEASE_S
    assert decide(damaged, LEASE_S, before) == LEASE_S
    assert decide(damaged, LEASE_S + 0.1, before) is None


def test_a_damaged_row_that_is_written_is_left_alone() -> None:
    first = parse_lock(ROW | {"leaseDuration": {"N": "1"}})
    second = parse_lock(ROW | {"leaseDuration": {"N": "1"}, "recordVersionNumber": {"S": "next"}})
    assert isinstance(first, DamagedLock)
    assert decide(second, 500.0, watched((first, 0.0))) == 500.0 + LEASE_S


def test_the_holder_stops_before_a_challenger_may_start() -> None:
    """The write is sent at 10, applied by 11, read by the challenger at 11."""
    holding = HeldLock("v1", 10.0, 120.0)
    seen = watched((THEIRS, 11.0))
    assert [now for now in range(11, 200) if holding.is_valid(now) and decide(THEIRS, now, seen) is None] == []
    assert not holding.is_valid(130.0)


def test_a_refused_heartbeat_is_forgiven_if_an_earlier_one_of_ours_came_through() -> None:
    row = LockRow("me", 120.0, "second")
    assert judge_refused_heartbeat(row, ours(first=0.0, second=30.0)) == HeldLock("second", 30.0, 120.0)


@pytest.mark.parametrize("seen", [None, THEIRS, LockRow("me", 120.0, "twin")])
def test_a_heartbeat_refused_by_anything_else_is_a_loss(seen: LockRow | None) -> None:
    assert judge_refused_heartbeat(seen, ours(first=0.0)) is None


def test_a_given_up_version_forgives_no_heartbeat() -> None:
    assert judge_refused_heartbeat(LockRow("me", 120.0, "v"), ours(v=GIVEN_UP)) is None


def test_only_the_last_versions_are_remembered() -> None:
    versions = Versions("me")
    for number in range(VERSIONS_MAX + 1):
        versions = versions.sending(f"v{number}", 0.0)
    assert versions.find(LockRow("me", 120.0, "v0")) is None
    assert versions.find(LockRow("me", 120.0, "v1")) is not None


# --- writing
