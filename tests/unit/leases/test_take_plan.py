"""The 2.x-mode taker's decision (leases#taker-observation and on); its worked examples are a story."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mld.core.positions import SHARD_END, TRIM_HORIZON
from mld.core.stillness import NEVER, Stillness
from mld.leases.lease import Lease
from mld.leases.take_plan import SeenCounters, TakePlan, decide, observe, shares_of
from tests.support.settings import taking

DURATION_S = 10.0
NOW = 1000.0
RULES = taking(duration_s=DURATION_S)
EVEN = taking(duration_s=DURATION_S, even_shares=True)
NO_PRIORITY = taking(duration_s=DURATION_S, very_old_first=False)
ME = "foo"


def fleet(**counts: int) -> list[Lease]:
    """Leases by owner; `free` ones have none."""
    return [
        Lease(f"{owner}-{number}", TRIM_HORIZON, counter=5, owner=None if owner == "free" else owner)
        for owner, count in counts.items()
        for number in range(count)
    ]


def plan(
    leases: list[Lease],
    rules: dict[str, Any] = RULES,
    *,
    ages: dict[str, float | None] | None = None,
    me: str = ME,
    seed: int = 1,
) -> TakePlan:
    """Decide at NOW; owned leases changed just now, free ones never, except as `ages` (by owner) says."""
    fresh: dict[str, float | None] = {"free": None} | (ages or {})

    def changed_at(lease: Lease) -> float:
        age = fresh.get(lease.key.rpartition("-")[0], 0.0)
        return NEVER if age is None else NOW - age

    seen: SeenCounters = Stillness()
    for lease in leases:
        seen.begin(lease.key, lease.counter, changed_at(lease))
    return decide(leases, seen, me, NOW, random.Random(seed), **rules)


def keys(plan: TakePlan) -> set[str]:
    return {choice.lease.key for choice in plan.choices}


# --- observe (leases#taker-observation)


@pytest.mark.parametrize(
    ("before", "counter", "owner", "since"),
    [
        (900.0, 5, "bar", 900.0),
        (NEVER, 5, None, NEVER),
        (900.0, 6, "bar", NOW),
        (900.0, 4, "bar", NOW),  # inequality counts, not growth
        (None, 5, "bar", NOW),
        (None, 0, None, NEVER),
    ],
)
def test_observing_a_row(before: float | None, counter: int, owner: str | None, since: float) -> None:
    seen: SeenCounters = Stillness()
    if before is not None:
        seen.begin("shard", 5, before)
    observe(seen, [Lease("shard", TRIM_HORIZON, counter, owner)], NOW)
    assert seen.since("shard") == since


def test_rows_that_are_gone_are_forgotten() -> None:
    seen: SeenCounters = Stillness()
    seen.begin("gone", 1, 1.0)
    observe(seen, [], NOW)
    assert "gone" not in seen


# --- rules


def ended(leases: list[Lease]) -> list[Lease]:
    return [
        replace(lease, key=f"{lease.owner}-ended-{number}", checkpoint=SHARD_END) for number, lease in enumerate(leases)
    ]


def test_the_leases_of_finished_shards_are_no_load() -> None:
    rules = taking(duration_s=DURATION_S, held_max=3)
    decision = plan([*fleet(free=1, foo=2), *ended(fleet(foo=4))], rules)
    assert (keys(decision), decision.target, decision.spillover, decision.left) == ({"free-0"}, 3, 0, frozenset())


def test_free_leases_of_finished_shards_are_taken_without_room() -> None:
    rules = taking(duration_s=DURATION_S, held_max=2)
    finished = [replace(lease, owner=None, key=f"ended{number}") for number, lease in enumerate(ended(fleet(foo=3)))]
    decision = plan([*fleet(free=1, foo=2), *finished], rules, ages={"ended": None})
    assert decision.left == {"free-0"}
    assert keys(decision) == {lease.key for lease in finished}


def test_no_lease_of_a_finished_shard_is_stolen() -> None:
    decision = plan([*fleet(bar=2), *ended(fleet(bar=9))], EVEN)
    assert {choice.lease.is_complete for choice in decision.choices} == {False}


def test_an_empty_table_needs_nothing() -> None:
    assert plan([]) == TakePlan()


@pytest.mark.parametrize(
    ("counts", "leases_max", "target", "spillover"),
    [
        ({"free": 0, "bar": 1}, 99, 1, 0),  # more workers than leases
        ({"bar": 3, "baz": 4}, 99, 3, 0),  # ceil(7 / 3)
        ({"bar": 10}, 3, 3, 2),  # ceil(10 / 2) cut to 3
    ],
)
def test_the_target_is_the_fair_share_cut_to_the_maximum(
    counts: dict[str, int], leases_max: int, target: int, spillover: int
) -> None:
    decision = plan(fleet(**counts), taking(duration_s=DURATION_S, held_max=leases_max))
    assert (decision.target, decision.spillover) == (target, spillover)


def test_expired_leases_do_not_count_for_their_owner() -> None:
    decision = plan(fleet(dead=4, bar=2), ages={"dead": 11.0})
    assert decision.target == 3
    assert len(decision.choices) == 3
    assert {choice.lease.owner for choice in decision.choices} == {"dead"}
    assert not any(choice.is_steal for choice in decision.choices)


def test_my_own_expired_leases_are_available_to_me() -> None:
    assert keys(plan(fleet(foo=2), ages={"foo": 11.0})) == {"foo-0", "foo-1"}


@pytest.mark.parametrize(("age_s", "taken"), [(30.0, 3), (30.001, 4)])
def test_leases_become_very_old_after_three_durations(age_s: float, taken: int) -> None:
    decision = plan(fleet(dead=4, bar=2), ages={"dead": age_s})
    assert decision.target == 3
    assert len(decision.choices) == taken, "the very old ones are taken beyond the target"


def test_beside_very_old_leases_the_merely_expired_are_taken_up_to_the_target_in_the_same_pass() -> None:
    """Java takes the one new lease and comes back for the dead worker's one period later."""
    decision = plan(fleet(free=1, dead=5, bar=4), ages={"dead": 11.0})
    assert decision.target == 5
    assert "free-0" in keys(decision)
    assert len(decision.choices) == 5


