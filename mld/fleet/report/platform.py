"""Where this process runs, and how busy its processors are there.

Rules: metrics#cpu-sources. The sources are tried in Java's order until one works, and nothing is
asked of the network but the metadata service that an environment variable names. Java reads `/proc/stat` on EC2 only
and asks the instance's metadata to find out; here it is simply the last source. A control group with a limit of its own
comes before it outside of ECS and EKS, too: a container held to two processors is busy when these two are.

The sources of a container re-read their limit with each figure, because it may be changed while the container runs.

*Formulas* (metrics#cpu-formulas): no figure instead of a division by zero or a backwards step, and time that never
jumps. The formulas are Java's, so that a mixed fleet compares like with like: waiting for a disk counts
as busy, interrupts and stolen time do not count at all. (`psutil.cpu_percent` decides all three otherwise.) Only the
first reading differs: Java calls it 0, here it is no figure.

Parsers raise ValueError for what they cannot read; formulas give percents from 0 to 100, or None for "no figure".
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from mld.aws.threads import HostReader, HostReadError
from mld.core.clock import Clock

log = logging.getLogger(__name__)

T = TypeVar("T")

CPU = "C"
"""Short name of the CPU metric in a report."""
PERCENT_MAX = 100.0
CPU_NUMBER_MAX = 100_000  # more processors than any machine has; keeps a damaged range from counting for ever
MICROS_PER_S = 1e6
SHARE_WHEN_MISSING = 2.0  # what Docker gives a container that asks for nothing

ECS_V4 = "ECS_CONTAINER_METADATA_URI_V4"
ECS_V3 = "ECS_CONTAINER_METADATA_URI"
EKS_TOKEN = "/var/run/secrets/kubernetes.io/serviceaccount/token"  # noqa: S105 - a path, and only its existence counts
PROC_STAT = "/proc/stat"
CGROUP = "/sys/fs/cgroup"
BOOT_ID = "/proc/sys/kernel/random/boot_id"


# --- the whole machine: /proc/stat ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ProcStat:
    """Ticks since boot of all processors together."""

    user: int
    system: int
    idle: int
    iowait: int

    @property
    def total(self) -> int:
        return self.user + self.system + self.idle + self.iowait


def parse_proc_stat(text: str) -> ProcStat:
    """Return the first line: `cpu user nice system idle iowait …`."""
    words = text.partition("\n")[0].split()
    if len(words) < 6 or words[0] != "cpu":
        raise ValueError("the first line is not that of all processors")
    user, nice, system, idle, iowait = map(int, words[1:6])
    return ProcStat(user + nice, system, idle, iowait)


def proc_stat_percent(before: ProcStat, now: ProcStat) -> float | None:
    """Return the busy part of the ticks in between. `iowait` may run backwards: an idle machine then."""
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
    """Processor seconds used, at a time of the monotonic clock."""

    cpu_s: float
    at_s: float


def cgroup_percent(before: CgroupUsage, now: CgroupUsage, limit_cpus: float) -> float | None:
    """Return the used part of what the limit allows; short bursts above it count as 100."""
    used_s, elapsed_s = now.cpu_s - before.cpu_s, now.at_s - before.at_s
    if used_s < 0 or elapsed_s <= 0 or limit_cpus <= 0:
        return None
    return percent(min(PERCENT_MAX, used_s / elapsed_s / limit_cpus * 100))


def parse_cpu_max(text: str) -> float | None:
    """Return the limit in `cpu.max` (v2: `max period` or `quota period`), in processors; None if there is none."""
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
    """Return the processor seconds in `cpu.stat` (v2): the second word of its first line, microseconds."""
    words = text.partition("\n")[0].split()
    if len(words) < 2:
        raise ValueError("cpu.stat has no usage")
    return int(words[1]) / MICROS_PER_S


def count_cpus(text: str) -> int:
    """Return how many processors a list such as `0-4,6` names."""
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
    """Processor time of the container and of its host, now and at the service's own previous reading, nanoseconds."""

    cpu: int
    system: int
    cpu_before: int
    system_before: int


