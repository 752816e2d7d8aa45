"""The tour without Spark: the shipped archive processor, one child per shard. `mld quickstart --plain`.

It ends in an error if a single record is missing, repeated or out of order.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table

from mld.leases.lease import Lease
from mld.quickstart.lineage import Put
from mld.quickstart.tour import APPLICATION, STREAM, Tour, mld_command, tail


@dataclass(frozen=True, slots=True)
class Archived:
    """A line of the archive."""

    sequence: int
    text: str


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
            archive[path.stem] = [Archived(int(line["sequence"]), line["data"]) for line in lines]
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
        parents = " ".join(tail(parent, 4) for parent in sorted(lease.parents))
        table.add_row(shard, parents, count, tail(str(lease.checkpoint), 12), str(lease.counter), lease.owner or "none")
    return table


def find_faults(put: Iterable[Put], archive: Mapping[str, Sequence[Archived]]) -> list[str]:
    """Return one sentence per kind of fault and shard; empty if the archive is exactly what was put, in order."""
    expected: dict[str, list[Archived]] = {}
    for record in put:
        expected.setdefault(record.shard, []).append(Archived(record.sequence, record.text))
    faults = []
    for shard in sorted(expected.keys() | archive.keys()):
        wanted = sorted(expected.get(shard, []), key=lambda record: record.sequence)
        faults += _shard_faults(shard, wanted, archive.get(shard, []))
    return faults


def _shard_faults(shard: str, wanted: Sequence[Archived], found: Sequence[Archived]) -> list[str]:
    if list(wanted) == list(found):
        return []
    faults = []
    wanted_numbers = {record.sequence for record in wanted}
    found_numbers = [record.sequence for record in found]
    missing = wanted_numbers.difference(found_numbers)
    if missing:
        faults.append(f"{shard}: {len(missing)} of {len(wanted)} records are missing, the first is {min(missing)}")
    if len(found_numbers) != len(set(found_numbers)):
        faults.append(f"{shard}: {len(found_numbers) - len(set(found_numbers))} records are there more than once")
    if found_numbers != sorted(found_numbers):
        faults.append(f"{shard}: the records are out of order")
    never_put = set(found_numbers) - wanted_numbers
    if never_put:
        faults.append(f"{shard}: {len(never_put)} records were never put, the first is {min(never_put)}")
    return faults or [f"{shard}: the contents of some records differ from what was put"]