def test_a_worker_that_needs_two_takes_one_even_from_a_worker_at_its_target() -> None:
    decision = plan(fleet(a=2, b=2, c=2, d=2), me="foo")
    assert (decision.target, decision.needed) == (2, 2)
    assert len(decision.choices) == 1


def test_a_pending_handoff_counts_for_its_next_owner() -> None:
    handed = Lease("bar-9", TRIM_HORIZON, 5, ME, checkpoint_owner="bar")
    assert plan([*fleet(bar=1), handed]).needed == 0


def test_the_seed_alone_chooses_whatever_the_order_of_rows() -> None:
    leases = fleet(bar=20)
    assert plan(leases, seed=3) == plan(leases[::-1], seed=3)
    assert len({next(iter(keys(plan(leases, seed=seed)))) for seed in range(20)}) > 1


# --- even shares


def stolen_from_by(loads: dict[str, int], me: str, rules: dict[str, Any]) -> str | None:
    """The owner `me` takes a lease from, if any."""
    choices = plan(fleet(**loads), rules, me=me).choices
    assert len(choices) <= 1
    return choices[0].lease.owner if choices else None


def test_shares_do_not_depend_on_who_has_what_now() -> None:
    assert shares_of({"a": 5, "b": 0, "c": 3}) == shares_of({"c": 0, "b": 7, "a": 1})


def test_with_even_shares_a_worker_below_its_share_steals_from_one_above_its_own() -> None:
    shares = shares_of({"a": 5, "b": 0, "c": 0})
    assert list(shares.values()).count(1) == 1
    poor = next(worker for worker, share in shares.items() if share == 1)
    rich = [worker for worker in shares if worker != poor]
    loads = {poor: 2, rich[0]: 2, rich[1]: 1}
    assert stolen_from_by(loads, rich[1], EVEN) == poor
    assert stolen_from_by(loads, rich[1], RULES) is None
    assert stolen_from_by(loads, poor, EVEN) is None

    assert stolen_from_by({poor: 1, rich[0]: 3, rich[1]: 1}, poor, EVEN) is None
    assert stolen_from_by({poor: 1, rich[0]: 3, rich[1]: 1}, rich[1], EVEN) == rich[0]


