"""The tour: embedded AWS, a stream with click events, the real daemon with a shipped processor, a split on the way.

Everything runs as processes of its own, as a user would start it; what it shows is what is there. It ends in an error
if a single record is missing, repeated or out of order.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from mld.aws.sessions import ClientFactory, client_factory
from mld.errors import MldError
from mld.leases.lease import Lease
from mld.leases.rows import parse_row
from mld.quickstart.clicks import Event, click_events
from mld.quickstart.verdict import Archived, Put, find_faults
from properties.loader import load

STREAM = "quickstart-clicks"
APPLICATION = "quickstart"
SHARDS = 4
PUT_RECORDS_MAX = 500  # the service's limit for one call
PUT_ATTEMPTS_MAX = 5
SEED = 7
SERVER_START_S = 30.0
CAUGHT_UP_S = 180.0
DAEMON_STOP_S = 40.0
POLL_S = 0.2
EXIT_OK, EXIT_FAILURE = 0, 1
FAKE_CREDENTIALS = {"AWS_ACCESS_KEY_ID": "quickstart", "AWS_SECRET_ACCESS_KEY": "quickstart"}


class QuickstartError(MldError):
    """The tour cannot go on; the text says what to look at."""


def run_quickstart(records: int, directory: str) -> int:
    """Run the tour with its files in `directory`; returns the exit code. Raises QuickstartError."""
    started = time.monotonic()
    os.environ.update(FAKE_CREDENTIALS)
    tour = _Tour(Path(directory), Console(highlight=False), records)
    with ExitStack() as stack:
        endpoint = stack.enter_context(tour.embedded_aws())
        tour.write_properties(endpoint)
        factory = client_factory(load(tour.properties_file, (), os.environ).settings)
        tour.make_stream(factory)
        daemon = stack.enter_context(tour.daemon())
        tour.put_and_split(daemon)
        tour.wait_until_caught_up(daemon)
        seconds = time.monotonic() - started
        stopped = tour.stop(daemon)
        leases = tour.leases(factory)
    return tour.report(leases, stopped, seconds)


@dataclass
class _Tour:
    directory: Path
    console: Console
    records: int
    put: list[Put] = field(default_factory=list)
    kinesis: Any = None

    @property
    def archive_directory(self) -> Path:
        return self.directory / "archive"

    @property
    def properties_file(self) -> Path:
        return self.directory / "quickstart.properties"

    @property
    def log_file(self) -> Path:
        return self.directory / "daemon.log"

    def say(self, text: str) -> None:
        self.console.print(text)

    # --- the cast ----------------------------------------------------------------------------------------------------

    @contextmanager
    def embedded_aws(self) -> Iterator[str]:
        """The embedded AWS on a free loopback port; yields its endpoint."""
        self._clear()
        errors = self.directory / "embedded-aws.log"
        with errors.open("wb") as log, _process([sys.executable, "-m", "mld.local", "--port", "0"], log) as server:
            endpoint = _ready_endpoint(server, errors)
            self.say(f"embedded AWS on {endpoint}")
            yield endpoint

    def _clear(self) -> None:
        """Forget the last run: only files this tour writes."""
        self.archive_directory.mkdir(parents=True, exist_ok=True)
        for old in self.archive_directory.glob("shardId-*.jsonl"):
            old.unlink()

    def write_properties(self, endpoint: str) -> None:
        self.properties_file.write_text(
            f"""\
