"""The tour of DynamoDB Streams: writes to a table of orders, and where its changes go.

    mld quickstart --dynamodb-streams [--plain]

Two applications read the stream at the same time, as many as DynamoDB Streams takes: the shipped pipeline on Spark into
Parquet files, and the shipped archive processor; with `--plain` the archive alone. The tour ends in an error if a
change is missing, is there twice, stands before an older one of the same order, or has other images than the writes
have left.
"""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from decimal import Decimal
from importlib.resources import files
from itertools import islice
from pathlib import Path
from typing import Any

from rich.table import Table

from mld.aws.client_factory import ClientFactory
from mld.leases.lease import Lease
from mld.quickstart.orders import (
    KEY,
    STATES,
    OrderChange,
    OrderWrite,
    SeenChange,
    checkpoint_faults,
    expected_changes,
    find_faults,
    last_numbers,
    order_writes,
    seen_change,
)
from mld.quickstart.spark import DEAD_LETTER, SparkTour, with_values
from mld.quickstart.stage import QuickstartError
from mld.quickstart.tour import APPLICATION, REGION, SEED, Tour, tail, tour_client

TABLE = "quickstart-orders"
ARCHIVE_APPLICATION = f"{APPLICATION}-archive"
CHANGES = "changes"
WRITES_DEFAULT = 5_000
_BATCH_MAX = 25  # the service's limit for one BatchWriteItem
_NO_STREAM_YET = f"arn:aws:dynamodb:{REGION}:123456789012:table/{TABLE}/stream/2026-01-01T00:00:00.000"
_CONTROL_S = 30.0


class OrdersTour(Tour):
    """Both variants: the table, its writes, the archive of its changes, and what they must be."""

    stream_arn = _NO_STREAM_YET
    endpoint = ""
    wanted: Mapping[str, Sequence[OrderChange]] = {}

    @property
    def archive_directory(self) -> Path:
        return self.directory / "archive"

    @property
    @abstractmethod
    def archive_file(self) -> Path:
        """The properties file of the application with the archive."""

    def prepare(self, endpoint: str) -> None:
        self.endpoint = endpoint
        super().prepare(endpoint)
        self.write_files()  # now that the table has a stream

    def write_files(self) -> None:
        """The properties files, for the stream as it is known."""
        self.properties_file.write_text(self.properties(self.endpoint), "utf-8")

    def clear_archive(self) -> None:
        self.archive_directory.mkdir(parents=True, exist_ok=True)
        for old in self.archive_directory.glob("shardId-*.jsonl"):
            old.unlink()

    def archive_properties(self, endpoint: str, application: str) -> str:
        return f"""\
# Written by `mld quickstart --dynamodb-streams`. A record processor reads the changes of a table like any stream.
executableName = {sys.executable} -m processors.archive {self.archive_directory}
streamArn = {self.stream_arn}
applicationName = {application}
initialPositionInStream = TRIM_HORIZON
AwsCredentialsProvider = EnvironmentVariableCredentialsProvider
regionName = {REGION}
kinesisEndpoint = {endpoint}
dynamoDBEndpoint = {endpoint}
"""

    # --- the table ---------------------------------------------------------------------------------------------------

    def make_stream(self, factory: ClientFactory) -> None:
        self.dynamo = tour_client(factory, "dynamodb")
        made = self.dynamo.create_table(
            TableName=TABLE,
            KeySchema=[{"AttributeName": KEY, "KeyType": "HASH"}],
            AttributeDefinitions=[{"AttributeName": KEY, "AttributeType": "S"}],
            BillingMode="PAY_PER_REQUEST",
            StreamSpecification={"StreamEnabled": True, "StreamViewType": "NEW_AND_OLD_IMAGES"},
        )
        self.stream_arn = made["TableDescription"]["LatestStreamArn"]
        self.say(f"table {TABLE} with the stream {self.stream_arn}")

    def put_and_split(self, daemon: subprocess.Popen[bytes]) -> None:
        writes = list(order_writes(self.records, seed=SEED))
        self.wanted = expected_changes(writes)
        remaining = iter(writes)
        with self._progress() as progress:
            bar = progress.add_task("writing orders", total=self.records)
            half_way, count = False, 0
            while chunk := list(islice(remaining, _BATCH_MAX)):
                self._write(chunk)
                count += len(chunk)
                progress.update(bar, completed=count)
                if not half_way and count >= self.records // 2:
                    half_way = True
                    self._split()
        self._check_alive(daemon)
        self.say(f"{self.records} writes made {self.total()} changes; the others changed nothing")

    def _write(self, chunk: Sequence[OrderWrite]) -> None:
        """In order: updates one by one, and between them batches, in which an item may stand once."""
        batch: dict[str, dict[str, Any]] = {}
        for write in chunk:
            if write.key in batch or (write.is_update and batch):
                self._write_batch(batch)
                batch = {}
            if write.is_update and write.item is not None:
                self.dynamo.update_item(
                    TableName=TABLE,
                    Key={KEY: {"S": write.key}},
                    UpdateExpression="SET #s = :s",
                    ExpressionAttributeNames={"#s": "status"},
                    ExpressionAttributeValues={":s": write.item["status"]},
                )
            elif write.item is None:
                batch[write.key] = {"DeleteRequest": {"Key": {KEY: {"S": write.key}}}}
            else:
                batch[write.key] = {"PutRequest": {"Item": write.item}}
        if batch:
            self._write_batch(batch)

    def _write_batch(self, batch: Mapping[str, dict[str, Any]]) -> None:
        answer = self.dynamo.batch_write_item(RequestItems={TABLE: list(batch.values())})
        if answer.get("UnprocessedItems"):
            raise QuickstartError("the embedded DynamoDB has refused a part of a batch")

    def _split(self) -> None:
        body = json.dumps({"stream": self.stream_arn}).encode()
        request = urllib.request.Request(  # noqa: S310 - our own endpoint
            f"{self.endpoint}/_mld/dynamodb/split", body, {"Content-Type": "application/json"}
        )
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=_CONTROL_S) as answer:
            children = json.load(answer)["children"]
        self.say(f"a shard is succeeded by {len(children)} while it is read, as DynamoDB does every few hours")

    # --- the end -----------------------------------------------------------------------------------------------------

    def total(self) -> int:
        return sum(map(len, self.wanted.values()))

    def archived(self) -> int:
        count = 0
        for path in self.archive_directory.glob("shardId-*.jsonl"):
            with path.open("rb") as file:
                count += sum(line.endswith(b"\n") for line in file)
        return count

    def archive(self) -> dict[str, list[SeenChange]]:
        """By shard, in the order of the file."""
        found: dict[str, list[SeenChange]] = {}
        for path in sorted(self.archive_directory.glob("shardId-*.jsonl")):
            lines = map(json.loads, path.read_text(encoding="utf-8").splitlines())
            found[path.stem] = [seen_change(int(line["sequence"]), line["data"]) for line in lines]
        return found

    def archive_report(self, leases: Mapping[str, Lease]) -> list[str]:
        archive = self.archive()
        self.console.print(_shard_table(archive, leases))
        # The ids of shards are in the order of their creation, so a parent comes before its children.
        changes = [one for seen in archive.values() for one in seen]
        return find_faults("the archive", self.wanted, changes, in_order=True) + checkpoint_faults(
            last_numbers(archive),
            {key: lease.checkpoint.number for key, lease in leases.items() if not lease.is_complete},
        )

    def verdict(self) -> str:
        events = Counter(change.event for changes in self.wanted.values() for change in changes)
        counted = ", ".join(f"{events[name]} {name}" for name in ("INSERT", "MODIFY", "REMOVE"))
        return f"{self.total()} changes of {len(self.wanted)} orders ({counted}), {self.where()}"

    @abstractmethod
    def where(self) -> str:
        """Where the changes have gone, for the verdict."""


