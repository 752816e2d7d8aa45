"""The whole: daemon, children, session host, JVM, over the embedded AWS, into files; and what is left of kill -9."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.history import Put
from tests.integration.world import MakeWorld, World
from tests.support.daemon import Daemon
from tests.support.patience import PATIENCE_S

pytest.importorskip("pyspark", reason="needs the extra: pip install 'mld[spark]'")

SESSION_S = 150.0
"""A JVM that shares its cores takes its time; on a quiet machine it is seconds."""
TEST_S = 600
FAILOVER_MS = 3_000
"""How long the lease of a daemon that was killed is waited for."""
PIPELINE = """
from pyspark.sql import functions as F

def transform(records, batch):
    print("a print of the user")
    return records.select("streamName", "shardId", "sequenceNumber", F.upper("payload").alias("text"))
"""
KEYS = {
    "mld.spark.format": "text",
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


def start(world: World, **keys: object) -> Daemon:
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
    return world.daemon(child=child, **{name.replace(".", "__"): value for name, value in mine.items()})


def rows(directory: Path) -> Iterator[dict[str, Any]]:
    """What a reader of the sink sees."""
    for file in sorted(directory.glob("mld_commit=*/*.json")):
        if not file.name.startswith("_"):
            yield from map(json.loads, file.read_text().splitlines())


def texts(world: World) -> Counter[str]:
    return Counter(row["text"] for row in rows(world.directory / "out"))


def wanted(world: World) -> Counter[str]:
    return Counter(put.data.upper() for put in world.puts if put.data)


def put_malformed(world: World) -> None:
    answer = world.kinesis.put_record(StreamName=world.stream, Data=b"\xff\xfe", PartitionKey="bad")
    world.puts.append(Put(answer["ShardId"], int(answer["SequenceNumber"]), ""))


def processes(daemon: Daemon, word: str) -> list[int]:
    """Those of this daemon whose command line bears the word."""
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
    put_malformed(world)
    daemon = start(world)
    world.until(lambda: texts(world) == wanted(world), SESSION_S, "the first records in the sink")
    world.until(lambda: list(rows(world.directory / "dead")), SESSION_S, "the malformed record in the dead letter")
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
    assert len(list(rows(world.directory / "dead"))) == 1

    assert daemon.stop(timeout_s=200) == 0
    world.until_caught_up(1)
    world.until(lambda: not daemon.survivors(), 60, "host and JVM gone")


@pytest.mark.spark
@pytest.mark.timeout(TEST_S)
def test_every_record_once_through_a_killed_host_and_a_killed_daemon(make_world: MakeWorld) -> None:
    world = make_world()
    world.put(200)
    daemon = start(world, failoverTimeMillis=FAILOVER_MS)
    world.until(lambda: texts(world) == wanted(world), SESSION_S, "the first records in the sink")

    (host,) = processes(daemon, "processors.spark.host")
    os.kill(host, signal.SIGKILL)
    world.put(200)
    world.until(lambda: texts(world) == wanted(world), SESSION_S, "the records behind the death of the host")

    daemon.kill()
    world.put(200)
    second = start(world, workerId="w2", failoverTimeMillis=FAILOVER_MS)
    world.until(lambda: not daemon.survivors(), 120, "children, host and JVM of the killed daemon gone")
    world.until(lambda: texts(world) == wanted(world), SESSION_S, "the records behind the death of the daemon")
    assert second.stop(timeout_s=200) == 0
    world.until_caught_up(1)


BAD = [
    ({"mld.spark.javaHome": "/nowhere"}, PIPELINE, "mld.spark.javaHome is /nowhere, and there is no /nowhere/bin/java"),
    ({}, "def transform(records batch):\n    pass\n", "pipeline.py:1: "),
    ({}, "def transform(records):\n    pass\n", "cannot be called as transform(records, batch)"),
]


@pytest.mark.spark
@pytest.mark.parametrize(("keys", "pipeline", "said"), BAD)
def test_bad_input_gets_a_sentence_and_passes_no_checkpoint(
    make_world: MakeWorld, keys: dict[str, object], pipeline: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make_world()
    world.put(3)
    monkeypatch.setattr(sys.modules[__name__], "PIPELINE", pipeline)
    daemon = start(world, **{"mld.childFailurePolicy": "restart", "mld.childRestartsMax": 1, **keys})
    assert daemon.wait(PATIENCE_S) == 1
    assert any(said in line for line in daemon.lines), daemon.tail()
    assert all(lease.checkpoint.number is None for lease in world.leases().values())
