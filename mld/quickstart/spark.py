"""`SparkTour`: the tour on Spark, with `mld-spark` and the example pipeline that is shipped, from stream to Parquet.

It reports a fault if a record is missing from the sink or twice in it, if a sum is wrong, if the malformed record is
not in the dead letter, or if a checkpoint differs from the position of its sink.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
from base64 import b64decode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import Any

from rich.table import Table

from mld.core import sparkhosts
from mld.core.installed import NotReadyError
from mld.leases.lease import Lease
from mld.quickstart.lineage import ClickEvent, Sums, TourOutcome, expected, find_faults, shard_lines
from mld.quickstart.tour import (
    APPLICATION,
    STREAM,
    Tour,
    tail,
)
from mld.quickstart.tour_processes import QuickstartError, mld_command, process

CLICKS, PER_MINUTE, DEAD_LETTER = "clicks", "per_minute", "dead-letter"
MALFORMED = ClickEvent("user-0007", b'{"event_id": 4711, "user": "user-0007", "page": "/chec')
"""A record that was cut off on its way."""
CHECK_S = 60.0
"""Longest time for the processor's check of PySpark, Java and the pipeline."""
READ_S = 180.0
"""Longest wait for the process that reads the sinks."""
LAST_HOST_S = 60.0
"""How long the session host of an earlier tour that was killed may take to end."""
LOOK_S = 0.5
"""Pause between two checks whether the earlier tour's host has ended."""
SECTIONS = ("home", "search", "product", "cart", "checkout", "help")


