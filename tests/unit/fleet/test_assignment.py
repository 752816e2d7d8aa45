"""The deciders of the lease assignment manager: example, fixes and laws (coordination#lease-weights and on)."""

from __future__ import annotations

import math
import random
import sys
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from mld.core.positions import SHARD_END, TRIM_HORIZON
from mld.core.steps import finish
from mld.fleet.assign import assignment
from mld.fleet.assign.assignment import Plan, shuffling
from mld.fleet.assign.fleet_load import LiveWorker, Move, View, Why, survey
from mld.fleet.observations import Observations
from mld.leases.lease import Lease
from mld.properties.settings import Settings
from mld.properties.values import AssignmentStrategy
from tests.support.settings import rules

CALLS_MAX, CALLS_OF_A_PIECE_MAX = 1_000_000, 20_000
"""Of a decision over 10,000 leases, and of what it does in one turn of the event loop: one and a half calls a lease."""


def decide_by_variance(leases, workers, seen, now, settings, order, **more):
    return assignment.decide(leases, workers, seen, now, settings, order, **more)


def decide_by_count(leases, workers, seen, now, settings, order, **more):
    fleet = replace(settings.fleet, assignment_strategy=AssignmentStrategy.COUNT)
    return assignment.decide(leases, workers, seen, now, replace(settings, fleet=fleet), order, **more)


DURATION_S = 10.0
NOW = 1000.0
DEFAULTS = rules()


def lease(key: str, owner: str | None = None, kbps: float | None = None, *, leaving: str | None = None) -> Lease:
    """A lease; with `leaving` it is on its way from that worker to `owner`."""
    return Lease(key, TRIM_HORIZON, counter=1, owner=owner, checkpoint_owner=leaving, throughput_kbps=kbps)


def cpu(worker: str, percent: float, limit: float = 100) -> LiveWorker:
    return LiveWorker(worker, {"C": percent}, {"C": limit})


def plain(*workers: str) -> list[LiveWorker]:
    return [LiveWorker(worker) for worker in workers]


def named(*keys: str) -> Callable[[list[Lease]], Iterable[Lease]]:
    """These leases in this order, then the others."""

    def order(leases: list[Lease]) -> list[Lease]:
        return sorted(leases, key=lambda one: (keys.index(one.key) if one.key in keys else len(keys), one.key))

    return order


def observed(leases: Sequence[Lease], expired: Iterable[str] = (), *, overdue: bool = False) -> Observations:
    """All leases moved at NOW, except for the expired ones; pending handoffs began now or, `overdue`, long ago."""
    seen = Observations(lease_duration_s=DURATION_S, handoff_timeout_s=30.0)
    old = set(expired)
    for one in leases:
        seen.saw(replace(one, counter=one.counter - 1), NOW - 100 if overdue or one.key in old else NOW)
        if one.key not in old:
            seen.saw(one, NOW)
    return seen


def decide(
    leases: Sequence[Lease],
    workers: Sequence[LiveWorker],
    *,
    by: Callable[..., object] = decide_by_variance,
    expired: Iterable[str] = (),
    overdue: bool = False,
    settings: Settings = DEFAULTS,
    order: Callable[[list[Lease]], Iterable[Lease]] | None = None,
    leader: str = "leader",
    balance: bool = True,
    wall_s: float = 0.0,
) -> Plan:
    """As a leader that is none of the workers, if none is named."""
    seen = observed(leases, expired, overdue=overdue)
    steps = by(leases, workers, seen, NOW, settings, order or named(), leader=leader, balance=balance, wall_s=wall_s)
    plan = finish(steps)  # type: ignore[arg-type]
    assert isinstance(plan, Plan)
    return plan


def targets(plan: Plan) -> dict[str, str]:
    return {move.lease.key: move.to_worker for move in plan.moves}


def view_of(leases: Sequence[Lease], workers: Sequence[LiveWorker]) -> View:
    return finish(survey(leases, workers, observed(leases), NOW, DEFAULTS, wall_s=0.0))


# --- coordination#balance-example -------------------------------------------------------------------------------------

EXAMPLE = [
    lease("a1", "A", 300),
    lease("a2", "A", 250),
    lease("a3", "A", 150),
    lease("a4", "A", 100),
    lease("b1", "B", 200),
    lease("b2", "B", 100),
    lease("c1", "Cw", 100),
]
EXAMPLE_WORKERS = [cpu("A", 80), cpu("B", 40), cpu("Cw", 30)]


def test_the_example_s_figures() -> None:
    view = view_of(EXAMPLE, EXAMPLE_WORKERS)
    assert view.mean_weight == pytest.approx(171.43, abs=0.01)
    assert view.averages == {"C": 50}
    assert view.per_weight["C"] * 400 == pytest.approx(50)
    headroom = {worker: round(view.headroom(load), 3) for worker, load in view.loads.items()}
    assert headroom == {"A": -0.375, "B": 0.25, "Cw": 0.667}


