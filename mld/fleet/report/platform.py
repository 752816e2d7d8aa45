"""Where this process runs, and how busy its processors are there.

Rules: metrics#cpu-sources. The sources are tried in Java's order until one works, and nothing is
asked of the network but the metadata service that an environment variable names. Java reads `/proc/stat` on EC2 only
and asks the instance's metadata to find out; here it is simply the last source. A control group with a limit of its own
comes before it outside of ECS and EKS, too: a container held to two processors is busy when these two are.

The sources of a container re-read their limit with each figure, because it may be changed while the container runs.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

from mld.aws.host import HostReadError
from mld.core.clock import Clock
from mld.fleet.report import cpu
from mld.fleet.values import CPU

log = logging.getLogger(__name__)

ECS_V4 = "ECS_CONTAINER_METADATA_URI_V4"
ECS_V3 = "ECS_CONTAINER_METADATA_URI"
EKS_TOKEN = "/var/run/secrets/kubernetes.io/serviceaccount/token"  # noqa: S105 - a path, and only its existence counts
PROC_STAT = "/proc/stat"
CGROUP = "/sys/fs/cgroup"
CPUACCT_PATHS = (f"{CGROUP}/cpu/cpuacct.usage", f"{CGROUP}/cpuacct/cpuacct.usage")
"""Usage of cgroup v1; the second where the two controllers are mounted apart."""


class Host(Protocol):
    """The machine, see `mld.aws.host.HostReader`. The reading methods raise HostReadError."""

    async def exists(self, path: str) -> bool: ...

    async def text(self, path: str) -> str: ...

    async def document(self, url: str) -> Any: ...


class LoadSource(Protocol):
    """One metric of this process's surroundings. Its first reading is only the base of the second."""

    @property
    def name(self) -> str:
        """For the log."""
        ...

    @property
    def metric(self) -> str:
        """Its short name in reports."""
        ...

    async def read(self) -> float | None:
        """Return percent since the previous reading, None if there is no figure. Raises LoadUnreadableError."""
        ...


class LoadUnreadableError(Exception):
    """The source is missing or says nonsense."""


class ProcStatSource:
    """The whole machine."""

    name = PROC_STAT
    metric = CPU

    def __init__(self, host: Host) -> None:
        self._host = host
        self._before: cpu.ProcStat | None = None

    async def read(self) -> float | None:
        text = await _text(self._host, PROC_STAT)
        with _readable(PROC_STAT):
            now = cpu.parse_proc_stat(text)
        before, self._before = self._before, now
        return None if before is None else cpu.proc_stat_percent(before, now)


class CgroupSource(ABC):
    """A container. With `needs_limit`, one without a limit of its own is unreadable."""

    name = "cgroup"
    metric = CPU

    def __init__(self, host: Host, clock: Clock, *, needs_limit: bool) -> None:
        self._host = host
        self._clock = clock
        self._needs_limit = needs_limit
        self._before: cpu.CgroupUsage | None = None

    async def read(self) -> float | None:
        limit_cpus = await self._limit_cpus()
        cpu_s = await self._used_s()
        before, self._before = self._before, cpu.CgroupUsage(cpu_s, self._clock.monotonic())
        return None if before is None else cpu.cgroup_percent(before, self._before, limit_cpus)

    async def _limit_cpus(self) -> float:
        limit_cpus = await self._quota_cpus()
        if limit_cpus is not None:
            return limit_cpus
        if self._needs_limit:
            raise LoadUnreadableError(f"{self.name} has no limit")
        return await self._allowed_cpus()

    @abstractmethod
    async def _quota_cpus(self) -> float | None: ...

    @abstractmethod
    async def _allowed_cpus(self) -> int: ...

    @abstractmethod
    async def _used_s(self) -> float: ...


class CgroupV2Source(CgroupSource):
    name = "cgroup v2"

    async def _quota_cpus(self) -> float | None:
        text = await _text(self._host, f"{CGROUP}/cpu.max")
        with _readable("cpu.max"):
            return cpu.parse_cpu_max(text)

    async def _allowed_cpus(self) -> int:
        return await _cpus_in(self._host, f"{CGROUP}/cpuset.cpus.effective")

    async def _used_s(self) -> float:
        text = await _text(self._host, f"{CGROUP}/cpu.stat")
        with _readable("cpu.stat"):
            return cpu.parse_cpu_stat(text)


class CgroupV1Source(CgroupSource):
    name = "cgroup v1"

    async def _quota_cpus(self) -> float | None:
        quota = await _text(self._host, f"{CGROUP}/cpu/cpu.cfs_quota_us")
        period = await _text(self._host, f"{CGROUP}/cpu/cpu.cfs_period_us")
        with _readable("cpu.cfs_quota_us"):
            return cpu.parse_quota(quota, period)

    async def _allowed_cpus(self) -> int:
        return await _cpus_in(self._host, f"{CGROUP}/cpuset/cpuset.effective_cpus")

    async def _used_s(self) -> float:
        together, apart = CPUACCT_PATHS
        text = await _text(self._host, together if await self._host.exists(together) else apart)
        with _readable("cpuacct.usage"):
            return cpu.parse_cpuacct_usage(text)


class EcsSource:
    """A container of an ECS task; `base` is the address of its metadata, version 4."""

    name = "ECS task metadata"
    metric = CPU

    def __init__(self, host: Host, base: str) -> None:
        self._host = host
        self._base = base.rstrip("/")
        self._online = 0
        self._limit_cpus: float | None = None

    async def read(self) -> float | None:
        document = await self._document("/stats")
        with _readable("/stats"):
            stats = cpu.parse_ecs_stats(document)
        if self._limit_cpus is None:
            container, task = await self._document(""), await self._document("/task")
            with _readable("the task's limits"):
                self._online = cpu.parse_ecs_online(document)
                self._limit_cpus = cpu.ecs_limit_cpus(container, task, self._online)
        return cpu.ecs_percent(stats, self._online, self._limit_cpus)

    async def _document(self, path: str) -> Any:
        try:
            return await self._host.document(self._base + path)
        except HostReadError as error:
            raise LoadUnreadableError(str(error)) from error


async def detect(host: Host, environ: Mapping[str, str], clock: Clock) -> LoadSource | None:
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


async def _candidates(host: Host, environ: Mapping[str, str], clock: Clock) -> list[LoadSource]:
    ecs_base = environ.get(ECS_V4)
    in_container = bool(ecs_base or environ.get(ECS_V3)) or await host.exists(EKS_TOKEN)
    ecs: list[LoadSource] = [EcsSource(host, ecs_base)] if ecs_base else []
    return ecs + [
        CgroupV2Source(host, clock, needs_limit=not in_container),
        CgroupV1Source(host, clock, needs_limit=not in_container),
        ProcStatSource(host),
    ]


@contextmanager
def _readable(what: str) -> Iterator[None]:
    """Raise LoadUnreadableError for what the parsers refuse inside it."""
    try:
        yield
    except ValueError as error:
        raise LoadUnreadableError(f"{what}: {error}") from error


async def _text(host: Host, path: str) -> str:
    try:
        return await host.text(path)
    except HostReadError as error:
        raise LoadUnreadableError(str(error)) from error


async def _cpus_in(host: Host, path: str) -> int:
    text = await _text(host, path)
    with _readable(path):
        return cpu.count_cpus(text)
