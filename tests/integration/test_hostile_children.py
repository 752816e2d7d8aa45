"""One shard's child misbehaves, as a real process; the others go on, nothing is lost, nothing is left behind."""

from __future__ import annotations

import pytest

from tests.integration.world import MakeWorld, World
from tests.support.daemon import Daemon
from tests.support.patience import PATIENCE_S
from tests.support.tiers import sliced

HOSTILE = "shardId-000000000000"
ANSWER_S = 5  # runs out where no answer comes; the good children start and answer in it on a busy machine too
RESTARTED = (
    "half_line",
    "closed_stdout",
    "closed_stdin",
    "no_answer",
    "no_answer_to_initialize",
    "wrong_answer",
    "unknown_action",
    "exit_at_start",
    "exit_in_batch",
    "exit_at_checkpoint",
    "grandchild",
)
HARMLESS = ("garbage", "long_stdout", "long_stderr", "checkpoint_ahead", "stubborn", "chatter", "late")
AT_SHARD_END = ("exit_at_shard_end", "shard_end_without_checkpoint")


def start(world: World, mode: str, timeout_s: int = ANSWER_S, **keys: object) -> Daemon:
    child = world.hostile(mode, pause_s=0.01)
    return world.daemon(child=child, timeoutInSeconds=timeout_s, mld__childStopTimeoutMillis=300, **keys)


def others_go_on(world: World) -> None:
    """What is put now reaches the other shards while the hostile one is busy with itself."""
    fresh = world.put(90)
    world.until_delivered([put for put in fresh if put.shard != HOSTILE])


def end(world: World, daemon: Daemon) -> None:
    world.until_delivered()
    world.until_caught_up()
    assert daemon.zombies() == []
    assert daemon.stop() == 0
    assert daemon.survivors() == []
    assert [line for line in daemon.lines if "Traceback" in line] == []
    world.check()


@pytest.mark.parametrize("mode", sliced(RESTARTED, "half_line", "exit_in_batch", "grandchild"))
def test_a_failing_child_is_replaced_while_the_others_go_on(make_world: MakeWorld, mode: str) -> None:
    world = make_world(shards=3)
    world.put(150)
    # Empty batches too, because a child that cannot read any more is found out by the next action.
    daemon = start(world, mode, callProcessRecordsEvenForEmptyRecordList="true")
    daemon.wait_for_event("child_failed", shard=HOSTILE)
    others_go_on(world)
    world.until(lambda: len(world.history.lives(HOSTILE)) == 3, what="the third child")
    end(world, daemon)
    assert [life.is_hostile for life in world.history.lives(HOSTILE)] == [True, True, False]
    assert len(daemon.with_action("child_failed")) == len(daemon.with_action("child_failed", shard=HOSTILE)) == 2


@pytest.mark.parametrize("mode", sliced(HARMLESS, "garbage", "long_stdout"))
def test_a_strange_child_that_answers_is_kept(make_world: MakeWorld, mode: str) -> None:
    world = make_world(shards=3)
    world.put(150)
    daemon = start(world, mode, timeout_s=int(PATIENCE_S))  # 50 MB take a busy machine a while
    others_go_on(world)
    end(world, daemon)
    assert daemon.with_action("child_failed") == []
    assert len(world.history.lives()) == 3


def test_a_checkpoint_beyond_the_delivered_records_is_refused(make_world: MakeWorld) -> None:
    world = make_world(shards=1)
    world.put(20)
    daemon = start(world, "checkpoint_ahead")
    end(world, daemon)
    errors = [checkpoint.error for checkpoint in world.history.lives()[0].checkpoints]
    assert errors[0] == "IllegalArgumentException"


@pytest.mark.parametrize("mode", sliced(AT_SHARD_END, "shard_end_without_checkpoint"))
def test_a_child_that_fails_at_the_end_of_its_shard_is_told_again(make_world: MakeWorld, mode: str) -> None:
    world = make_world(shards=2)
    world.put(100)
    daemon = start(world, mode)
    world.until_delivered()
    world.split(HOSTILE)
    world.put(100)
    end(world, daemon)
    assert [life.is_hostile for life in world.history.lives(HOSTILE)] == [True, True, False]


def test_a_child_that_exits_while_its_checkpoint_is_in_flight_loses_nothing(make_world: MakeWorld) -> None:
    world = make_world(shards=2)
    daemon = start(world, "exit_at_checkpoint")
    for shard in ("0", "1"):
        daemon.wait_for_event("consumer_started", shard=f"shardId-00000000000{shard}")
    world.aws.inject_faults({"operation": "UpdateItem", "contains": ":checkpoint", "delay_s": 0.4, "count": 2})
    world.put(100)
    daemon.wait_for_event("child_failed", shard=HOSTILE)
    others_go_on(world)
    end(world, daemon)


def test_a_child_that_ignores_everything_is_killed_at_the_stop_with_its_whole_group(make_world: MakeWorld) -> None:
    world = make_world(shards=2)
    world.put(50)
    daemon = world.daemon(child=world.hostile("stubborn", lives=9), mld__childStopTimeoutMillis=300)
    world.until_delivered()
    world.until_caught_up()
    assert daemon.stop() == 0
    assert daemon.survivors() == []
    ended = daemon.with_action("child_ended", shard=HOSTILE)
    assert "SIGKILL" in ended[0]["message"]


def test_stderr_of_a_child_is_logged_line_by_line_with_its_shard(make_world: MakeWorld) -> None:
    world = make_world(shards=1)
    world.put(10)
    daemon = start(world, "long_stderr")
    world.until_delivered()
    event = daemon.wait_for_event("child_stderr", shard=HOSTILE)
    assert event["level"] == "INFO"
    assert max(map(len, daemon.lines)) < 100_000
    assert daemon.stop() == 0
