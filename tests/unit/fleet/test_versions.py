"""The client version machine against its tables (coordination#client-versions and on)."""

from __future__ import annotations

import pytest

from mld.fleet.migrate.states import ClientVersion
from mld.fleet.migrate.version_machine import (
    STABLE_S,
    UNASSIGNED_S_MAX,
    FleetView,
    Readiness,
    components,
    followed,
    initial_version,
    may_flip,
    observe_readiness,
)
from mld.properties.values import ClientVersionConfig as Configured

INIT = ClientVersion.INIT
UPGRADE = ClientVersion.UPGRADE_FROM_2X
V2X = ClientVersion.V2X
ROLLBACK = ClientVersion.V3X_WITH_ROLLBACK
V3X = ClientVersion.V3X
PHASE1 = Configured.COMPATIBLE_WITH_2X_PHASE1
COMPATIBLE = Configured.COMPATIBLE_WITH_2X
C3X = Configured.VERSION_3X


@pytest.mark.parametrize(
    ("stored", "phase1", "compatible", "c3x"),
    [
        (None, INIT, UPGRADE, V3X),
        (UPGRADE, UPGRADE, UPGRADE, UPGRADE),
        (V2X, V2X, V2X, V2X),
        (ROLLBACK, ROLLBACK, ROLLBACK, V3X),
        (V3X, V3X, V3X, V3X),
    ],
)
def test_initial_state(stored, phase1, compatible, c3x):
    assert initial_version(PHASE1, stored) is phase1
    assert initial_version(COMPATIBLE, stored) is compatible
    assert initial_version(C3X, stored) is c3x


# coordination#client-versions: taker, assigner (with discovery and the lock), sampler, reporter, index, readiness and
# version monitor.
@pytest.mark.parametrize(
    ("version", "cells"),
    [
        (INIT, (True, False, False, False, False, False, True)),
        (UPGRADE, (True, False, True, True, True, True, True)),
        (V2X, (True, False, True, False, False, False, True)),
        (ROLLBACK, (False, True, True, True, True, False, True)),
        (V3X, (False, True, True, True, True, False, False)),
    ],
)
def test_components_of_a_state(version, cells):
    running = components(version)
    assert cells == (
        running.taker,
        running.assigner,
        running.sampler,
        running.reporter,
        running.index,
        running.readiness_monitor,
        running.version_monitor,
    )


@pytest.mark.parametrize("stored", [None, INIT, UPGRADE, V2X, ROLLBACK, V3X])
def test_a_phase_1_worker_stays_and_takes_only_while_the_fleet_is_in_2x_mode(stored):
    assert followed(INIT, stored) is INIT
    running = components(INIT, stored)
    assert running.taker == (stored not in (ROLLBACK, V3X))
    assert not running.reporter
    assert not running.assigner


def test_what_a_phase_1_worker_sees_matters_to_no_other_state():
    for version in (UPGRADE, V2X, ROLLBACK, V3X):
        for stored in ClientVersion:
            assert components(version, stored) == components(version)


@pytest.mark.parametrize("current", [UPGRADE, V2X, ROLLBACK])
@pytest.mark.parametrize("stored", [UPGRADE, V2X, ROLLBACK, V3X])
def test_follow_every_transition_including_rollbacks_by_the_tool(current, stored):
    assert followed(current, stored) is stored


@pytest.mark.parametrize("current", [UPGRADE, V2X, ROLLBACK, V3X])
@pytest.mark.parametrize("stored", [None, INIT])
def test_a_row_that_says_nothing_changes_nothing(current, stored):
    assert followed(current, stored) is current


@pytest.mark.parametrize("stored", list(ClientVersion))
def test_3x_is_final(stored):
    assert followed(V3X, stored) is V3X


@pytest.mark.parametrize(
    ("stored", "of_2x", "other"),
    [(None, INIT, V3X), (UPGRADE, UPGRADE, UPGRADE), (V2X, V2X, V2X), (ROLLBACK, V3X, V3X), (V3X, V3X, V3X)],
)
def test_without_a_setting_the_table_decides_where_no_row_does(stored, of_2x, other):
    assert initial_version(None, stored, is_of_2x=True) is of_2x
    assert initial_version(None, stored, is_of_2x=False) is other


@pytest.mark.parametrize("stored", [UPGRADE, V2X, ROLLBACK, V3X])
def test_who_works_as_2x_without_being_told_to_follows_the_row(stored):
    assert followed(INIT, stored, None) is stored
    assert followed(INIT, stored, PHASE1) is INIT


# --- readiness


def view(owners, reporting, index_active=True):
    return FleetView(index_active, owners, frozenset(reporting))


READY = view({"s1": "a", "s2": "b"}, {"a", "b"})


UNSEEN = Readiness()


def look_for(seconds, view, seen=UNSEEN, start=0.0):
    """Looks once a minute over `seconds`; what is seen after the last one."""
    for minute in range(int(seconds // 60) + 1):
        seen = observe_readiness(seen, view, start + minute * 60)
    return seen


def test_a_fleet_that_is_ready_for_600_s_in_a_row_may_flip():
    assert STABLE_S == 600
    assert not may_flip(look_for(540, READY), 540)
    assert not may_flip(look_for(540, READY), 599.9)
    assert may_flip(look_for(600, READY), 600)


def test_one_bad_look_starts_the_time_anew():
    seen = look_for(540, READY)
    seen = observe_readiness(seen, view({"s1": "a"}, set()), 600)
    seen = look_for(540, READY, seen, start=660)
    assert not may_flip(seen, 1200)
    assert may_flip(observe_readiness(seen, READY, 1260), 1260)


def test_a_leader_that_begins_anew_has_to_wait_again():
    assert not may_flip(observe_readiness(Readiness(), READY, 6000), 6000)


@pytest.mark.parametrize(
    ("seen_by_leader", "ready"),
    [
        (READY, True),
        (view({"s1": "a"}, {"a"}, index_active=False), False),
        (view({"s1": "a", "s2": "dead"}, {"a"}), False),
        (view({"s1": "a"}, {"a", "idle"}), True),
        (view({}, set()), True),
        (view({"s1": "a", "s2": None}, {"a"}), True),
    ],
    ids=["all report", "no index", "an owner is silent", "a reporter owns nothing", "no leases", "a lease just freed"],
)
def test_ready(seen_by_leader, ready):
    assert (observe_readiness(Readiness(), seen_by_leader, 0).ready_since is not None) == ready


def test_a_lease_that_stays_without_owner_is_an_obstacle():
    waiting = view({"s1": "a", "s2": None}, {"a"})
    seen = look_for(UNASSIGNED_S_MAX - 60, waiting)
    assert seen.ready_since == 0
    assert look_for(UNASSIGNED_S_MAX, waiting).ready_since is None


def test_leases_that_are_free_one_after_the_other_are_no_obstacle():
    seen = Readiness()
    for minute in range(20):
        seen = observe_readiness(seen, view({"s1": "a", f"s{minute + 2}": None}, {"a"}), minute * 60)
    assert may_flip(seen, 19 * 60)
    assert len(seen.unassigned_since) == 1, "nothing is remembered of leases that are owned again"