@pytest.mark.parametrize(
    ("order", "moved"), [(("a3", "a1", "a2", "a4"), "a3"), (("a4", "a3", "a1", "a2"), "a4")], ids=["a3", "a4"]
)
def test_the_example_s_balance(order: tuple[str, ...], moved: str) -> None:
    (move,) = decide(EXAMPLE, EXAMPLE_WORKERS, order=named(*order)).moves
    assert (move.lease.key, move.to_worker, move.graceful, move.why) == (moved, "Cw", True, Why.BALANCE)


def test_the_example_s_second_lease_would_load_the_next_best_above_the_average() -> None:
    """After a3 Cw stands at 48.75 and B at 40: 100 KBps more would make 61.25 and 52.5. What still fits goes on."""
    leases = [replace(one, throughput_kbps=100) if one.key == "a1" else one for one in EXAMPLE]
    leases += [lease("a5", "A", 200)]  # keeps the sum
    settings = rules(dampening_percent=90)  # take: 800 * 0.375 * 0.9 = 270
    assert targets(decide(leases, EXAMPLE_WORKERS, settings=settings, order=named("a3", "a4"))) == {"a3": "Cw"}
    small = [replace(one, throughput_kbps=70) if one.key == "a4" else one for one in leases]
    assert targets(decide(small, EXAMPLE_WORKERS, settings=settings, order=named("a3", "a1", "a4"))) == {
        "a3": "Cw",
        "a4": "B",
    }


def test_the_example_s_unassigned_lease_goes_first_and_counts() -> None:
    leases = [*EXAMPLE, lease("u1")]
    view = view_of(leases, EXAMPLE_WORKERS)
    assert view.weight(leases[-1]) == pytest.approx(171.43, abs=0.01)
    assert 50 / view.per_weight["C"] == pytest.approx(457.14, abs=0.01)
    view.move(leases[-1], view.loads["Cw"], Why.FREE)
    assert view.loads["Cw"].values["C"] == pytest.approx(48.75)

    (move,) = decide(leases, EXAMPLE_WORKERS, order=named("a4")).moves  # a4 would bring B to 50.94
    assert (move.lease.key, move.to_worker, move.graceful, move.why) == ("u1", "Cw", False, Why.FREE)


def test_after_the_unassigned_lease_the_next_best_is_the_candidate_of_the_balance() -> None:
    leases = [replace(one, throughput_kbps=90) if one.key == "a4" else one for one in EXAMPLE]
    leases += [lease("u1", None, 180)]
    assert targets(decide(leases, EXAMPLE_WORKERS, order=named("a4"))) == {"u1": "Cw", "a4": "B"}


# --- leases without a living owner -----------------------------------------------------------------------------------


def test_expired_leases_go_longest_expired_first() -> None:
    leases = [lease("s1", "dead", 100), lease("s2", "dead", 100), lease("s3", None, 100), lease("s4", "w", 100)]
    seen = observed(leases, ["s1"])
    seen.saw(replace(leases[1], counter=7), NOW - 200)
    leases[1] = replace(leases[1], counter=7)
    settings = rules(held_max=3)
    plan = finish(
        decide_by_variance(leases, plain("w"), seen, NOW, settings, named(), leader="w", balance=False, wall_s=0.0)
    )
    assert [(move.lease.key, move.why) for move in plan.moves] == [("s3", Why.FREE), ("s2", Why.EXPIRED)]
    assert (plan.waiting, plan.spillover) == (3, 1)


@pytest.mark.parametrize("by", [decide_by_variance, decide_by_count])
def test_a_leader_takes_what_nobody_renews_for_himself_as_long_as_he_has_room(by: Callable[..., object]) -> None:
    """The idle worker may have died since its report: then the lease would stand still for as long again."""
    leases = [lease("s1", "dead"), lease("s2", "me"), lease("s3", "idle", leaving="gone"), lease("s4")]
    mine = {"leader": "me", "expired": ["s1", "s3"], "balance": False}
    plan = decide(leases, plain("idle", "me"), by=by, **mine)  # type: ignore[arg-type]
    assert targets(plan) == {"s1": "me", "s3": "me", "s4": "idle"}
    full = decide(leases, plain("idle", "me"), by=by, settings=rules(held_max=2), **mine)  # type: ignore[arg-type]
    assert sorted(targets(full).values()) == ["idle", "idle", "me"]


def test_an_expired_lease_stays_with_its_owner_if_he_is_the_best() -> None:
    leases = [lease("s1", "a", 10), lease("s2", "a", 10), lease("s3", "b", 200)]
    plan = decide(leases, plain("a", "b"), expired=["s1"], balance=False)
    assert (plan.moves, plan.kept, plan.spillover) == ((), 1, 0)


