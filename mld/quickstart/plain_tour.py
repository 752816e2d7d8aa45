"""`PlainTour`: the tour of `mld quickstart --plain`, without Spark: the archive processor with one child for each
shard.

It reports a fault if a single record is missing, repeated or out of order.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from rich.table import Table

from mld.leases.lease import Lease
from mld.quickstart.lineage import Put, row_faults
from mld.quickstart.tour import APPLICATION, STREAM, Tour, tail
from mld.quickstart.tour_processes import (
    mld_command,
)

Archive = Mapping[str, Sequence[tuple[int, str]]]
"""For each shard, the sequence number and data of each line."""


class PlainTour(Tour):
    """A tour with the archive processor, which has one child for each shard."""

    @property
    def archive_directory(self) -> Path:
        return self.directory / "archive"

    def check(self) -> None:
        """Do nothing: the processor needs nothing that this project does not install."""

    def clear(self) -> None:
        """Remove what an earlier tour has left in the archive."""
        self.archive_directory.mkdir(parents=True, exist_ok=True)
        for old in self.archive_directory.glob("shardId-*.jsonl"):
            old.unlink()

    def properties(self, endpoint: str) -> str:
        """Return properties for the archive processor and the embedded AWS at `endpoint`."""
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
        """Return how many records the archive has so far."""
        count = 0
        for path in self.archive_directory.glob("shardId-*.jsonl"):
            with path.open("rb") as file:
                count += sum(line.endswith(b"\n") for line in file)
        return count

    def report(self, leases: dict[str, Lease]) -> list[str]:
        """Print what has happened, and return the faults."""
        archive = {}
        for path in self.archive_directory.glob("shardId-*.jsonl"):
            lines = map(json.loads, path.read_text(encoding="utf-8").splitlines())
            archive[path.stem] = [(int(line["sequence"]), line["data"]) for line in lines]
        self.console.print(_shard_table(archive, leases))
        return find_faults(self.put, archive)

    def verdict(self) -> str:
        return f"{len(self.put)} records, each exactly once and in order"

    def farewell(self) -> str:
        """Return what the user can do next."""
        return f"""
The records are in {self.archive_directory}/*.jsonl. For your own stream:

  cp {self.properties_file} app.properties
                                  # set streamName, applicationName, regionName and executableName,
                                  # and remove the two endpoint lines
  {mld_command()} check app.properties    # what it means, and what is wrong with it
  {mld_command()} app.properties          # run it; Ctrl-C stops it gracefully"""


def _shard_table(archive: Archive, leases: dict[str, Lease]) -> Table:
    """Return the table of the shards with their records and leases."""
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
    """Return a sentence for each kind of fault; none if the archive has exactly the records that were put, in order."""
    wanted = [(record.shard, record.sequence, record.text) for record in put]
    found = [(shard, *record) for shard, records in archive.items() for record in records]
    faults = row_faults("the archive", wanted, found)
    for shard, records in sorted(archive.items()):
        numbers = [number for number, _ in records]
        if numbers != sorted(numbers):
            faults.append(f"{shard}: the records are out of order")
    return faults
