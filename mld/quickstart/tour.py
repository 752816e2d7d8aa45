"""What the tours share: embedded AWS, a stream with click events, the real daemon, a split while it reads.

Each part runs as a process of its own, as a user would start it; all end with the tour, however it ends. A directory
may be used by one tour at a time. A tour says which processor runs, when it has caught up, and what the result must be:
`PlainTour` here (`mld quickstart --plain`: the shipped archive processor, one child per shard; an error if a single
record is missing, repeated or out of order), and that of `spark`.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

import mld
from mld.aws.client_factory import client_factory
from mld.core.errors import MldError
from mld.leases.lease import Lease
from mld.leases.rows import parse_row
from mld.properties.loader import load
from mld.properties.printable import printable, printable_lines
from mld.quickstart.lineage import ClickEvent, Put, click_events, row_faults

LOCK_FILE = ".lock"
SERVER_START_S = 30.0
STOP_S = 60.0
"""How long a daemon that was told to stop may take before it is killed."""
_PR_SET_PDEATHSIG = 1

STREAM = "quickstart-clicks"
APPLICATION = "quickstart"
SHARDS = 4
PAGE_PORT = 9404
PUT_RECORDS_MAX = 500  # the service's limit for one call
PUT_ATTEMPTS_MAX = 5
SEED = 7
STALLED_S = 180.0
"""The tour gives up after this long without progress."""
POLL_S = 0.2
EXIT_OK, EXIT_FAILURE = 0, 1
FAKE_CREDENTIALS = {"AWS_ACCESS_KEY_ID": "quickstart", "AWS_SECRET_ACCESS_KEY": "quickstart"}

Archive = Mapping[str, Sequence[tuple[int, str]]]
"""By shard, sequence number and data of each line."""


class QuickstartError(MldError):
    """The tour cannot go on; the text says what to look at."""


def mld_command() -> str:
    """Return how the user calls `mld` here: by its name if that is found, else by the path of the checkout's script or
    of the one that pip has installed.
    """
    if shutil.which("mld"):
        return "mld"
    checkout = Path(mld.__file__).parents[1] / "bin" / "mld"
    script = checkout if checkout.exists() else Path(sys.executable).with_name("mld")
    relative = os.path.relpath(script)
    return str(script) if relative.startswith("..") else relative


@contextmanager
def signals_end_us() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end the tour like Ctrl-C: everything it has started is stopped."""

    def end(number: int, _: FrameType | None) -> NoReturn:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def only_one_in(directory: Path) -> Iterator[None]:
    """Hold the directory. Raises QuickstartError if another tour does."""
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / LOCK_FILE).open("ab") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise QuickstartError(
                f"another quickstart runs in {directory}; wait for its end, or give --directory"
            ) from None
        yield


