"""When a lease may be taken, and by whom, in the view of one worker (`fleet.assign.takeover`). Times are in seconds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mld.core.periods import LOOK_PERIOD_S, PART_LEASES, WATCHERS, part_count
from mld.core.positions import SHARD_END, TRIM_HORIZON
from mld.core.steps import finish
from mld.fleet.assign.takeover import (
    FREE_AT_ONCE_MAX,
    FREE_GRACE_S,
    FREE_WAIT_S_MAX,
    SECOND_CHANCE_S,
    Takeover,
)
from mld.fleet.membership import FleetMembership
from mld.fleet.report.reports import WorkerReport, own_report
from mld.leases.lease import Lease
from mld.properties.settings import Settings
from tests.support.settings import rules

D = 10.0
JAVA_S = 11.0
RULES = rules(duration_s=D)
SOON = 0.01


def lease(key: str, owner: str | None = "w", counter: int = 5) -> Lease:
    return Lease(key, TRIM_HORIZON, counter=counter, owner=owner)


def report(worker: str, at: int = 0, version: str | None = "1") -> WorkerReport:
    made = own_report(worker, {}, at, version or "")
    return made if version is not None else replace(made, mld={})


class Seer:
    """One worker's view, fed with whole looks."""

    def __init__(self, me: str = "me", settings: Settings = RULES) -> None:
        self.membership = FleetMembership(me, settings)
        self.takeover = Takeover(settings, me, self.membership)

    def look(self, at: float, leases: Sequence[Lease], reports: Sequence[WorkerReport] = ()) -> Takeover:
        finish(self.takeover.saw_all(leases, reports, at))
        return self.takeover

    def taken(self, at: float) -> list[str]:
        return sorted(lease.key for lease in self.takeover.plan(at)[0])


def test_a_lease_that_stands_still_is_taken_a_lease_duration_after_it_was_first_seen() -> None:
    it = Seer()
    it.look(0.0, [lease("s")])
    it.look(8.0, [lease("s")])
    assert it.takeover.plan(8.0) == ([], D), "it is known when to ask again, without another look"
    assert it.taken(D) == []
    assert it.taken(D + SOON) == ["s"]


def test_a_lease_that_moved_is_counted_anew_from_the_look_that_showed_it() -> None:
    it = Seer()
    it.look(0.0, [lease("s")])
    it.look(6.0, [lease("s", counter=6)])
    assert it.taken(D + SOON) == []
    assert it.taken(6.0 + D + SOON) == ["s"]


def test_a_row_that_counts_from_0_again_is_alive() -> None:
    it = Seer()
    it.look(0.0, [lease("s", counter=100)])
    for renewal in (1, 2, 3, 4):
        it.look(renewal * D / 2, [lease("s", counter=renewal)])
        assert it.taken(renewal * D / 2 + SOON) == []
    assert it.taken(3 * D + SOON) == ["s"]


def test_nothing_is_known_of_a_table_that_is_gone() -> None:
    it = Seer()
    it.look(0.0, [lease("s")])
    it.takeover.forget()
    assert it.taken(D + SOON) == []


def test_what_is_ours_by_the_row_and_does_not_move_is_nobodys_too() -> None:
    it = Seer()
    it.look(0.0, [replace(lease("s", "next"), checkpoint_owner="me")])  # of a process before us, with our id
    assert it.taken(D + SOON) == ["s"]


def test_what_is_ours_by_the_row_is_left_to_discovery() -> None:
    """A take of ours would only cross the renewal that makes the lease held."""
    it = Seer()
    it.look(0.0, [lease("s", "me")])
    it.look(3 * D, [lease("s", "me")])
    assert it.taken(3 * D + SOON) == []


def test_during_a_handoff_the_old_owner_counts() -> None:
    it = Seer()
    it.look(0.0, [replace(lease("s", "next"), checkpoint_owner="old")])
    assert it.taken(D + SOON) == ["s"]