def test_an_expired_lease_in_a_handoff_is_written_even_for_its_owner() -> None:
    leases = [lease("s1", "b", 10, leaving="a"), lease("s2", "a", 10), lease("s3", "b", 200)]
    (move,) = decide(leases, plain("a", "b"), expired=["s1"], balance=False).moves
    assert (move.to_worker, move.graceful) == ("a", False)


def test_a_worker_that_renews_nothing_gets_nothing_while_others_live() -> None:
    leases = [lease("s1", "dead", 10), lease("s2", "a", 200), lease("s3", "b", 200), lease("s4", None, 10)]
    plan = decide(leases, plain("dead", "a", "b"), expired=["s1"])
    assert set(targets(plan)) == {"s1", "s4"}
    assert set(targets(plan).values()) == {"a", "b"}
    assert plan.silent == ("dead",)


def test_when_the_whole_fleet_seems_silent_nobody_is_left_out() -> None:
    leases = [lease("s1", "a", 10), lease("s2", "b", 10), lease("s3", None, 10)]
    plan = decide(leases, plain("a", "b"), expired=["s1", "s2"])
    assert plan.silent == ()
    assert plan.spillover == 0


def test_nobody_there_means_everything_spills() -> None:
    plan = decide([lease("s1"), lease("s2", "dead")], [], expired=["s2"])
    assert (plan.moves, plan.spillover) == ((), 2)


@pytest.mark.parametrize("by", [decide_by_variance, decide_by_count])
@pytest.mark.parametrize("count", [8, 12, 64, 100])
def test_a_new_application_is_dealt_evenly(count: int, by: Callable[..., object]) -> None:
    """Java, with 0/0 for a share, serves two of eight workers."""
    leases = [lease(f"s{number:03d}") for number in range(count)]
    dealt = Counter(targets(decide(leases, plain(*"abcdefgh"), by=by)).values())
    assert sum(dealt.values()) == count
    assert max(dealt.values()) - min(dealt[worker] for worker in "abcdefgh") <= 1


def test_a_metric_that_is_zero_everywhere_starves_nobody() -> None:
    leases = [lease(f"s{number:03d}") for number in range(16)]
    dealt = Counter(targets(decide(leases, [cpu(worker, 0.0) for worker in "abcdefgh"])).values())
    assert set(dealt.values()) == {2}


@pytest.mark.parametrize("percent", [math.nan, math.inf, -5.0])
def test_nonsense_in_a_metric_hurts_nobody(percent: float) -> None:
    workers = [cpu("a", percent), cpu("b", 50)]
    plan = decide([lease(f"s{number}", None, 10) for number in range(10)], workers)
    assert len(plan.moves) == 10


def test_workers_without_metrics_do_not_starve_the_others() -> None:
    leases = [lease(f"s{number:02d}") for number in range(12)]
    dealt = Counter(targets(decide(leases, [*plain("a", "b", "c"), cpu("d", 5), cpu("e", 5), cpu("f", 5)])).values())
    assert set(dealt) == set("abcdef")


def test_caps_hold_and_the_one_of_throughput_may_be_overshot_by_a_lease() -> None:
    leases = [lease(f"s{number}", None, 100) for number in range(6)]
    assert Counter(targets(decide(leases, plain("a", "b"), settings=rules(held_max=2))).values()) == {
        "a": 2,
        "b": 2,
    }
    plan = decide(leases, plain("a"), settings=rules(throughput_max_kbps=250))
    assert (len(plan.moves), plan.spillover) == (3, 3)


def test_without_any_throughput_the_throughput_cap_does_not_count() -> None:
    leases = [lease(f"s{number}") for number in range(6)]
    assert len(decide(leases, plain("a"), settings=rules(throughput_max_kbps=0.5)).moves) == 6


# --- handoffs --------------------------------------------------------------------------------------------------------


def test_a_handoff_under_way_is_left_alone_and_counted() -> None:
    leases = [lease("a1", "b", 100, leaving="a"), *(lease(f"a{number}", "a", 100) for number in range(2, 5))]
    leases += [lease("b1", "b", 100), lease("b2", "b", 100)]
    assert decide(leases, plain("a", "b")).moves == ()  # 3 and 3 when it is over
    for by in (decide_by_count, decide_by_variance):
        plan = decide([*leases, lease("u")], plain("a", "b"), by=by, settings=rules(held_max=3))
        assert plan.spillover == 1, "both are full, and a still holds what it is handing over"