def free_port(wanted: int) -> int:
    """Return a port of the loopback interface that nobody has: the wanted one, or else any."""
    for port in (wanted, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise QuickstartError("no port of 127.0.0.1 is free for the status page")


@contextmanager
def process(
    command: Sequence[str],
    stderr: Any,
    stdout: Any = subprocess.PIPE,
    *,
    stdin: Any = subprocess.DEVNULL,
    cwd: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a process that ends with the block: by TERM, and KILL if need be. On Linux it ends even if we are killed."""
    with subprocess.Popen(
        command,
        stdout=stdout,
        stderr=stderr,
        stdin=stdin,
        process_group=0,
        cwd=cwd,
        env=environment,
        preexec_fn=_ends_with_us(),  # noqa: PLW1509 - no thread of ours runs yet
    ) as started:
        try:
            yield started
        finally:
            if started.poll() is None:
                started.terminate()
                try:
                    started.wait(STOP_S)
                except subprocess.TimeoutExpired:
                    started.kill()


def _ends_with_us() -> Callable[[], None] | None:
    if sys.platform != "linux":
        return None
    system = ctypes.CDLL(None)

    def ask() -> None:
        system.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))

    return ask


def ready_endpoint(server: subprocess.Popen[bytes], errors: Path) -> str:
    """Return the endpoint that the server announces on its first line, within `SERVER_START_S`. Raises
    QuickstartError.
    """
    assert server.stdout is not None
    limit = threading.Timer(SERVER_START_S, server.kill)
    limit.start()
    line = server.stdout.readline()
    limit.cancel()
    limit.join()
    try:
        return str(json.loads(line)["endpoint"])
    except (ValueError, KeyError):
        raise QuickstartError(f"the embedded AWS did not start; see {errors}") from None


@dataclass
class Tour(ABC):
    """One run. Paths are absolute, so that they can be copied from what it prints."""

    directory: Path
    console: Console
    records: int
    put: list[Put] = field(default_factory=list)
    page: str = ""
    """Where the daemon serves its status page."""
    kinesis: Any = None
    dynamo: Any = None

    # --- what differs ------------------------------------------------------------------------------------------------

    @abstractmethod
    def check(self) -> None:
        """Raise NotReadyError if this machine lacks something."""

    @abstractmethod
    def clear(self) -> None:
        """Forget the last run: only files this tour writes."""

    @abstractmethod
    def properties(self, endpoint: str) -> str:
        """Return the text of the daemon's file."""

    def extra_events(self) -> Sequence[ClickEvent]:
        """Return events to put at half time."""
        return ()

    @abstractmethod
    def processed(self) -> int:
        """Return how many records the processor has finished; for the progress bar."""

    def is_caught_up(self) -> bool:
        """Return whether the processor has finished everything that was put."""
        return self.processed() >= len(self.put)

    @abstractmethod
    def report(self, leases: dict[str, Lease]) -> list[str]:
        """Print the results; returns the faults."""

    @abstractmethod
    def farewell(self) -> str:
        """Return what to do next."""

    # --- the plot ----------------------------------------------------------------------------------------------------

    def run(self) -> int:
        """Return the exit code. Raises QuickstartError."""
        started = time.monotonic()
        os.environ.update(FAKE_CREDENTIALS)
        with ExitStack() as stack:
            stack.enter_context(signals_end_us())
            stack.enter_context(only_one_in(self.directory))
            self.page = f"127.0.0.1:{free_port(PAGE_PORT)}"
            self.check()
            self.say(f"status page: http://{self.page}/ while the daemon runs")
            self.clear()
            self.prepare(stack.enter_context(self.embedded_aws()))
            daemon = stack.enter_context(self.daemon())
            self.put_and_split(daemon)
            self.wait_until_caught_up(daemon)
            stopped = self.stop(daemon)
            faults = self.report(self.leases())
        if stopped != 0:
            faults.append(f"the daemon did not stop gracefully: exit status {stopped}; see {self.log_file}")
        for fault in faults:
            self.say(f" {fault}", head=Text("FAULT", "red"))
        if faults:
            self.say(f"The log of the daemon is {self.log_file}.")
            return EXIT_FAILURE
        seconds = time.monotonic() - started
        self.say(f"; the daemon stopped gracefully; all in {seconds:.1f} s", head=Text(self.verdict(), "green"))
        self.console.print(printable_lines(self.farewell()), soft_wrap=True)
        return EXIT_OK

    @abstractmethod
    def verdict(self) -> str:
        """Return what the tour has shown, if there are no faults."""

    @property
    def properties_file(self) -> Path:
        return self.directory / "quickstart.properties"

    @property
    def log_file(self) -> Path:
        return self.directory / "daemon.log"

    def say(self, text: str, head: Text | None = None) -> None:
        self.console.print((head or Text()) + Text(printable(text)), soft_wrap=True)

    @contextmanager
    def embedded_aws(self) -> Iterator[str]:
        """Run the embedded AWS on a free loopback port; yields its endpoint."""
        errors = self.directory / "embedded-aws.log"
        with (
            errors.open("wb") as log,
            process([sys.executable, "-P", "-m", "mld.local.server", "--port", "0"], log) as server,
        ):
            endpoint = ready_endpoint(server, errors)
            self.say(f"embedded AWS on {endpoint}")
            yield endpoint

    def prepare(self, endpoint: str) -> None:
        """Write the daemon's file, and make the stream."""
        self.properties_file.write_text(self.properties(endpoint), "utf-8")
        factory = client_factory(load(self.properties_file, (), os.environ).settings)
        bounds: dict[str, Any] = {"read_timeout_s": 30.0, "connect_timeout_s": 5.0, "pool_connections_max": 2}
        self.kinesis = factory.create_client("kinesis", **bounds)
        self.dynamo = factory.create_client("dynamodb", **bounds)
        self.kinesis.create_stream(StreamName=STREAM, ShardCount=SHARDS)
        self.say(f"stream {STREAM} with {SHARDS} shards")

    @contextmanager
    def daemon(self) -> Iterator[subprocess.Popen[bytes]]:
        with self.run_daemon(self.properties_file, self.log_file, "-D", f"mld.http={self.page}") as daemon:
            yield daemon

    @contextmanager
    def run_daemon(self, properties_file: Path, log_file: Path, *options: str) -> Iterator[subprocess.Popen[bytes]]:
        """Run a daemon in the tour's directory; PATH begins with the directory of this interpreter."""
        # If the processor cannot work, the tour is to end, not to wait for a repair.
        command = [
            sys.executable,
            "-P",
            "-m",
            "mld",
            "run",
            str(properties_file),
            "-D",
            "mld.childFailurePolicy=restart",
        ]
        command += options
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
        environment = {**os.environ, "PATH": path}
        with (
            log_file.open("wb") as log,
            process(command, log, stdout=log, cwd=self.directory, environment=environment) as daemon,
        ):
            self.say(f"mld runs as pid {daemon.pid}, its log is {log_file}")
            yield daemon

    def put_and_split(self, daemon: subprocess.Popen[bytes]) -> None:
        events = click_events(self.records, seed=SEED, start_s=time.time())
        with self._progress() as progress:
            bar = progress.add_task("putting click events", total=self.records)
            half_way, count = False, 0
            while chunk := list(islice(events, PUT_RECORDS_MAX)):
                self._put(chunk)
                count += len(chunk)
                progress.update(bar, completed=count)
                if not half_way and count >= self.records // 2:
                    half_way = True
                    self._split()
                    if extra := self.extra_events():
                        self._put(extra)
        self._check_alive(daemon)

    def _put(self, chunk: Sequence[ClickEvent]) -> None:
        """Make one PutRecords call; refused records are put again."""
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
        count, moved_at = -1, time.monotonic()
        with self._progress() as progress:
            bar = progress.add_task("processed", total=len(self.put))
            while not self.is_caught_up():
                self._check_alive(daemon)
                now, before = time.monotonic(), count
                count = self.processed()
                progress.update(bar, completed=count)
                if count != before:
                    moved_at = now
                elif now - moved_at > STALLED_S:
                    raise QuickstartError(
                        f"nothing has moved for {STALLED_S:.0f} s at {count} of {len(self.put)} records; "
                        f"see {self.log_file}"
                    )
                time.sleep(POLL_S)
            progress.update(bar, completed=self.processed())

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
        """Send SIGTERM, as systemd would; returns the exit status."""
        daemon.send_signal(signal.SIGTERM)
        try:
            return daemon.wait(STOP_S)
        except subprocess.TimeoutExpired:
            raise QuickstartError(f"the daemon did not stop within {STOP_S:.0f} s; see {self.log_file}") from None

    def leases(self) -> dict[str, Lease]:
        """Return the rows of the lease table."""
        rows = self.dynamo.scan(TableName=APPLICATION, ConsistentRead=True)["Items"]
        leases = (parse_row(row) for row in rows)
        return {lease.key: lease for lease in leases if lease is not None}


def tail(text: str, characters: int) -> str:
    """Return the end of a long number, which distinguishes it."""
    return text if len(text) <= characters else f"…{text[-characters:]}"


# --- the tour without Spark -------------------------------------------------------------------------------------------


class PlainTour(Tour):
    @property
    def archive_directory(self) -> Path:
        return self.directory / "archive"

    def check(self) -> None:
        """Check nothing: it needs nothing besides this project."""

    def clear(self) -> None:
        self.archive_directory.mkdir(parents=True, exist_ok=True)
        for old in self.archive_directory.glob("shardId-*.jsonl"):
            old.unlink()

    def properties(self, endpoint: str) -> str:
        return f"""\
# Written by `mld quickstart --plain`: the same keys that Amazon's Java MultiLangDaemon reads.
executableName = {sys.executable} -m mld.processors.archive {self.archive_directory}
streamName = {STREAM}
applicationName = {APPLICATION}
initialPositionInStream = TRIM_HORIZON
retrievalMode = POLLING
AwsCredentialsProvider = EnvironmentVariableCredentialsProvider
regionName = us-east-1
kinesisEndpoint = {endpoint}
dynamoDBEndpoint = {endpoint}
"""

    def processed(self) -> int:
        count = 0
        for path in self.archive_directory.glob("shardId-*.jsonl"):
            with path.open("rb") as file:
                count += sum(line.endswith(b"\n") for line in file)
        return count

    def report(self, leases: dict[str, Lease]) -> list[str]:
        archive = {}
        for path in self.archive_directory.glob("shardId-*.jsonl"):
            lines = map(json.loads, path.read_text(encoding="utf-8").splitlines())
            archive[path.stem] = [(int(line["sequence"]), line["data"]) for line in lines]
        self.console.print(_shard_table(archive, leases))
        return find_faults(self.put, archive)

    def verdict(self) -> str:
        return f"{len(self.put)} records, each exactly once and in order"

    def farewell(self) -> str:
        return f"""
The records are in {self.archive_directory}/*.jsonl. For your own stream:

  cp {self.properties_file} app.properties
                                  # set streamName, applicationName, regionName and executableName,
                                  # and remove the two endpoint lines
  {mld_command()} check app.properties    # what it means, and what is wrong with it
  {mld_command()} app.properties          # run it; Ctrl-C stops it gracefully"""


def _shard_table(archive: Archive, leases: dict[str, Lease]) -> Table:
    table = Table(title="what happened", title_justify="left")
    for column in ("shard", "parent", "records", "checkpoint", "writes", "owner"):
        table.add_column(column, justify="right" if column in ("records", "writes") else "left", no_wrap=True)
    for shard in sorted(archive.keys() | leases.keys()):
        count = str(len(archive.get(shard, [])))
        lease = leases.get(shard)
        if lease is None:
            table.add_row(shard, "", count, "cleaned up")
            continue
        parents = " ".join(tail(parent, 4) for parent in sorted(lease.parents))
        table.add_row(shard, parents, count, tail(str(lease.checkpoint), 12), str(lease.counter), lease.owner or "none")
    return table


def find_faults(put: Iterable[Put], archive: Archive) -> list[str]:
    """Return one sentence per kind of fault; empty if the archive is exactly what was put, in order."""
    wanted = [(record.shard, record.sequence, record.text) for record in put]
    found = [(shard, *record) for shard, records in archive.items() for record in records]
    faults = row_faults("the archive", wanted, found)
    for shard, records in sorted(archive.items()):
        numbers = [number for number, _ in records]
        if numbers != sorted(numbers):
            faults.append(f"{shard}: the records are out of order")
    return faults
