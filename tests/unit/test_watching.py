"""`mld.fleet.watching`: when a watched worker counts as silent, and which of its leases are orphans."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mld.fleet.watching import (
    BASELINE_SHARE,
    LATE_SHARE,
    WATCHED_MAX,
    Look,
    Verdict,
    Watched,
    is_proof,
    look,
    orphans,
    parse_watch,
    render_watch,
    representative,
)
from mld.leases.lease import Lease
from mld.positions import SHARD_END, TRIM_HORIZON

DURATION_S = 10.0
RENEWAL_S = DURATION_S / 3
W = Watched("w", "s1")


def row(counter: int = 7, owner: str | None = "w", key: str = "s1", **more: object) -> Lease:
    return replace(Lease(key, TRIM_HORIZON, counter=counter, owner=owner), **more)  # type: ignore[arg-type]


def looked(before: Look, lease: Lease | None, now: float) -> Look:
    return look(before, W, lease, now, DURATION_S)


@pytest.mark.parametrize(
    ("silent_s", "verdict"),
    [
        (0.0, Verdict.ALIVE),
        (RENEWAL_S, Verdict.ALIVE),
        (5.0, Verdict.ALIVE),
        (5.1, Verdict.LATE),
        (10.0, Verdict.LATE),
        (10.1, Verdict.SILENT),
        (1000.0, Verdict.SILENT),
    ],
)
def test_the_verdict_of_a_row_that_has_not_moved(silent_s: float, verdict: Verdict) -> None:
    first = looked(Look(), row(), 100.0)
    assert first == Look(7, 100.0, Verdict.ALIVE)
    again = looked(first, row(), 100.0 + silent_s)
    assert again.verdict is verdict
    assert (again.counter, again.since) == (7, 100.0)


@pytest.mark.parametrize("counter", [8, 6, 0], ids=["renewed", "restored", "recreated"])
def test_any_other_counter_begins_anew(counter: int) -> None:
    silent = looked(looked(Look(), row(), 0.0), row(), 11.0)
    assert silent.verdict is Verdict.SILENT
    assert looked(silent, row(counter), 12.0) == Look(counter, 12.0, Verdict.ALIVE)


@pytest.mark.parametrize(
    "lease",
    [
        None,
        row(owner=None),
        row(owner="x"),
        row(owner="w", checkpoint_owner="x"),
        row(checkpoint=SHARD_END),
    ],
    ids=["deleted", "released", "another's", "on its way to it", "complete"],
)
def test_a_row_that_does_not_stand_for_the_worker_any_more(lease: Lease | None) -> None:
    silent = looked(looked(Look(), row(), 0.0), row(), 11.0)
    assert looked(silent, lease, 12.0) == Look(verdict=Verdict.GONE)


def test_a_row_being_handed_over_still_stands_for_who_renews_it() -> None:
    lease = row(owner="x", checkpoint_owner="w")
    assert looked(looked(Look(), lease, 0.0), lease, 11.0).verdict is Verdict.SILENT


@given(st.lists(st.tuples(st.floats(0.01, 4.0), st.booleans()), max_size=40))
def test_nobody_is_silent_who_was_seen_to_move_within_a_lease_duration(steps: list[tuple[float, bool]]) -> None:
    now, counter, state, moved_at = 0.0, 7, looked(Look(), row(), 0.0), 0.0
    for step_s, moves in steps:
        now += step_s
        if moves:
            counter, moved_at = counter + 1, now
        state = looked(state, row(counter), now)
        silent_s = now - moved_at
        expected = (
            Verdict.SILENT
            if silent_s > DURATION_S
            else Verdict.LATE
            if silent_s > LATE_SHARE * DURATION_S
            else Verdict.ALIVE
        )
        assert state.verdict is expected


def test_a_base_line_proves_something_after_more_than_a_renewal_interval() -> None:
    assert BASELINE_SHARE * DURATION_S > RENEWAL_S
    assert LATE_SHARE + BASELINE_SHARE < 1, "read as soon as it is late it is old enough in time"
    assert not is_proof(BASELINE_SHARE * DURATION_S, DURATION_S)
    assert is_proof(BASELINE_SHARE * DURATION_S + 0.001, DURATION_S)


OTHERS = [
    row(key="b-renewed", counter=8),
    row(key="c-new", counter=7),
    row(key="d-elsewhere", owner="x"),
    row(key="e-came", owner="w"),
    row(key="f-free", owner=None),
    row(key="g-coming", owner="w", checkpoint_owner="x"),
]
BASE = {
    "a": row(key="a"),
    "b-renewed": row(key="b-renewed", counter=7),
    "d-elsewhere": row(key="d-elsewhere"),
    "e-came": row(key="e-came", owner="x"),
    "f-free": row(key="f-free", owner="w"),
    "g-coming": row(key="g-coming", owner="w", checkpoint_owner="x"),
    "h-leaving": row(key="h-leaving", owner="x", checkpoint_owner="w"),
    "i-complete": row(key="i-complete", checkpoint=SHARD_END),
    "j-deleted": row(key="j-deleted"),
}


def test_orphans_are_the_leases_that_have_not_moved_since_the_base_line() -> None:
    standing = [BASE["i-complete"], BASE["h-leaving"], BASE["a"]]
    assert [lease.key for lease in orphans("w", BASE, [*OTHERS, *standing])] == ["a", "h-leaving", "i-complete"]


def test_an_orphan_is_the_row_as_it_is_now() -> None:
    now = row(key="a", throughput_kbps=5.0)
    assert orphans("w", BASE, [now]) == [now]


@pytest.mark.parametrize(
    ("leases", "key"),
    [
        ([], None),
        ([row(key="b"), row(key="a")], "a"),
        ([row(key="a", checkpoint=SHARD_END), row(key="b")], "b"),
        ([row(key="a", checkpoint_owner="x"), row(key="b", owner="x", checkpoint_owner="w"), row(key="c")], "c"),
        ([row(key="a", owner="x"), row(key="b", owner=None)], None),
    ],
)
def test_the_representative_is_the_first_lease_that_stays_with_the_worker(leases: list[Lease], key: str | None) -> None:
    assert representative("w", leases) == key


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "nonsense",
        "{}",
        "7",
        "null",
        '[["w"]]',
        '[["w", 1]]',
        '[["w", "s", "t"]]',
        '["w", "s"]',
        '[{"worker": "w"}]',
        "[" * 100_000,
    ],
)
def test_what_is_no_publication_says_nothing(text: str | None) -> None:
    assert parse_watch(text) == ()


def test_bad_entries_cost_only_themselves() -> None:
    assert parse_watch('[["w", "s1"], 7, ["x", "s2"]]') == (W, Watched("x", "s2"))


def test_no_more_is_read_than_anybody_can_watch() -> None:
    many = [Watched(f"w{number}", "s") for number in range(WATCHED_MAX + 5)]
    assert parse_watch(render_watch(many)) == tuple(many[:WATCHED_MAX])


@given(st.lists(st.builds(Watched, st.text(), st.text()), max_size=WATCHED_MAX))
def test_what_is_rendered_is_parsed_again(watched: list[Watched]) -> None:
    assert parse_watch(render_watch(watched)) == tuple(watched)
