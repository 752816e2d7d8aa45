"""`mld run --until-caught-up` as cron runs it: whole daemons, real children, servers over HTTP."""

from __future__ import annotations

import pytest

from tests.integration.world import ASSIGNED, SHORT_LEASE, TAKEN, MakeWorld, World
from tests.support.daemon import Daemon
from tests.support.servers import free_port

UNTIL_TIP = ["--log-level", "info", "--until-caught-up"]
modes = pytest.mark.parametrize(
    "mode",
    [
        pytest.param({}, id="assigned"),
        pytest.param(TAKEN, id="taken", marks=pytest.mark.full),
        pytest.param({"retrievalMode": "FANOUT"}, id="fan-out", marks=pytest.mark.full),
    ],
)


def cron(world: World, worker: str = "", child: str = "", *arguments: str, **keys: object) -> Daemon:
    worker = worker or f"run-{len(world.daemons)}"
    return world.daemon(worker, child, process={"arguments": [*UNTIL_TIP, *arguments]}, **keys)


def check_at_rest(world: World) -> None:
    world.until_caught_up(1)
    assert {lease.owner for lease in world.leases().values()} == {None}
    world.check()


@modes
def test_run_after_run_reads_everything_once_over_a_split(make_world: MakeWorld, mode: dict[str, object]) -> None:
    world = make_world(shards=2)
    for number in range(3):
        world.put(200)
        if number == 1:
            world.split(world.shards()[0]["ShardId"])
            world.put(200)
        run = cron(world, child=world.recorder(checkpoint="none"), **mode)
        assert run.wait() == 0, run.tail()
        assert run.with_action("caught_up")
        check_at_rest(world)
    delivered = [record.data for life in world.history.lives() for record in life.delivered]
    assert len(delivered) == len(set(delivered)) == 800
    last = [life.actions[-3:] for life in world.history.lives() if "shardEnded" not in life.actions]
    assert last == [["shutdownRequested", "leaseLost", "eof"]] * len(last)


@pytest.mark.parametrize(
    "worker", [pytest.param("", id="a new id", marks=pytest.mark.full), pytest.param("w1", id="the same id")]
)
def test_a_run_beside_another_leaves_it_alone(make_world: MakeWorld, worker: str) -> None:
    world = make_world(shards=2)
    keys = {**ASSIGNED, **SHORT_LEASE, "mld__http": f"127.0.0.1:{free_port()}"}
    world.daemon("w1", **keys)
    world.put(100)
    world.until_delivered()
    run = cron(world, worker, **keys)
    assert run.wait() == 0
    (event,) = run.with_action("left_to_others")
    assert event["workers"] == ["w1"]
    world.put(100)
    world.until_delivered()
    assert {life.worker for life in world.history.lives()} == {"w1"}
    assert world.daemons[0].stop() == 0
    world.check()


@pytest.mark.full
@pytest.mark.parametrize("mode", [ASSIGNED, TAKEN], ids=["assigned", "taken"])
def test_what_a_killed_run_held_is_read_by_the_next(make_world: MakeWorld, mode: dict[str, object]) -> None:
    world = make_world(shards=2)
    world.put(1000)
    first = cron(world, child=world.recorder(pause_s=0.5), maxRecords=50, **mode, **SHORT_LEASE)
    world.until(lambda: world.history.delivered(), what="the first records")
    first.kill()
    run = cron(world, **mode, **SHORT_LEASE)
    assert run.wait() == 0, run.tail()
    world.until_delivered(within_s=1)
    check_at_rest(world)


@pytest.mark.full
def test_the_time_is_over_before_it_is_caught_up(make_world: MakeWorld) -> None:
    world = make_world(shards=2)
    world.put(1000)
    run = cron(world, "", world.recorder(pause_s=0.2), "--max-time", "2s", maxRecords=10)
    assert run.wait() == 1
    (event,) = run.with_action("not_caught_up")
    assert "the time (--max-time) is over: shardId-00000000000" in event["message"]
    check_released(world)
    assert cron(world).wait() == 0
    world.until_delivered(within_s=1)
    check_at_rest(world)


@pytest.mark.full
def test_a_child_that_does_not_end_in_time_is_no_success(make_world: MakeWorld) -> None:
    world = make_world(shards=1)
    world.put(50)
    run = cron(world, child=world.recorder(on_shutdown="hang"), shutdownGraceMillis=400)
    assert run.wait() == 1
    (event,) = run.with_action("not_caught_up")
    assert "shutdownGraceMillis" in event["message"]
    check_released(world)


def check_released(world: World) -> None:
    assert {lease.owner for lease in world.leases().values()} == {None}


def test_a_start_at_latest_is_a_configuration_error(make_world: MakeWorld) -> None:
    world = make_world()
    run = cron(world, initialPositionInStream="LATEST")
    assert run.wait() == 2
    assert "set initialPositionInStream=TRIM_HORIZON" in run.log()
    assert world.leases() == {}


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_spark_commits_its_last_trigger_before_the_run_ends(make_world: MakeWorld) -> None:
    from tests.integration.test_spark import start, texts, wanted

    world = make_world(shards=2)
    for _ in range(2):
        world.put(300)
        run = start(world, process={"arguments": UNTIL_TIP}, **{"mld.spark.triggerIntervalMillis": 30_000})
        assert run.wait(300) == 0, run.tail()
        assert texts(world) == wanted(world)
        world.until_caught_up(1)
        check_released(world)
