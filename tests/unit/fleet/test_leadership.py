"""What one leadership of the assigner remembers from run to run (`fleet.assign.leadership`)."""

from __future__ import annotations

import pytest

from mld.core.positions import TRIM_HORIZON
from mld.fleet.assign.assignment import Plan
from mld.fleet.assign.fleet_load import Move, Why
from mld.fleet.assign.leadership import ALONE_LEASES_MAX, ALONE_S, FIRST_LEASES_MAX, Leadership
from mld.fleet.membership import TRACE_S
from mld.fleet.report.reports import FleetSnapshot, WorkerReport
from mld.leases.lease import Lease

WALL_S = 1_000_000.0


@pytest.mark.parametrize(
    ("every", "runs", "balanced"),
    [
        pytest.param(3, "me me me me me me me", "x..x..x", id="the first run and every third"),
        pytest.param(2, "me! me! me! me me", "x...x", id="early runs neither balance nor count, but for the first"),
        pytest.param(99, "me me me,new me,new me,new,late me,new me,new", "x.x.xx.", id="when a worker came or went"),
        pytest.param(99, "me me,new! me,new me,new", "x.x.", id="an early run leaves a newcomer to the next scheduled"),
    ],
)
def test_when_the_load_is_evened_out(every: int, runs: str, balanced: str) -> None:
    leadership, found = Leadership(since=0.0), ""
    for run in runs.split():
        workers, early = run.rstrip("!").split(","), run.endswith("!")
        balances = leadership.balances(workers, every, early=early)
        leadership = leadership.after_run(workers, balanced=balances, early=early)
        found += "x" if balances else "."
    assert found == balanced


OLD, LATE = WorkerReport("other", int(WALL_S - TRACE_S - 1)), WorkerReport("other", int(WALL_S - TRACE_S + 1))


@pytest.mark.parametrize(
    ("owned", "others", "found", "at", "allowed"),
    [
        (0, 0, (), 0.0, FIRST_LEASES_MAX),
        (0, 0, (WorkerReport("me", int(WALL_S)),), 0.0, FIRST_LEASES_MAX),
        (0, 0, (OLD,), 0.0, FIRST_LEASES_MAX),
        (0, 0, (LATE,), 0.0, ALONE_LEASES_MAX),
        (0, 1, (), 0.0, ALONE_LEASES_MAX),
        (30, 0, (LATE,), 0.0, ALONE_LEASES_MAX - 30),
        (40, 0, (LATE,), 0.0, 0),
        (0, 0, (LATE,), ALONE_S, 1000),
    ],
    ids=[
        "no trace",
        "its own",
        "an old one",
        "a report",
        "a lease",
        "what it has counts",
        "no room",
        "later everything",
    ],
)
def test_what_the_only_worker_known_may_get(
    owned: int, others: int, found: tuple[WorkerReport, ...], at: float, allowed: int
) -> None:
    owners = ["me"] * owned + ["other"] * others + [None] * 1000
    leases = tuple(Lease(f"s{number}", TRIM_HORIZON, owner=owner) for number, owner in enumerate(owners))
    plan = Plan(tuple(Move(lease, "me", False, Why.FREE) for lease in leases[owned + others :]))
    held_back = Leadership(since=0.0).held_back(
        plan, "me", FleetSnapshot(leases, found, frozenset()), now=at, wall_s=WALL_S
    )
    assert held_back.moves == plan.moves[:allowed]
