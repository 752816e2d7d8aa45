"""CPU figures: parsers and formulas (metrics#cpu-formulas)."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mld.fleet.report import cpu_formulas
from mld.fleet.report.cpu_formulas import CgroupUsage, EcsStats, ProcStat

# --- /proc/stat


def test_the_line_of_all_processors_is_read() -> None:
    text = "cpu  1374539 7 76339 985914 4259 0 2365 1461 0 0\ncpu0 1 1 1 1 1\n"
    assert cpu_formulas.parse_proc_stat(text) == ProcStat(user=1374546, system=76339, idle=985914, iowait=4259)


@pytest.mark.parametrize("text", ["", "intr 1 2 3 4 5 6", "cpu 1 2 3 4", "cpu a b c d e", "cpu0 1 2 3 4 5"])
def test_other_lines_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        cpu_formulas.parse_proc_stat(text)


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        (ProcStat(130, 120, 1150, 100), 25.0),  # 50 of 200 ticks
        (ProcStat(100, 100, 1200, 100), 0.0),
        (ProcStat(200, 100, 1000, 100), 100.0),
        (ProcStat(100, 100, 1050, 150), 50.0),  # waiting counts as busy
        (ProcStat(100, 100, 1000, 100), None),  # nothing has moved, at least nothing that counts
        (ProcStat(105, 100, 1030, 90), 0.0),  # iowait ran backwards: 25 ticks, 30 of them idle
        (ProcStat(100, 100, 1005, 90), 0.0),
        (ProcStat(10, 10, 10, 10), 0.0),  # a new start looks like that, too
        (ProcStat(90, 100, 1020, 100), None),
        (ProcStat(50, 100, 1000, 100), None),
    ],
)
def test_the_machine(now: ProcStat, expected: float | None) -> None:
    assert cpu_formulas.proc_stat_percent(ProcStat(100, 100, 1000, 100), now) == expected


TICKS = st.builds(ProcStat, *[st.integers(0, 10**6)] * 4)


@given(TICKS, TICKS)
def test_the_machine_never_gives_anything_but_a_percentage(before: ProcStat, now: ProcStat) -> None:
    value = cpu_formulas.proc_stat_percent(before, now)
    assert value is None or 0 <= value <= 100


# --- control groups


@pytest.mark.parametrize(
    ("text", "expected"), [("max 100000\n", None), ("150000 100000\n", 1.5), ("50000 100000", 0.5)]
)
def test_the_limit_of_a_container(text: str, expected: float | None) -> None:
    assert cpu_formulas.parse_cpu_max(text) == expected


@pytest.mark.parametrize("text", ["", "max", "a b", "0 100000", "1000 0", "-5 100"])
def test_a_damaged_limit_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        cpu_formulas.parse_cpu_max(text)


def test_usage_is_in_seconds() -> None:
    assert cpu_formulas.parse_cpu_stat("usage_usec 2500000\nuser_usec 1\n") == 2.5


@pytest.mark.parametrize(("text", "expected"), [("0-4,6\n", 6), ("0", 1), ("0-1", 2), ("1,3,5-7", 5)])
def test_processors_are_counted(text: str, expected: int) -> None:
    assert cpu_formulas.count_cpus(text) == expected


@pytest.mark.parametrize("text", ["", "\n", "4-0", "a-b", "0-99999999", "-3"])
def test_a_damaged_list_of_processors_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        cpu_formulas.count_cpus(text)


@pytest.mark.parametrize(
    ("used_s", "elapsed_s", "limit_cpus", "expected"),
    [
        (0.5, 1.0, 1.0, 50.0),
        (0.5, 1.0, 0.5, 100.0),
        (0.5, 1.0, 4.0, 12.5),
        (3.0, 1.0, 2.0, 100.0),  # a burst
        (0.0, 1.0, 2.0, 0.0),
        (1.0, 0.0, 2.0, None),
        (1.0, -1.0, 2.0, None),
        (-1.0, 1.0, 2.0, None),
        (1.0, 1.0, 0.0, None),
    ],
)
def test_the_container(used_s: float, elapsed_s: float, limit_cpus: float, expected: float | None) -> None:
    before, now = CgroupUsage(100.0, 7.0), CgroupUsage(100.0 + used_s, 7.0 + elapsed_s)
    assert cpu_formulas.cgroup_percent(before, now, limit_cpus) == expected


# --- ECS

STATS: dict[str, Any] = {
    "cpu_stats": {"cpu_usage": {"total_usage": 700}, "system_cpu_usage": 9000, "online_cpus": 4},
    "precpu_stats": {"cpu_usage": {"total_usage": 500}, "system_cpu_usage": 8000},
}
TASK = {
    "Limits": {"CPU": 2},
    "Containers": [
        {"DockerId": "own", "Limits": {"CPU": 512}},
        {"DockerId": "sidecar", "Limits": {"CPU": 256}},
        {"DockerId": "other", "Limits": {"CPU": 256}},
    ],
}


def test_ecs_statistics_are_read() -> None:
    assert cpu_formulas.parse_ecs_stats(STATS) == EcsStats(700, 9000, 500, 8000)
    assert cpu_formulas.parse_ecs_online(STATS) == 4
    assert cpu_formulas.parse_ecs_stats(STATS | {"precpu_stats": {"cpu_usage": {"total_usage": 0}}}) == EcsStats(
        700, 9000, 0, 0
    )


@pytest.mark.parametrize(
    "document",
    [None, [], {}, {"cpu_stats": None}, {"cpu_stats": {"cpu_usage": {"total_usage": "7"}, "system_cpu_usage": 1}}],
)
def test_damaged_ecs_statistics_are_refused(document: Any) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        cpu_formulas.parse_ecs_stats(document)


PLACES = (
    ("cpu_stats", "cpu_usage", "total_usage"),
    ("cpu_stats", "system_cpu_usage"),
    ("cpu_stats", "online_cpus"),
    ("precpu_stats", "cpu_usage", "total_usage"),
    ("precpu_stats", "system_cpu_usage"),
    ("Limits", "CPU"),
    ("Containers", "0", "Limits", "CPU"),
)
FIGURES = st.one_of(
    st.sampled_from([None, True, "9", [], {}, 0, -1, 2**64, 10**400, 5e-324, 1e308, math.inf, -math.inf, math.nan]),
    st.integers(),
    st.floats(),
)


def replaced(value: Any, place: tuple[str, ...], figure: Any) -> Any:
    """A document with another figure at a place, if it has that place."""
    if not place:
        return figure
    if isinstance(value, list):
        return [replaced(one, place[1:], figure) for one in value]
    return {key: replaced(one, place[1:], figure) if key == place[0] else one for key, one in value.items()}


@example([(PLACES[0], math.inf)])
@example([(PLACES[4], 10**400)])
@given(st.lists(st.tuples(st.sampled_from(PLACES), FIGURES), min_size=1, max_size=4))
def test_whatever_a_metadata_service_says_is_a_percentage_no_figure_or_refused(
    said: list[tuple[tuple[str, ...], Any]],
) -> None:
    stats, task = STATS, TASK
    for place, figure in said:
        stats, task = replaced(stats, place, figure), replaced(task, place, figure)
    try:
        found = cpu_formulas.parse_ecs_stats(stats)
        online = cpu_formulas.parse_ecs_online(stats)
        used = cpu_formulas.ecs_percent(found, online, cpu_formulas.ecs_limit_cpus({"DockerId": "own"}, task, online))
    except ValueError as error:
        assert len(str(error)) < 200
    else:
        assert used is None or 0 <= used <= 100


@pytest.mark.parametrize(
    ("own", "task", "expected"),
    [
        ("own", TASK, 1.0),  # half of the shares of two processors
        ("sidecar", TASK, 0.5),
        ("own", TASK | {"Limits": {}}, 2.0),  # half of the four of the host
        ("unknown", TASK, 2 / 1026 * 2),
        ("own", {}, 4.0),
        ("own", {"Containers": [{"DockerId": "own"}, {"DockerId": "b", "Limits": {"CPU": 6}}]}, 1.0),
        ("own", {"Containers": [{"DockerId": "own", "Limits": {"CPU": 0}}]}, 4.0),
    ],
)
def test_the_limit_of_an_ecs_container(own: str, task: Any, expected: float) -> None:
    assert cpu_formulas.ecs_limit_cpus({"DockerId": own}, task, 4) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("stats", "limit_cpus", "expected"),
    [
        (EcsStats(700, 9000, 500, 8000), 1.0, 80.0),  # a fifth of four processors
        (EcsStats(700, 9000, 500, 8000), 2.0, 40.0),
        (EcsStats(900, 9000, 500, 8000), 1.0, 100.0),
        (EcsStats(700, 9000, 0, 0), 1.0, None),
        (EcsStats(700, 8000, 500, 8000), 1.0, 100.0),
        (EcsStats(500, 8000, 500, 8000), 1.0, None),  # the same reading twice
        (EcsStats(400, 9000, 500, 8000), 1.0, None),
        (EcsStats(700, 9000, 500, 8000), 0.0, None),
    ],
)
def test_the_ecs_container(stats: EcsStats, limit_cpus: float, expected: float | None) -> None:
    assert cpu_formulas.ecs_percent(stats, 4, limit_cpus) == expected


# --- all


@pytest.mark.parametrize(("value", "ok"), [(0.0, True), (100.0, True), (-0.1, False), (100.1, False)])
def test_only_percentages_are_figures(value: float, ok: bool) -> None:
    assert cpu_formulas.percent(value) == (value if ok else None)
    assert cpu_formulas.percent(float("nan")) is None