@pytest.mark.parametrize("by", [decide_by_variance, decide_by_count])
@pytest.mark.parametrize(
    ("case", "workers", "settings", "target"),
    [
        ("to its next owner", plain("a", "b", "c"), DEFAULTS, "b"),
        ("the next owner is gone", plain("a", "c"), DEFAULTS, "c"),
        ("the next owner is full", plain("a", "b", "c"), rules(held_max=2), "c"),
    ],
)
def test_a_stuck_handoff_is_forced(
    case: str, workers: list[LiveWorker], settings: Settings, target: str, by: Callable[..., object]
) -> None:
    leases = [lease("s", "b", 10, leaving="a"), lease("a1", "a", 10), lease("b1", "b", 10), lease("b2", "b", 10)]
    (move,) = decide(leases, workers, by=by, settings=settings, overdue=True, balance=False).moves
    assert (move.lease.key, move.to_worker, move.graceful, move.why) == ("s", target, False, Why.STUCK), case


def test_a_row_that_names_one_worker_twice_is_repaired_after_the_deadline() -> None:
    leases = [lease("s", "a", 10, leaving="a"), lease("t", "a", 10)]
    (move,) = decide(leases, plain("a", "b"), overdue=True, balance=False).moves
    assert (move.to_worker, move.graceful) == ("a", False)


def test_without_handoffs_balancing_assigns() -> None:
    (move,) = decide(EXAMPLE, EXAMPLE_WORKERS, order=named("a3"), settings=rules(hands_off_gracefully=False)).moves
    assert (move.graceful, move.why) == (False, Why.BALANCE)


# --- balance ---------------------------------------------------------------------------------------------------------


def test_nothing_moves_inside_the_threshold() -> None:
    leases = [lease(f"s{number}", "ab"[number % 2], 10) for number in range(80)]
    assert decide(leases, [cpu("a", 54), cpu("b", 46)]).moves == ()
    assert decide(leases, [cpu("a", 56), cpu("b", 44)]).moves


def test_a_worker_over_its_range_but_below_the_average_loses_nothing() -> None:
    """Its negative take makes Java take its smallest lease each time."""
    leases = [lease("a1", "a", 10), lease("b1", "b", 10), lease("c1", "c", 10)]
    assert decide(leases, [cpu("a", 45, limit=40), cpu("b", 50), cpu("c", 50)]).moves == ()
    weightless = [lease("a1", "a", 0.0), *leases[1:]]
    assert decide(weightless, [cpu("a", 45, limit=40), cpu("b", 60), cpu("c", 39)]).moves == ()


def test_a_recipient_without_room_does_not_end_it() -> None:
    """Java loses the popped candidate and stops; here the next one gets its chance."""
    leases = [*(lease(f"a{number}", "a", 10) for number in range(10)), lease("b1", "b", 50), lease("c1", "c", 50)]
    workers = [cpu("a", 90), cpu("b", 20, limit=21), cpu("c", 25)]
    assert set(targets(decide(leases, workers)).values()) == {"c"}


def test_shares_inside_the_threshold_are_at_rest() -> None:
    """Java's operating range of 100 makes every share above the average a source."""
    leases = [lease(f"s{number:02d}", "a" if number < 21 else "b", 10) for number in range(40)]
    assert decide(leases, plain("a", "b")).moves == ()


def test_what_is_leaving_already_is_not_taken_twice() -> None:
    stay = [lease(f"a{number:02d}", "a", 10) for number in range(20)]
    rest = [lease(f"b{number:02d}", "b", 10) for number in range(10)]
    workers = [cpu("a", 80), cpu("b", 40)]
    assert len(decide([*stay, *rest], workers).moves) == 2  # 200 * 20/80 * 0.6 = 30, and less than that
    leaving = [replace(one, owner="b", checkpoint_owner="a") for one in stay[:3]]
    assert decide([*leaving, *stay[3:], *rest], workers).moves == ()


def test_a_lease_on_its_way_makes_its_next_owner_less_attractive() -> None:
    leases = [lease("a1", "a", 100), lease("a2", "b", 100, leaving="a"), lease("u", None, 10)]
    workers = [cpu("a", 90), cpu("b", 30), cpu("c", 31)]
    assert targets(decide(leases, workers, balance=False)) == {"u": "c"}


def test_an_idle_worker_without_metrics_is_the_first_choice() -> None:
    """Java ranks a share of 0 like half an average one."""
    leases = [*(lease(f"a{number}", "a", 10) for number in range(10)), lease("b1", "b", 10), lease("u", None, 10)]
    assert targets(decide(leases, plain("a", "b", "c"), balance=False)) == {"u": "c"}


@pytest.mark.parametrize(("values", "moves"), [((6, 4), 0), ((9.9, 0.1), 0), ((10, 0), 1), ((60, 40), 1)])
def test_a_band_of_fixed_width_leaves_the_jitter_of_a_quiet_fleet_alone(
    values: tuple[float, float], moves: int
) -> None:
    """Ten percentage points around the average; relative to it, 6 and 4 percent are far apart."""
    leases = [lease(f"{owner}{number}", owner, 10) for owner in "ab" for number in range(5)]
    workers = [cpu("a", values[0]), cpu("b", values[1])]
    fixed = decide(leases, workers, settings=rules(is_band_fixed=True))
    assert bool(fixed.moves) is bool(moves)
    assert decide(leases, workers).moves


