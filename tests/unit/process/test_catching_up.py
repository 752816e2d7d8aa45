"""When a run that is to end at the tip may end."""

from __future__ import annotations

import pytest

from mld.core.positions import LATEST, SHARD_END, TRIM_HORIZON, Position
from mld.daemon.catching_up import (
    STALL_S,
    CatchingUp,
    CatchUpEnd,
    CatchUpLook,
    begins_at_latest,
    in_words,
    not_checkpointed,
)
from mld.daemon.other_workers import OtherWorkers
from mld.leases.lease import Lease
from mld.metrics.activity import ShardActivity
from mld.metrics.shard import ShardMetrics

IDLE, FAILING, PARKED = ShardActivity.IDLE, ShardActivity.FAILING, ShardActivity.PARKED


def lease(key: str, checkpoint: Position = TRIM_HORIZON, owner: str | None = "me", **more: object) -> Lease:
    return Lease(key, checkpoint, owner=owner, **more)  # type: ignore[arg-type]


def at_work(
    activity: ShardActivity,
    *,
    is_busy: bool,
    delivered: Position | None = None,
    behind_ms: int | None = None,
    last_error: str | None = None,
) -> ShardMetrics:
    part = ShardMetrics("b", 0.0)
    part.forced_activity, part.busy_since = activity, 0.0 if is_busy else None
    part.delivered, part.behind_ms, part.last_error = delivered, behind_ms, last_error
    return part


def look(*leases: Lease, at: float = 0.0, elsewhere: set[str] | None = None, **works: ShardMetrics) -> CatchUpLook:
    return CatchUpLook(at, leases, elsewhere or set(), works)


def at_tip(*keys: str, time_max_s: float | None = None) -> CatchingUp:
    course = CatchingUp(0.0, time_max_s)
    for key in keys:
        course.tip(key, True)
    return course


def test_it_is_over_when_every_shard_was_at_the_tip_has_ended_or_is_with_others() -> None:
    seen = look(lease("a"), lease("b", SHARD_END), lease("c", owner="w2"), elsewhere={"c"})
    assert at_tip("a").looked(seen) is CatchUpEnd.CAUGHT_UP
    assert at_tip().looked(seen) is None
    assert at_tip("a").looked(look(lease("a"), lease("c", owner="w2"))) is None


def test_a_closed_shard_has_to_be_read_to_its_end() -> None:
    course = at_tip("a")
    assert course.looked(CatchUpLook(0.0, (lease("a"),), (), {}, closed={"a"})) is None
    assert course.looked(CatchUpLook(0.0, (lease("a", SHARD_END),), (), {}, closed={"a"})) is CatchUpEnd.CAUGHT_UP


def test_it_is_not_over_without_rows_or_while_some_are_missing() -> None:
    assert at_tip("a").looked(look()) is None
    assert at_tip("a").looked(CatchUpLook(0.0, (lease("a"),), (), {}, is_in_sync=False)) is None


def test_a_failure_takes_the_tip_back() -> None:
    course = at_tip("a")
    assert course.tip("a", False)
    assert not course.tip("a", False)
    assert course.looked(look(lease("a"))) is None
    assert course.tip("a", True)
    assert not course.tip("a", True)


def test_the_time_ends_it_and_what_is_done_by_then_counts() -> None:
    course = at_tip("a", time_max_s=60.0)
    assert course.looked(look(lease("b"), at=59.9)) is None
    assert course.looked(look(lease("b"), at=60.0)) is CatchUpEnd.TIME_OVER
    assert course.looked(look(lease("a"), at=60.0)) is CatchUpEnd.CAUGHT_UP
    assert course.time_left_s(20.0) == 40.0


@pytest.mark.parametrize("activity", [FAILING, PARKED, IDLE])
def test_what_nothing_moves_ends_it(activity: ShardActivity) -> None:
    course = at_tip()
    seen = {"b": at_work(activity, is_busy=False)}
    assert course.looked(look(lease("b"), at=1.0, **seen)) is None
    assert course.looked(look(lease("b"), at=STALL_S, **seen)) is None
    assert course.looked(look(lease("b"), at=STALL_S + 1, **seen)) is CatchUpEnd.STALLED


def test_a_busy_child_a_delivery_and_a_smaller_lag_move_it() -> None:
    course = at_tip()
    steps = [
        at_work(FAILING, is_busy=False),
        at_work(FAILING, is_busy=True),
        at_work(IDLE, is_busy=False, delivered=Position("5")),
        at_work(IDLE, is_busy=False, delivered=Position("5"), behind_ms=7),
    ]
    for number, work in enumerate(steps):
        assert course.looked(look(lease("b"), at=number * 0.9 * STALL_S, b=work)) is None
    at = 3 * 0.9 * STALL_S + STALL_S
    assert course.looked(look(lease("b"), at=at, b=steps[-1])) is CatchUpEnd.STALLED


