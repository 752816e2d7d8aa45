"""Computes how busy CPUs are, from `/proc/stat`, control groups, and the metadata of ECS. Pure.

Rules: metrics#cpu-formulas. If a formula would divide by zero, or a counter ran backwards, there is no figure. The
formulas are Java's, so that the figures of a mixed fleet can be compared: waiting for a disk counts as busy, and
interrupts and stolen time do not count at all. (`psutil.cpu_percent` differs in all three.) Only the first reading
differs: Java counts it as 0, here it gives no figure.

Parsers raise ValueError if they cannot read their input. Formulas return a percentage from 0 to 100, or None if there
is no figure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

PERCENT_MAX = 100.0
CPU_NUMBER_MAX = 100_000  # more CPUs than any machine has, so that a damaged file cannot name a huge range
MICROS_PER_S = 1e6
ECS_FIGURE_MAX = 2**64  # Docker counts in unsigned 64 bits; a larger number cannot be computed with
SHOWN_MAX = 100  # characters of a value that a message shows
SHARE_WHEN_MISSING = 2.0  # Docker's default for a container without a CPU setting


# --- the whole machine: /proc/stat ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ProcStat:
    """Ticks since boot, of all CPUs together."""

    user: int
    system: int
    idle: int
    iowait: int

    @property
    def total(self) -> int:
        return self.user + self.system + self.idle + self.iowait


def parse_proc_stat(text: str) -> ProcStat:
    """Return the figures of the first line: `cpu user nice system idle iowait …`. Raises ValueError for any
    other text.
    """
    words = text.partition("\n")[0].split()
    if len(words) < 6 or words[0] != "cpu":
        raise ValueError("the first line is not that of all processors")
    user, nice, system, idle, iowait = map(int, words[1:6])
    return ProcStat(user + nice, system, idle, iowait)


def proc_stat_percent(before: ProcStat, now: ProcStat) -> float | None:
    """Return the busy percentage between two readings; None if no time has passed, or the counters ran backwards. If
    `iowait` ran backwards by more than the busy time, the machine counts as idle (0).
    """
    total = now.total - before.total
    idle = now.idle - before.idle
    if total < idle and now.iowait < before.iowait:
        return 0.0
    if total <= 0:
        return None
    return percent((total - idle) / total * 100)


# --- a container: control groups --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CgroupUsage:
    """Processor seconds used until the time `at_s` (monotonic)."""

    cpu_s: float
    at_s: float


def cgroup_percent(before: CgroupUsage, now: CgroupUsage, limit_cpus: float) -> float | None:
    """Return the used percentage of the limit between two readings; short bursts above the limit count as 100. None if
    no time has passed, if the counter ran backwards, or if there is no limit.
    """
    used_s, elapsed_s = now.cpu_s - before.cpu_s, now.at_s - before.at_s
    if used_s < 0 or elapsed_s <= 0 or limit_cpus <= 0:
        return None
    return percent(min(PERCENT_MAX, used_s / elapsed_s / limit_cpus * 100))


def parse_cpu_max(text: str) -> float | None:
    """Return the limit in `cpu.max` (v2: `max period` or `quota period`), in CPUs; None if there is none. Raises
    ValueError for any other text.
    """
    words = text.split()
    if len(words) != 2:
        raise ValueError("cpu.max is not a pair")
    if words[0] == "max":
        return None
    quota, period = map(int, words)
    if quota <= 0 or period <= 0:
        raise ValueError(f"a quota of {quota} per {period} is no limit")
    return quota / period


def parse_cpu_stat(text: str) -> float:
    """Return the CPU seconds in `cpu.stat` (v2): the second word of its first line, microseconds. Raises ValueError for
    any other text.
    """
    words = text.partition("\n")[0].split()
    if len(words) < 2:
        raise ValueError("cpu.stat has no usage")
    return int(words[1]) / MICROS_PER_S


def count_cpus(text: str) -> int:
    """Return the number of CPUs in a list such as `0-4,6`. Raises ValueError for any other text."""
    count = 0
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        start, end = int(first), int(last or first)
        if not 0 <= start <= end <= CPU_NUMBER_MAX:
            raise ValueError(f"{part} is no range of processors")
        count += end - start + 1
    return count


# --- an ECS task: metadata version 4 ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class EcsStats:
    """CPU time in nanoseconds of the container (`cpu`) and of its host (`system`), at the last two readings of the
    ECS service, which reports both.
    """

    cpu: int
    system: int
    cpu_before: int
    system_before: int


def parse_ecs_stats(document: Any) -> EcsStats:
    """Return the figures in the document at `<base>/stats`. A missing previous reading counts as zeros."""
    now, before = _member(document, "cpu_stats"), _member(document, "precpu_stats")
    return EcsStats(
        cpu=int(_ecs_number(now.get("cpu_usage"), "total_usage")),
        system=int(_ecs_number(now, "system_cpu_usage")),
        cpu_before=int(_ecs_number(before.get("cpu_usage"), "total_usage", 0.0)),
        system_before=int(_ecs_number(before, "system_cpu_usage", 0.0)),
    )


def parse_ecs_online(document: Any) -> int:
    """Return the number of CPUs of the host, from `<base>/stats`."""
    return int(_ecs_number(_member(document, "cpu_stats"), "online_cpus"))


def ecs_limit_cpus(container: Any, task: Any, online: int) -> float:
    """Return how many CPUs a container may use: the task's limit, multiplied by the container's share of the CPU
    settings of all containers of the task.

    `container` is the document at `<base>`, `task` the one at `<base>/task`; `online` is the number of the host's CPUs,
    which stands for a missing limit of the task.
    """
    task_limit = _ecs_number(_limits(task), "CPU", 0.0) or float(online)
    shares = {
        str(_member_or_empty(each).get("DockerId")): _ecs_number(_limits(each), "CPU", 0.0) or SHARE_WHEN_MISSING
        for each in _member_list(task, "Containers")
    }
    # A container that the task does not list counts with the default share.
    own = shares.setdefault(str(_member_or_empty(container).get("DockerId")), SHARE_WHEN_MISSING)
    return own / sum(shares.values()) * task_limit


def ecs_percent(stats: EcsStats, online: int, limit_cpus: float) -> float | None:
    """Return how much of its limit the container has used between the two readings, in percent; 100 if it used time
    although the host's counter stood still. None if there is no previous reading, or no figure can be computed.
    """
    if stats.cpu_before == 0 and stats.system_before == 0:
        return None
    cpu, system = stats.cpu - stats.cpu_before, stats.system - stats.system_before
    if cpu < 0 or system < 0 or limit_cpus <= 0 or cpu == system == 0:
        return None
    if system == 0:
        return PERCENT_MAX
    return percent(min(PERCENT_MAX, cpu / system * online / limit_cpus * 100))


def _limits(document: Any) -> Mapping[str, Any]:
    """Return the `Limits` of a document; empty if it has none."""
    return _member_or_empty(_member_or_empty(document).get("Limits"))


def _member(document: Any, name: str) -> Mapping[str, Any]:
    """Return a member that should be an object; an empty mapping if it is missing or no object. Raises ValueError if
    the document itself is no object.
    """
    if not isinstance(document, Mapping):
        raise ValueError(f"no {name} in {type(document).__name__}")
    return _member_or_empty(document.get(name))


def _member_or_empty(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _member_list(document: Any, name: str) -> list[Any]:
    """Return a member that should be a list; empty if it is missing or no list."""
    value = _member_or_empty(document).get(name)
    return value if isinstance(value, list) else []


def _ecs_number(parent: Any, name: str, default: float | None = None) -> float:
    """Return the member `name` of an object, a number; `default` if it is missing. Raises ValueError if it is missing
    and there is no default, or if it is no number that can be a figure.
    """
    value = _member_or_empty(parent).get(name)
    value = default if value is None else value
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= ECS_FIGURE_MAX:
        raise ValueError(f"{name} is not a figure: {str(value)[:SHOWN_MAX]!r}")
    return value


# --- common -----------------------------------------------------------------------------------------------------------


def percent(value: float) -> float | None:
    """Return `value` if it is from 0 to 100; None otherwise, also for NaN."""
    return value if 0.0 <= value <= PERCENT_MAX else None