def test_without_overshoot_a_lease_above_the_take_stays() -> None:
    leases = [lease("a1", "a", 100), lease("b1", "b", 1)]
    workers = [cpu("a", 60), cpu("b", 10)]
    assert decide(leases, workers, settings=rules(overshoot=False)).moves == ()


def test_overshoot_takes_the_smallest() -> None:
    leases = [lease("a1", "a", 100), lease("a2", "a", 90), lease("b1", "b", 10), lease("c1", "c", 200)]
    (move,) = decide(leases, [cpu("a", 60), cpu("b", 5), cpu("c", 60)]).moves or (None,)
    assert move is not None
    assert move.lease.key == "a2"


def test_completed_leases_weigh_nothing_and_stay() -> None:
    done = [replace(lease(f"d{number}", "a", 1000), checkpoint=SHARD_END) for number in range(5)]
    leases = [*done, lease("a1", "a", 100), lease("b1", "b", 100)]
    assert decide(leases, plain("a", "b")).moves == ()


def test_leases_that_weigh_nothing_stay() -> None:
    idle = [lease(f"i{number}", "a", 0.0) for number in range(5)]
    leases = [*idle, lease("a1", "a", 100), lease("a2", "a", 100), lease("b1", "b", 10)]
    assert set(targets(decide(leases, plain("a", "b")))) <= {"a1", "a2"}


def test_a_hot_worker_whose_leases_weigh_nothing_loses_one() -> None:
    leases = [lease("a1", "a", 0.0), lease("a2", "a", 0.0), lease("b1", "b", 10), lease("c1", "c", 10)]
    assert targets(decide(leases, [cpu("a", 90), cpu("b", 10), cpu("c", 20)])) == {"a1": "b"}


def test_the_metric_with_the_most_to_take_decides() -> None:
    workers = [
        LiveWorker("a", {"C": 60, "M": 50}),
        LiveWorker("b", {"C": 40, "M": 90}),
        LiveWorker("c", {"C": 40, "M": 10}),
    ]
    leases = [lease(f"{owner}{number}", owner, 10) for owner in "abc" for number in range(10)]
    plan = decide(leases, workers)
    assert {move.lease.owner for move in plan.moves} == {"b"}
    assert set(targets(plan).values()) == {"c"}


def test_no_balance_unless_asked() -> None:
    assert decide(EXAMPLE, EXAMPLE_WORKERS, balance=False).moves == ()


# --- lease count -----------------------------------------------------------------------------------------------------


def test_the_count_decider_assigns_and_evens_out() -> None:
    leases = [*(lease(f"a{number}", "a", 500) for number in range(6)), lease("b1", "b", 1), lease("u")]
    plan = decide(leases, plain("a", "b", "c"), by=decide_by_count)
    assert targets(plan)["u"] == "c"
    assert Counter(targets(plan).values()) == {"b": 2, "c": 2}
    assert plan.count(Why.BALANCE) == 3


# --- laws ------------------------------------------------------------------------------------------------------------

WORKERS = st.sets(st.sampled_from("abcdefg"), max_size=6)
KBPS = st.one_of(st.none(), st.sampled_from([0.0, 1.0, 10.0, 100.0]), st.floats(0, 5000))


@st.composite
def fleets(draw: st.DrawFn) -> tuple[list[Lease], list[LiveWorker], list[str], bool]:
    """Leases, the live workers, which leases are expired, whether handoffs are overdue."""
    owners = st.sampled_from([*"abcdefgxy"])
    workers = []
    for worker in sorted(draw(WORKERS)):
        percent = draw(st.one_of(st.none(), st.floats(0, 100)))
        workers.append(LiveWorker(worker) if percent is None else cpu(worker, percent, draw(st.integers(1, 100))))
    leases = []
    for number in range(draw(st.integers(0, 25))):
        owner = draw(st.one_of(st.none(), owners))
        leaving = draw(st.one_of(st.none(), st.none(), owners))
        one = lease(f"s{number:02d}", owner, draw(KBPS), leaving=leaving)
        leases.append(replace(one, checkpoint=SHARD_END) if draw(st.integers(0, 9)) == 0 else one)
    expired = [one.key for one in leases if draw(st.booleans())]
    return leases, workers, expired, draw(st.booleans())


RULES = st.builds(
    rules,
    held_max=st.integers(1, 12),
    throughput_max_kbps=st.sampled_from([math.inf, 1000.0]),
    overshoot=st.booleans(),
    hands_off_gracefully=st.booleans(),
)