def parse_ecs_stats(document: Any) -> EcsStats:
    """Return the figures in `<base>/stats`; a previous reading that is missing counts as zeros."""
    now, before = _member(document, "cpu_stats"), _member(document, "precpu_stats")
    return EcsStats(
        cpu=int(_ecs_number(now.get("cpu_usage"), "total_usage")),
        system=int(_ecs_number(now, "system_cpu_usage")),
        cpu_before=int(_ecs_number(before.get("cpu_usage"), "total_usage", 0.0)),
        system_before=int(_ecs_number(before, "system_cpu_usage", 0.0)),
    )


def parse_ecs_online(document: Any) -> int:
    """Return how many processors the host has, from `<base>/stats`."""
    return int(_ecs_number(_member(document, "cpu_stats"), "online_cpus"))


def ecs_limit_cpus(container: Any, task: Any, online: int) -> float:
    """Return what the container at `<base>` may use, in processors: its share of the limit of the task at
    `<base>/task`.
    """
    task_limit = _ecs_number(_limits(task), "CPU", 0.0) or float(online)
    shares = {
        str(_member_or_empty(each).get("DockerId")): _ecs_number(_limits(each), "CPU", 0.0) or SHARE_WHEN_MISSING
        for each in _member_list(task, "Containers")
    }
    own = shares.setdefault(str(_member_or_empty(container).get("DockerId")), SHARE_WHEN_MISSING)
    return own / sum(shares.values()) * task_limit


def ecs_percent(stats: EcsStats, online: int, limit_cpus: float) -> float | None:
    """Return the used part of what the limit allows. The host's clock standing still while we ran counts as 100."""
    if stats.cpu_before == 0 and stats.system_before == 0:
        return None
    cpu, system = stats.cpu - stats.cpu_before, stats.system - stats.system_before
    if cpu < 0 or system < 0 or limit_cpus <= 0 or cpu == system == 0:
        return None
    if system == 0:
        return PERCENT_MAX
    return percent(min(PERCENT_MAX, cpu / system * online / limit_cpus * 100))


def _limits(document: Any) -> Mapping[str, Any]:
    return _member_or_empty(_member_or_empty(document).get("Limits"))


def _member(document: Any, name: str) -> Mapping[str, Any]:
    if not isinstance(document, Mapping):
        raise ValueError(f"no {name} in {type(document).__name__}")
    return _member_or_empty(document.get(name))


