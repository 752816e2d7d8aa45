"""Whole daemons as processes of their own against servers over HTTP, with children that write everything down."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from tests.integration.world import ASSIGNED, SHORT_LEASE, TAKEN, MakeWorld, World
from tests.support.servers import ServerProcess

Keys = dict[str, object]
both_modes = pytest.mark.parametrize(
    "mode",
    [
        pytest.param({**ASSIGNED, **SHORT_LEASE}, id="assigned"),
        pytest.param({**TAKEN, **SHORT_LEASE}, id="taken", marks=pytest.mark.full),
    ],
)


def reshard_while_running(world: World, count: int, **keys: object) -> None:
    """Put `count` records around a split and a merge."""
    shards = sorted(shard["ShardId"] for shard in world.shards())
    quarter = count // 4
    world.put(quarter)
    world.daemon(**keys)
    world.until_delivered()
    world.put(quarter)
    world.split(shards[0])
    world.put(quarter)
    world.merge(shards[-2], shards[-1])
    world.put(count - 3 * quarter)
    world.until_delivered()
    world.until_caught_up()


@pytest.mark.parametrize(
    "mode", [pytest.param({}, id="default"), pytest.param(TAKEN, id="taken", marks=pytest.mark.full)]
)
def test_ten_thousand_records_survive_a_split_and_a_merge_in_order_and_children_after_parents(
    make_world: MakeWorld, mode: Keys
) -> None:
    world = make_world(shards=4)
    reshard_while_running(world, 10_000, **mode)
    assert world.daemons[0].stop() == 0
    world.check()
    parents = {parent for its_parents in world.parents.values() for parent in its_parents}
    assert len(parents) == 3
    assert {life.shard for life in world.history.lives() if "shardEnded" in life.actions} == parents


@pytest.mark.full
@pytest.mark.node
def test_resharding_is_followed_on_a_kinesis_we_did_not_write(
    make_world: MakeWorld, kinesis_local: ServerProcess
) -> None:
    world = make_world(shards=3, kinesis=kinesis_local)
    reshard_while_running(world, 400)
    assert world.daemons[0].stop() == 0
    world.check()


@pytest.mark.node
def test_polling_resumes_at_its_checkpoint_on_a_kinesis_we_did_not_write(
    make_world: MakeWorld, kinesis_local: ServerProcess
) -> None:
    world = make_world(shards=2, kinesis=kinesis_local)
    world.put(100)
    first = world.daemon()
    world.until_delivered()
    world.until_caught_up()
    assert first.stop() == 0
    before = len(world.history.lives())
    world.put(100)
    second = world.daemon()
    world.until_delivered()
    assert second.stop() == 0
    world.check()
    repeated = {record.data for life in world.history.lives()[before:] for record in life.delivered}
    assert len(repeated) == 100


@both_modes
def test_two_workers_share_the_shards_and_each_record_has_one_reader(make_world: MakeWorld, mode: Keys) -> None:
    world = make_world(shards=4)
    world.put(400)
    one = world.daemon("w1", **mode)
    world.until_delivered()
    two = world.daemon("w2", **mode)
    world.until(
        lambda: sorted(str(lease.owner) for lease in world.leases().values()) == ["w1", "w1", "w2", "w2"],
        what="two leases each",
    )
    world.put(2000)
    world.until_delivered()
    assert (one.stop(), two.stop()) == (0, 0)
    world.check()
    assert {life.worker for life in world.history.lives() if life.delivered} == {"w1", "w2"}


def test_a_worker_that_leaves_hands_its_leases_over_and_nothing_is_repeated(make_world: MakeWorld) -> None:
    world = make_world(shards=4)
    one = world.daemon("w1", **ASSIGNED)
    one.wait_for_event("consumer_started")
    two = world.daemon("w2", **ASSIGNED)
    world.until(lambda: "w2" in {lease.owner for lease in world.leases().values()}, what="a share for w2")
    world.put(400)
    world.until_delivered()
    world.until_caught_up()
    assert one.stop() == 0
    # At once, or soon if w2 has been too busy to report meanwhile: then nobody is named, and it takes them.
    world.until(lambda: {lease.owner for lease in world.leases().values()} == {"w2"}, what="all leases for w2")
    world.put(400)
    world.until_delivered()
    assert two.stop() == 0
    world.check()
    delivered = [record.data for life in world.history.lives() for record in life.delivered]
    assert len(delivered) == len(set(delivered)) == 800


@both_modes
def test_a_killed_worker_is_replaced_and_loses_nothing(make_world: MakeWorld, mode: Keys) -> None:
    world = make_world(shards=2)
    world.put(200)
    victim = world.daemon("w1", world.recorder(pause_s=0.02), **mode)
    world.until_delivered()
    heir = world.daemon("w2", **mode)
    victim.kill()
    world.put(500)
    world.until_delivered()
    assert heir.stop() == 0
    world.check()
    world.until(lambda: not victim.survivors(), what="the killed worker's children have ended")


STUBBORN = """
import json, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
for line in sys.stdin:
    print(json.dumps({"action": "status", "responseFor": json.loads(line)["action"]}), flush=True)
while True:
    time.sleep(1)