def test_a_free_lease_is_taken_after_the_grace() -> None:
    it = Seer()
    it.look(5.0, [lease("s", None)])
    assert it.taken(5.0 + FREE_GRACE_S) == []
    assert it.taken(5.0 + FREE_GRACE_S + SOON) == ["s"]


def test_a_lease_freed_again_gets_a_new_grace() -> None:
    it = Seer()
    it.look(0.0, [lease("s", None)])
    it.look(0.5, [lease("s", "w", 6)])
    it.look(2.0, [lease("s", None, 7)])
    assert it.taken(2.5) == []
    assert it.taken(2.0 + FREE_GRACE_S + SOON) == ["s"]


def test_many_free_leases_are_not_taken_all_at_once() -> None:
    it = Seer()
    it.look(0.0, [lease(f"s{number}", None) for number in range(100)])
    first, again_at = it.takeover.plan(FREE_GRACE_S + SOON)
    assert len(first) == FREE_AT_ONCE_MAX
    assert again_at == FREE_WAIT_S_MAX
    assert len(it.taken(FREE_WAIT_S_MAX + SOON)) == 100
    it.takeover.tried(first, {row.key: replace(row, owner="me", counter=6) for row in first}, 2.0)
    assert it.taken(2.5) == [], "it has its share for now"


def test_different_workers_begin_with_different_free_leases() -> None:
    leases = [lease(f"s{number}", None) for number in range(1000)]
    one, other = Seer("one"), Seer("other")
    for it in (one, other):
        it.look(0.0, leases)
    assert len(set(one.taken(1.1)) & set(other.taken(1.1))) < FREE_AT_ONCE_MAX / 4


def test_no_more_than_the_settings_allow() -> None:
    it = Seer(settings=rules(duration_s=D, held_max=3))
    others = [lease(f"s{number}") for number in range(5)]
    it.look(0.0, [lease("mine", "me"), *others])
    it.look(D / 2, [lease("mine", "me", 6), *others])
    assert len(it.taken(D + 1)) == 2


def test_a_java_worker_gets_the_time_that_it_needs_to_discover_what_it_was_given() -> None:
    it = Seer()
    java = [report("java", version=None)]
    it.look(0.0, [lease("s", "java"), lease("t", "java")], java)
    it.look(3.0, [lease("s", "java"), lease("t", "java", 6)], java)
    assert it.taken(3.0 + D + SOON) == ["t"], "it has renewed that one, so the ordinary rule holds"
    assert it.taken(D + JAVA_S) == ["t"]
    assert it.taken(D + JAVA_S + SOON) == ["s", "t"]
    it.look(4.0, [lease("s", "w", 6)], java)
    it.look(5.0, [lease("s", "java", 7)], java)
    assert it.taken(5.0 + D + JAVA_S) == []


def test_a_java_worker_that_stopped_renewing_what_it_had_gets_no_time_to_discover_more() -> None:
    it = Seer()
    java = [report("java", version=None)]
    it.look(0.0, [lease("s", "java"), lease("t", "w")], java)
    it.look(3.0, [lease("s", "java", 6), lease("t", "w", 6)], java)
    it.look(4.0, [lease("s", "java", 6), lease("t", "java", 7)], java)  # given to it, and it dies
    it.look(3.0 + D + 1.5, [lease("s", "java", 6), lease("t", "java", 7)], java)
    assert it.taken(3.0 + D + 1.5 + SOON) == ["s", "t"]


