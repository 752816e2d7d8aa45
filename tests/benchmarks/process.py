"""Daemons and baselines as real processes: start, stop, what they logged, what their children noted, what they cost.

Everything of one process lives in one scratch directory: properties, the log (JSON lines), the children's marks.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support.servers import ACCOUNT, REGION

ROOT = Path(__file__).resolve().parents[2]
CHILDREN = ROOT / "tests" / "benchmarks" / "children"
POLL_S = 0.05  # times come from the marks; looking often would only cost CPU
STOP_TIMEOUT_S = 40.0  # above shutdownGraceMillis

SDK_CHILD = f"{sys.executable} -P -m tests.benchmarks.children.sdk_child"


class BenchError(RuntimeError):
    """A run did not get to its end; the text says which and where its log is."""


@dataclass(frozen=True, slots=True)
class Mark:
    """One line a child wrote; `at` is epoch seconds."""

    shard: str
    event: str
    at: float
    count: int = 0


def environment(marks: Path, **more: str) -> dict[str, str]:
    """Ours, with credentials for the embedded AWS and the children's directory.

    Without PYTHONDONTWRITEBYTECODE, which some containers set: every start would compile what was edited last.
    """
    ours = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {
        **ours,
        "AWS_ACCESS_KEY_ID": ACCOUNT,
        "AWS_SECRET_ACCESS_KEY": "local",
        "AWS_EC2_METADATA_DISABLED": "true",
        "BENCH_MARKS": str(marks),
        "PYTHONPATH": str(ROOT),
        **more,
    }


class Daemon:
    """`bin/mld` on a properties file made from `keys`."""

    def __init__(
        self,
        directory: Path,
        endpoint: str,
        keys: Mapping[str, str],
        *,
        env: Mapping[str, str] | None = None,
        command: Sequence[str] = (),
    ) -> None:
        """`command`, with ``{properties}`` for the file, runs another daemon than ours."""
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.marks_directory = directory / "marks"
        self.marks_directory.mkdir(exist_ok=True)
        self.log_file = directory / "log.jsonl"
        properties = {
            "initialPositionInStream": "TRIM_HORIZON",
            "retrievalMode": "POLLING",
            "AwsCredentialsProvider": "DefaultCredentialsProvider",
            "regionName": REGION,
            "kinesisEndpoint": endpoint,
            "dynamoDBEndpoint": endpoint,
            **keys,
        }
        file = directory / "app.properties"
        file.write_text("".join(f"{key} = {value}\n" for key, value in properties.items()))
        ours = (str(ROOT / "bin" / "mld"), "{properties}", "--log-format", "json", "--log-level", "debug")
        line = [word.replace("{properties}", str(file)) for word in command or ours]
        with self.log_file.open("ab") as log:
            self.executed_at = time.time()
            self.process = subprocess.Popen(
                line,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment(self.marks_directory, **(env or {})),
                cwd=directory,
            )

    def marks(self) -> list[Mark]:
        return read_marks(self.marks_directory)

    def wait_for(self, condition: Callable[[], bool], timeout_s: float, what: str) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition():
            if self.process.poll() is not None:
                raise BenchError(f"the daemon ended with status {self.process.returncode}; see {self.log_file}")
            if time.monotonic() > deadline:
                raise BenchError(f"{what}: not within {timeout_s:g} s; see {self.log_file}")
            time.sleep(POLL_S)

    def first_records(self, after: float = 0.0) -> dict[str, float]:
        """When each shard's child had its first records after a moment."""
        return first_records(self.marks(), after)

    def wait_for_records(self, shards: int, timeout_s: float = 30.0, after: float = 0.0) -> dict[str, float]:
        """When the children of so many shards had their first records after `after`, by shard."""
        found: dict[str, float] = {}

        def enough() -> bool:
            found.update(self.first_records(after))
            return len(found) >= shards

        self.wait_for(enough, timeout_s, f"records in the children of {shards} shards")
        return found

    def kill(self) -> float:
        """kill -9; the moment. Its children end by themselves when their stdin closes."""
        at = time.time()
        self.process.kill()
        self.process.wait(STOP_TIMEOUT_S)
        return at

    def stop(self) -> float:
        """SIGTERM, not waited for; the moment."""
        at = time.time()
        self.process.send_signal(signal.SIGTERM)
        return at

    def wait(self) -> int:
        return self.process.wait(STOP_TIMEOUT_S)

    def close(self) -> None:
        if self.process.poll() is None:
            self.kill()

    def __enter__(self) -> Daemon:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_marks(directory: Path) -> list[Mark]:
    marks = []
    for file in directory.glob("*.jsonl"):
        shard = file.name.split(".")[1]
        for line in file.read_text().split("\n")[:-1]:  # what follows the last line end is still being written
            fields = json.loads(line)
            marks.append(Mark(shard, fields["event"], fields["at"], fields.get("count", 0)))
    return sorted(marks, key=lambda mark: mark.at)


def first_records(marks: Sequence[Mark], after: float = 0.0) -> dict[str, float]:
    first: dict[str, float] = {}
    for mark in marks:
        if mark.event == "records" and mark.count and mark.at > after:
            first.setdefault(mark.shard, mark.at)
    return first