def test_the_maximum_of_a_worker_holds_for_its_share_too() -> None:
    rules = taking(duration_s=DURATION_S, held_max=1, even_shares=True)
    assert stolen_from_by({"bar": 3, "foo": 1}, "foo", rules) is None


def live(
    table: dict[str, Lease], rules_of: dict[str, dict[str, Any]], rounds_max: int, seed: int
) -> Counter[str | None]:
    """Let everybody decide in turn until nobody moves a lease for a round; the loads then."""
    rng = random.Random(seed)
    for _ in range(rounds_max):
        moved = False
        for name, rules in sorted(rules_of.items()):
            seen: SeenCounters = Stillness()
            observe(seen, table.values(), NOW)
            for choice in decide(table.values(), seen, name, NOW, rng, **rules).choices:
                table[choice.lease.key] = Lease(choice.lease.key, TRIM_HORIZON, 0, name)
                moved = True
        if not moved:
            return Counter(lease.owner for lease in table.values())
    raise AssertionError("leases still move")


def test_a_second_hundred_of_workers_ends_with_as_much_as_the_first() -> None:
    first, second = ([f"{cluster}{number}" for number in range(100)] for cluster in ("old-", "new-"))
    table = {f"s{number}": Lease(f"s{number}", TRIM_HORIZON, 0, first[number % 100]) for number in range(500)}
    loads = live(table, dict.fromkeys(first + second, EVEN), rounds_max=20, seed=1)
    assert loads == shares_of({worker: loads[worker] for worker in first + second})
    assert abs(sum(loads[worker] for worker in first) - 250) <= 15  # what is left is the luck of the lottery


mixed_fleets = st.lists(st.tuples(st.booleans(), st.integers(0, 9)), min_size=1, max_size=7)


@given(mixed_fleets, st.integers(0, 20), st.integers(1, 3), st.integers())
def test_leases_of_mixed_fleets_come_to_rest_in_balance(
    workers: list[tuple[bool, int]], free: int, steals_max: int, seed: int
) -> None:
    kinds = {f"w{number}": is_java for number, (is_java, _) in enumerate(workers)}
    rules = {name: taking(duration_s=DURATION_S, steals_max=steals_max, even_shares=not kinds[name]) for name in kinds}
    loads = {f"w{number}": load for number, (_, load) in enumerate(workers)}
    table = {lease.key: lease for lease in fleet(free=free, **loads)}
    loads = live(table, rules, rounds_max=len(table) + len(workers) + 1, seed=seed)
    assert None not in loads
    assert max(loads.values(), default=0) <= max(1, -(-len(table) // len(workers)))
    if not any(kinds.values()) and len(table) >= len(workers):
        assert loads == shares_of({name: loads[name] for name in kinds})


# --- properties

counts = st.dictionaries(st.sampled_from(["foo", "bar", "baz", "free", "dead"]), st.integers(0, 12))


@given(counts, st.integers(1, 15), st.integers(1, 3), st.booleans(), st.integers())
def test_a_decision_respects_its_bounds(
    counts: dict[str, int], leases_max: int, steals_max: int, priority: bool, seed: int
) -> None:
    rules = taking(duration_s=DURATION_S, held_max=leases_max, steals_max=steals_max, very_old_first=priority)
    decision = plan(fleet(**counts), rules, ages={"dead": 11.0}, seed=seed)
    assert len(decision.choices) == len(keys(decision))
    if decision.choices:
        assert decision.target - decision.needed + len(decision.choices) <= leases_max
    assert sum(choice.is_steal for choice in decision.choices) <= steals_max
    assert all(choice.lease.owner != ME for choice in decision.choices)
