"""64 amazon_kclpy children that import boto3: plain, behind `mld-zygote` as any daemon starts it, and forked for mld.

Ready means that the child has answered `initialize`; memory is the sum of the proportional set sizes of everything that
was started: children, the server, and the processes that stand for children. CPU is theirs, without this process.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from mld.consumer.child import PipeChild, PipeHost
from mld.consumer.ports import ShardAddress
from mld.core.clock import LoopClock
from mld.protocol import fork_requests
from tests.benchmarks.process import CHILDREN, ROOT, BenchError
from tests.benchmarks.tables import load_average, spread, table
from tests.support.fetch_kclpy import installed

COUNT = 64
READY_TIMEOUT_S = 600.0  # a starved machine is slow, not broken
SCRIPT = CHILDREN / "kclpy_boto3_child.py"
ZYGOTE = str(ROOT / "bin" / "mld-zygote")
INITIALIZE = b'{"action":"initialize","shardId":"s","sequenceNumber":"TRIM_HORIZON","subSequenceNumber":0}\n'
MARK = "MLD_BENCH_ZYGOTE"


@dataclass(frozen=True, slots=True)
class Run:
    ready_s: float
    cpu_ms: float  # per child
    pss_mb: float
    processes: int


def measure(runs: int) -> None:
    """Run everything and print it."""
    kclpy = installed()
    if kclpy is None:
        print("amazon_kclpy is not there (python tests/support/fetch_kclpy.py): zygote left out")
        return
    before = load_average()
    with tempfile.TemporaryDirectory(prefix="z") as runtime:  # short: the path of a socket has 107 bytes
        ours = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        variables = {**ours, "XDG_RUNTIME_DIR": runtime, "PYTHONPATH": str(kclpy), MARK: runtime}
        with _environment(variables):
            cases = asyncio.run(_cases(runs))
    plain = spread([run.ready_s for run in cases["plain"]]), spread([run.pss_mb for run in cases["plain"]])
    rows = []
    for name, seen in cases.items():
        ready, memory = spread([run.ready_s for run in seen]), spread([run.pss_mb for run in seen])
        rows.append(
            (
                name,
                *(f"{value:.2f}" for value in (ready.min, ready.median, ready.max)),
                f"{ready.median / plain[0].median:.3f}",
                f"{spread([run.cpu_ms for run in seen]).median:.1f}",
                f"{memory.median:.0f}",
                f"{memory.median / plain[1].median:.3f}",
                str(seen[0].processes),
            )
        )
    table(
        f"Zygote: {COUNT} amazon_kclpy children that import boto3, {runs} runs each, targets 0.5 s (warm) and 160 MB",
        ("children", "s to ready: min", "median", "max", "x plain", "CPU ms/child", "PSS MB", "x plain", "processes"),
        rows,
        f"load average before {before}, after {load_average()}",
    )


async def _cases(runs: int) -> dict[str, list[Run]]:
    plain = PipeHost([sys.executable, str(SCRIPT)], LoopClock(), stop_timeout_s=5.0, environment={})
    zygote = PipeHost([ZYGOTE, str(SCRIPT)], LoopClock(), stop_timeout_s=5.0, environment={})
    cases: dict[str, list[Run]] = {name: [] for name in ("plain", "mld-zygote, cold", "mld-zygote", "forked for mld")}
    for _ in range(runs):
        cases["plain"].append(await _run(plain.start))
        with _through_the_command():
            cases["mld-zygote, cold"].append(await _run(zygote.start))
            async with _warm(zygote):
                cases["mld-zygote"].append(await _run(zygote.start))
        async with _warm(zygote):
            cases["forked for mld"].append(await _run(zygote.start))
        await _until_alone()
    return cases


@contextlib.contextmanager
def _through_the_command() -> Iterator[None]:
    """As a daemon that does not know the fork server."""
    name, fork_requests.PROGRAM = fork_requests.PROGRAM, ""
    try:
        yield
    finally:
        fork_requests.PROGRAM = name


@contextlib.asynccontextmanager
async def _warm(host: PipeHost) -> AsyncIterator[None]:
    """With a server that has forked before."""
    child = await _ready(host.start, "warm")
    try:
        yield
    finally:
        await child.end()


async def _run(start: Callable[[ShardAddress], Awaitable[PipeChild]]) -> Run:
    others = set(_processes())
    cpu_before = sum(map(_cpu_ms, others))
    began = time.monotonic()
    children = await asyncio.gather(*(_ready(start, f"s{number}") for number in range(COUNT)))
    ready_s = time.monotonic() - began
    processes = _processes()
    cpu_ms = sum(map(_cpu_ms, processes)) - cpu_before
    pss_mb = sum(map(_pss_kb, processes)) / 1024
    await asyncio.gather(*(child.end() for child in children))
    return Run(ready_s, cpu_ms / COUNT, pss_mb, len(processes))


async def _ready(start: Callable[[ShardAddress], Awaitable[PipeChild]], shard: str) -> PipeChild:
    async with asyncio.timeout(READY_TIMEOUT_S):
        child = await start(ShardAddress(shard, shard))
        await child.write([INITIALIZE])
        while (line := await child.read_line()) is not None:
            if '"initialize"' in line:
                return child
    raise BenchError(f"a child ended before it was ready: {await child.end()}")


async def _until_alone() -> None:
    """A server without children stays for a while: the next run is to be cold."""
    for pid in _processes():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, 9)
    while _processes():
        await asyncio.sleep(0.05)


def _processes() -> list[int]:
    """Whatever was started here and lives."""
    mark = f"{MARK}={os.environ[MARK]}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                if mark in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
    return found


def _cpu_ms(pid: int) -> float:
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e6


def _pss_kb(pid: int) -> int:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))


@contextlib.contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    kept = dict(os.environ)
    os.environ.clear()
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(kept)