# Written by `mld quickstart`: the same keys that Amazon's Java MultiLangDaemon reads.
executableName = {sys.executable} -m processors.archive {self.archive_directory}
streamName = {STREAM}
applicationName = {APPLICATION}
initialPositionInStream = TRIM_HORIZON
retrievalMode = POLLING
AwsCredentialsProvider = EnvironmentVariableCredentialsProvider
regionName = us-east-1
kinesisEndpoint = {endpoint}
dynamoDBEndpoint = {endpoint}
"""
        )

    def make_stream(self, factory: ClientFactory) -> None:
        self.kinesis = factory.create_client(
            "kinesis", read_timeout_s=30.0, connect_timeout_s=5.0, pool_connections_max=2
        )
        self.kinesis.create_stream(StreamName=STREAM, ShardCount=SHARDS)
        self.say(f"stream {STREAM} with {SHARDS} shards")

    @contextmanager
    def daemon(self) -> Iterator[subprocess.Popen[bytes]]:
        command = [sys.executable, "-m", "mld", "run", str(self.properties_file)]
        with self.log_file.open("wb") as log, _process(command, log, stdout=log) as process:
            self.say(f"mld runs as pid {process.pid}, its log is {self.log_file}")
            yield process

    # --- the plot ----------------------------------------------------------------------------------------------------

    def put_and_split(self, daemon: subprocess.Popen[bytes]) -> None:
        events = click_events(self.records, seed=SEED, start_s=time.time())
        with self._progress() as progress:
            bar = progress.add_task("putting click events", total=self.records)
            half_way = False
            while chunk := list(islice(events, PUT_RECORDS_MAX)):
                self._put(chunk)
                progress.update(bar, completed=len(self.put))
                if not half_way and len(self.put) >= self.records // 2:
                    half_way = True
                    self._split()
        self._check_alive(daemon)

    def _put(self, chunk: Sequence[Event]) -> None:
        """One PutRecords call; refused records are put again."""
        for _ in range(PUT_ATTEMPTS_MAX):
            answer = self.kinesis.put_records(
                StreamName=STREAM, Records=[{"Data": e.data, "PartitionKey": e.partition_key} for e in chunk]
            )
            refused = []
            for event, result in zip(chunk, answer["Records"], strict=True):
                if "ErrorCode" in result:
                    refused.append(event)
                else:
                    self.put.append(Put(result["ShardId"], int(result["SequenceNumber"]), event.data.decode()))
            if not refused:
                return
            chunk = refused
            time.sleep(POLL_S)
        raise QuickstartError(f"{len(chunk)} records were refused {PUT_ATTEMPTS_MAX} times")

    def _split(self) -> None:
        shard = self.kinesis.list_shards(StreamName=STREAM)["Shards"][0]
        span = shard["HashKeyRange"]
        middle = (int(span["StartingHashKey"]) + int(span["EndingHashKey"])) // 2 + 1
        self.kinesis.split_shard(StreamName=STREAM, ShardToSplit=shard["ShardId"], NewStartingHashKey=str(middle))
        self.say(f"{shard['ShardId']} is split while it is read")

    def wait_until_caught_up(self, daemon: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + CAUGHT_UP_S
        with self._progress() as progress:
            bar = progress.add_task("processed", total=len(self.put))
            while (count := self._archived_count()) < len(self.put):
                progress.update(bar, completed=count)
                self._check_alive(daemon)
                if time.monotonic() > deadline:
                    raise QuickstartError(
                        f"only {count} of {len(self.put)} records after {CAUGHT_UP_S:.0f} s; see {self.log_file}"
                    )
                time.sleep(POLL_S)
            progress.update(bar, completed=count)

    def _archived_count(self) -> int:
        return sum(_line_count(path) for path in self.archive_directory.glob("shardId-*.jsonl"))

    def _check_alive(self, daemon: subprocess.Popen[bytes]) -> None:
        if daemon.poll() is not None:
            raise QuickstartError(f"the daemon ended with status {daemon.returncode}; see {self.log_file}")

    def _progress(self) -> Progress:
        return Progress(
            TextColumn("{task.description:<20}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=self.console,
        )

    def stop(self, daemon: subprocess.Popen[bytes]) -> int:
        """SIGTERM, as systemd would; returns the exit status."""
        daemon.send_signal(signal.SIGTERM)
        try:
            return daemon.wait(DAEMON_STOP_S)
        except subprocess.TimeoutExpired:
            raise QuickstartError(
                f"the daemon did not stop within {DAEMON_STOP_S:.0f} s; see {self.log_file}"
            ) from None

    # --- the end -----------------------------------------------------------------------------------------------------

    def leases(self, factory: ClientFactory) -> dict[str, Lease]:
        dynamo: Any = factory.create_client(
            "dynamodb", read_timeout_s=30.0, connect_timeout_s=5.0, pool_connections_max=2
        )
        rows = dynamo.scan(TableName=APPLICATION, ConsistentRead=True)["Items"]
        leases = (parse_row(row) for row in rows)
        return {lease.key: lease for lease in leases if lease is not None}

    def report(self, leases: dict[str, Lease], stopped: int, seconds: float) -> int:
        archive = {path.stem: _read_archive(path) for path in self.archive_directory.glob("shardId-*.jsonl")}
        self.console.print(_shard_table(archive, leases))
        faults = find_faults(self.put, archive)
        if stopped != 0:
            faults.append(f"the daemon did not stop gracefully: exit status {stopped}; see {self.log_file}")
        for fault in faults:
            self.say(f"[red]FAULT[/red] {fault}")
        if faults:
            return EXIT_FAILURE
        self.say(
            f"[green]{len(self.put)} records, each exactly once and in order[/green], in {seconds:.1f} s; "
            f"the daemon stopped gracefully"
        )
        self.console.print(_next_steps(self.properties_file, self.archive_directory), soft_wrap=True)
        return EXIT_OK


def _shard_table(archive: dict[str, list[Archived]], leases: dict[str, Lease]) -> Table:
    table = Table(title="what happened", title_justify="left")
    for column in ("shard", "parent", "records", "checkpoint", "writes", "owner"):
        table.add_column(column, justify="right" if column in ("records", "writes") else "left", no_wrap=True)
    for shard in sorted(archive.keys() | leases.keys()):
        count = str(len(archive.get(shard, [])))
        lease = leases.get(shard)
        if lease is None:
            table.add_row(shard, "", count, "cleaned up")
            continue
        parents = " ".join(_tail(parent, 4) for parent in sorted(lease.parents))
        table.add_row(
            shard, parents, count, _tail(str(lease.checkpoint), 12), str(lease.counter), lease.owner or "none"
        )
    return table


def _tail(text: str, characters: int) -> str:
    return text if len(text) <= characters else f"…{text[-characters:]}"


def _next_steps(properties_file: Path, archive_directory: Path) -> str:
    return f"""
