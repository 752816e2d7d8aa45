"""Daemon, children, session host and JVM together, over the embedded AWS, into files; and what kill -9 leaves."""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.integration.history import Put
from tests.integration.test_other_form import done
from tests.integration.world import MakeWorld, World
from tests.support.daemon import Daemon
from tests.support.spark_bed import rows

pytest.importorskip("pyspark", reason="needs the extra: pip install 'mld-kinesis[spark]'")

SESSION_S = 150.0
"""A JVM that shares its cores takes its time; on a quiet machine it is seconds."""
TEST_S = 600
PIPELINE = """
from pyspark.sql import functions as F

def transform(records, batch):
    print("a print of the user")
    text = F.expr("IF(payload = 'fails', raise_error('it fails'), upper(payload)) AS text")
    return records.select("streamName", "shardId", "sequenceNumber", text)
"""
KEYS = {
    "mld.spark.format": "text",
    "mld.spark.triggerIntervalMillis": "1000",
    "mld.spark.master": "local[2]",
    "mld.spark.driverMemory": "600m",
    "mld.spark.conf.spark.ui.enabled": "false",
    # A session that lives for seconds: compile little, and quickly.
    "mld.spark.conf.spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    "mld.spark.conf.spark.sql.codegen.wholeStage": "false",
    "mld.spark.sink.out.format": "json",
    "mld.spark.drainTimeoutMillis": 120_000,
    "mld.spark.startTimeoutMillis": 150_000,
    "shutdownGraceMillis": 150_000,
}


def start(world: World, process: Mapping[str, Any] | None = None, **keys: object) -> Daemon:
    pipeline = world.directory / "pipeline.py"
    pipeline.write_text(PIPELINE)
    child = str(Path(sys.executable).with_name("mld-spark"))
    mine = {
        **KEYS,
        "mld.spark.pipeline": f"{pipeline}:transform",
        "mld.spark.sink.out.path": world.directory / "out",
        "mld.spark.deadLetter": world.directory / "dead",
        **keys,
    }
    return world.daemon(
        child=child, process=process, **{name.replace(".", "__"): value for name, value in mine.items()}
    )


def texts(world: World) -> Counter[str]:
    return Counter(row["text"] for row in rows(world.directory / "out"))


def wanted(world: World) -> Counter[str]:
    return Counter(put.data.upper() for put in world.puts if put.data)


def put_bad(world: World, data: bytes) -> None:
    answer = world.kinesis.put_record(StreamName=world.stream, Data=data, PartitionKey="bad")
    world.puts.append(Put(answer["ShardId"], int(answer["SequenceNumber"]), ""))


def processes(daemon: Daemon, word: str) -> list[int]:
    """Processes of this daemon whose command line contains the word."""
    found = []
    for pid in daemon.survivors():
        try:
            command = Path(f"/proc/{pid}/cmdline").read_text()
        except OSError:
            continue
        if word in command:
            found.append(pid)
    return found


@pytest.mark.spark
@pytest.mark.timeout(TEST_S)
def test_every_record_once_through_a_split_and_a_killed_jvm(make_world: MakeWorld) -> None:
    world = make_world(shards=2)
    world.put(300)
    put_bad(world, b"\xff\xfe")
    daemon = start(world)
    world.until(lambda: texts(world) == wanted(world), SESSION_S, "the first records in the sink")
    world.until(lambda: rows(world.directory / "dead"), SESSION_S, "the malformed record in the dead letter")
    (dead,) = rows(world.directory / "dead")
    assert (dead["data"], dead["reason"]) == ("//4=", "not UTF-8")

    world.split(world.shards()[0]["ShardId"])
    world.put(300)
    world.until(lambda: texts(world) == wanted(world), SESSION_S, "the records behind the split")
    assert len({row["shardId"] for row in rows(world.directory / "out")}) == 4
    assert any("a print of the user" in line for line in daemon.lines), "prints reach the daemon's log, tagged"

    (jvm,) = [pid for pid in processes(daemon, "SparkSubmit") if Path(f"/proc/{pid}/comm").read_text() == "java\n"]
    os.kill(jvm, signal.SIGKILL)
    world.put(300)
    world.until(lambda: texts(world) == wanted(world), SESSION_S, "the records behind the death of the JVM")
    assert len(rows(world.directory / "dead")) == 1

    put_bad(world, b"fails")
    world.until(lambda: len(rows(world.directory / "dead")) == 2, SESSION_S, "the record that fails in the dead letter")
    assert "it fails" in rows(world.directory / "dead")[1]["reason"]
    assert not [line for line in daemon.lines if "at org.apache" in line], "what Spark says are single lines"

    assert daemon.stop(timeout_s=200) == 0
    world.until_caught_up(1)
    world.until(lambda: not daemon.survivors(), 60, "host and JVM gone")