"""


@pytest.mark.parametrize("interpreter", [sys.executable, str(Path(sys.executable).with_name("mld-zygote"))])
def test_children_that_nothing_ends_die_with_a_killed_daemon(
    make_world: MakeWorld, tmp_path: Path, interpreter: str
) -> None:
    (tmp_path / "stubborn.py").write_text(STUBBORN)
    world = make_world(shards=2)
    daemon = world.daemon("w1", f"{interpreter} {tmp_path}/stubborn.py")
    for number in range(2):
        daemon.wait_for_event("consumer_started", shard=f"shardId-{number:012}")
    daemon.kill()
    world.until(lambda: not daemon.survivors(), what="the killed daemon's children have ended")


def test_a_killed_child_is_replaced_from_the_last_checkpoint(make_world: MakeWorld) -> None:
    world = make_world(shards=2)
    world.put(200)
    daemon = world.daemon()
    world.until_delivered()
    victim = world.history.lives("0")[0]
    os.kill(victim.pid, signal.SIGKILL)
    world.put(500)
    world.until_delivered()
    assert daemon.stop() == 0
    world.check()
    assert [life.shard for life in world.history.lives()].count(victim.shard) == 2
    assert len(daemon.with_action("child_failed")) == 1


def test_a_child_that_dies_in_the_middle_of_a_batch_gets_the_batch_again(make_world: MakeWorld) -> None:
    world = make_world(shards=2)
    world.put(300)
    daemon = world.daemon("w1", world.recorder(die_after=20, checkpoint="last"), maxRecords=50)
    world.until_delivered()
    world.until_caught_up()
    assert daemon.stop() == 0
    world.check()
    assert len(world.history.lives()) == 4


@pytest.mark.full
@both_modes
def test_a_worker_frozen_beyond_its_lease_is_refused_when_it_wakes_and_its_child_loses_the_lease(
    make_world: MakeWorld, mode: Keys
) -> None:
    world = make_world(shards=1)
    world.put(20)
    zombie = world.daemon("w1", world.recorder(checkpoint="last"), **mode)
    world.until_delivered()
    world.until_caught_up()
    child = world.history.lives()[0]
    # The child is in the middle of a batch, and will ask for a checkpoint, while its worker is frozen.
    os.kill(child.pid, signal.SIGSTOP)
    world.put(20)
    world.aws.clear_log()
    # Calls later the page with the batch is long in the child's pipe; more than these the full buffer does not allow.
    world.until(lambda: world.aws.log().get("kinesis.GetRecords", 0) >= 5, what="the batch is read")
    zombie.freeze()
    os.kill(child.pid, signal.SIGCONT)
    world.until_delivered()
    frozen_at = world.lease("0").checkpoint
    heir = world.daemon("w2", **mode)
    world.until(lambda: world.lease("0").owner == "w2", what="the lease moves")
    world.put(20)
    world.until_delivered()
    world.until_caught_up()
    moved_on_to = world.lease("0").checkpoint
    assert moved_on_to > frozen_at
    written = len([write for write in world.writes if write.writer == "w1"])
    zombie.thaw()
    world.until(lambda: world.history.lives() and "leaseLost" in child.actions, what="the zombie's child loses it")
    assert world.lease("0").checkpoint == moved_on_to
    assert len([write for write in world.writes if write.writer == "w1"]) == written
    assert child.checkpoints[-1].error == "ShutdownException"
    assert zombie.stop() == 0
    assert heir.stop() == 0
    world.check()


@both_modes
def test_a_write_of_a_frozen_worker_that_arrives_after_the_takeover_is_refused_by_the_table(
    make_world: MakeWorld, mode: Keys
) -> None:
    world = make_world(shards=1)
    world.put(20)
    zombie = world.daemon("w1", world.recorder(checkpoint="last"), **mode)
    world.until_delivered()
    world.until_caught_up()
    checkpoint = world.taps["w1"].hold("UpdateItem", ":checkpoint")
    world.put(20)
    world.until(checkpoint.caught.is_set, what="the checkpoint is on its way")
    zombie.freeze()
    heir = world.daemon("w2", **mode)
    world.until(lambda: world.lease("0").owner == "w2", what="the lease moves")
    world.until_caught_up()
    assert not world.taps["w1"].refused
    checkpoint.released.set()
    world.until(lambda: world.taps["w1"].refused, what="the late checkpoint is refused")
    world.put(20)
    zombie.thaw()
    world.until_delivered()
    child = world.history.lives(worker="w1")[0]
    world.until(lambda: world.history.lives() and "leaseLost" in child.actions, what="the zombie's child loses it")
    assert child.checkpoints[-1].error == "ShutdownException"
    assert (zombie.stop(), heir.stop()) == (0, 0)
    world.check()


def test_a_restart_goes_on_at_the_checkpoint(make_world: MakeWorld) -> None:
    world = make_world(shards=2)
    world.put(100)
    first = world.daemon(child=world.recorder(checkpoint="middle"))
    world.until_delivered()
    assert first.stop() == 0
    world.put(100)
    second = world.daemon()
    world.until_delivered()
    assert second.stop() == 0
    world.check()


def test_latest_starts_at_the_tip_and_at_timestamp_at_its_time(make_world: MakeWorld) -> None:
    world = make_world(shards=1)
    old = world.put(50)
    daemon = world.daemon(initialPositionInStream="LATEST")
    daemon.wait_for_event("consumer_started")
    new = world.put(50)
    world.until_delivered(new)
    assert daemon.stop() == 0
    delivered = world.history.delivered()
    assert not delivered & {(put.shard, put.sequence) for put in old}