@examples(max_examples=50)
@given(fleets(), RULES, st.integers(0, 99), st.sampled_from([decide_by_variance, decide_by_count]))
def test_laws_of_every_plan(
    fleet: tuple[list[Lease], list[LiveWorker], list[str], bool],
    settings: Settings,
    seed: int,
    by: Callable[..., object],
) -> None:
    leases, workers, expired, overdue = fleet
    order = shuffling(random.Random(seed))
    plan = decide(leases, workers, by=by, expired=expired, overdue=overdue, settings=settings, order=order)
    seen = observed(leases, expired, overdue=overdue)
    live = {worker.worker for worker in workers}
    moves = {move.lease.key: move for move in plan.moves}
    waiting = {one.key for one in leases if seen.is_expired(one, NOW)}

    assert len(moves) == len(plan.moves), "one move a lease"
    assert {move.to_worker for move in plan.moves} <= live - set(plan.silent)
    assert_nobody_above_the_cap(leases, moves, live, settings.leases.held_max)
    assert plan.waiting == len(waiting)
    moved = {key for key in waiting if key in moves}
    assert len(moved) + plan.kept + plan.spillover == len(waiting)
    if plan.spillover and settings.fleet.throughput_max_kbps == math.inf:
        held = committed(leases, moves)
        held.update(one.owner for one in leases if seen.is_blocked(one, NOW) and one.owner != one.checkpoint_owner)
        assert all(held[worker] >= settings.leases.held_max for worker in live - set(plan.silent)), (
            "spilt in spite of room"
        )
    for move in plan.moves:
        assert not seen.is_blocked(move.lease, NOW)
        if move.graceful:
            assert settings.leases.hands_off_gracefully
            assert move.lease.checkpoint_owner is None
            assert move.lease.owner not in (None, move.to_worker)
            assert move.lease.key not in waiting
            assert not move.lease.is_complete


def committed(leases: Iterable[Lease], moves: Mapping[str, Move]) -> Counter[str | None]:
    """How many open leases each worker has or is promised."""
    return Counter(
        moves[one.key].to_worker if one.key in moves else one.actual_owner for one in leases if not one.is_complete
    )


def assert_nobody_above_the_cap(
    leases: Iterable[Lease], moves: Mapping[str, Move], live: Iterable[str], leases_max: int
) -> None:
    after = committed(leases, moves)
    gains = [move for move in moves.values() if move.lease.actual_owner != move.to_worker]
    gaining = {move.to_worker for move in gains if not move.lease.is_complete}
    for worker in live:
        assert after[worker] <= leases_max or worker not in gaining


@examples(max_examples=50)
@given(fleets(), st.integers(0, 99))
def test_the_same_seed_gives_the_same_plan(
    fleet: tuple[list[Lease], list[LiveWorker], list[str], bool], seed: int
) -> None:
    leases, workers, expired, _ = fleet
    first = decide(leases, workers, expired=expired, order=shuffling(random.Random(seed)))
    again = decide(leases, workers[::-1], expired=expired, order=shuffling(random.Random(seed)))
    assert first == again


@examples(max_examples=50)
@given(fleets(), st.integers(0, 99))
def test_balancing_never_loads_a_worker_above_the_average(
    fleet: tuple[list[Lease], list[LiveWorker], list[str], bool], seed: int
) -> None:
    leases, workers, expired, _ = fleet
    plan = decide(leases, workers, expired=expired, order=shuffling(random.Random(seed)))
    seen = observed(leases, expired)
    view = finish(survey(leases, workers, seen, NOW, DEFAULTS, wall_s=0.0))
    for move in plan.moves:
        view.move(move.lease, view.loads[move.to_worker], move.why)
        if move.why is Why.BALANCE:
            values = view.loads[move.to_worker].values
            assert all(value <= view.averages[metric] * (1 + 1e-9) for metric, value in values.items())


SIZES = st.lists(st.sampled_from([0.0, 1.0, 5.0, 10.0, 33.0, 100.0, 1000.0]), min_size=1, max_size=30)


@examples(max_examples=50)
@given(
    SIZES,
    st.integers(1, 6),
    st.integers(0, 99),
    st.sampled_from(["share", "cpu", "hot", "count"]),
)
def test_constant_loads_come_to_rest(sizes: list[float], workers: int, seed: int, kind: str) -> None:
    """Within as many runs as there are leases nothing moves any more, and from then on for ever.

    Metrics follow the leases: the share by definition, a CPU as base + cost x weight with the same machine everywhere.
    "hot": one worker is busy with something else.
    """
    rng = random.Random(seed)
    ids = [f"w{number}" for number in range(workers)]
    leases = [lease(f"s{number:02d}", rng.choice(ids), size) for number, size in enumerate(sizes)]
    base = dict.fromkeys(ids, 5.0)
    if kind == "hot":
        base[ids[0]] = 60.0
    by = decide_by_count if kind == "count" else decide_by_variance
    runs_with_moves = 0
    for _ in range(len(leases) + 3):
        plan = decide(leases, reporting(kind, base, leases), by=by, order=shuffling(rng))
        runs_with_moves += bool(plan.moves)
        moved = targets(plan)
        leases = [replace(one, owner=moved.get(one.key, one.owner)) for one in leases]
    assert runs_with_moves <= len(leases)
    assert decide(leases, reporting(kind, base, leases), by=by, order=shuffling(rng)).moves == ()


