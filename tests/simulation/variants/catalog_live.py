"""The variants of taking over: what leaves a lease without an owner that renews it. Their plans are those of `live`."""

from __future__ import annotations

from tests.simulation.variants.patching import Patch
from tests.simulation.variants.variant import Variant


def _variant(name: str, breaks: str, *patches: tuple[str, str, str], needs: str = "") -> Variant:
    found = tuple(
        Patch(module if module.startswith("mld.") else f"mld.fleet.{module}", old, new) for module, old, new in patches
    )
    return Variant(name, breaks, found, needs, "live")


VARIANTS_LIVE: tuple[Variant, ...] = (
    _variant(
        "free_leases_wait_for_a_leader",
        "only a leader gives away free leases, and there is none while the lock of a dead one runs out",
        (
            "assign.takeover",
            "            return self._owned.since(lease.key) + FREE_GRACE_S\n",
            "            return math.inf\n",
        ),
    ),
    _variant(
        "silent_leases_wait_for_the_leader",
        "only a leader takes leases from a silent owner",
        (
            "assign.takeover",
            "        return self.observations.moved_at(lease.key) + still_s_max\n",
            "        return math.inf\n",
        ),
    ),
    _variant(
        "looks_too_seldom",
        "everybody looks at the leases once in five minutes",
        (
            "assign.takeover",
            "        if self.membership.is_alone:\n            return max(LOOK_PERIOD_S, ALONE_SHARE * duration_s)\n",
            "        if duration_s > 0.0:\n            return 300.0\n",
        ),
    ),
    _variant(
        "look_hangs",
        "a read without an answer is sent again after 20 s",
        ("mld.aws.table_calls", "again_s=READ_AGAIN_S,", "again_s=20.0,"),
        needs="deaf",
    ),
)