class PlainOrdersTour(OrdersTour):
    """Without Spark."""

    @property
    def archive_file(self) -> Path:
        return self.properties_file

    def check(self) -> None:
        """It needs nothing besides this project."""

    def clear(self) -> None:
        self.clear_archive()

    def properties(self, endpoint: str) -> str:
        return self.archive_properties(endpoint, APPLICATION)

    def processed(self) -> int:
        return self.archived()

    def report(self, leases: dict[str, Lease]) -> list[str]:
        return self.archive_report(leases)

    def where(self) -> str:
        return "each exactly once and in order"

    def farewell(self) -> str:
        return f"""
The changes are in {self.archive_directory}/*.jsonl. For your own table:

  cp {self.properties_file} app.properties     # set streamArn, applicationName, regionName and executableName,
                                          # and remove the two endpoint lines
  bin/mld check app.properties            # what it means, and what is wrong with it
  bin/mld app.properties                  # run it; Ctrl-C stops it gracefully"""


class SparkOrdersTour(OrdersTour, SparkTour):
    """Parquet by Spark, and the archive by an application of its own."""

    _archive_daemon: subprocess.Popen[bytes]

    @property
    def pipeline_file(self) -> Path:
        return self.directory / "changes.py"

    @property
    def archive_file(self) -> Path:
        return self.directory / "archive.properties"

    @property
    def archive_log_file(self) -> Path:
        return self.directory / "archive.log"

    @property
    def sinks(self) -> Sequence[str]:
        return (CHANGES, DEAD_LETTER)

    @property
    def read_arguments(self) -> Sequence[str]:
        return (*super().read_arguments, CHANGES)

    def clear(self) -> None:
        super().clear()
        self.clear_archive()

    def properties(self, endpoint: str) -> str:
        text = (files("properties") / "samples" / "dynamodb-streams.properties").read_text("utf-8")
        values = {
            "streamArn": self.stream_arn,
            "applicationName": APPLICATION,
            "AwsCredentialsProvider": "EnvironmentVariableCredentialsProvider",
            "regionName": REGION,
        }
        return f"{with_values(text, values)}{self.for_the_embedded_aws(endpoint)}"

    def write_files(self) -> None:
        super().write_files()
        self.archive_file.write_text(self.archive_properties(self.endpoint, ARCHIVE_APPLICATION), "utf-8")

    @contextmanager
    def daemon(self) -> Iterator[subprocess.Popen[bytes]]:
        with (
            self.run_daemon(self.archive_file, self.archive_log_file) as self._archive_daemon,
            super().daemon() as daemon,
        ):
            yield daemon

    def _check_alive(self, daemon: subprocess.Popen[bytes]) -> None:
        super()._check_alive(daemon)
        if self._archive_daemon.poll() is not None:
            status = self._archive_daemon.returncode
            raise QuickstartError(f"the daemon of the archive ended with status {status}; see {self.archive_log_file}")

    def stop(self, daemon: subprocess.Popen[bytes]) -> int:
        return super().stop(daemon) or super().stop(self._archive_daemon)

    def is_caught_up(self) -> bool:
        """Whether the archive has everything, and the sink the last record of every shard of the archive."""
        if self.archived() < self.total():
            return False
        return self._marks(CHANGES) == self.last_marks()

    def last_marks(self) -> Mapping[str, int]:
        return last_numbers(self.archive())

    def report(self, leases: dict[str, Lease]) -> list[str]:
        faults = self.archive_report(leases)
        self.say("reading the Parquet files …")
        rows = self.read()
        self.console.print(_status_table(rows))
        wanted = {key: [_as_row(change) for change in changes] for key, changes in self.wanted.items()}
        return faults + find_faults("the Parquet files", wanted, map(_seen_row, rows), in_order=False)

    def where(self) -> str:
        return "each exactly once in Parquet and, in order, in the archive"

    def farewell(self) -> str:
        return f"""
The table of changes is in {self.lake / CHANGES}; `spark.read.parquet` reads it. The records as they came are in
{self.archive_directory}/*.jsonl. Pipeline and settings to copy and change:

  cp {self.pipeline_file} {self.properties_file} .
                                          # set streamArn, applicationName, AwsCredentialsProvider and regionName,
                                          # and remove the lines at the end from kinesisEndpoint on
  bin/mld check quickstart.properties     # what it means, and what is wrong with it
  bin/mld quickstart.properties           # run it; Ctrl-C stops it gracefully

A record processor of your own: {self.archive_file}. docs/use/dynamodb-streams.md explains the stream."""


