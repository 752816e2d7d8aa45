"""The tour without Spark: the shipped archive processor, one child per shard. `mld quickstart --plain`.

It ends in an error if a single record is missing, repeated or out of order.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from rich.table import Table

from mld.leases.lease import Lease
from mld.quickstart.tour import APPLICATION, STREAM, Tour, tail
from mld.quickstart.verdict import Archived, find_faults


class PlainTour(Tour):
    @property
    def archive_directory(self) -> Path:
        return self.directory / "archive"

    def check(self) -> None:
        """It needs nothing besides this project."""

    def clear(self) -> None:
        self.archive_directory.mkdir(parents=True, exist_ok=True)
        for old in self.archive_directory.glob("shardId-*.jsonl"):
            old.unlink()

    def properties(self, endpoint: str) -> str:
        return f"""\
# Written by `mld quickstart --plain`: the same keys that Amazon's Java MultiLangDaemon reads.
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

    def processed(self) -> int:
        return sum(_line_count(path) for path in self.archive_directory.glob("shardId-*.jsonl"))

    def report(self, leases: dict[str, Lease]) -> list[str]:
        archive = {path.stem: _read_archive(path) for path in self.archive_directory.glob("shardId-*.jsonl")}
        self.console.print(_shard_table(archive, leases))
        return find_faults(self.put, archive)

    def verdict(self) -> str:
        return f"{len(self.put)} records, each exactly once and in order"

    def farewell(self) -> str:
        return f"""
The records are in {self.archive_directory}/*.jsonl. For your own stream:

  cp {self.properties_file} app.properties     # set streamName, applicationName, regionName and executableName,
                                          # and remove the two endpoint lines
  bin/mld check app.properties            # what it means, and what is wrong with it
  bin/mld app.properties                  # run it; Ctrl-C stops it gracefully"""


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


def _line_count(path: Path) -> int:
    with path.open("rb") as file:
        return sum(chunk.count(b"\n") for chunk in iter(lambda: file.read(1 << 20), b""))


def _read_archive(path: Path) -> list[Archived]:
    lines = (json.loads(line) for line in path.read_text(encoding="utf-8").splitlines())
    return [Archived(int(line["sequence"]), line["data"]) for line in lines]
