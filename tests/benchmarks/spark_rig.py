"""Daemons with the Spark processor at work, what their processes cost, and the triggers that their hosts report."""

from __future__ import annotations

import json
import os
import re
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.benchmarks.path.rig import Stand
from tests.benchmarks.path.subject import cpu_clock, tree
from tests.benchmarks.process import ROOT, BenchError, Daemon, environment
from tests.benchmarks.spark_stand import SCHEMA
from tests.support.servers import REGION

CHILD = Path(sys.executable).with_name("mld-spark")
PIPELINE = """\
def transform(records, batch):
    return records.where("payload.kind <> 'bot'").select(
        "shardId", "sequenceNumber", "approximateArrivalTimestamp", "payload.*"
    )
"""
READY_TIMEOUT_S = 240.0
LOOK_S = 0.02
UI_TIMEOUT_S = 60.0
"""On a busy machine its first page takes longer than ten seconds."""
DAEMON, CHILDREN, HOST, JVM = PARTS = ("daemon", "children", "host", "jvm")
_TRIGGER = re.compile(r"trigger: (.*)")
_ADDRESS = re.compile(r"UI (http://\S+?),")


class Rig:
    """One server at a time, and a scratch directory."""

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        self._runs = 0
        self._closing = ExitStack()
        self._kinesis: tuple[tuple[int, int], SparkStand] | None = None
        self._leases = Stand("leases")
        self._closing.callback(self._leases.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._kinesis is not None:
            self._kinesis[1].close()
        self._closing.close()

    def kinesis(self, records: int, record_bytes: int) -> SparkStand:
        """The gate is closed."""
        wanted = (records, record_bytes)
        if self._kinesis is None or self._kinesis[0] != wanted:
            if self._kinesis is not None:
                self._kinesis[1].close()
            self._kinesis = wanted, SparkStand(*wanted)
        self._kinesis[1].tell("close")
        return self._kinesis[1]

    @property
    def leases(self) -> Stand:
        return self._leases

    def fresh(self, name: str) -> Path:
        self._runs += 1
        directory = self._scratch / f"{name}-{self._runs}"
        directory.mkdir(parents=True)
        return directory


class SparkStand(Stand):
    """`spark_stand` as a process."""

    def __init__(self, *arguments: object) -> None:
        super().__init__("spark_stand", *arguments, room="tests.benchmarks")


@dataclass(frozen=True, slots=True)
class Trigger:
    """One line of a host's log, and when it was written, epoch seconds."""

    at: float
    figures: Mapping[str, int]


@dataclass
class Running:
    """One daemon, its sink, and what it has said so far."""

    daemon: Daemon
    sink: Path
    triggers: list[Trigger] = field(default_factory=list)
    started_shards: int = 0
    ui: str | None = None
    _read: int = 0

    def look(self) -> None:
        """Read the log on from where it was read before."""
        with self.daemon.log_file.open("rb") as file:
            file.seek(self._read)
            text = file.read()
        whole = text.rfind(b"\n") + 1
        self._read += whole
        for line in text[:whole].decode(errors="replace").splitlines():
            if not line.startswith("{"):
                continue
            event = json.loads(line)
            said = event.get("message", "")
            if event.get("action") == "consumer_started":
                self.started_shards += 1
            elif found := _TRIGGER.search(said):
                pairs = (pair.partition("=") for pair in found[1].split())
                figures = {name: int(value) for name, _, value in pairs if value.isdigit()}
                self.triggers.append(Trigger(datetime.fromisoformat(event["timestamp"]).timestamp(), figures))
            elif found := _ADDRESS.search(said):
                self.ui = found[1]

    @property
    def records(self) -> int:
        """Committed so far."""
        return sum(trigger.figures["records"] for trigger in self.triggers)

    def parts(self) -> dict[str, list[int]]:
        """The processes by what they are."""
        found: dict[str, list[int]] = {part: [] for part in PARTS}
        root = self.daemon.process.pid
        for pid in tree(root):
            found[DAEMON if pid == root else _part(pid)].append(pid)
        return found

    def cpu_s(self) -> dict[str, float]:
        return {part: sum(map(_cpu_s, pids)) for part, pids in self.parts().items()}

    def pss_mb(self) -> dict[str, float]:
        return {part: sum(map(_pss_kb, pids)) / 1000 for part, pids in self.parts().items()}

    def jobs(self) -> int:
        """How many jobs Spark itself has counted so far."""
        if self.ui is None:
            raise BenchError("the host did not say where the UI is")
        (application,) = self._ask("applications")
        jobs = self._ask(f"applications/{application['id']}/jobs")
        return 1 + max((int(job["jobId"]) for job in jobs), default=-1)

    def _ask(self, what: str) -> Any:
        with urllib.request.urlopen(f"{self.ui}/api/v1/{what}", timeout=UI_TIMEOUT_S) as answer:
            return json.loads(answer.read())

    def wait_for_records(self, records: int, timeout_s: float) -> None:
        def enough() -> bool:
            self.look()
            return self.records >= records

        try:
            self.daemon.wait_for(enough, timeout_s, f"{records} records")
        except BenchError as error:
            raise BenchError(f"{self.records} came: {error}") from error


@contextmanager
def running(
    rig: Rig, stream: str, kinesis: Stand, *, shards: int, keys: Mapping[str, str] | None = None, root: Path = ROOT
) -> Iterator[Running]:
    """A daemon whose children and session are ready; `root` is the checkout that it and its children come from."""
    directory = rig.fresh(stream)
    pipeline = directory / "pipeline.py"
    pipeline.write_text(PIPELINE)
    properties = {
        "executableName": str(CHILD),
        "applicationName": f"bench-{directory.name}",
        "streamName": stream,
        "workerId": "bench",
        "metricsLevel": "NONE",
        "dynamoDBEndpoint": rig.leases.endpoint,
        "idleTimeBetweenReadsInMillis": "200",
        "mld.spark.pipeline": f"{pipeline}:transform",
        "mld.spark.conf.spark.ui.enabled": "true",  # it counts the jobs
        "mld.spark.format": "json",
        "mld.spark.schema": SCHEMA,
        "mld.spark.sink.out.path": str(directory / "out"),
        "mld.spark.deadLetter": str(directory / "dead"),
        "mld.spark.startTimeoutMillis": str(int(READY_TIMEOUT_S * 1000)),
        **(keys or {}),
    }
    env = {"AWS_REGION": REGION, "PYTHONPATH": str(root)}
    command = (str(root / "bin" / "mld"), "{properties}", "--log-format", "json", "--log-level", "info")
    daemon = Daemon(directory, kinesis.endpoint, properties, env=env, command=command)
    with daemon:
        found = Running(daemon, directory / "out")

        def ready() -> bool:
            found.look()
            return found.started_shards >= shards

        daemon.wait_for(ready, READY_TIMEOUT_S, f"{shards} children")
        yield found
        _end(daemon, found)


def _end(daemon: Daemon, found: Running) -> None:
    """Nobody is asked to finish: what was to be measured has been measured. Host and JVM end after their daemon."""
    pids = [pid for pids in found.parts().values() for pid in pids if pid != daemon.process.pid]
    daemon.kill()
    deadline = time.monotonic() + READY_TIMEOUT_S
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        if time.monotonic() > deadline:
            raise BenchError("host and JVM did not end after their daemon")
        time.sleep(LOOK_S)


def _part(pid: int) -> str:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return CHILDREN
    if b"org.apache.spark.deploy.SparkSubmit" in command:
        return JVM
    return HOST if b"mld.processors.spark.host" in command or b"pyspark.daemon" in command else CHILDREN


def _cpu_s(pid: int) -> float:
    """With that of the programs it has started and seen end: Hadoop runs some that live for a moment."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return time.clock_gettime(cpu_clock(pid)) + (int(fields[13]) + int(fields[14])) / os.sysconf("SC_CLK_TCK")
    except OSError:
        return 0.0


def _pss_kb(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)


def environment_of_scripts(directory: Path) -> dict[str, str]:
    return environment(directory) | {"SPARK_LOCAL_IP": "127.0.0.1", "PATH": os.environ["PATH"]}
