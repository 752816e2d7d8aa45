"""The families of plans, by name."""

from __future__ import annotations

from collections.abc import Callable

from tests.simulation.world.extras import grouped, limited, operated, shared, stopped, weighed
from tests.simulation.world.plan import ALL_FEATURES, ODD_FEATURES, ROWS_BY_HAND, Kind, Plan, draw
from tests.simulation.world.plan3x import draw_3x, draw_3x_hosts, draw_3x_mixed
from tests.simulation.world.plan_fanout import FAN_OUT_FEATURES, draw_fan_out
from tests.simulation.world.plan_live import draw_live
from tests.simulation.world.plan_migrate import draw_migration
from tests.simulation.world.plan_odd import draw_odd
from tests.simulation.world.plan_slow import NOT_BESIDE, draw_slow, draw_slow_3x
from tests.simulation.world.plan_streams import NOT_FOR_STREAMS, STREAM_KINDS, draw_streams
from tests.simulation.world.plan_wide import draw_wide

MIGRATION_KINDS = (Kind.REDEPLOY_AS, Kind.TOOL_BACK, Kind.TOOL_FORWARD, Kind.SINGLE_TABLE)
FLEET_KINDS = (
    Kind.LEADER_CRASH,
    Kind.LEADER_PAUSE,
    Kind.LEADER_CUT,
    Kind.INDEX_GONE,
    Kind.INDEX_FORBIDDEN,
    Kind.LOAD_FAILS,
    Kind.OTHER_APPLICATION,
    *MIGRATION_KINDS,
    *STREAM_KINDS,
)
MODES: dict[str, Callable[[int], Plan]] = {
    "2x": draw,
    "3x": draw_3x,
    "3xhost": draw_3x_hosts,
    "3xmix": draw_3x_mixed,
    "live": draw_live,
    "migrate": draw_migration,
    "fanout": draw_fan_out,
    "multi-stream": draw_streams,
    "wide": draw_wide,
    "odd": draw_odd,
    "slow": draw_slow,
    "slow3x": draw_slow_3x,
}


def draw_of(mode: str, seed: int) -> Plan:
    """The plan of a seed in a mode."""
    return shared(grouped(weighed(operated(limited(stopped(MODES[mode](seed)))))))


def features_of(mode: str) -> frozenset[str]:
    """Which kinds of trouble a mode has at all."""
    if mode == "odd":
        return ODD_FEATURES | features_of("3x") - {"twin", "delete_stream", *(kind.value for kind in ROWS_BY_HAND)}
    if mode in ("slow", "slow3x"):
        left_out = {kind.value for kind in NOT_BESIDE} | {"java2", "retention_s"}
        return features_of(mode.replace("slow", "") or "2x") - left_out
    taken = ALL_FEATURES - ODD_FEATURES - {kind.value for kind in FLEET_KINDS}
    if mode == "fanout":
        return taken - {"java2", "iterator_expired"}
    if mode == "2x":
        return taken - FAN_OUT_FEATURES
    ours = (
        ALL_FEATURES
        - ODD_FEATURES
        - FAN_OUT_FEATURES
        - {"java2", "retention_s", Kind.OTHER_APPLICATION.value}
        - {kind.value for kind in (*MIGRATION_KINDS, *STREAM_KINDS)}
    )
    if mode == "wide":
        return ours - {"twin", "delete_stream", "aggregated", *(kind.value for kind in ROWS_BY_HAND)}
    if mode == "3x":
        return ours
    if mode == "3xhost":
        return ours | {Kind.OTHER_APPLICATION.value}
    if mode == "multi-stream":
        left_out = {kind.value for kind in NOT_FOR_STREAMS}
        return (ours | {kind.value for kind in STREAM_KINDS}) - left_out
    if mode == "3xmix":
        return ours | {"java3", "java34"}
    if mode == "live":
        kinds = (Kind.CRASH, Kind.DEPLOY, Kind.PAUSE, Kind.PARTITION, Kind.WALL_JUMP, Kind.SPLIT, Kind.SCALE_OUT)
        kinds += (Kind.SCALE_IN, Kind.LEADER_CRASH, Kind.LEADER_PAUSE)
        return frozenset({kind.value for kind in kinds} | {"java3", "stale_reads"})
    kinds = (Kind.CRASH, Kind.PAUSE, Kind.PARTITION, Kind.SPLIT, *MIGRATION_KINDS)
    rates = {"dynamo_error", "dynamo_lost_reply", "dynamo_throttled", "dynamo_slow", "child_silent", "surprise"}
    return frozenset({kind.value for kind in kinds} | rates | {"java2", "java3", "java34", "stale_reads"})
