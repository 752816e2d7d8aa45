"""The 2.x shuffle against a JDK (coordination#shuffled-leader; the longer vectors were printed by OpenJDK 17)."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mld.fleet.leader.java_shuffle import SEED, JavaRandom, java_order, leaders, leads, shuffle

SHUFFLED = {
    1: "wa",
    2: "wa wb",
    3: "wc wa wb",
    4: "wd wa wb wc",
    5: "we wa wc wb wd",
    6: "wc wd wf we wa wb",
    7: "wc we wd wf wa wg wb",
    8: "wc wd wa wg we wh wb wf",
    10: "wi wf wb wg wj we wc wa wh wd",
    16: "wl wd wj wc wa wg wm wf wh wb wi wo we wn wp wk",
}
DRAWN = [
    (1000, [363, 525, 995, 169, 502, 118, 561, 700]),
    (16, [10, 5, 0, 4]),
    (2**30 + 1, [719977525, 63954995, 552873169, 1046619502, 1033571118, 995805700]),
]


def workers(count: int) -> list[str]:
    return [f"w{chr(ord('a') + number)}" for number in range(count)]


@pytest.mark.parametrize(("bound", "drawn"), DRAWN)
def test_numbers_are_those_of_java(bound: int, drawn: list[int]) -> None:
    source = JavaRandom(SEED)
    assert [source.next_int(bound) for _ in drawn] == drawn


@pytest.mark.parametrize("count", SHUFFLED)
def test_the_order_is_that_of_java(count: int) -> None:
    items = workers(count)
    shuffle(items, JavaRandom(SEED))
    assert items == SHUFFLED[count].split()


@pytest.mark.parametrize("count", SHUFFLED)
def test_the_leader_is_the_first_whatever_the_order_of_the_owners(count: int) -> None:
    owners = workers(count) * 2
    random.Random(count).shuffle(owners)
    assert leaders(owners) == {SHUFFLED[count].split()[0]}


def test_a_thousand_owners() -> None:
    items = [f"w{number:04d}" for number in range(1000)]
    assert leaders(items) == {"w0748"}
    shuffle(items, JavaRandom(SEED))
    assert items[:6] == ["w0748", "w0242", "w0636", "w0433", "w0309", "w0948"]


def test_owners_are_sorted_by_utf_16_code_units() -> None:
    names = ["\uffee", "\U0001f600", "z", "\u00e9", "\ue000", "A"]
    assert sorted(names, key=java_order) == ["A", "z", "\u00e9", "\U0001f600", "\ue000", "\uffee"]
    assert sorted(names) != sorted(names, key=java_order)
    assert leaders(names) == {"\u00e9"}


def test_an_unpaired_surrogate_is_a_name_too() -> None:
    assert leaders(["\ud800"]) == {"\ud800"}


def test_while_nobody_owns_a_lease_everybody_leads() -> None:
    assert leaders([]) == frozenset()
    assert leads("anybody", frozenset())
    assert leads("wc", leaders(workers(3)))
    assert not leads("wa", leaders(workers(3)))
    assert not leads("without leases", leaders(workers(3)))


@given(st.integers(), st.integers(1, 2**31 - 1))
def test_numbers_stay_below_their_bound(seed: int, bound: int) -> None:
    source = JavaRandom(seed)
    assert all(0 <= source.next_int(bound) < bound for _ in range(5))


@given(st.sets(st.text(st.characters(codec="utf-8"), min_size=1), min_size=1))
def test_exactly_one_owner_leads(owners: set[str]) -> None:
    assert len(leaders(owners)) == 1
    assert leaders(owners) <= owners
