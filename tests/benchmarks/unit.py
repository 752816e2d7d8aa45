"""One process beside two (`mld.processes`): CPU by turns, and how long shards of a killed worker stand still.

The servers are the stand-ins of the `path` benchmarks and the children the cheapest there are. All of them share the
CPUs with the workers, so megabytes per second say little of what a second process gains. What it costs is the CPU of
the workers for the same data.

*A killed worker.* One of two gets ``kill -9`` while records come into every shard. The time counts for each of its
shards from the signal to the first record in the sibling's child.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import boto3

from tests.benchmarks.path.rig import Rig, Stand, build
from tests.benchmarks.path.subject import MLD, Running, cpu_clock, running, tree
from tests.benchmarks.tables import load_average, spread, table
from tests.support.servers import ACCOUNT, REGION

SHARDS = 64
RECORD_BYTES = 1000
RECORDS = 40_000  # in each shard
LIVE_PER_S = 10
ROUNDS = 3
TIMEOUT_S = 240.0
FAIR_SHARE = 0.9  # of an equal share: so many leases each worker has before it begins; the fleet goes no further
WORKER = "bench"  # as `subject` names it
CPU_TARGET = 1.05
MOVED_TARGET_S = 2.0
KEYS = {
    "retrievalMode": "POLLING",
    "idleTimeBetweenReadsInMillis": "200",
    "leaseAssignmentIntervalMillis": "1000",
    "disableWorkerMetrics": "true",  # both workers measure the same machine
}


@dataclass(frozen=True, slots=True)
class Spent:
    """CPU seconds, so far or in a span."""

    workers: float
    children: float
    servers: float

    def since(self, before: Spent) -> Spent:
        return Spent(self.workers - before.workers, self.children - before.children, self.servers - before.servers)

    @property
    def total(self) -> float:
        return self.workers + self.children + self.servers


@dataclass(frozen=True, slots=True)
class Pass:
    """One backlog, read to its end."""

    wall_s: float
    spent: Spent

    @property
    def mb_per_s(self) -> float:
        return SHARDS * RECORDS * RECORD_BYTES / 1e6 / self.wall_s

    @property
    def busy_cpus(self) -> float:
        return self.spent.total / self.wall_s


def measure(scratch: Path, rounds: int = ROUNDS) -> None:
    """Run everything and print it."""
    place = scratch / "unit"
    place.mkdir()
    with Rig(place, build(place)) as rig:
        before = load_average()
        passes: Mapping[int, list[Pass]] = {1: [], 2: []}
        for _ in range(rounds):
            for processes, seen in passes.items():
                seen.append(_backlog(rig, processes))
        _print_passes(passes, before)
        _killed(rig)


def _backlog(rig: Rig, processes: int) -> Pass:
    server = rig.kinesis(RECORDS, RECORD_BYTES, tls=False)
    with _unit(rig, server, f"backlog-{SHARDS}-{RECORDS}", processes) as daemon:
        server.tell("report")
        before = _spent(rig, server, daemon)
        server.tell("open")
        daemon.wait_for_records(SHARDS * RECORDS, TIMEOUT_S)
        spent = _spent(rig, server, daemon).since(before)
        return Pass(daemon.notes.last_at - server.tell("report")["began_at"], spent)


def _killed(rig: Rig) -> None:
    load_before = load_average()
    server = rig.kinesis(0, RECORD_BYTES, tls=False)
    with _unit(rig, server, f"live-{SHARDS}-{LIVE_PER_S}", 2) as daemon:
        held = {shard for shard, owner in _owners(rig, daemon).items() if owner == f"{WORKER}-2"}
        victim = _workers(daemon)[f"{WORKER}-2"]
        killed_at = time.time()
        os.kill(victim, signal.SIGKILL)
        daemon.daemon.wait_for(lambda: held <= set(_moved(daemon, killed_at)), TIMEOUT_S, "shards of a killed worker")
        moved = _moved(daemon, killed_at)
    times = spread([moved[shard] - killed_at for shard in held])
    table(
        "kill -9 of one of two workers until the shard's next record in the sibling's child, s",
        ("shards", "min", "median", "max", "target"),
        [(str(len(held)), *(f"{value:.2f}" for value in (times.min, times.median, times.max)), f"{MOVED_TARGET_S:g}")],
        f"load average before {load_before}, after {load_average()}",
    )


# --- the unit ---------------------------------------------------------------------------------------------------------


@contextmanager
def _unit(rig: Rig, server: Stand, stream: str, processes: int) -> Iterator[Running]:
    """Its shards are shared out, and it is stopped at the end: killed, it would drain beside the next run."""
    keys = {**KEYS, "mld.processes": str(processes)}
    with running(rig, MLD, stream, server, tls=False, shards=SHARDS, keys=keys) as daemon:
        names = {WORKER} if processes == 1 else {f"{WORKER}-{number}" for number in range(1, processes + 1)}

        def is_shared() -> bool:
            owners = list(_owners(rig, daemon).values())
            return all(owners.count(name) >= FAIR_SHARE * SHARDS / processes for name in names)

        daemon.daemon.wait_for(is_shared, TIMEOUT_S, f"a share of the shards for each of {processes} workers")
        yield daemon
        daemon.daemon.stop()
        daemon.daemon.wait()  # not always with 0: a worker that is just started again knows no signal yet


def _owners(rig: Rig, daemon: Running) -> dict[str, str]:
    client = boto3.client(
        "dynamodb",
        endpoint_url=rig.dynamo(tls=False).endpoint,
        region_name=REGION,
        aws_access_key_id=ACCOUNT,
        aws_secret_access_key="local",
    )
    name = f"bench-{daemon.daemon.directory.name}"
    rows = client.scan(TableName=name)["Items"]
    return {row["leaseKey"]["S"]: row.get("leaseOwner", {}).get("S", "") for row in rows if "checkpoint" in row}


def _workers(daemon: Running) -> dict[str, int]:
    """The processes of the workers, by worker."""
    root = daemon.daemon.process.pid
    found = {}
    for pid in map(int, Path(f"/proc/{root}/task/{root}/children").read_text().split()):
        for pair in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            if pair.startswith(b"MLD_UNIT_WORKER="):
                found[pair.partition(b"=")[2].decode()] = pid
    return found


def _moved(daemon: Running, after: float) -> dict[str, float]:
    """When each shard that was initialized after that moment had its first records."""
    begun: set[str] = set()
    first: dict[str, float] = {}
    for line in daemon.notes.file.read_text().split("\n")[:-1]:
        shard, event, at, _ = line.split()
        if float(at) > after and event == "initialize":
            begun.add(shard)
        elif event == "records" and shard in begun:
            first.setdefault(shard, float(at))
    return first


def _spent(rig: Rig, server: Stand, daemon: Running) -> Spent:
    workers = daemon.cost().cpu_s
    whole = sum(time.clock_gettime(cpu_clock(pid)) for pid in tree(daemon.daemon.process.pid))
    stands = (server, rig.dynamo(tls=False))
    return Spent(workers, whole - workers, sum(time.clock_gettime(cpu_clock(one.process.pid)) for one in stands))


# --- figures ----------------------------------------------------------------------------------------------------------


def _print_passes(passes: Mapping[int, list[Pass]], load_before: str) -> None:
    rows = []
    for processes, seen in passes.items():
        speeds = spread([one.mb_per_s for one in seen])
        parts = ([getattr(one.spent, name) for one in seen] for name in ("workers", "children", "servers"))
        rows.append(
            (
                str(processes),
                *(f"{value:.0f}" for value in (speeds.min, speeds.median, speeds.max)),
                *(f"{spread(part).median:.2f}" for part in parts),
                f"{spread([one.busy_cpus for one in seen]).median:.2f}",
            )
        )
    one, two = (spread([each.mb_per_s for each in passes[count]]).median for count in (1, 2))
    one_s, two_s = (spread([each.spent.workers for each in passes[count]]).median for count in (1, 2))
    table(
        f"Throughput of one and two processes, {SHARDS} shards of {RECORD_BYTES} B records, interleaved",
        ("processes", "MB/s min", "median", "max", "workers CPU s", "children CPU s", "servers CPU s", "CPUs busy"),
        rows,
        f"two over one: CPU of the workers {two_s / one_s:.2f}, goal {CPU_TARGET:g}; MB/s {two / one:.2f}\n"
        f"load average before {load_before}, after {load_average()}",
    )