def _shard_table(archive: Mapping[str, Sequence[SeenChange]], leases: Mapping[str, Lease]) -> Table:
    table = Table(title="the shards of the stream, from the archive and the lease table", title_justify="left")
    for column in ("shard", "parent", "changes", "orders", "checkpoint"):
        table.add_column(column, justify="right" if column in ("changes", "orders") else "left", no_wrap=True)
    for shard in sorted(archive.keys() | {key for key in leases if key.startswith("shardId-")}):
        seen, lease = archive.get(shard, ()), leases.get(shard)
        parents = " ".join(tail(parent, 8) for parent in sorted(lease.parents)) if lease else ""
        checkpoint = "cleaned up" if lease is None else tail(str(lease.checkpoint).removesuffix("/0"), 24)
        table.add_row(shard, parents, str(len(seen)), str(len({one.key for one in seen})), checkpoint)
    return table


def _status_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(title="changes of the status, from lake/changes", title_justify="left")
    for column in ("from", "to", "orders", "amount"):
        table.add_column(column, justify="right" if column in ("orders", "amount") else "left", no_wrap=True)
    moves = Counter((row["status_before"], row["status"]) for row in rows)
    order = (None, *STATES)
    for before, after in sorted(moves, key=lambda move: (order.index(move[0]), order.index(move[1]))):
        amounts = [Decimal(r["amount"]) for r in rows if (r["status_before"], r["status"]) == (before, after)]
        table.add_row(before or "(new)", after or "(removed)", str(moves[before, after]), f"{sum(amounts):,.2f}")
    return table


def _row_change(event: str, before: str | None, after: str | None, customer: str, amount: Decimal) -> OrderChange:
    """What a row of the pipeline tells: the status on both sides, and the rest once."""
    facts = {"customer": customer, "amount": amount}
    return OrderChange(event, None if before is None else {"status": before}, facts | {"status": after})


def _as_row(change: OrderChange) -> OrderChange:
    """A change as a row of the pipeline tells it."""
    either = change.new or change.old or {}
    return _row_change(
        change.event,
        None if change.old is None else change.old["status"]["S"],
        None if change.new is None else change.new["status"]["S"],
        either["customer"]["S"],
        Decimal(either["amount"]["N"]),
    )


def _seen_row(row: Mapping[str, Any]) -> SeenChange:
    change = _row_change(row["event"], row["status_before"], row["status"], row["customer"], Decimal(row["amount"]))
    return SeenChange(row["order_id"], int(row["sequenceNumber"]), change)