@pytest.mark.spark
@pytest.mark.timeout(TEST_S)
def test_shards_of_the_same_id_in_several_streams_are_apart(make_world: MakeWorld) -> None:
    """The second stream's record has a lower sequence number than those of the first, and is written all the same."""
    world = make_world(shards=1)
    second = f"{world.stream}-second"
    world.kinesis.create_stream(StreamName=second, ShardCount=1)
    world.kinesis.get_waiter("stream_exists").wait(StreamName=second, WaiterConfig={"Delay": 1})
    world.kinesis.put_record(StreamName=second, Data=b"early", PartitionKey="k")
    world.put(20)
    daemon = start(world, **{"streamName": "", "mld.streams": f"{world.stream},{second}"})
    everything = wanted(world) + Counter(["EARLY"])
    world.until(lambda: texts(world) == everything, SESSION_S, "the records of both streams, each once")
    found = {(row["streamName"], row["shardId"], row["text"] == "EARLY") for row in rows(world.directory / "out")}
    assert found == {(world.stream, "shardId-000000000000", False), (second, "shardId-000000000000", True)}
    assert daemon.stop(timeout_s=200) == 0


def has_ended(world: World, shard: str) -> bool:
    """Whether all of it is checkpointed; its row may be gone then."""
    leases = world.leases()
    return len(leases) > 1 and (shard not in leases or leases[shard].is_complete)


@pytest.mark.spark
@pytest.mark.timeout(TEST_S)
def test_a_sink_that_is_put_back_past_the_end_of_a_shard_gets_the_tail_or_stops(make_world: MakeWorld) -> None:
    """Nothing of that shard is delivered any more, so only those that follow it can say that its tail is missing."""
    world = make_world(shards=1)
    out, backup = world.directory / "out", world.directory / "backup"
    keys = {"parentShardPollIntervalMillis": 500}
    daemon = start(world, **keys)
    world.put(50)
    world.until(lambda: texts(world) == wanted(world), SESSION_S, "the first records in the sink")
    (parent,) = (shard["ShardId"] for shard in world.shards())
    world.until(lambda: world.lease(parent).checkpoint.sequence.isdecimal(), SESSION_S, "their checkpoint")
    shutil.copytree(out, backup)
    world.put(50)
    world.split(parent)
    world.until(lambda: has_ended(world, parent), SESSION_S, "the end of the shard")
    assert daemon.stop(timeout_s=200) == 0
    shutil.rmtree(out)
    backup.rename(out)
    assert len(rows(out)) == 50

    world.put(50)
    daemon = start(world, **keys)
    world.until(lambda: "to its end" in "".join(daemon.lines), SESSION_S, "a word on what is missing")
    assert len(rows(out)) == 50, "and nothing is written after the gap"
    (said,) = {found for line in daemon.lines for found in re.findall(r"mld reset FILE (--shard .+? --to \d+)", line)}
    assert daemon.stop(timeout_s=200) == 0

    done(world, "reset", *said.split(), "--execute")
    daemon = start(world, **keys)
    world.until(lambda: texts(world) == wanted(world), SESSION_S, "all records, each once")
    assert daemon.stop(timeout_s=200) == 0
