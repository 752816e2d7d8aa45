"""A standalone Spark cluster of the pip package, as processes on the loopback interface.

Each process leads a group of its own, so that what it has started (executors, Python workers) ends with it; all are
small, and stopped by their number.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tests.support.daemon import until

START_S = 120.0
"""A JVM on a machine that is busy; otherwise it is seconds."""
LOG_TAIL = 3_000


def spark_home(python: str = sys.executable) -> Path:
    """PySpark of an interpreter; it need not be ours."""
    if python == sys.executable:
        spec = importlib.util.find_spec("pyspark")
        assert spec is not None and spec.origin is not None
        return Path(spec.origin).parent
    code = "import pyspark, os; print(os.path.dirname(pyspark.__file__))"
    return Path(subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip())


class Server:
    """A process that says in its log when it is ready; the pattern's first group is kept as `said`."""

    def __init__(self, command: Sequence[object], log: Path, ready: str, environment: Mapping[str, str]) -> None:
        self._log = log
        with log.open("wb") as out:
            self.process = subprocess.Popen(
                [str(word) for word in command],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env={**os.environ, **environment},
                start_new_session=True,
            )
        try:
            self.said: str = until(lambda: self._find(ready), START_S, f"{ready} in {log}")
        except BaseException:
            self.kill()
            raise

    def _find(self, ready: str) -> str | None:
        text = self._log.read_text(errors="replace")
        assert self.process.poll() is None, text[-LOG_TAIL:]
        found = re.search(ready, text)
        return found[1] if found else None

    def kill(self) -> None:
        """Kill it with everything that it has started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


class Cluster:
    """One master, and workers with one core each."""

    def __init__(self, directory: Path, workers: int = 2, memory: str = "700m") -> None:
        self._directory = directory
        self._workers = workers
        self._memory = memory
        self._port = "0"
        self.servers: list[Server] = []
        self.started_s = 0.0
        """How long the last start took: what a few JVMs cost on this machine now."""

    @property
    def url(self) -> str:
        return f"spark://127.0.0.1:{self._port}"

    def start(self) -> None:
        """Start on the port that it had before, if it had one."""
        began = time.monotonic()
        home = spark_home()
        environment = {
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "128m",
            "SPARK_DAEMON_JAVA_OPTS": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
        }
        run = home / "bin" / "spark-class"
        where = ["--host", "127.0.0.1", "--webui-port", "0", "--port"]
        deploy = "org.apache.spark.deploy"
        master = [run, f"{deploy}.master.Master", *where, self._port]
        ready = r"Starting Spark master at spark://127\.0\.0\.1:(\d+)"
        self.servers.append(Server(master, self._directory / "master.log", ready, environment))
        self._port = self.servers[0].said
        for number in range(self._workers):
            work = self._directory / f"work-{number}"
            sized = ["--cores", "1", "--memory", self._memory, "--work-dir", work, self.url]
            worker = [run, f"{deploy}.worker.Worker", *where, "0", *sized]
            log = self._directory / f"worker-{number}.log"
            self.servers.append(Server(worker, log, "Successfully registered with (master)", environment))
        self.started_s = time.monotonic() - began

    def kill(self) -> None:
        """Kill master and workers, as a power cut would."""
        while self.servers:
            self.servers.pop().kill()


@contextlib.contextmanager
def cluster(directory: Path, workers: int = 2) -> Iterator[Cluster]:
    one = Cluster(directory, workers)
    try:
        one.start()
        yield one
    finally:
        one.kill()
