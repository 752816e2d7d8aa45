"""The families of plans, by name."""

from __future__ import annotations

from collections.abc import Callable

from tests.simulation.world.plan import ALL_FEATURES, Kind, Plan, draw
from tests.simulation.world.plan3x import draw_3x, draw_3x_mixed

FLEET_KINDS = (
    Kind.LEADER_CRASH,
    Kind.LEADER_PAUSE,
    Kind.LEADER_CUT,
    Kind.INDEX_GONE,
    Kind.INDEX_FORBIDDEN,
    Kind.LOAD_FAILS,
)
MODES: dict[str, Callable[[int], Plan]] = {"2x": draw, "3x": draw_3x, "3xmix": draw_3x_mixed}


def draw_of(mode: str, seed: int) -> Plan:
    """The plan of a seed in a mode."""
    return MODES[mode](seed)


def features_of(mode: str) -> frozenset[str]:
    """Which kinds of trouble a mode has at all."""
    if mode == "2x":
        return ALL_FEATURES - {kind.value for kind in FLEET_KINDS}
    ours = ALL_FEATURES - {"java2", "retention_s"}
    return ours if mode == "3x" else ours | {"java3", "java34"}