def _member_or_empty(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _member_list(document: Any, name: str) -> list[Any]:
    value = _member_or_empty(document).get(name)
    return value if isinstance(value, list) else []


def _ecs_number(parent: Any, name: str, default: float | None = None) -> float:
    value = _member_or_empty(parent).get(name)
    value = default if value is None else value
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        raise ValueError(f"{name} is not a figure: {value}")
    return value


# --- all of them ------------------------------------------------------------------------------------------------------


def percent(value: float) -> float | None:
    """Return `value` if it is a percentage, None for anything else, NaN included."""
    return value if 0.0 <= value <= PERCENT_MAX else None


class LoadSource(Protocol):
    """How busy the processors around this process are. Its first reading is only the base of the second."""

    @property
    def name(self) -> str:
        """For the log."""
        ...

    async def meter(self) -> str:
        """Return what the figures are of: the same text for all workers that measure the same; empty if unknown."""
        ...

    async def read(self) -> float | None:
        """Return percent since the previous reading, None if there is no figure. Raises LoadUnreadableError."""
        ...


class LoadUnreadableError(Exception):
    """The source is missing or says nonsense."""


class ProcStatSource:
    """The whole machine."""

    name = PROC_STAT

    def __init__(self, host: HostReader) -> None:
        self._host = host
        self._before: ProcStat | None = None

    async def meter(self) -> str:
        return await _boot_id(self._host)

    async def read(self) -> float | None:
        now = await _parsed(self._host, PROC_STAT, parse_proc_stat)
        before, self._before = self._before, now
        return None if before is None else proc_stat_percent(before, now)


class CgroupSource:
    """A container, by the control groups of version 2. With `needs_limit`, one without its own limit is unreadable."""

    name = "cgroup v2"

    def __init__(self, host: HostReader, clock: Clock, *, needs_limit: bool) -> None:
        self._host = host
        self._clock = clock
        self._needs_limit = needs_limit
        self._before: CgroupUsage | None = None

    async def meter(self) -> str:
        """Return the machine and the control group, which has the same path in each container."""
        boot_id = await _boot_id(self._host)
        try:
            return boot_id and f"{boot_id} {await self._host.inode(CGROUP)}"
        except HostReadError:
            return ""

    async def read(self) -> float | None:
        limit_cpus = await self._limit_cpus()
        cpu_s = await _parsed(self._host, f"{CGROUP}/cpu.stat", parse_cpu_stat)
        before, self._before = self._before, CgroupUsage(cpu_s, self._clock.monotonic())
        return None if before is None else cgroup_percent(before, self._before, limit_cpus)

    async def _limit_cpus(self) -> float:
        limit_cpus = await _parsed(self._host, f"{CGROUP}/cpu.max", parse_cpu_max)
        if limit_cpus is not None:
            return limit_cpus
        if self._needs_limit:
            raise LoadUnreadableError(f"{self.name} has no limit")
        return await _parsed(self._host, f"{CGROUP}/cpuset.cpus.effective", count_cpus)


class EcsSource:
    """A container of an ECS task; `base` is the address of its metadata, version 4."""

    name = "ECS task metadata"

    def __init__(self, host: HostReader, base: str) -> None:
        self._host = host
        self._base = base.rstrip("/")
        self._online = 0
        self._limit_cpus: float | None = None

    async def meter(self) -> str:
        return self._base

    async def read(self) -> float | None:
        with _readable("/stats"):
            document = await self._document("/stats")
            stats = parse_ecs_stats(document)
        if self._limit_cpus is None:
            with _readable("the task's limits"):
                container, task = await self._document(""), await self._document("/task")
                self._online = parse_ecs_online(document)
                self._limit_cpus = ecs_limit_cpus(container, task, self._online)
        return ecs_percent(stats, self._online, self._limit_cpus)

    async def _document(self, path: str) -> Any:
        return await self._host.document(self._base + path)


async def detect(host: HostReader, environ: Mapping[str, str], clock: Clock) -> LoadSource | None:
    """Return the first source that can be read, None if there is none. Never raises for what it finds."""
    for source in await _candidates(host, environ, clock):
        try:
            await source.read()
        except LoadUnreadableError as error:
            log.debug("no CPU figures from %s: %s", source.name, error, extra={"action": "load_source_refused"})
            continue
        log.info("CPU figures come from %s", source.name, extra={"action": "load_source"})
        return source
    log.info("no CPU figures here; leases are balanced by throughput", extra={"action": "load_source_none"})
    return None


async def _candidates(host: HostReader, environ: Mapping[str, str], clock: Clock) -> list[LoadSource]:
    ecs_base = environ.get(ECS_V4)
    in_container = bool(ecs_base or environ.get(ECS_V3)) or await host.exists(EKS_TOKEN)
    ecs: list[LoadSource] = [EcsSource(host, ecs_base)] if ecs_base else []
    return ecs + [
        CgroupSource(host, clock, needs_limit=not in_container),
        ProcStatSource(host),
    ]


async def _boot_id(host: HostReader) -> str:
    """Return the id of this boot of the machine, which its containers share; empty where there is none."""
    try:
        return (await host.text(BOOT_ID)).strip()
    except HostReadError:
        return ""


@contextmanager
def _readable(what: str) -> Iterator[None]:
    """Raise LoadUnreadableError for what cannot be read inside it, or is refused by a parser."""
    try:
        yield
    except HostReadError as error:
        raise LoadUnreadableError(str(error)) from error
    except ValueError as error:
        raise LoadUnreadableError(f"{what}: {error}") from error


async def _parsed(host: HostReader, path: str, parse: Callable[[str], T]) -> T:
    """Return what `parse` finds in a file. Raises LoadUnreadableError."""
    with _readable(path):
        return parse(await host.text(path))