The records are in {archive_directory}/*.jsonl. For your own stream:

  cp {properties_file} app.properties     # set streamName, applicationName, regionName and executableName,
                                          # and remove the two endpoint lines
  bin/mld check app.properties            # what it means, and what is wrong with it
  bin/mld app.properties                  # run it; Ctrl-C stops it gracefully"""


# --- processes and files ---------------------------------------------------------------------------------------------


@contextmanager
def _process(command: Sequence[str], stderr: Any, stdout: Any = subprocess.PIPE) -> Iterator[subprocess.Popen[bytes]]:
    """A process that is gone at the end: TERM, and KILL if need be."""
    with subprocess.Popen(command, stdout=stdout, stderr=stderr, stdin=subprocess.DEVNULL, process_group=0) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.terminate()
                try:
                    process.wait(DAEMON_STOP_S)
                except subprocess.TimeoutExpired:
                    process.kill()


def _ready_endpoint(server: subprocess.Popen[bytes], errors: Path) -> str:
    """The endpoint the server announces on its first line; waits for it with a bound."""
    assert server.stdout is not None
    timer = _Alarm(SERVER_START_S, server.kill)
    with timer:
        line = server.stdout.readline()
    try:
        return str(json.loads(line)["endpoint"])
    except (ValueError, KeyError):
        raise QuickstartError(f"the embedded AWS did not start; see {errors}") from None


class _Alarm:
    """Calls `action` after `seconds` unless left before."""

    def __init__(self, seconds: float, action: Callable[[], None]) -> None:
        self._seconds = seconds
        self._action = action

    def __enter__(self) -> None:
        signal.signal(signal.SIGALRM, lambda *_: self._action())
        signal.setitimer(signal.ITIMER_REAL, self._seconds)

    def __exit__(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)


def _line_count(path: Path) -> int:
    with path.open("rb") as file:
        return sum(chunk.count(b"\n") for chunk in iter(lambda: file.read(1 << 20), b""))


def _read_archive(path: Path) -> list[Archived]:
    lines = (json.loads(line) for line in path.read_text(encoding="utf-8").splitlines())
    return [Archived(int(line["sequence"]), line["data"]) for line in lines]
