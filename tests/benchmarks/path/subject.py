"""A daemon at work: mld, that of another checkout, or Amazon's, and what it costs without its children.

Its CPU is that of its whole tree of processes but for the record processors, which are told by their command.
"""

from __future__ import annotations

import argparse
import shlex
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.benchmarks.path import java
from tests.benchmarks.path.rig import AnyDynamo, Rig, Stand
from tests.benchmarks.process import ROOT, BenchError, Daemon
from tests.support.servers import REGION

LOOK_S = 0.05
READY_TIMEOUT_S = 120.0
JAVA_READY_TIMEOUT_S = 400.0  # a JVM on a busy machine, and 64 leases
SETTLE_S = 1.5
CHECKPOINT_EVERY = 10
APPLICATION = "bench"


@dataclass(frozen=True, slots=True)
class Subject:
    """mld of a checkout; with `jars`, Amazon's daemon, whose Kinesis client speaks HTTP/2 only."""

    name: str = "mld"
    root: Path = ROOT
    jars: Path | None = None

    def command(self, certificate: Path | None) -> tuple[str, ...]:
        """With ``{properties}`` for its file."""
        if self.jars is not None:
            return java.command(self.jars, certificate)
        return (str(self.root / "bin" / "mld"), "{properties}", "--log-format", "json", "--log-level", "info")


MLD = Subject()


def checkout(text: str) -> Subject:
    """NAME=DIRECTORY. Raises ArgumentTypeError, as `java_of` does."""
    name, _, directory = text.partition("=")
    root = Path(directory).absolute()
    if not directory or name == MLD.name or not (root / "bin" / "mld").exists():
        raise argparse.ArgumentTypeError(
            f"{text}: write NAME=DIRECTORY, a name of its own and a checkout that is set up"
        )
    return Subject(name, root)


def java_of(text: str) -> Subject:
    """Amazon's daemon in a directory of jars."""
    jars = Path(text).absolute()
    return Subject(f"Java {java.version(jars)}", jars=jars)


@dataclass
class Notes:
    """What the children noted, read on from where it was read before."""

    file: Path
    records: dict[str, int] = field(default_factory=dict)
    """How many of each shard have come."""
    initialized: set[str] = field(default_factory=set)
    delays_us: list[int] = field(default_factory=list)
    batches: int = 0
    first_at: float = 0.0
    last_at: float = 0.0
    _read: int = 0

    def look(self) -> None:
        with self.file.open("rb") as file:
            file.seek(self._read)
            text = file.read()
        whole = text.rfind(b"\n") + 1
        self._read += whole
        for line in text[:whole].decode().splitlines():
            shard, event, at, figure = line.split()
            match event:
                case "records":
                    self.records[shard] = int(figure)
                    self.batches += 1
                    self.last_at = float(at)
                    self.first_at = self.first_at or self.last_at
                case "initialize":
                    self.initialized.add(shard)
                case "delay":
                    self.delays_us.append(int(figure))

    @property
    def total(self) -> int:
        return sum(self.records.values())


@dataclass(frozen=True, slots=True)
class Cost:
    """At one moment: CPU seconds so far; resident memory, the share of it that is its own and its peak; threads."""

    cpu_s: float
    rss_mb: float
    private_mb: float
    peak_mb: float
    threads: int


@dataclass
class Running:
    daemon: Daemon
    notes: Notes
    sink: str

    def cost(self) -> Cost:
        pids = [pid for pid in tree(self.daemon.process.pid) if self.sink not in _command(pid)]
        status = [_fields(pid, "status") for pid in pids]
        smaps = [_fields(pid, "smaps_rollup") for pid in pids]
        return Cost(
            sum(time.clock_gettime(cpu_clock(pid)) for pid in pids),
            sum(found.get("VmRSS", 0) for found in status) / 1000,
            sum(found.get("Private_Dirty", 0) + found.get("Private_Clean", 0) for found in smaps) / 1000,
            sum(found.get("VmHWM", 0) for found in status) / 1000,
            sum(found.get("Threads", 0) for found in status),
        )

    def wait_for_children(self, shards: int, timeout_s: float) -> None:
        def ready() -> bool:
            self.notes.look()
            return len(self.notes.initialized) >= shards

        self.daemon.wait_for(ready, timeout_s, f"{shards} children")

    def wait_for_records(self, total: int, timeout_s: float) -> None:
        def done() -> bool:
            self.notes.look()
            return self.notes.total >= total

        try:
            self.daemon.wait_for(done, timeout_s, f"{total} records")
        except BenchError as error:
            raise BenchError(f"{self.notes.total} came: {error}") from error