@pytest.mark.parametrize("reports", [True, False])
def test_a_java_worker_that_lost_its_leases_gets_the_time_again_once_it_has_reported(reports: bool) -> None:
    it = Seer()
    before, after = [report("java", version=None)], [report("java", 30 * reports, version=None)]
    it.look(0.0, [lease("s", "java"), lease("t", "w")], before)
    it.look(3.0, [lease("s", "java", 6), lease("t", "w", 6)], before)
    it.look(5.0, [lease("s", "w", 7), lease("t", "w", 7)], before)
    it.look(6.0, [lease("s", "w", 8), lease("t", "w", 8)], after)
    it.look(7.0, [lease("s", "w", 9), lease("t", "java", 9)], after)
    it.look(7.0 + D + 1.5, [lease("s", "w", 10), lease("t", "java", 9)], after)
    assert it.taken(7.0 + D + JAVA_S) == ([] if reports else ["t"])
    assert it.taken(7.0 + D + JAVA_S + SOON) == ["t"]


@pytest.mark.parametrize("owner", ["mld", "unreported"])
def test_nobody_else_gets_more_than_a_lease_duration(owner: str) -> None:
    it = Seer()
    it.look(0.0, [lease("s", owner)], [report("mld")])
    assert it.taken(D + SOON) == ["s"]


def test_a_marked_lease_is_left_alone_while_the_heartbeat_of_its_owner_moves() -> None:
    marked = [replace(lease("s"), heartbeat=f"{'a' * 16}.{number}") for number in (1, 2)]
    it = Seer()
    it.look(0.0, [marked[0]], [report("w")])
    it.look(9.0, [marked[1]], [report("w")])
    assert it.taken(D + SOON) == []
    it.look(18.0, [marked[1]], [report("w")])
    assert it.taken(9.0 + D + SOON) == ["s"]


def test_a_table_with_a_marked_lease_is_looked_at_as_a_whole() -> None:
    leases = [lease(f"s{number}") for number in range(2 * PART_LEASES + 1)]
    it = Seer()
    assert it.look(0.0, leases).part_count == 4
    assert it.look(1.0, [*leases, replace(lease("s"), heartbeat="a" * 16)]).part_count == 1


def test_an_owner_without_a_counter_that_ever_moved_is_counted_from_the_first_sight_of_him() -> None:
    it = Seer()
    it.look(0.0, [lease("s", None, 7)])
    it.look(1.0, [lease("s", "w", 3)])  # the row was made anew meanwhile
    assert it.taken(1.0 + D + SOON) == ["s"]


def test_a_row_that_is_gone_is_forgotten() -> None:
    it = Seer()
    it.look(0.0, [lease("s")])
    it.look(5.0, [])
    assert it.takeover.plan(100.0) == ([], math.inf)


def test_what_was_refused_waits_for_the_next_look() -> None:
    it = Seer()
    it.look(0.0, [lease("s")])
    rows, _ = it.takeover.plan(D + SOON)
    it.takeover.tried(rows, {}, D + SOON)
    assert it.takeover.plan(D + 1) == ([], math.inf)
    it.look(D + 1, [lease("s", counter=6)])
    assert it.taken(D + 2) == []


# --- who -------------------------------------------------------------------------------------------------------------


def look_of_all(workers: Iterable[str], leases: Sequence[Lease], at: float) -> dict[str, Seer]:
    seers = {worker: Seer(worker) for worker in workers}
    for it in seers.values():
        it.look(at, leases, [report(worker) for worker in seers])
    return seers


def test_the_leases_of_a_dead_worker_fall_to_the_watchers_evenly_and_to_each_only_one() -> None:
    living = [lease(f"{worker}{number}", worker) for worker in "abc" for number in range(2)]
    dead = [lease(f"s{number}", "dead") for number in range(6)]
    seers = look_of_all("abc", living + dead, 0.0)
    for it in seers.values():
        it.look(9.0, [replace(row, counter=6) for row in living] + dead, [report(worker) for worker in "abc"])
    taken = [it.taken(D + SOON) for it in seers.values()]
    assert sorted(key for keys in taken for key in keys) == [row.key for row in dead]
    assert [len(keys) for keys in taken] == [2, 2, 2]


