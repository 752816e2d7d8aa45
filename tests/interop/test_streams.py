"""A Java application of several streams and mld on one table: each goes on where the other stopped."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mld.core.positions import TRIM_HORIZON
from mld.core.streams import HashRange
from mld.leases.lease import Lease
from mld.leases.rows import new_row
from tests.interop.conftest import MakeWorld
from tests.interop.world import JAVA_START_S, MOVE_S, STOP_S, InteropWorld
from tests.support.daemon import ROOT, Daemon
from tests.support.servers import ACCOUNT

READ_S = 20.0
"""What a worker needs to begin with a lease that Java leads to it, a child process included."""
TAKEN_S = READ_S + 15.0
"""The same after a lease duration, a look, and the writes."""

CHILD = """
import json, os, sys
from mld.sdk import RecordProcessor, run

class Child(RecordProcessor):
    def initialize(self, shard_id, sequence_number, sub_sequence_number):
        self.out = open(os.path.join(sys.argv[1], f"{os.getpid()}.jsonl"), "a", buffering=1)

    def process_records(self, records, checkpointer, millis_behind_latest):
        for record in records:
            print(json.dumps([int(record.sequence_number), record.data.decode()]), file=self.out)
        checkpointer.checkpoint()

    def shard_ended(self, checkpointer):
        checkpointer.checkpoint()

run(Child)
"""


class TwoStreams:
    def __init__(self, world: InteropWorld) -> None:
        self.world = world
        self.records = world.directory / "records-of-streams"
        self.records.mkdir()
        child = world.directory / "child_of_streams.py"
        child.write_text(f"import sys\nsys.path.insert(0, {str(ROOT)!r})\n{CHILD}")
        self.command = f"{sys.executable} {child} {self.records}"
        self.names = [f"{world.stream}-a", f"{world.stream}-b"]
        self.texts: set[str] = set()
        self.ids = {}
        for name in self.names:
            world.kinesis.create_stream(StreamName=name, ShardCount=2)
            world.kinesis.get_waiter("stream_exists").wait(StreamName=name, WaiterConfig={"Delay": 1})
            summary = world.kinesis.describe_stream_summary(StreamName=name)["StreamDescriptionSummary"]
            epoch = int(summary["StreamCreationTimestamp"].timestamp()) - 1000  # no other than Java's own
            self.ids[name] = f"{ACCOUNT}:{name}:{epoch}"

    def java(self, worker: str) -> Daemon:
        return self.world.java(worker, executableName=self.command, streams=",".join(self.ids.values()))

    def mld(self, worker: str) -> Daemon:
        epochs = {f"mld.stream.{name}.epoch": id_.rpartition(":")[2] for name, id_ in self.ids.items()}
        return self.world.mld(
            worker, child=self.command, streamName="", **{"mld.streams": ",".join(self.names), **epochs}
        )

    def put(self, count: int = 20) -> None:
        for name in self.names:
            texts = [f"{name}-{len(self.texts)}-{number}" for number in range(count)]
            entries = [{"Data": text.encode(), "PartitionKey": text} for text in texts]
            assert self.world.kinesis.put_records(StreamName=name, Records=entries)["FailedRecordCount"] == 0
            self.texts.update(texts)

    def delivered(self) -> Iterator[tuple[Path, int, str]]:
        for file in sorted(self.records.glob("*.jsonl")):
            for line in file.read_text().splitlines():
                sequence, text = json.loads(line)
                yield file, sequence, text

    def until_delivered(self, what: str, within_s: float = MOVE_S) -> None:
        self.world.until(lambda: self.texts <= {text for *_, text in self.delivered()}, within_s, what)

    def check_order(self) -> None:
        last: dict[Path, int] = {}
        for file, sequence, _ in self.delivered():
            assert sequence > last.get(file, -1), f"{file.name} went back"
            last[file] = sequence

    def split(self) -> None:
        shards = self.world.kinesis.list_shards(StreamName=self.names[0])["Shards"]
        end = int(shards[0]["HashKeyRange"]["EndingHashKey"])
        self.world.kinesis.split_shard(
            StreamName=self.names[0], ShardToSplit=shards[0]["ShardId"], NewStartingHashKey=str(end // 2)
        )

    def rows(self) -> list[dict[str, Any]]:
        found = self.world.dynamo.scan(TableName=self.world.table)["Items"]
        return [row for row in found if row.get("entityType", {"S": "LEASE"})["S"] == "LEASE"]

    def attributes(self) -> dict[str, list[str]]:
        """The attributes of rows by the shard's state, with their types."""
        kinds: dict[str, set[str]] = {}
        for row in self.rows():
            ended = "ended" if row["checkpoint"]["S"] == "SHARD_END" else "open"
            kind = f"{ended}, {'with' if 'parentShardId' in row else 'without'} parents"
            kinds.setdefault(kind, set()).update(f"{name}:{next(iter(value))}" for name, value in row.items())
        return {kind: sorted(names) for kind, names in sorted(kinds.items())}


def complaints(daemon: Daemon) -> list[str]:
    """Errors of Java about rows of the table."""
    return [line for line in daemon.log().splitlines() if " ERROR " in line and ("row" in line or "lease" in line)]


@pytest.mark.parametrize("java", ["3.5.1"], indirect=True)
def test_java_and_mld_take_over_several_streams_from_one_another(make_world: MakeWorld) -> None:
    streams = TwoStreams(make_world(1))
    world = streams.world
    streams.put()
    first = streams.java("java-1")
    streams.until_delivered("what Java reads", JAVA_START_S)
    told = streams.attributes()["open, without parents"]
    ours = new_row(Lease("1:a:2:s", TRIM_HORIZON, owner="w", hash_range=HashRange(0, 1), stream="1:a:2"))
    assert set(told) == {f"{name}:{next(iter(value))}" for name, value in ours.items()}
    for row in streams.rows():
        assert row["leaseKey"]["S"] == f"{row['streamName']['S']}:{row['shardId']['S']}"
        assert row["streamName"]["S"] in streams.ids.values()
    first.stop(timeout_s=STOP_S)

    second = streams.mld("mld-1")
    streams.put()
    streams.split()
    streams.put()
    streams.until_delivered("what mld reads on")
    world.until(lambda: any("parentShardId" in row for row in streams.rows()), MOVE_S, "rows of the children")
    assert second.stop(timeout_s=STOP_S) == 0

    third = streams.java("java-2")
    streams.put()
    streams.until_delivered("what Java reads on, children of a split by mld among it", JAVA_START_S)
    fourth = streams.mld("mld-2")

    def both_own_something() -> bool:
        streams.put(5)  # Java moves leases by their throughput
        return {"java-2", "mld-2"} <= set(world.owned())

    world.until(both_own_something, MOVE_S, "both own something")
    streams.put()
    streams.until_delivered("what both read", READ_S)
    assert "the lease is given back" not in fourth.log()
    third.kill()
    streams.put()
    streams.until_delivered("what is left to mld", TAKEN_S)
    streams.check_order()
    assert complaints(first) == complaints(third) == []
    assert fourth.stop(timeout_s=STOP_S) == 0
