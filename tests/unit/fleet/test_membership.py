"""What a worker knows of the others (`fleet.observations`). What a look tells it is in `test_takeover`."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from mld.core.positions import SHARD_END, TRIM_HORIZON
from mld.fleet.membership import TRACE_S, FleetMembership, spread
from mld.fleet.report.reports import ReportRules, WorkerReport, own_report
from mld.leases.lease import Lease
from tests.support.settings import rules

WALL_S = 1_000_000.0
PERIOD_S = ReportRules().report_period_s
KEYS = [f"s{number}" for number in range(6)]
MINE = [Lease(key, TRIM_HORIZON, owner="me") for key in KEYS]


def membership() -> FleetMembership:
    return FleetMembership("me", rules(duration_s=10.0))


def report(worker: str, age_s: float = 0.0) -> WorkerReport:
    return own_report(worker, {}, WALL_S - age_s, "1")


# --- who receives the leases of a worker that leaves


@pytest.mark.parametrize(
    ("reports", "others", "leases_max", "shares"),
    [
        ([report("a"), report("b", PERIOD_S), report("c", 2 * PERIOD_S - 1)], {}, 9, {"a": 2, "b": 2, "c": 2}),
        ([report("a"), report("gone", 2 * PERIOD_S + 2)], {}, 9, {"a": 6}),
        ([report("me"), report("a")], {}, 9, {"a": 6}),
        ([report("a"), report("b")], {"a": 4}, 9, {"a": 1, "b": 5}),
        ([report("a")], {"a": 3}, 4, {"a": 1}),
        ([], {}, 9, {}),
    ],
    ids=["equal shares", "not the expired", "not we", "by what they have", "no more than they may hold", "nobody"],
)
def test_receivers_are_the_live_workers(
    reports: list[WorkerReport], others: dict[str, int], leases_max: int, shares: dict[str, int]
) -> None:
    owned = [Lease(f"o{owner}{n}", TRIM_HORIZON, owner=owner) for owner, count in others.items() for n in range(count)]
    assert Counter(membership().receivers(KEYS, [*MINE, *owned], reports, 0.0, WALL_S, leases_max).values()) == shares


def test_the_silent_receive_nothing_and_those_that_show_life_come_first() -> None:
    it, found = membership(), [report("renews"), report("new"), report("silent")]
    it.saw_reports(found, 0.0)
    it.saw_owners({"me", "renews", "silent"}, {"me", "renews"}, (), 0.0)
    assert set(it.receivers(KEYS, MINE, found, 0.0, WALL_S, 9).values()) == {"renews"}
    it.saw_owners({"me", "silent"}, {"me"}, (), 0.0)
    assert set(it.receivers(KEYS, MINE, found, 0.0, WALL_S, 9).values()) == {"renews", "new"}, "nobody better is known"


# --- who may be assigned leases


def assignable(it: FleetMembership, *found: WorkerReport, now: float = 0.0) -> set[str]:
    it.saw_run(found, now, WALL_S)
    return {report.worker for report in it.assignable(found, now)[0]}


def test_who_was_found_dead_gets_nothing_until_it_reports_anew() -> None:
    it = membership()
    it.exclude_dead("dead", WALL_S)
    assert assignable(it, report("dead"), report("a")) == {"a"}
    assert assignable(it, report("dead", -1), report("a")) == {"a", "dead"}
    assert assignable(it, report("dead"), report("a")) == {"a", "dead"}, "the matter is over"


def test_a_dead_worker_is_remembered_as_long_as_its_last_report_looks_fresh() -> None:
    it = FleetMembership("me", rules(duration_s=10.0, report_period_s=TRACE_S))
    it.exclude_dead("dead", WALL_S)
    it.exclude_dead("another", WALL_S + 1.5 * TRACE_S)
    assert assignable(it, report("dead"), report("a")) == {"a"}


def test_who_was_found_dead_receives_nothing_from_one_that_leaves() -> None:
    it = membership()
    it.exclude_dead("dead", WALL_S)
    assert it.receivers(["s1"], MINE, [report("dead")], 0.0, WALL_S, 10) == {}
    assert it.receivers(["s1"], MINE, [report("dead"), report("a")], 0.0, WALL_S, 10) == {"s1": "a"}
    assert it.receivers(["s1"], MINE, [report("dead", -1)], 0.0, WALL_S, 10) == {"s1": "dead"}


def test_a_report_that_stands_still_is_that_of_a_dead_worker_and_told_once() -> None:
    it = membership()
    for now in (0.0, 2 * PERIOD_S):
        it.saw_run([report("a")], now, WALL_S)
        assert it.assignable([report("a")], now) == ((report("a"),), [])
    assert it.assignable([report("a")], 2 * PERIOD_S + 1) == ((), [report("a")])
    assert it.assignable([report("a")], 2 * PERIOD_S + 2) == ((), [])
    it.begin_leadership()
    assert assignable(it, report("a"), now=2 * PERIOD_S + 3) == {"a"}, "a new leader has to watch for as long"


@pytest.mark.parametrize("off_s", [-600.0, 600.0])
def test_a_worker_whose_report_moves_lives_whatever_its_clock_says(off_s: float) -> None:
    it = membership()
    for number in range(4):
        now = number * PERIOD_S
        own = replace(report("off"), updated_at_s=int(WALL_S + off_s + now))
        right = replace(report("a"), updated_at_s=int(WALL_S + now))
        active = it.saw_run([own, right], now, WALL_S + now + 1.0).active
        found = {one.worker for one in it.assignable(active, now)[0]}
        assert found == ({"a"} if number == 0 and off_s < 0 else {"a", "off"}), "the first report alone tells nothing"
    assert it.clocks_off == {"off": pytest.approx(off_s, abs=PERIOD_S)}
    it.saw_run([own, right], 4 * PERIOD_S, WALL_S + 4 * PERIOD_S)
    later = 4 * PERIOD_S + 2 * PERIOD_S + 1
    active = it.saw_run([own, right], later, WALL_S + later).active
    assert "off" not in {one.worker for one in it.assignable(active, later)[0]}, "it reports no more"


def test_a_worker_with_a_slow_clock_that_was_found_dead_is_back_with_another_report() -> None:
    it = membership()
    dead = replace(report("dead"), updated_at_s=int(WALL_S - 600))
    it.saw_reports([dead], 0.0)
    it.exclude_dead("dead", WALL_S)
    assert it.living([dead], 0.0, WALL_S - 590) == set()
    assert it.living([replace(dead, updated_at_s=int(WALL_S - 595))], 0.0, WALL_S - 590) == {"dead"}


# --- spreading -------------------------------------------------------------------------------------------------------


def free(*keys: str) -> list[Lease]:
    return [Lease(key, TRIM_HORIZON) for key in keys]


def test_spread_deals_to_the_fewest_then_by_id() -> None:
    dealt = spread(free("s3", "s1", "s2", "s4"), {"b": 0, "a": 2, "c": 0})
    assert dealt == {"s1": "b", "s2": "c", "s3": "b", "s4": "c"}


def test_spread_respects_the_cap_and_an_empty_fleet() -> None:
    assert spread(free("s1", "s2", "s3"), {"a": 1, "b": 5}, leases_max=3) == {"s1": "a", "s2": "a"}
    assert spread(free("s1"), {}) == {}


def test_the_lease_of_a_finished_shard_needs_no_room_and_takes_none() -> None:
    ended = [Lease(key, SHARD_END) for key in ("e1", "e2")]
    assert spread([*ended, *free("s1")], {"a": 2, "b": 3}, leases_max=3) == {"e1": "a", "e2": "a", "s1": "a"}
    assert spread(ended, {"a": 3}, leases_max=3) == {"e1": "a", "e2": "a"}


def test_what_a_receiver_holds_of_finished_shards_takes_none_of_its_room() -> None:
    owned = [Lease("o1", TRIM_HORIZON, owner="a"), *(Lease(f"e{n}", SHARD_END, owner="a") for n in range(5))]
    assert membership().receivers(KEYS, [*MINE, *owned], [report("a")], 0.0, WALL_S, 3) == {"s0": "a", "s1": "a"}


def test_a_lease_on_its_way_takes_room_of_both_workers() -> None:
    going = Lease("g", TRIM_HORIZON, owner="b", checkpoint_owner="a")
    found = [report("a"), report("b")]
    assert membership().receivers(KEYS, [*MINE, going], found, 0.0, WALL_S, 2) == {"s0": "a", "s1": "b"}


# --- drained workers --------------------------------------------------------------------------------------------------


def drained(worker: str) -> WorkerReport:
    return replace(report(worker), mld={"version": "1", "drain": "by me"})


def test_a_drained_worker_receives_only_what_no_other_has_room_for() -> None:
    it, found = membership(), [drained("w1"), report("w2")]
    assert it.receivers(["s0", "s1"], MINE, found, 0.0, WALL_S, 10) == {"s0": "w2", "s1": "w2"}
    assert it.receivers(["s0", "s1"], MINE, found, 0.0, WALL_S, 1) == {"s0": "w2", "s1": "w1"}
    assert it.receivers(["s0"], MINE, [drained("w1")], 0.0, WALL_S, 10) == {"s0": "w1"}


def test_workers_that_leave_receive_nothing_even_if_nobody_else_is_there() -> None:
    it, stays = membership(), report("stays")
    leaves = own_report("leaves", {}, WALL_S, "1", leaving=True)
    assert set(it.receivers(KEYS, MINE, [leaves, stays], 0.0, WALL_S, 9).values()) == {"stays"}
    assert it.receivers(KEYS, MINE, [leaves], 0.0, WALL_S, 9) == {}