def test_what_nobody_took_is_taken_by_anybody_a_moment_later() -> None:
    living = [lease("a0", "a"), lease("me0", "me")]
    it = Seer()
    it.look(0.0, [*living, *(lease(f"s{number}", "dead") for number in range(4))], [report("a"), report("me")])
    it.look(
        9.0,
        [*(replace(row, counter=6) for row in living), *(lease(f"s{number}", "dead") for number in range(4))],
        [report("a"), report("me")],
    )
    assert len(it.taken(D + SOON)) == 2
    _, again_at = it.takeover.plan(D + SOON)
    assert again_at == D + SECOND_CHANCE_S
    assert len(it.taken(D + SECOND_CHANCE_S + SOON)) == 4


def limited(me: str, leases_max: int, leases: Sequence[Lease], *drained: str) -> Seer:
    """A view of a fleet in which everybody renews."""
    it = Seer(me, rules(duration_s=D, held_max=leases_max))
    owners = {row.owner for row in leases if row.owner is not None} | {me, *drained}
    reports = [report(owner) for owner in sorted(owners)]
    reports = [replace(one, mld={**one.mld, "drain": "by me"}) if one.worker in drained else one for one in reports]
    it.look(0.0, leases, reports)
    return it


def test_those_with_room_look_before_those_without() -> None:
    names = [f"w{number}" for number in range(9)]
    leases = [lease(f"{name}-{n}", name) for name in names for n in range(1 if name in ("w3", "w4", "w5", "w6") else 2)]
    assert set(limited("w3", 2, leases).takeover.watchers(0)) <= {"w3", "w4", "w5", "w6"}


def test_watchers_have_room_for_a_full_worker_together() -> None:
    leases = [lease(f"w{number}-{n}", f"w{number}") for number in range(9) for n in range(4)]
    assert len(limited("w0", 5, leases).takeover.watchers(0)) == 5
    assert len(limited("w0", 4, leases).takeover.watchers(0)) == WATCHERS, "nobody has room: more looks help nobody"
    assert len(limited("w0", 99, leases).takeover.watchers(0)) == WATCHERS


def test_watchers_of_the_parts_of_a_large_table_have_room() -> None:
    full = [lease(f"full{number}-{n}", f"full{number}") for number in range(9) for n in range(130)]
    takeover = limited("w1", 130, [*full, *(lease(f"w{number}", f"w{number}") for number in range(4))]).takeover
    assert takeover.part_count > 1
    assert all(worker.startswith("w") for part in range(takeover.part_count) for worker in takeover.watchers(part))


def test_drained_workers_look_after_others_with_room_and_before_full_ones() -> None:
    leases = [*(lease(f"{name}0", name) for name in "abc"), lease("c1", "c"), lease("d0", "d"), lease("d1", "d")]
    assert limited("b", 2, leases, "a").takeover.watchers(0)[:2] == ("b", "a")


def test_a_due_lease_falls_to_a_drained_worker_only_if_no_other_has_room() -> None:
    for leases_max, falls_to in ((9, "other"), (1, "me")):
        it = limited("me", leases_max, [lease("mine", "other"), lease("s", "dead")], "me")
        it.look(9.0, [lease("mine", "other", 6), lease("s", "dead")], [report("other"), report("me")])
        it.membership.drained = frozenset({"me"})
        assert it.taken(D + SOON) == ([] if falls_to == "other" else ["s"])


def test_the_lease_of_a_finished_shard_is_taken_without_room() -> None:
    it = limited("me", 1, [lease("mine", "me"), replace(lease("e", "dead"), checkpoint=SHARD_END), lease("s", "dead")])
    it.look(9.0, [lease("mine", "me", 6), replace(lease("e", "dead"), checkpoint=SHARD_END), lease("s", "dead")])
    assert it.taken(D + SOON) == ["e"]
    assert it.takeover.left(D + SOON) == ["s"]


def test_a_due_lease_that_is_promised_to_us_takes_no_second_place() -> None:
    promised = replace(lease("s", "me"), checkpoint_owner="dead")
    it = limited("me", 1, [promised, lease("a", "dead")])
    assert it.taken(D + SOON) == ["s"]