def reporting(kind: str, base: Mapping[str, float], leases: Sequence[Lease]) -> list[LiveWorker]:
    if kind in ("share", "count"):
        return plain(*base)
    total = sum(one.throughput_kbps or 0.0 for one in leases) or 1.0
    weights: Counter[str] = Counter()
    for one in leases:
        weights[str(one.owner)] += one.throughput_kbps or 0.0  # type: ignore[assignment]
    return [cpu(worker, cost + 40 * weights[worker] / total) for worker, cost in base.items()]


def test_a_share_moves_its_squares_down_with_each_run() -> None:
    rng = random.Random(7)
    leases = [lease(f"s{number:03d}", "w0", rng.uniform(1, 100)) for number in range(200)]
    unevenness = []
    for _ in range(12):
        plan = decide(leases, plain(*(f"w{number}" for number in range(10))), order=shuffling(rng))
        moved = targets(plan)
        leases = [replace(one, owner=moved.get(one.key, one.owner)) for one in leases]
        weights: dict[str, float] = {}
        for one in leases:
            weights[str(one.owner)] = weights.get(str(one.owner), 0.0) + (one.throughput_kbps or 0.0)
        unevenness.append(sum(weight**2 for weight in weights.values()))
    assert all(after <= before for before, after in pairwise(unevenness))
    fair = sum(one.throughput_kbps or 0.0 for one in leases) / 10
    assert max(weights.values()) < 1.2 * fair


# --- size ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["new", "grown", "failover"])
@pytest.mark.parametrize("by", [decide_by_variance, decide_by_count])
def test_a_large_fleet_is_decided_in_short_pieces(kind: str, by: Callable[..., object]) -> None:
    """10,000 leases of 1,000 workers. What is counted is calls, which are the same on every machine."""
    rng = random.Random(1)
    ids = [f"host-{number:04d}:uuid" for number in range(1000)]
    crowd = {"new": [None], "grown": ids[:500], "failover": ids}[kind]
    leases = [lease(f"shardId-{number:012d}", rng.choice(crowd), rng.uniform(1, 900)) for number in range(10_000)]
    live = ids[:900] if kind == "failover" else ids
    dead = set(ids) - set(live)
    seen = observed(leases, [one.key for one in leases if one.owner in dead])
    workers = [cpu(worker, rng.uniform(10, 90)) for worker in live]
    steps = by(leases, workers, seen, NOW, DEFAULTS, shuffling(rng), leader="leader", balance=True, wall_s=0.0)
    pieces: list[int] = []
    plan = None
    while plan is None:
        pieces.append(0)
        plan = _counted(steps, pieces)  # type: ignore[arg-type]
    assert isinstance(plan, Plan)
    assert plan.moves
    assert plan.spillover == 0
    assert sum(pieces) < CALLS_MAX
    assert max(pieces) < CALLS_OF_A_PIECE_MAX


def _counted(steps: Generator[object, None, Plan], pieces: list[int]) -> Plan | None:
    """Take one step and add its calls to the last of `pieces`; the plan after the last one."""

    def count(_: object, event: str, __: object) -> None:
        pieces[-1] += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        next(steps)
    except StopIteration as stop:
        found: Plan = stop.value
        return found
    finally:
        sys.setprofile(before)
    return None


# --- what an operator wants -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("by", [decide_by_variance, decide_by_count])
@pytest.mark.parametrize(("wall_s", "moves"), [(99.0, False), (100.0, True)])
def test_a_pinned_lease_is_not_balanced_away(by: Callable[..., object], wall_s: float, moves: bool) -> None:
    leases = [replace(lease(f"s{n}", "a"), pinned_until_s=100) for n in range(4)]
    plan = decide(leases, plain("a", "b"), by=by, wall_s=wall_s)
    assert bool(plan.moves) is moves


@pytest.mark.parametrize("by", [decide_by_variance, decide_by_count])
def test_a_drained_worker_gets_only_what_no_other_has_room_for(by: Callable[..., object]) -> None:
    leases = [*(lease(f"free{n}") for n in range(4)), lease("s", "b")]
    workers = [LiveWorker("a", is_drained=True), LiveWorker("b")]
    assert set(targets(decide(leases, workers, by=by, leader="a")).values()) == {"b"}
    limited = decide(leases, workers, by=by, leader="a", settings=rules(held_max=3))
    assert Counter(targets(limited).values()) == {"a": 2, "b": 2}
    alone = [LiveWorker("a", is_drained=True), LiveWorker("c", is_drained=True)]
    assert set(targets(decide(leases[:4], alone, by=by)).values()) == {"a", "c"}


