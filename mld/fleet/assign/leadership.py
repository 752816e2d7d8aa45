"""`Leadership`: what a leader remembers from one assignment run to the next, and the decisions that depend on it.

Rules: coordination#restraint-while-alone, coordination#stepping-down. If a leader seems to be alone, but the table
shows that other workers were there lately, it gives itself only a few of the free leases at first, until workers that
started at the same time have had time to report. Otherwise the first worker of a new deployment would get every lease,
start a child for each, and keep many for good. If the table shows no other worker, the leader takes many more at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from mld.fleet.assign.assignment import Plan
from mld.fleet.membership import TRACE_S
from mld.fleet.report.reports import FleetSnapshot

FAILED_RUNS_MAX = 3
ALONE_S = 5.0
"""How long a leader that is alone holds leases back. Another worker needs this time to start, and to measure its load
twice before its first report.
"""
ALONE_LEASES_MAX = 32  # how many leases the leader may have meanwhile, so that a small application begins at once
FIRST_LEASES_MAX = 256  # the same if no other worker was there lately; not more, because a whole fleet may be starting


@dataclass(frozen=True, slots=True)
class Leadership:
    """A leadership that began at `since` (monotonic). `runs` counts the scheduled runs, but not the *early* ones that
    other parts of the worker ask for in between. The first run always counts.
    """

    since: float
    runs: int = 0
    failures: int = 0
    """Consecutive failed runs."""
    balanced_among: frozenset[str] = frozenset()
    """The workers among which the load was last balanced."""

    def balances(self, workers: Iterable[str], every: int, *, early: bool) -> bool:
        """Return whether a run balances the load. The first run of a leadership does. Later, only scheduled runs do:
        every `every`th one, and one before which a worker has come or gone. `workers` are the present ones.
        """
        if early and self.runs > 0:
            return False
        return self.runs % every == 0 or frozenset(workers) != self.balanced_among

    def after_run(self, workers: Iterable[str], *, balanced: bool, early: bool) -> Leadership:
        """Return the leadership after a run has made its plan, even if writes of the plan fail later. The run counts if
        it was a scheduled one or the first one; if it has `balanced` the load, the present `workers` are remembered.
        """
        runs = self.runs + (self.runs == 0 or not early)
        return replace(self, runs=runs, balanced_among=frozenset(workers) if balanced else self.balanced_among)

    def after_success(self) -> Leadership:
        return replace(self, failures=0)

    def after_failure(self) -> Leadership | None:
        """Return the leadership after a failed run; None if another worker should lead."""
        failures = self.failures + 1
        return replace(self, failures=failures) if failures < FAILED_RUNS_MAX else None

    def held_back(self, plan: Plan, alone: str, seen: FleetSnapshot, *, now: float, wall_s: float) -> Plan:
        """Return the part of the plan that may be written now. `alone` is the leader, which knows of no other worker.
        Until it has led for `ALONE_S`, it gets only a limited number of leases, because other workers may report soon.
        """
        if now - self.since >= ALONE_S:
            return plan
        leases_max = ALONE_LEASES_MAX if _others_were_here(alone, seen, wall_s) else FIRST_LEASES_MAX
        room = max(0, leases_max - sum(lease.owner == alone for lease in seen.leases))
        return plan if len(plan.moves) <= room else replace(plan, moves=plan.moves[:room])


def _others_were_here(alone: str, seen: FleetSnapshot, wall_s: float) -> bool:
    """Return whether another worker, alive or not, owns a lease or has reported within `TRACE_S`."""
    if any(lease.actual_owner not in (None, alone) for lease in seen.leases):
        return True
    since = wall_s - TRACE_S
    return any(report.worker != alone and (report.updated_at_s or 0) > since for report in seen.reports)


@dataclass(frozen=True, slots=True)
class RunReport:
    """The results of a run, for the log."""

    plan: Plan
    balanced: bool
    moved: int = 0
    refused: int = 0