@given(st.sets(st.text("abcdefgh", min_size=1, max_size=4), min_size=1, max_size=12))
def test_three_workers_look_at_each_part_and_all_agree_who(workers: set[str]) -> None:
    leases = [lease(f"s-{worker}", worker) for worker in workers]
    seers = look_of_all(workers, leases, 0.0)
    assert len({it.takeover.watchers(0) for it in seers.values()}) == 1
    looking = [worker for worker, it in seers.items() if it.takeover.my_parts()]
    assert len(looking) == min(WATCHERS, len(workers))


def test_one_report_is_no_sign_of_life_but_two_are() -> None:
    it = Seer("zz")
    crashed = [report(f"crashed{number}") for number in range(9)]
    it.look(0.0, [lease("s")], crashed)
    assert it.takeover.watchers(0) == ("zz",)
    it.look(30.0, [lease("s")], [report("crashed0", 30), *crashed[1:]])
    assert set(it.takeover.watchers(0)) == {"crashed0", "zz"}
    it.look(91.0, [lease("s")], [report("crashed0", 30), *crashed[1:]])
    assert it.takeover.watchers(0) == ("zz",)


def test_who_renews_or_reports_again_shows_life() -> None:
    it = Seer("zz")
    it.look(0.0, [lease("s", "w")], [report("w"), report("idle"), report("ghost", 9_999)])
    assert it.membership.showing_life == {"w"}, "so far an owner may be alive; one report says nothing"
    it.look(30.0, [lease("s", "w", counter=6)], [report("w"), report("idle", 30), report("ghost", 9_999)])
    assert it.membership.showing_life == {"w", "idle"}


def test_an_owner_that_renews_nothing_is_silent_and_looks_at_nothing() -> None:
    it = Seer()
    it.look(0.0, [lease("s"), lease("t")], [report("w")])
    it.look(8.0, [lease("s"), lease("t", counter=6)], [report("w")])
    it.look(12.0, [lease("s"), lease("t", counter=6)], [report("w")])
    assert it.membership.silent == frozenset(), "it renews one of them"
    assert "w" in it.takeover.watchers(0)
    it.look(20.0, [lease("s"), lease("t", counter=6)], [report("w")])
    assert it.membership.silent == {"w"}
    assert "w" not in it.takeover.watchers(0)
    assert it.takeover.is_gone("w", 20.0)


# --- how often -------------------------------------------------------------------------------------------------------


def test_a_watcher_looks_often_and_the_others_once_in_a_lease_duration() -> None:
    workers = [f"w{number}" for number in range(10)]
    seers = look_of_all(workers, [lease(f"s-{worker}", worker) for worker in workers], 0.0)
    periods = sorted(it.takeover.whole_period_s() for it in seers.values())
    assert periods == [LOOK_PERIOD_S] * WATCHERS + [D] * 7


def test_who_hands_a_lease_to_somebody_is_not_alone() -> None:
    it = Seer()
    it.look(0.0, [lease("s", "me")], [report("me")])
    assert it.membership.is_alone
    it.look(5.0, [replace(lease("s", "other"), checkpoint_owner="me")], [report("me")])
    assert not it.membership.is_alone


def test_who_gave_a_lease_away_is_not_alone_though_a_stale_look_shows_nobody_else() -> None:
    it = Seer()
    it.look(0.0, [lease("s", "me")], [report("me")])
    it.membership.gave(1.0)
    assert not it.membership.is_alone
    it.look(1.1, [lease("s", "me")], [report("me")])
    assert it.takeover.whole_period_s() == LOOK_PERIOD_S
    it.look(1.0 + D + SOON, [lease("s", "me")], [report("me")])
    assert it.membership.is_alone, "by now every look shows it"