class SparkTour(Tour):
    """The tour on Spark."""

    _has_named_ui = False
    _reader: subprocess.Popen[bytes]
    """The process that reads the sinks at the end. Its Spark session starts while the daemon still works."""

    @property
    def lake(self) -> Path:
        return self.directory / "lake"

    @property
    def pipeline_file(self) -> Path:
        return self.directory / "clicks.py"

    # --- before ------------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Have the processor check PySpark, Java and the pipeline, before anything is started. Raises NotReadyError."""
        self.directory.mkdir(parents=True, exist_ok=True)
        self.pipeline_file.write_bytes((files("mld.processors.samples") / self.pipeline_file.name).read_bytes())
        # Nothing listens at this address, and the check calls no service: the local one starts later.
        self.properties_file.write_text(self.properties("http://127.0.0.1:1"), "utf-8")
        command = [sys.executable, "-P", "-m", "mld.processors.spark.child", "--check", str(self.properties_file)]
        checked = subprocess.run(
            command, cwd=self.directory, capture_output=True, text=True, timeout=CHECK_S, check=False
        )
        if checked.returncode != 0:
            why = checked.stderr.strip().removeprefix("mld-spark: ") or f"exit status {checked.returncode}"
            raise NotReadyError(f"{why}. `mld quickstart --plain` shows the daemon without Spark")
        self.say(checked.stdout.strip())

    def clear(self) -> None:
        """Remove what an earlier tour has left in the lake. Wait first until the process of that tour's Spark
        session (its host) has ended. Raises QuickstartError if it does not end.

        A directory without `_mld`, where each sink has its ledger, is not one of ours and stays.
        """
        deadline = time.monotonic() + LAST_HOST_S
        while self._host() is not None:  # an earlier tour was killed, and its host will soon notice
            if time.monotonic() > deadline:
                raise QuickstartError("end the Spark session of an earlier quickstart; `mld check` names its process")
            time.sleep(LOOK_S)
        for name in (CLICKS, PER_MINUTE, DEAD_LETTER):
            if (self.lake / name / "_mld").is_dir():
                shutil.rmtree(self.lake / name)

    def properties(self, endpoint: str) -> str:
        """Return the sample properties of the Spark processor, changed for the embedded AWS at `endpoint`."""
        text = (files("mld.properties") / "samples" / "spark.properties").read_text("utf-8")
        values = {
            "streamName": STREAM,
            "applicationName": APPLICATION,
            "AwsCredentialsProvider": "EnvironmentVariableCredentialsProvider",
            "regionName": "us-east-1",
        }
        return (
            f"{with_values(text, values)}\n# The embedded AWS; remove the lines below for the real one.\n"
            f"kinesisEndpoint = {endpoint}\ndynamoDBEndpoint = {endpoint}\n"
            "# Only for a machine of your own: the UI of Spark has no password.\n"
            "mld.spark.conf.spark.ui.enabled = true\n"
            "# Only the quick compiler of Java: right for a run of a minute. Remove this line for anything longer.\n"
            "mld.spark.conf.spark.driver.extraJavaOptions = -XX:TieredStopAtLevel=1\n"
        )

    def extra_events(self) -> Sequence[ClickEvent]:
        return [MALFORMED]

    # --- meanwhile ---------------------------------------------------------------------------------------------------

    @property
    def reading_log_file(self) -> Path:
        return self.directory / "reading.log"

    @contextmanager
    def daemon(self) -> Iterator[subprocess.Popen[bytes]]:
        """Run the daemon of the tour. The process that reads the sinks, if it was started, ends with it."""
        with super().daemon() as daemon, ExitStack() as self._readers:
            yield daemon

    def wait_until_caught_up(self, daemon: subprocess.Popen[bytes]) -> None:
        """Wait, and start the reader's Spark session meanwhile: one core is idle while the daemon's session starts."""
        command = [sys.executable, "-P", "-m", "mld.processors.samples.reading", str(self.lake)]
        with self.reading_log_file.open("wb") as log:
            self._reader = self._readers.enter_context(process(command, log, stdin=subprocess.PIPE))
        super().wait_until_caught_up(daemon)

    def processed(self) -> int:
        """Return how many records the sinks have so far. As soon as the session runs, print its pid and UI once."""
        host = self._host()
        if host is None:
            return 0
        if not self._has_named_ui and host.ui is not None:
            self._has_named_ui = True
            self.say(f"Spark session of all shards: pid {host.pid}, UI {host.ui}")
        return host.counters["records"]

    @cached_property
    def _wanted(self) -> TourOutcome:
        """The result that the sinks must have; call it only when all records are put."""
        return expected(self.put)

    def is_caught_up(self) -> bool:
        """Return whether both sinks have the last record of every shard. Checkpoints may come only with the stop."""
        return all(self._marks(sink) == self._wanted.marks for sink in (CLICKS, PER_MINUTE))

    def _host(self) -> sparkhosts.SparkHost | None:
        """Return the running session host of the tour; None if none runs."""
        hosts = sparkhosts.running(APPLICATION)
        return next((host for host in hosts if host.properties_file == str(self.properties_file)), None)

    # --- the end -----------------------------------------------------------------------------------------------------

    def report(self, leases: dict[str, Lease]) -> list[str]:
        """Print what has happened, and return the faults."""
        self.say("reading the Parquet files …")
        found = self._found()
        self.console.print(_minute_table(found.minutes))
        self.console.print(_lineage_table(self, found, leases))
        open_shards = {key: lease.checkpoint.number for key, lease in leases.items() if not lease.is_complete}
        return find_faults(self._wanted, found, open_shards)

    def _found(self) -> TourOutcome:
        """Return what the sinks and the dead letter have, and the high-water marks in the ledger of CLICKS, which say
        up to where the sink has the records of each shard.
        """
        document = self._read()
        minutes = {(minute, section): Sums(clicks, ms) for minute, section, clicks, ms in document["minutes"]}
        return TourOutcome(
            [tuple(row) for row in document["rows"]], minutes, list(self._dead_letters()), self._marks(CLICKS)
        )

    def _read(self) -> Any:
        """Have the reader read the sinks, and return what it found. Raises QuickstartError."""
        try:
            text, _ = self._reader.communicate(b"\n", READ_S)
        except subprocess.TimeoutExpired:
            text = b""
        if not text or self._reader.returncode != 0:
            raise QuickstartError(
                f"the sinks in {self.lake} cannot be read; see {self.reading_log_file} and {self.log_file}"
            )
        return json.loads(text)

    def _dead_letters(self) -> Iterator[tuple[str, int, str]]:
        """Yield the records in the dead letter: shard, sequence number and data of each."""
        for file in sorted((self.lake / DEAD_LETTER).glob("c[0-9]*.json")):
            for letter in map(json.loads, file.read_text("utf-8").splitlines()):
                yield letter["shardId"], int(letter["sequenceNumber"]), b64decode(letter["data"]).decode()

    def _marks(self, sink: str) -> dict[str, int]:
        """Return the high-water marks of a sink by shard, from the newest entry of its ledger.

        The entry has no marks of shards that have ended, because the sink has all their records.
        """
        newest = max((self.lake / sink / "_mld" / "ledger").glob("*.json"), default=None)
        if newest is None:
            return {}
        marks: dict[str, str] = {}
        last = self._wanted.marks
        for writer in json.loads(newest.read_bytes())["writers"]:  # there are no writers but the tour's
            for of_stream in writer["marks"].values():
                marks |= of_stream
            for numbers in writer.get("ended", {}).values():
                marks |= {shard: str(last[shard]) for shard in _shards(numbers) if shard in last}
        return {shard: int(position.partition(":")[0]) for shard, position in marks.items()}

    def verdict(self) -> str:
        """Return the result of a tour without faults, in one sentence."""
        wanted = self._wanted
        filtered = len(self.put) - len(wanted.rows) - len(wanted.dead)
        return (
            f"{len(self.put)} records in: {len(wanted.rows)} in Parquet, each exactly once, {filtered} filtered, "
            f"{len(wanted.dead)} in the dead letter; sums and checkpoints add up"
        )

    def farewell(self) -> str:
        """Return what the user can do next."""
        return f"""
The tables are in {self.lake}; `spark.read.parquet` reads them. Pipeline and settings to copy and change:

  cp {self.pipeline_file} {self.properties_file} .
                                      # set streamName, applicationName, AwsCredentialsProvider and regionName,
                                      # and remove the lines at the end from kinesisEndpoint on
  {mld_command()} check quickstart.properties     # what it means, and what is wrong with it
  {mld_command()} quickstart.properties           # run it; Ctrl-C stops it gracefully

docs/use/spark.md explains both files, docs/use/spark-pipeline.md how to test a pipeline."""


