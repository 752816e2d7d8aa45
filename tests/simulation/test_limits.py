"""Fleets whose workers have just the room that their open shards need (`modes.limited`), and one that miscounts."""

from __future__ import annotations

import pytest

from tests.simulation.run import run_plan
from tests.simulation.variants.patching import Patch, patched
from tests.simulation.world.modes import draw_of

COUNTS_FINISHED = Patch("mld.leases.lease", "return not self.is_complete", "return True")
CATCHES = [("2x", 490, "checker 1"), ("live", 1005, "checker 13")]


@pytest.mark.parametrize(("mode", "seed", "kind"), CATCHES)
def test_room_for_the_open_shards_means_that_all_are_read(mode: str, seed: int, kind: str) -> None:
    plan = draw_of(mode, seed)
    assert "maxLeasesForWorker" in plan.settings
    assert run_plan(plan).violation == ""
    with patched((COUNTS_FINISHED,)):
        assert run_plan(plan).violation.startswith(kind), "a daemon that counts finished shards is caught"