@pytest.mark.parametrize("by", [decide_by_variance, decide_by_count])
def test_nothing_is_balanced_towards_a_drained_worker(by: Callable[..., object]) -> None:
    workers = [LiveWorker("a", is_drained=True), LiveWorker("b")]
    assert not decide([lease(f"s{n}", "b") for n in range(6)], workers, by=by).moves


@pytest.mark.parametrize("by", [decide_by_variance, decide_by_count])
def test_the_leases_of_finished_shards_take_no_room_and_need_none(by: Callable[..., object]) -> None:
    ended = [replace(lease(f"e{n}", "a"), checkpoint=SHARD_END) for n in range(4)]
    free = replace(lease("e"), checkpoint=SHARD_END)
    settings = rules(held_max=2)
    plan = decide([*ended, free, lease("s", "a"), lease("u")], plain("a"), by=by, settings=settings, leader="a")
    assert targets(plan) == {"e": "a", "u": "a"}
    full = decide([*ended, free, lease("s", "a"), lease("t", "a"), lease("u")], plain("a"), by=by, settings=settings)
    assert (targets(full), full.spillover) == ({"e": "a"}, 1)


# --- several workers of one machine -----------------------------------------------------------------------------------


def neighbour(worker: str, percent: float, meter: str = "boot") -> LiveWorker:
    return LiveWorker(worker, {"C": percent}, {"C": 100.0}, meter=meter)


@pytest.mark.parametrize("percent", [0.1, 50.0, 100.0])
@pytest.mark.parametrize("owned", [(4, 0), (8, 0, 0), (1, 7), (2, 0, 0), (5, 5, 1)])
def test_workers_of_one_machine_are_evened_out_in_every_run(owned: tuple[int, ...], percent: float) -> None:
    names = "abc"[: len(owned)]
    leases = [lease(f"{name}{n}", name) for name, count in zip(names, owned, strict=True) for n in range(count)]
    plan = decide(leases, [neighbour(name, percent) for name in names], balance=False)
    held = committed(leases, {move.lease.key: move for move in plan.moves})
    counts = [held[name] for name in names]
    assert max(counts) - min(counts) <= 1
    assert len(plan.moves) == sum(max(0, before - after) for before, after in zip(owned, counts, strict=True))


def test_workers_that_measure_different_processors_at_full_load_stay_as_they_are() -> None:
    leases = [lease(f"a{n}", "a") for n in range(4)]
    for meters in (("one", "other"), ("", "")):
        workers = [neighbour(worker, 100.0, meter) for worker, meter in zip("ab", meters, strict=True)]
        assert not decide(leases, workers).moves


def test_a_machine_is_compared_with_others_by_one_figure() -> None:
    """Samples of one machine taken at different times move nothing between its own workers, and count together."""
    leases = [lease(f"{name}{n}", name, 100.0) for name in "abc" for n in range(6)]
    view = view_of(leases, [neighbour("a", 90.0), neighbour("b", 70.0), neighbour("c", 20.0, "other")])
    assert [view.loads[name].values["C"] for name in "abc"] == [80.0, 80.0, 20.0]
    plan = decide(leases, [neighbour("a", 90.0), neighbour("b", 70.0), neighbour("c", 20.0, "other")])
    assert plan.moves
    assert set(targets(plan).values()) == {"c"}


def test_what_is_on_its_way_between_neighbours_is_not_decided_twice() -> None:
    leases = [lease("a1", "a"), lease("a2", "a"), lease("b1", "b", leaving="a"), lease("b2", "b", leaving="a")]
    assert not decide(leases, [neighbour("a", 100.0), neighbour("b", 100.0)], balance=False).moves


def test_pins_drains_and_caps_hold_among_neighbours() -> None:
    leases = [replace(lease(f"a{n}", "a"), pinned_until_s=100.0) for n in range(4)]
    workers = [neighbour("a", 100.0), neighbour("b", 100.0)]
    assert not decide(leases, workers, wall_s=50.0).moves
    leases = [lease(f"a{n}", "a") for n in range(4)]
    assert not decide(leases, [workers[0], replace(workers[1], is_drained=True)]).moves
    assert len(decide(leases, workers, settings=rules(held_max=1)).moves) == 1


@pytest.mark.parametrize("seed", range(20))
def test_noise_moves_no_lease_between_neighbours_that_are_even(seed: int) -> None:
    rng = random.Random(seed)
    leases = [lease(f"{name}{n}", name) for name in "ab" for n in range(5 if name == "a" else 4)]
    for _ in range(20):
        noisy = [replace(one, throughput_kbps=rng.uniform(0.0, 500.0)) for one in leases]
        workers = [neighbour(name, min(100.0, rng.uniform(90.0, 105.0))) for name in "ab"]
        assert not decide(noisy, workers, order=shuffling(rng)).moves