def with_values(text: str, values: Mapping[str, str]) -> str:
    """Return a properties file with these values for some of its keys. Each key must be on one line of the text."""
    for key, value in values.items():
        text, count = re.subn(rf"(?m)^{re.escape(key)} = .*$", f"{key} = {value}", text)
        assert count == 1, f"{key} stands {count} times in the sample"
    return text


def _shards(numbers: Iterable[str]) -> Iterator[str]:
    """Yield the ids of shards from the numbers that a ledger lists, such as `0-63` or `70`."""
    for item in numbers:
        first, _, last = item.partition("-")
        yield from (f"shardId-{number:012d}" for number in range(int(first), int(last or first) + 1))


def _minute_table(minutes: Mapping[tuple[int, str], Sums]) -> Table:
    """Return the table of clicks per minute and section."""
    table = Table(title="clicks per minute (UTC), from lake/per_minute", title_justify="left")
    for column in ("minute", *SECTIONS, "clicks", "mean load ms"):
        table.add_column(column, justify="left" if column == "minute" else "right", no_wrap=True)
    for minute in sorted({minute for minute, _ in minutes}):
        cells = [minutes.get((minute, section), Sums()) for section in SECTIONS]
        total = sum((sums for (at, _), sums in minutes.items() if at == minute), Sums())
        mean = f"{total.load_ms / max(1, total.clicks):.0f}"
        shown = datetime.fromtimestamp(minute, UTC).strftime("%H:%M")
        table.add_row(shown, *(str(cell.clicks) for cell in cells), str(total.clicks), mean)
    return table


def _lineage_table(tour: SparkTour, found: TourOutcome, leases: Mapping[str, Lease]) -> Table:
    """Return the table that shows what became of the records of each shard."""
    table = Table(title="lineage", title_justify="left", show_footer=True)
    lines = shard_lines(tour.put, found)
    counts = {shard: (line.records, line.out, line.filtered, line.dead) for shard, line in lines.items()}
    totals = map(sum, zip(*counts.values(), strict=True))
    sums = dict(zip(("in", "out", "filtered", "dead letter"), totals, strict=True))
    for column in ("shard", "parent", "in", "out", "filtered", "dead letter", "position", "checkpoint"):
        table.add_column(column, str(sums.get(column, "")), justify="right" if column in sums else "left", no_wrap=True)
    for shard, counted in counts.items():
        lease = leases.get(shard)
        parents = " ".join(tail(parent, 4) for parent in sorted(lease.parents)) if lease else ""
        position = tail(str(found.marks.get(shard, "none")), 8)
        checkpoint = "cleaned up" if lease is None else tail(str(lease.checkpoint).removesuffix("/0"), 8)
        if lease is not None and lease.is_complete:
            checkpoint = "SHARD_END"
        table.add_row(tail(shard, 4), parents, *map(str, counted), position, checkpoint)
    return table
