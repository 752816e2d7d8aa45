"""What is drawn on top of the modes (`world.extras`) catches the daemons that it was made for."""

from __future__ import annotations

import pytest

from tests.simulation.run import run_plan
from tests.simulation.variants.patching import Patch, patched
from tests.simulation.world.modes import draw_of

BROKEN = {
    "finished shards count as load": (Patch("mld.leases.lease", "return not self.is_complete", "return True"),),
    "a start does not hear of a stop": (
        Patch(
            "mld.daemon.worker",
            "return bool(await unless(self.signals.stop_asked, self._initialize_patiently()))",
            "return await self._initialize_patiently()",
        ),
    ),
    "those who leave receive leases, and keep them": (
        Patch("mld.fleet.fleet", "await self._departure.release_late_leases()", "pass"),
        Patch("mld.fleet.fleet", "await self._reporter.leave()", "pass"),
        Patch(
            "mld.fleet.departure",
            'return await contained(self.reports.may_receive(receiver), "looking for a receiver")',
            "return True",
        ),
    ),
    "lost leases keep their readers": (
        Patch("mld.metrics.registry", "part.waiting_bytes = none_waits", "pass"),
        Patch("mld.metrics.registry", "            if self.is_published:\n", "            if True:\n"),
    ),
    "what surrounds a record is left out with it": (
        Patch("mld.consumer.wishes", "                kept.append(record)", "                pass"),
    ),
    "a pause never ends": (
        Patch(
            "mld.consumer.wishes",
            "                self._unpaused.set()\n",
            "                pass\n",
        ),
    ),
    "a child may name any place up to what it was given": (
        Patch(
            "mld.consumer.checkpoint_range",
            "        if position != self.last and not self._was_given(position):\n",
            "        if not self.last <= position <= self.largest:\n",
        ),
    ),
    "one odd row proves a foreign table": (
        Patch(
            "mld.shards.identity",
            "any(votes[False] >= max(votes[True] + 1, contradicting_min) for votes in (ranges, numbers))",
            "any(votes[False] for votes in (ranges, numbers))",
        ),
    ),
    "the number 0 means all that was given": (
        Patch(
            "mld.consumer.checkpoint_range",
            "            position = self.last\n        if position",
            "            position = self.largest\n        if position",
        ),
    ),
    "who has ended is taken for dead for ever": (
        Patch("mld.fleet.assign.takeover", "self._ended.get(worker, -math.inf) >= now", "worker in self._ended"),
    ),
}
CATCHES = [
    ("finished shards count as load", "2x", 490, "checker 1"),
    ("finished shards count as load", "live", 1005, "checker 13"),
    ("a start does not hear of a stop", "2x", 43, "checker 15"),
    ("those who leave receive leases, and keep them", "live", 64, "checker 15"),
    ("lost leases keep their readers", "2x", 0, "checker 7"),
    ("what surrounds a record is left out with it", "2x", 87, "checker 1"),
    ("a child may name any place up to what it was given", "odd", 0, "checker 1"),
    ("the number 0 means all that was given", "odd", 0, "checker 1"),
    ("one odd row proves a foreign table", "odd", 3, "checker 6"),
    ("who has ended is taken for dead for ever", "live", 63, "checker 11"),
    ("a pause never ends", "2x", 5, "checker 1 and 6"),
]
KEPT = (CATCHES[0], CATCHES[-1])
CASES = [pytest.param(*case, marks=() if case in KEPT else pytest.mark.full) for case in CATCHES]


@pytest.mark.parametrize(("broken", "mode", "seed", "kind"), CASES)
def test_a_broken_daemon_is_caught(broken: str, mode: str, seed: int, kind: str) -> None:
    plan = draw_of(mode, seed)
    assert run_plan(plan).violation == ""
    with patched(BROKEN[broken]):
        assert run_plan(plan).violation.startswith(kind)