def test_who_is_alone_looks_twice_in_a_lease_duration() -> None:
    it = Seer()
    it.look(0.0, [lease("s", "me"), lease("t", None)], [report("me")])
    assert it.membership.is_alone
    assert it.takeover.whole_period_s() == D / 2
    it.look(5.0, [lease("s", "me"), lease("t", None)], [report("me"), report("other")])
    assert not it.membership.is_alone
    it.look(5.0 + 61.0, [lease("s", "me"), lease("t", None)], [report("me"), report("other")])
    assert it.membership.is_alone, "its report stands still"


@pytest.mark.parametrize(
    ("leases", "parts"),
    [(0, 1), (1, 1), (2 * PART_LEASES, 1), (2 * PART_LEASES + 1, 4), (10_000, 32)],
)
def test_a_large_table_is_looked_at_in_parts(leases: int, parts: int) -> None:
    assert part_count(leases) == parts


def test_every_part_of_a_large_table_has_watchers_and_they_share_the_work() -> None:
    workers = [f"w{number}" for number in range(20)]
    leases = [lease(f"s{number}", workers[number % 20]) for number in range(5000)]
    seers = look_of_all(workers, leases, 0.0)
    looked = [part for it in seers.values() for part in it.takeover.my_parts()]
    assert sorted(looked) == sorted(list(range(16)) * WATCHERS)
    assert max(len(it.takeover.my_parts()) for it in seers.values()) <= 6


def test_of_a_part_only_its_watchers_take_at_once() -> None:
    it = Seer("outsider")
    workers = [f"w{number}" for number in range(9)]
    living = [lease(f"{worker}-0", worker) for worker in workers]
    names = [report(worker) for worker in workers]
    it.look(0.0, [*living, lease("s", "dead")], names)
    it.look(9.0, [*(replace(row, counter=6) for row in living), lease("s", "dead")], names)
    if "outsider" in it.takeover.watchers(0):
        pytest.fail("choose another name: this one looks")
    assert it.taken(D + SOON) == []
    assert it.taken(D + SECOND_CHANCE_S + SOON) == ["s"]


# --- a worker that is known to have ended


def test_the_leases_of_a_worker_that_has_ended_are_due_with_the_next_look() -> None:
    it = Seer()
    it.look(0.0, [lease("s", "dead"), lease("t", "lives")])
    it.takeover.ended("dead", 4.0)
    it.look(1.0, [lease("s", "dead"), lease("t", "lives")])
    assert it.taken(1.0 + SOON) == ["s"]
    assert it.takeover.is_gone("dead", 1.0)
    assert not it.takeover.is_gone("lives", 1.0)


def test_a_row_read_after_the_fence_may_be_of_another_process_and_has_its_lease_duration() -> None:
    it = Seer()
    it.takeover.ended("dead", 4.0)
    it.look(4.0 + SOON, [lease("s", "dead")])
    assert it.taken(5.0) == []
    assert not it.takeover.is_gone("dead", 5.0)
    assert it.taken(4.0 + D + 2 * SOON) == ["s"]


def test_a_look_after_the_fence_takes_back_what_one_within_it_had_made_due() -> None:
    it = Seer()
    it.takeover.ended("dead", 4.0)
    it.look(1.0, [lease("s", "dead")])
    it.look(4.0 + SOON, [lease("s", "dead", counter=6)])  # it was started again, and renews
    assert it.taken(5.0) == []


def test_nothing_falls_to_a_worker_that_has_ended() -> None:
    it = Seer()
    leases = [lease("mine", "me"), lease("s", "dead")]
    reports = [report("me"), report("dead")]
    it.look(0.0, leases, reports)
    it.look(1.0, [lease("mine", "me", 6), lease("s", "dead", 6)], reports)
    assert "dead" in it.takeover.watchers(0)
    it.takeover.ended("dead", 5.0)
    it.look(2.0, [lease("mine", "me", 7), lease("s", "dead", 6)], reports)
    assert it.takeover.watchers(0) == ("me",)
    assert it.taken(2.0 + SOON) == ["s"], "at once, not as a second chance"