def test_with_a_time_nothing_else_ends_it() -> None:
    course = at_tip(time_max_s=10 * STALL_S)
    for at in (0.0, STALL_S, 5 * STALL_S):
        assert course.looked(look(lease("b"), at=at, b=at_work(PARKED, is_busy=False))) is None


@pytest.mark.parametrize(
    ("row", "work", "words"),
    [
        (lease("b"), at_work(PARKED, is_busy=False, last_error="odd"), "b is parked: odd"),
        (lease("b"), at_work(FAILING, is_busy=False, last_error="died"), "b its record processor fails: died"),
        (lease("b"), at_work(IDLE, is_busy=True), "b its record processor has a batch"),
        (lease("b"), at_work(IDLE, is_busy=False, behind_ms=1500), "b is 1.5 s behind"),
        (lease("b", owner=None), None, "b has no owner"),
        (lease("b", owner="w2"), None, "b belongs to w2, which was not seen to renew its lease"),
        (lease("b", parents=frozenset({"a"})), None, "b waits for its parent a"),
    ],
)
def test_what_is_left_is_told_in_words(row: Lease, work: ShardMetrics | None, words: str) -> None:
    course = at_tip()
    course.looked(look(row, lease("a"), **({} if work is None else {"b": work})))
    assert words in in_words(course.remaining)


def test_many_shards_are_counted() -> None:
    assert in_words({f"s{n}": "x" for n in range(8)}) == "s0 x; s1 x; s2 x; s3 x; s4 x; and 3 more"


def test_paused_shards_and_those_that_wait_for_them_are_not_waited_for() -> None:
    rows = (lease("a"), lease("b", paused="by me"), lease("c", parents=frozenset({"b"})))
    course = at_tip("a", time_max_s=100.0)
    assert course.looked(look(*rows)) is CatchUpEnd.PAUSED
    assert "b is paused (by me); `mld resume`" in in_words(course.remaining)
    assert at_tip().looked(look(*rows)) is None
    assert at_tip("a", "b", "c").looked(look(*rows)) is CatchUpEnd.CAUGHT_UP


# --- others -----------------------------------------------------------------------------------------------------------


def test_an_owner_is_at_work_once_its_counter_was_seen_to_move() -> None:
    others = OtherWorkers(10.0)
    others.looked([lease("a", owner="w2", counter=5)], 0.0)
    assert others.at_work([lease("a", owner="w2", counter=5)], 0.0) == frozenset()
    assert others.undecided([lease("a", owner="w2", counter=5)], 0.0)
    others.looked([lease("a", owner="w2", counter=6)], 3.0)
    assert others.at_work([lease("a", owner="w2", counter=6)], 3.0) == {"w2"}


def test_an_owner_that_stands_still_for_a_lease_duration_is_dead() -> None:
    others = OtherWorkers(10.0)
    row = lease("a", owner="w2", counter=5)
    others.looked([row], 0.0)
    assert others.undecided([row], 10.0)
    assert not others.undecided([row], 10.1)
    assert others.at_work([row], 10.1) == frozenset()


def test_a_heartbeat_stands_for_the_counter_of_a_marked_row() -> None:
    others = OtherWorkers(10.0)
    first, second = (lease("a", owner="w2", counter=5, heartbeat=f"00000000000000aa.{number}") for number in (1, 2))
    others.looked([first], 0.0)
    assert others.at_work([first], 0.0) == frozenset()
    others.looked([second], 3.0)
    assert others.at_work([second], 3.0) == {"w2"}


def test_nobodys_rows_and_ended_shards_need_no_look() -> None:
    others = OtherWorkers(10.0)
    rows = [lease("a", owner=None), lease("b", SHARD_END, owner="w2")]
    others.looked(rows, 0.0)
    assert not others.undecided(rows, 0.0)


# --- the beginning and the end ----------------------------------------------------------------------------------------


def test_a_start_at_latest_is_found_in_rows_or_in_the_settings() -> None:
    assert begins_at_latest([lease("a", LATEST), lease("b")], False) == "the checkpoint of a is LATEST"
    assert begins_at_latest([], True) == "an application without checkpoints would start at LATEST"
    assert begins_at_latest([lease("a", Position("5"))], True) is None
    assert begins_at_latest([], False) is None
    assert begins_at_latest([lease("a")], False) is None


def test_what_was_given_and_not_checkpointed_is_told() -> None:
    rows = [lease("a", Position("5", 2)), lease("b", SHARD_END), lease("c", Position("9"))]
    delivered = {"a": Position("5", 3), "b": Position("7"), "c": Position("9")}
    assert not_checkpointed(rows, delivered) == {"a": "was given records up to 5/3, but its checkpoint is 5/2"}