@contextmanager
def running(
    rig: Rig,
    subject: Subject,
    stream: str,
    kinesis: Stand,
    *,
    tls: bool,
    shards: int,
    keys: Mapping[str, str],
    sink: tuple[str, ...] | None = None,
) -> Iterator[Running]:
    """The daemon with all its children ready and nothing to do but poll."""
    directory = rig.fresh(f"{subject.name.replace(' ', '-')}-{stream}")
    command = rig.tools.sink if sink is None else sink
    notes = Notes(directory / "notes")
    notes.file.touch()
    properties = {
        "executableName": shlex.join(command),
        "applicationName": f"{APPLICATION}-{directory.name}",
        "streamName": stream,
        "workerId": APPLICATION,
        "metricsLevel": "NONE",
        "dynamoDBEndpoint": dynamo_of(rig, subject, tls=tls).endpoint,
        **keys,
    }
    if subject.jars is not None:
        properties |= java.QUICK_START
        java.prepare(properties["dynamoDBEndpoint"], kinesis.plain_endpoint, properties["applicationName"], stream)
    env = {
        **rig.environment(tls=tls),
        "AWS_REGION": REGION,
        "PYTHONPATH": str(subject.root),
        "BENCH_NOTES": str(notes.file),
        "BENCH_CHECKPOINT_EVERY": str(CHECKPOINT_EVERY),
    }
    timeout_s = READY_TIMEOUT_S if subject.jars is None else JAVA_READY_TIMEOUT_S
    with _front(rig, subject, kinesis, tls=tls) as endpoint:
        properties["kinesisEndpoint"] = endpoint
        started = subject.command(rig.certificate if tls else None)
        daemon = Daemon(directory, endpoint, properties, env=env, command=started)
        with daemon:
            found = Running(daemon, notes, command[-1] if len(command) == 1 else command[3])
            found.wait_for_children(shards, timeout_s)
            time.sleep(SETTLE_S)
            yield found


def dynamo_of(rig: Rig, subject: Subject, *, tls: bool) -> Stand | AnyDynamo:
    """Where the subject's lease tables are; those of Java always without TLS."""
    return rig.dynamo(tls=tls) if subject.jars is None else rig.any_dynamo()


@contextmanager
def _front(rig: Rig, subject: Subject, kinesis: Stand, *, tls: bool) -> Iterator[str]:
    if subject.jars is None:
        yield kinesis.endpoint
        return
    from tests.support.h2_front import H2Front  # needs a library that nothing else here does

    with H2Front(kinesis.plain_endpoint, (rig.certificate, rig.key) if tls else None) as front:
        yield front.endpoint


def cpu_clock(pid: int) -> int:
    """The clock that counts a process's CPU time in nanoseconds, as clock_getcpuclockid(3) makes its number."""
    return ~pid << 3 | 2


def tree(root: int) -> list[int]:
    """A process and all below it."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents.setdefault(int(fields[1]), []).append(int(entry.name))
    found = [root]
    for pid in found:
        found += parents.get(pid, [])
    return found


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""


def _fields(pid: int, file: str) -> dict[str, int]:
    """The figures of a file in /proc, in KB where they are sizes."""
    found = {}
    for line in Path(f"/proc/{pid}/{file}").read_text().splitlines():
        name, _, value = line.partition(":")
        first = value.split()[:1]
        if first and first[0].isdigit():
            found[name] = int(first[0])
    return found
