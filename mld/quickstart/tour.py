"""`Tour`: runs a tour of `mld quickstart`. It starts the embedded AWS and the real daemon, puts click events into a
stream, splits a shard meanwhile, and reports the result.

Each server runs as a process of its own, as a user would start it, and ends with the tour. A subclass chooses the
record processor, decides when that has caught up, and knows what its result must be.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from mld.aws.client_factory import client_factory
from mld.leases.lease import Lease
from mld.leases.rows import parse_row
from mld.properties.loader import load
from mld.properties.printable import printable, printable_lines
from mld.quickstart.lineage import ClickEvent, Put, click_events
from mld.quickstart.tour_processes import (
    STOP_S,
    EndSignal,
    QuickstartError,
    free_port,
    only_one_in,
    process,
    ready_endpoint,
    signals_end_us,
)

STREAM = "quickstart-clicks"
APPLICATION = "quickstart"
SHARDS = 4
PAGE_PORT = 9404
PUT_RECORDS_MAX = 500  # Kinesis allows no more in one call
PUT_ATTEMPTS_MAX = 5
SEED = 7
STALLED_S = 180.0
"""After this long without progress, the tour gives up."""
POLL_S = 0.2
EXIT_OK, EXIT_FAILURE = 0, 1
FAKE_CREDENTIALS = {"AWS_ACCESS_KEY_ID": "quickstart", "AWS_SECRET_ACCESS_KEY": "quickstart"}


@dataclass
class Tour(ABC):
    """One run of a tour. Its paths are absolute, so that users can copy them from the output."""

    directory: Path
    console: Console
    records: int
    put: list[Put] = field(default_factory=list)
    page: str = ""
    """Address of the daemon's status page."""
    kinesis: Any = None
    dynamo: Any = None
    end_signal: EndSignal = field(default_factory=EndSignal)

    # --- what differs ------------------------------------------------------------------------------------------------

    @abstractmethod
    def check(self) -> None:
        """Raise NotReadyError if this machine lacks something."""

    @abstractmethod
    def clear(self) -> None:
        """Remove the files of the last run, and no others."""

    @abstractmethod
    def properties(self, endpoint: str) -> str:
        """Return the text of the daemon's properties file."""

    def extra_events(self) -> Sequence[ClickEvent]:
        """Return further events, which are put after half of the others."""
        return ()

    @abstractmethod
    def processed(self) -> int:
        """Return the number of records that the processor has finished, for the progress bar."""

    def is_caught_up(self) -> bool:
        """Return whether the processor has finished all records that were put."""
        return self.processed() >= len(self.put)

    @abstractmethod
    def report(self, leases: dict[str, Lease]) -> list[str]:
        """Print the results, and return the faults."""

    @abstractmethod
    def farewell(self) -> str:
        """Return a text on what the user may do next."""

    # --- the plot ----------------------------------------------------------------------------------------------------

    def run(self) -> int:
        """Run the tour, and return the exit code. Raises QuickstartError."""
        started = time.monotonic()
        os.environ.update(FAKE_CREDENTIALS)
        with ExitStack() as stack:
            self.end_signal = stack.enter_context(signals_end_us())
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
        """Return a sentence about the result of a tour without faults."""

    @property
    def properties_file(self) -> Path:
        return self.directory / "quickstart.properties"

    @property
    def log_file(self) -> Path:
        return self.directory / "daemon.log"

    def say(self, text: str, head: Text | None = None) -> None:
        """Print a text, with unprintable characters made visible. `head` comes before it, in a colour of its own."""
        self.console.print((head or Text()) + Text(printable(text)), soft_wrap=True)

    @contextmanager
    def embedded_aws(self) -> Iterator[str]:
        """Run the embedded AWS on a free loopback port, and yield its endpoint."""
        errors = self.directory / "embedded-aws.log"
        with (
            errors.open("wb") as log,
            process([sys.executable, "-P", "-m", "mld.local.server", "--port", "0"], log) as server,
        ):
            endpoint = ready_endpoint(server, errors)
            self.say(f"embedded AWS on {endpoint}")
            yield endpoint

    def prepare(self, endpoint: str) -> None:
        """Write the daemon's properties file, and create the stream."""
        self.properties_file.write_text(self.properties(endpoint), "utf-8")
        factory = client_factory(load(self.properties_file, (), os.environ).settings)
        bounds: dict[str, Any] = {"read_timeout_s": 30.0, "connect_timeout_s": 5.0, "pool_connections_max": 2}
        self.kinesis = factory.create_client("kinesis", **bounds)
        self.dynamo = factory.create_client("dynamodb", **bounds)
        self.kinesis.create_stream(StreamName=STREAM, ShardCount=SHARDS)
        self.say(f"stream {STREAM} with {SHARDS} shards")

    @contextmanager
    def daemon(self) -> Iterator[subprocess.Popen[bytes]]:
        """Run the daemon of the tour, with its status page, until the context is left."""
        with self.run_daemon(self.properties_file, self.log_file, "-D", f"mld.http={self.page}") as daemon:
            yield daemon

    @contextmanager
    def run_daemon(self, properties_file: Path, log_file: Path, *options: str) -> Iterator[subprocess.Popen[bytes]]:
        """Run a daemon in the tour's directory. Its PATH begins with the directory of this interpreter."""
        # With this policy a processor that cannot work ends the daemon, and the tour. The default would wait for a
        # repair.
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
        """Put all events. After half of them split a shard, and put the extra events."""
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
        """Put records by PutRecords. Records that the service refuses are put again."""
        for _ in range(PUT_ATTEMPTS_MAX):
            self.end_signal.raise_if_received()
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
        """Split the first shard in the middle of its hash keys."""
        shard = self.kinesis.list_shards(StreamName=STREAM)["Shards"][0]
        span = shard["HashKeyRange"]
        middle = (int(span["StartingHashKey"]) + int(span["EndingHashKey"])) // 2 + 1
        self.kinesis.split_shard(StreamName=STREAM, ShardToSplit=shard["ShardId"], NewStartingHashKey=str(middle))
        self.say(f"{shard['ShardId']} is split while it is read")

    def wait_until_caught_up(self, daemon: subprocess.Popen[bytes]) -> None:
        """Wait until the processor has finished all records. Raises QuickstartError if the daemon ends or makes no
        progress.
        """
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
                        f"see {self.log_file}: {count} of {len(self.put)} records were processed, and no more for "
                        f"{STALLED_S:.0f} s"
                    )
                time.sleep(POLL_S)
            progress.update(bar, completed=self.processed())

    def _check_alive(self, daemon: subprocess.Popen[bytes]) -> None:
        """Raise QuickstartError if the daemon has ended. If a signal has come that ends the tour, raise SystemExit."""
        self.end_signal.raise_if_received()
        if daemon.poll() is not None:
            raise QuickstartError(f"the daemon ended with status {daemon.returncode}; see {self.log_file}")

    def _progress(self) -> Progress:
        """Return a progress bar that is shown while its context is open."""
        return Progress(
            TextColumn("{task.description:<20}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=self.console,
        )

    def stop(self, daemon: subprocess.Popen[bytes]) -> int:
        """Send SIGTERM, as systemd does, and return the exit status."""
        daemon.send_signal(signal.SIGTERM)
        try:
            return daemon.wait(STOP_S)
        except subprocess.TimeoutExpired:
            raise QuickstartError(f"the daemon did not stop within {STOP_S:.0f} s; see {self.log_file}") from None

    def leases(self) -> dict[str, Lease]:
        """Return the leases in the lease table, by key."""
        rows = self.dynamo.scan(TableName=APPLICATION, ConsistentRead=True)["Items"]
        leases = (parse_row(row) for row in rows)
        return {lease.key: lease for lease in leases if lease is not None}


def tail(text: str, characters: int) -> str:
    """Return the text; of a long one only its last characters, by which it differs from others."""
    return text if len(text) <= characters else f"…{text[-characters:]}"
