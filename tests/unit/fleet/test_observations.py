"""The leader's view of leases over its runs: every row of the rules (coordination#expired-leases)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mld.core.positions import SHARD_END, TRIM_HORIZON
from mld.core.steps import finish
from mld.core.stillness import NEVER
from mld.fleet.observations import STEP_LEASES, Observations, expired_keys
from mld.leases.lease import Lease

DURATION_S = 10.0
HANDOFF_S = 30.0
OWNED = Lease("s", TRIM_HORIZON, counter=5, owner="a")
FREE = Lease("s", TRIM_HORIZON, counter=5)
PENDING = replace(OWNED, owner="b", checkpoint_owner="a")


def observations() -> Observations:
    return Observations(lease_duration_s=DURATION_S, handoff_timeout_s=HANDOFF_S)


def after(*rows: tuple[float, Lease]) -> Observations:
    seen = observations()
    for now, lease in rows:
        finish(seen.scanned([lease], now))
    return seen


@pytest.mark.parametrize(
    ("case", "rows", "moved_at"),
    [
        ("first sight of a free lease", [(100.0, FREE)], NEVER),
        ("first sight of an owned lease", [(100.0, OWNED)], 100.0),
        ("first sight of a pending handoff", [(100.0, PENDING)], 100.0),
        ("only the next owner is gone: the actual owner counts", [(100.0, replace(PENDING, owner=None))], 100.0),
        ("the counter stands", [(100.0, OWNED), (120.0, OWNED)], 100.0),
        ("the counter grew", [(100.0, OWNED), (120.0, replace(OWNED, counter=6))], 120.0),
        ("a row that was made again", [(100.0, OWNED), (120.0, replace(OWNED, counter=1))], 120.0),
        (
            "it is renewed below the counter that was known",
            [(100.0, OWNED), (120.0, replace(OWNED, counter=1)), (140.0, replace(OWNED, counter=2))],
            140.0,
        ),
        ("another owner with the same counter", [(100.0, OWNED), (120.0, replace(OWNED, owner="b"))], 120.0),
        ("a handoff begins", [(100.0, OWNED), (120.0, replace(OWNED, owner="b", checkpoint_owner="a"))], 100.0),
        ("a free lease stays free", [(100.0, FREE), (120.0, FREE)], NEVER),
        ("a free lease was taken", [(100.0, FREE), (120.0, replace(OWNED, counter=6))], 120.0),
    ],
)
def test_when_a_lease_was_seen_to_move(case: str, rows: list[tuple[float, Lease]], moved_at: float) -> None:
    assert after(*rows).moved_at("s") == moved_at, case


@pytest.mark.parametrize(
    ("case", "lease", "now", "expired"),
    [
        ("just seen", OWNED, 100.0, False),
        ("exactly one lease duration", OWNED, 110.0, False),
        ("longer than a lease duration", OWNED, 110.1, True),
        ("nobody's, at once", FREE, 100.0, True),
        ("pending and standing still", PENDING, 110.1, True),
    ],
)
def test_expiry(case: str, lease: Lease, now: float, expired: bool) -> None:
    seen = after((100.0, lease))
    assert seen.is_expired(lease, now) is expired, case
    assert finish(expired_keys(seen, [lease], now)) == ({"s"} if expired else set())


def test_a_lease_never_observed_is_not_called_expired() -> None:
    assert not observations().is_expired(OWNED, 1e9)


def test_our_own_assignment_counts_as_movement() -> None:
    seen = after((0.0, OWNED), (20.0, OWNED))
    seen.assigned(replace(OWNED, owner="b", counter=6), 20.5)
    assert not seen.is_expired(replace(OWNED, owner="b", counter=6), 30.0)
    assert seen.is_expired(replace(OWNED, owner="b", counter=6), 30.6)


def test_after_our_own_assignment_a_smaller_counter_is_the_measure() -> None:
    seen = after((0.0, replace(OWNED, counter=500)))  # then the table is restored from an old backup
    seen.assigned(replace(OWNED, owner="b", counter=7), 20.0)
    finish(seen.scanned([replace(OWNED, owner="b", counter=8)], 40.0))
    assert seen.moved_at("s") == 40.0


def test_single_rows_read_between_two_runs_count() -> None:
    seen = after((0.0, OWNED))
    seen.saw(replace(OWNED, counter=6), 15.0)
    finish(seen.scanned([replace(OWNED, counter=6)], 20.0))
    assert not seen.is_expired(replace(OWNED, counter=6), 20.0)
    assert seen.is_expired(replace(OWNED, counter=6), 25.1)


@pytest.mark.parametrize(
    ("case", "rows", "deadline"),
    [
        ("first seen pending", [(0.0, PENDING)], 40.0),
        ("became pending", [(0.0, OWNED), (20.0, PENDING)], 60.0),
        ("still pending", [(0.0, PENDING), (20.0, replace(PENDING, counter=9))], 40.0),
        ("another next owner", [(0.0, PENDING), (20.0, replace(PENDING, owner="c"))], 60.0),
        ("another old owner", [(0.0, PENDING), (20.0, replace(PENDING, checkpoint_owner="c"))], 60.0),
        ("ended and begun again", [(0.0, PENDING), (20.0, replace(OWNED, counter=9)), (25.0, PENDING)], 65.0),
    ],
)
def test_the_deadline_of_a_handoff(case: str, rows: list[tuple[float, Lease]], deadline: float) -> None:
    seen = after(*rows)
    lease = replace(rows[-1][1], counter=99)
    seen.saw(lease, deadline)  # its owner lives
    assert seen.is_blocked(lease, deadline), case
    assert not seen.is_blocked(lease, deadline + 0.1), case


def test_our_own_handoff_sets_its_deadline_and_is_no_heartbeat() -> None:
    seen = after((0.0, OWNED))
    seen.handoff_begun(PENDING, 5.0)
    assert seen.moved_at("s") == 0.0
    seen.saw(replace(PENDING, counter=6), 45.0)
    assert seen.is_blocked(PENDING, 45.0)
    assert not seen.is_blocked(PENDING, 45.1)


def test_a_handoff_begun_on_a_lease_never_observed_is_remembered() -> None:
    seen = observations()
    seen.handoff_begun(PENDING, 5.0)
    assert seen.is_blocked(PENDING, 6.0)


@pytest.mark.parametrize(
    ("case", "lease", "renewed", "now", "blocked"),
    [
        ("no handoff", OWNED, True, 5.0, False),
        ("pending", PENDING, True, 5.0, True),
        ("pending and complete", replace(PENDING, checkpoint=SHARD_END), True, 5.0, False),
        ("pending and expired", PENDING, False, 15.0, False),
        ("pending, renewed, at its deadline", PENDING, True, 40.0, True),
        ("pending, renewed, past its deadline", PENDING, True, 40.1, False),
        ("pending, expired, past its deadline", PENDING, False, 40.1, False),
    ],
)
def test_a_handoff_blocks_until_its_deadline(case: str, lease: Lease, renewed: bool, now: float, blocked: bool) -> None:
    seen = after((0.0, lease))
    if renewed:
        lease = replace(lease, counter=lease.counter + 1)
        seen.saw(lease, now)
    assert seen.is_blocked(lease, now) is blocked, case


def test_rows_that_are_gone_are_forgotten() -> None:
    seen = after((0.0, OWNED))
    finish(seen.scanned([replace(OWNED, key="t")], 20.0))
    finish(seen.scanned([OWNED], 40.0))
    assert seen.moved_at("s") == 40.0


def test_a_large_scan_is_taken_in_small_pieces() -> None:
    seen = observations()
    leases = [replace(OWNED, key=f"s{number}") for number in range(10 * STEP_LEASES)]
    assert sum(1 for _ in seen.scanned(leases, 0.0)) == 10
    assert seen.moved_at(leases[-1].key) == 0.0
