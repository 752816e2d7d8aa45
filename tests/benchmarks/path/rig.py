"""What the scenarios share: the stand-in servers, a child that costs next to nothing, a certificate, tools in C."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.benchmarks.process import ROOT, environment
from tests.support.certificates import write_certificate
from tests.support.servers import EmbeddedAws

HERE = Path(__file__).resolve().parent
SINK_SCRIPT = HERE / "sink.py"
HOST = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Tools:
    """Commands. `is_native` if the child is the one in C."""

    sink: tuple[str, ...]
    is_native: bool

    @property
    def aged_sink(self) -> tuple[str, ...]:
        """Notes how old each record is."""
        return (*PYTHON_SINK, "delays")


PYTHON_SINK = (sys.executable, "-I", "-S", str(SINK_SCRIPT))


def build(directory: Path) -> Tools:
    """Compile the child in C; without a compiler, say so and go on."""
    compiler, sink = shutil.which("cc") or shutil.which("gcc"), directory / "sink"
    if compiler is not None:
        command = [compiler, "-O2", "-o", str(sink), str(HERE / "native" / "sink.c")]
        if subprocess.run(command, capture_output=True, check=False).returncode == 0:
            return Tools((str(sink),), True)
    print("no C compiler: children in Python")
    return Tools(PYTHON_SINK, False)


class Stand:
    """A server of ours in a process of its own, with commands on its stdin."""

    def __init__(self, module: str, *arguments: object, room: str = "tests.benchmarks.path") -> None:
        command = [sys.executable, "-P", "-m", f"{room}.{module}", *map(str, arguments)]
        self.process = subprocess.Popen(
            command, cwd=ROOT, env=environment(ROOT), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout
        self.endpoint, _, plain = self.process.stdout.readline().strip().partition(" ")
        self.plain_endpoint = plain or self.endpoint
        if not self.endpoint:
            raise RuntimeError(f"{module} did not start")

    def tell(self, command: str) -> dict[str, Any]:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(f"{command}\n")
        self.process.stdin.flush()
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        return answer

    def close(self) -> None:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


class AnyDynamo:
    """The embedded AWS: what another daemon may ask of DynamoDB, the twin need not know."""

    def __init__(self) -> None:
        self._aws = EmbeddedAws()
        self._aws.start()
        self.endpoint = self._aws.endpoint

    def tell(self, command: str) -> dict[str, Any]:
        assert command == "report"
        return {"calls": {name.removeprefix("dynamodb."): count for name, count in self._aws.log().items()}}

    def close(self) -> None:
        self._aws.stop()


@dataclass
class Rig:
    """Made once for a run; servers are started when first asked for and kept."""

    scratch: Path
    tools: Tools
    _stands: dict[tuple[object, ...], Stand] = field(default_factory=dict)
    _any_dynamo: AnyDynamo | None = None
    _runs: int = 0

    def __post_init__(self) -> None:
        self.certificate, self.key = write_certificate(self.scratch, HOST)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for stand in (*self._stands.values(), self._any_dynamo):
            if stand is not None:
                stand.close()

    def kinesis(self, records: int, record_bytes: int, *, tls: bool) -> Stand:
        """The gate is closed. Only one with many records is kept, for the memory's sake."""
        wanted = ("canned", records, record_bytes, tls)
        if wanted not in self._stands:
            for other in [key for key in self._stands if key[0] == "canned"]:
                self._stands.pop(other).close()
            self._stands[wanted] = Stand("canned", records, record_bytes, *self._secret(tls))
        self._stands[wanted].tell("close")
        return self._stands[wanted]

    def dynamo(self, *, tls: bool) -> Stand:
        wanted = ("leases", tls)
        if wanted not in self._stands:
            self._stands[wanted] = Stand("leases", *self._secret(tls))
        return self._stands[wanted]

    def any_dynamo(self) -> AnyDynamo:
        if self._any_dynamo is None:
            self._any_dynamo = AnyDynamo()
        return self._any_dynamo

    def fresh(self, name: str) -> Path:
        """A directory for one run."""
        self._runs += 1
        directory = self.scratch / f"{name}-{self._runs}"
        directory.mkdir(parents=True)
        return directory

    def environment(self, *, tls: bool) -> dict[str, str]:
        """How daemons and baselines come to trust the servers: the variable that all SDKs know."""
        return {"AWS_CA_BUNDLE": str(self.certificate)} if tls else {}

    def _secret(self, tls: bool) -> Sequence[Path]:
        return (self.certificate, self.key) if tls else ()


def versions() -> str:
    """Machine and versions, in one sentence."""
    import platform

    import botocore

    name = next(
        (line.partition(":")[2].strip() for line in Path("/proc/cpuinfo").read_text().splitlines()
         if line.startswith("model name")),
        platform.machine(),
    )  # fmt: skip
    return (
        f"{os.cpu_count()} CPUs ({name}), Linux {platform.release().split('-')[0]}, "
        f"Python {platform.python_version()}, botocore {botocore.__version__}"
    )
