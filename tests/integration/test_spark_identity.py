"""No record is dropped because of another writer's marks: real daemons, the embedded AWS, a real Spark, one sink."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from tests.integration.test_spark import SESSION_S, TEST_S, start, texts, wanted
from tests.integration.world import MakeWorld, World
from tests.support.daemon import Daemon, until

pytestmark = [pytest.mark.spark, pytest.mark.timeout(TEST_S)]
SHARED = {"mld.spark.sink.out.writers": "shared"}
ONCE = {"mld.childFailurePolicy": "exit"}


def refused(world: World, daemon: Daemon) -> str:
    """The sentence of a daemon that gives up; nothing was acknowledged by it."""
    assert daemon.wait(SESSION_S) == 1
    assert all(lease.checkpoint.number is None for lease in world.leases().values())
    return next(line for line in daemon.lines if "is written by" in line)


def end(daemon: Daemon) -> None:
    assert daemon.stop(timeout_s=200) == 0
    until(lambda: not daemon.survivors(), 60, "host and JVM gone")


def make_again(world: World) -> None:
    """Delete the stream and its leases, and make it under the same name."""
    world.kinesis.delete_stream(StreamName=world.stream)
    until(lambda: world.stream not in world.kinesis.list_streams()["StreamNames"], what="the stream gone")
    forget(world)
    world.kinesis.create_stream(StreamName=world.stream, ShardCount=1)
    world.until_active()


def forget(world: World) -> None:
    """Delete the leases: without them an application begins anew."""
    world.dynamo.delete_table(TableName=world.table)


def test_a_second_application_is_refused_and_by_sharing_writes_everything(make_world: MakeWorld) -> None:
    """It reads the same sequence numbers from shards of the same names."""
    world = make_world()
    world.put(40)
    daemon = start(world)
    world.until(lambda: texts(world) == wanted(world), SESSION_S, "the records of the first application")
    end(daemon)
    first, world.table = world.table, f"{world.table}-2"
    said = refused(world, start(world, **ONCE))
    assert f"application {first}, pipeline main, stream arn:aws:kinesis:us-east-1:" in said
    assert f"This is application {world.table}, pipeline main" in said
    assert "set mld.spark.sink.out.writers = shared" in said
    assert texts(world) == wanted(world)

    daemon = start(world, **SHARED)
    world.until(lambda: texts(world) == wanted(world) + wanted(world), SESSION_S, "those of the second")
    end(daemon)


def test_a_stream_that_was_made_again_is_refused_and_a_replay_is_counted(make_world: MakeWorld) -> None:
    world = make_world()
    world.put(30)
    daemon = start(world)
    world.until(lambda: texts(world) == wanted(world), SESSION_S, "the records of the first stream")
    end(daemon)
    old = wanted(world)

    make_again(world)
    world.puts.clear()
    world.put(20)
    said = refused(world, start(world, **ONCE))
    assert len(set(re.findall(r"created (\S+Z)", said))) == 2
    assert texts(world) == old

    daemon = start(world, **SHARED)
    world.until(lambda: texts(world) == old + wanted(world), SESSION_S, "the records of the second stream")
    end(daemon)

    forget(world)
    daemon = start(world, **SHARED)
    world.until(lambda: dropped(daemon) == 20, SESSION_S, "the replay counted")
    assert any("records were delivered again" in line and "mld.spark.pipelineId" in line for line in daemon.lines)
    end(daemon)
    assert texts(world) == old + wanted(world)

    forget(world)
    daemon = start(world, **SHARED, **{"mld.spark.pipelineId": "again"})
    twice = Counter({text: 2 * count for text, count in wanted(world).items()})
    world.until(lambda: texts(world) == old + twice, SESSION_S, "the replay written")
    end(daemon)


def dropped(daemon: Daemon) -> int:
    return sum(int(number) for line in daemon.lines for number in re.findall(r"trigger: .* dropped=(\d+)", line))
