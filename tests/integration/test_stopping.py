"""How a daemon stops, and with which exit code (protocol#exit-codes)."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time

import pytest

from mld.daemon.signals import SIGNAL_ECHO_S
from mld.properties.settings import RESTARTS_MAX
from tests.integration.world import MakeWorld, World
from tests.support.daemon import Daemon

HOSTILE = "shardId-000000000000"


def until_working(world: World) -> None:
    world.put(60)
    world.until_delivered()


def owners(world: World) -> set[str | None]:
    return {lease.owner for lease in world.leases().values()}


def has_ended_all(daemon: Daemon) -> bool:
    return daemon.survivors() == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_graceful_stop_tells_the_children_releases_the_leases_and_ends_with_0(
    make_world: MakeWorld, number: signal.Signals
) -> None:
    world = make_world(shards=3)
    daemon = world.daemon(child=world.recorder(checkpoint="none"))
    until_working(world)
    assert daemon.stop(number) == 0
    for life in world.history.lives():
        assert life.actions == ["initialize", "shutdownRequested", "leaseLost", "eof"]
    assert owners(world) == {None}
    world.until_caught_up()  # what the children checkpointed at shutdownRequested
    assert has_ended_all(daemon)
    world.check()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_stop_beyond_the_grace_ends_the_children_by_force_and_says_so(
    make_world: MakeWorld, number: signal.Signals, code: int
) -> None:
    world = make_world(shards=2)
    daemon = world.daemon(child=world.recorder(on_shutdown="hang"), shutdownGraceMillis=400)
    until_working(world)
    assert daemon.stop(number) == code
    assert has_ended_all(daemon)
    assert daemon.with_action("stop_forced")
    assert owners(world) == {None}
    world.check()


def test_a_second_signal_stops_at_once(make_world: MakeWorld) -> None:
    world = make_world(shards=2)
    daemon = world.daemon(child=world.recorder(on_shutdown="hang"), shutdownGraceMillis=60_000)
    until_working(world)
    daemon.send(signal.SIGTERM)
    daemon.wait_for_event("signal", count=1)
    # Two signals close together count as one, so the second has to be later.
    first_at = time.monotonic()
    world.until(lambda: time.monotonic() - first_at > 1.5 * SIGNAL_ECHO_S, what="the time of an echo is over")
    daemon.send(signal.SIGTERM)
    assert daemon.wait() == 143
    assert has_ended_all(daemon)


def test_a_stop_while_nothing_is_there_to_do_is_graceful(make_world: MakeWorld) -> None:
    world = make_world(shards=1)
    daemon = world.daemon()
    daemon.wait_for_event("consumer_started")
    assert daemon.stop() == 0


def test_a_stop_in_the_middle_of_the_start_is_graceful(make_world: MakeWorld) -> None:
    world = make_world(shards=1)
    world.aws.inject_faults({"service": "dynamodb", "operation": "Scan", "drop": True})
    daemon = world.daemon(schedulerInitializationBackoffTimeMillis=5000)
    daemon.wait_for_event("initialization_failed")
    assert daemon.stop() == 0


def test_a_stop_while_the_table_is_out_of_reach_ends_in_time(make_world: MakeWorld) -> None:
    world = make_world(shards=2)
    daemon = world.daemon(failoverTimeMillis=4000)
    until_working(world)
    world.aws.inject_faults({"service": "dynamodb", "drop": True})
    assert daemon.stop() == 0
    assert daemon.with_action("release_failed")
    assert has_ended_all(daemon)


def test_a_reader_of_the_log_that_stops_holds_up_neither_records_nor_leases_nor_the_stop(make_world: MakeWorld) -> None:
    world = make_world(shards=2)
    fifo = world.directory / "stderr"
    os.mkfifo(fifo)
    descriptor = os.open(fifo, os.O_RDWR | os.O_NONBLOCK)
    try:
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(descriptor, b"x" * 4096)
        command = ["sh", "-c", 'exec "$@" 2>"$0"', str(fifo), sys.executable, "-m", "mld", "run"]
        daemon = world.daemon(process={"command": command})
        until_working(world)
        before = {key: lease.counter for key, lease in world.leases().items()}
        world.until(lambda: all(lease.counter > before[key] for key, lease in world.leases().items()), what="renewals")
        assert daemon.stop() == 0
        assert owners(world) == {None}
    finally:
        os.close(descriptor)


def test_a_failing_child_ends_the_daemon_with_1_where_java_would(make_world: MakeWorld) -> None:
    world = make_world(shards=2)
    world.put(60)
    daemon = world.daemon(child=world.hostile("exit_in_batch", lives=99), mld__childFailurePolicy="exit")
    assert daemon.wait() == 1
    assert has_ended_all(daemon)
    assert owners(world) == {None}
    (event,) = daemon.with_action("worker_failed")
    assert HOSTILE in event["message"]
    other = world.history.lives("1")[0]
    assert other.actions[-3:] == ["shutdownRequested", "leaseLost", "eof"]


def test_a_child_that_never_gets_on_makes_the_daemon_give_up_with_1(make_world: MakeWorld) -> None:
    world = make_world(shards=2)
    world.put(60)
    daemon = world.daemon(child=world.hostile("exit_in_batch", lives=99), mld__childFailurePolicy="restart")
    assert daemon.wait() == 1
    assert len(world.history.lives(HOSTILE)) == 1 + RESTARTS_MAX
    assert "mld.childFailurePolicy=park" in daemon.with_action("worker_failed")[0]["message"]
    assert world.lease(HOSTILE).checkpoint.sequence == "TRIM_HORIZON"
    assert owners(world) == {None}


def test_a_child_that_fails_now_and_then_but_gets_on_is_restarted_for_ever(make_world: MakeWorld) -> None:
    world = make_world(shards=1)
    child = world.hostile("exit_at_checkpoint", lives=7)
    daemon = world.daemon(child=child, mld__childFailurePolicy="restart", maxRecords=10)
    world.put(60)
    world.until_delivered()
    assert daemon.stop() == 0
    assert len(daemon.with_action("child_failed")) == 7
    world.check()
