"""`LoadSource`: measures this worker's CPU load, by ECS metadata, a control group, or `/proc/stat` of the machine.

Rules: metrics#cpu-sources. The sources are tried in Java's order until one works. The only network request goes to the
metadata service that an environment variable names. Java reads `/proc/stat` only on EC2, and asks the instance's
metadata whether it runs there; here `/proc/stat` is simply the last source. Unlike in Java, a control group with a
limit of its own comes before `/proc/stat` outside of ECS and EKS, too: a container that is limited to two CPUs is
busy when these two are.

A control group's limit is read again for each figure, because it may be changed while the container runs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

from mld.aws.host_reader import HostReader, HostReadError
from mld.core.clock import Clock
from mld.core.error_boundary import survived
from mld.fleet.report.cpu_formulas import (
    CgroupUsage,
    ProcStat,
    cgroup_percent,
    count_cpus,
    ecs_limit_cpus,
    ecs_percent,
    parse_cpu_max,
    parse_cpu_stat,
    parse_ecs_online,
    parse_ecs_stats,
    parse_proc_stat,
    proc_stat_percent,
)

log = logging.getLogger(__name__)

T = TypeVar("T")

CPU = "C"
"""Short name of the CPU metric in a report."""

ECS_V4 = "ECS_CONTAINER_METADATA_URI_V4"
ECS_V3 = "ECS_CONTAINER_METADATA_URI"
EKS_TOKEN = "/var/run/secrets/kubernetes.io/serviceaccount/token"  # noqa: S105 - a path, and only its existence counts
PROC_STAT = "/proc/stat"
CGROUP = "/sys/fs/cgroup"
BOOT_ID = "/proc/sys/kernel/random/boot_id"


class LoadSource(Protocol):
    """Measures how busy the CPUs of this process are. The first reading gives no figure, because a figure covers
    the time between two readings.
    """

    @property
    def name(self) -> str:
        """The name of the source, for the log."""
        ...

    async def meter(self) -> str:
        """Return a text that identifies the measured CPUs; empty if unknown. It is the same for all workers that
        measure the same CPUs.
        """
        ...

    async def read(self) -> float | None:
        """Return the percentage since the previous reading; None if there is no figure. Raises LoadUnreadableError."""
        ...


class LoadUnreadableError(Exception):
    """Raised if the source is missing, or its contents cannot be understood."""


class ProcStatSource:
    """The whole machine, by `/proc/stat`."""

    name = PROC_STAT

    def __init__(self, host: HostReader) -> None:
        self._host = host
        self._before: ProcStat | None = None

    async def meter(self) -> str:
        return await _boot_id(self._host)

    async def read(self) -> float | None:
        """Return the percentage of the machine's CPUs since the previous call; None at the first call. Raises
        LoadUnreadableError.
        """
        now = await _parsed(self._host, PROC_STAT, parse_proc_stat)
        before, self._before = self._before, now
        return None if before is None else proc_stat_percent(before, now)


class CgroupSource:
    """A container, by its control group of version 2. With `needs_limit` a group without a limit of its own counts as
    unreadable.
    """

    name = "cgroup v2"

    def __init__(self, host: HostReader, clock: Clock, *, needs_limit: bool) -> None:
        self._host = host
        self._clock = clock
        self._needs_limit = needs_limit
        self._before: CgroupUsage | None = None

    async def meter(self) -> str:
        """Return the machine's boot id, and the inode of the control group, because the group's path is the same in
        every container. Return an empty text if one of the two cannot be read.
        """
        boot_id = await _boot_id(self._host)
        try:
            return boot_id and f"{boot_id} {await self._host.inode(CGROUP)}"
        except HostReadError:
            return ""

    async def read(self) -> float | None:
        """Return the percentage of the group's CPUs since the previous call; None at the first call. Raises
        LoadUnreadableError.
        """
        limit_cpus = await self._limit_cpus()
        cpu_s = await _parsed(self._host, f"{CGROUP}/cpu.stat", parse_cpu_stat)
        before, self._before = self._before, CgroupUsage(cpu_s, self._clock.monotonic())
        return None if before is None else cgroup_percent(before, self._before, limit_cpus)

    async def _limit_cpus(self) -> float:
        """Return how many CPUs the control group may use: its own limit, or if it has none, the number of CPUs that it
        may run on.
        """
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
        self._online = 0  # CPUs of the host
        self._limit_cpus: float | None = None  # None until it was read, which is done once

    async def meter(self) -> str:
        return self._base

    async def read(self) -> float | None:
        """Return the percentage between the last two readings that the ECS service has made; one document has both.
        Return None if there is no figure. Raises LoadUnreadableError.
        """
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
    """Return the first source that can be read; None if there is none. An unreadable source does not raise."""
    for source in await _candidates(host, environ, clock):
        try:
            await source.read()
        except Exception as error:  # the document comes from outside, so it may even trigger a bug of ours
            failure = error if isinstance(error, LoadUnreadableError) else survived(error, "looking for CPU figures")
            log.debug("no CPU figures from %s: %s", source.name, failure, extra={"action": "load_source_refused"})
            continue
        log.info("CPU figures come from %s", source.name, extra={"action": "load_source"})
        return source
    log.info("no CPU figures here; leases are balanced by throughput", extra={"action": "load_source_none"})
    return None


async def _candidates(host: HostReader, environ: Mapping[str, str], clock: Clock) -> list[LoadSource]:
    """Return the sources that may work here, in the order in which they are tried."""
    ecs_base = environ.get(ECS_V4)
    in_container = bool(ecs_base or environ.get(ECS_V3)) or await host.exists(EKS_TOKEN)
    ecs: list[LoadSource] = [EcsSource(host, ecs_base)] if ecs_base else []
    return ecs + [
        CgroupSource(host, clock, needs_limit=not in_container),
        ProcStatSource(host),
    ]


async def _boot_id(host: HostReader) -> str:
    """Return the boot id of the machine, which all its containers see; empty if there is none."""
    try:
        return (await host.text(BOOT_ID)).strip()
    except HostReadError:
        return ""


@contextmanager
def _readable(what: str) -> Iterator[None]:
    """Raise LoadUnreadableError if a read inside the `with` block fails, or a parser refuses its input."""
    try:
        yield
    except HostReadError as error:
        raise LoadUnreadableError(str(error)) from error
    except ValueError as error:
        raise LoadUnreadableError(f"{what}: {error}") from error


async def _parsed(host: HostReader, path: str, parse: Callable[[str], T]) -> T:
    """Read and parse a file. Raises LoadUnreadableError."""
    with _readable(path):
        return parse(await host.text(path))
