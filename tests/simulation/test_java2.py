"""The model of a Java 2.x worker, alone in its fleet: what the checkers of mixed fleets take for granted."""

from __future__ import annotations

from random import Random

import pytest

from mld.core.errors import AwsError
from mld.core.positions import TRIM_HORIZON
from mld.leases.rows import parse_row
from tests.simulation.java_world import STREAM, TABLE, JavaWorld, in_world
from tests.simulation.world.java2 import JavaWorker
from tests.simulation.world.java2_table import NEVER, Lease, choose
from tests.simulation.world.plan import Rates
from tests.twins.dynamo import Fault, lost_reply

START_S = 100.0
"""Empty-table wait, the idle minute after the first sync, and two passes of the taker."""


class Java2World(JavaWorld):
    def __init__(self, shards: int = 8) -> None:
        super().__init__(shards)

    def start(self, name: str, rates: Rates | None = None) -> JavaWorker:
        return self.run(JavaWorker, name, rates=rates or Rates())

    def row(self, key: str):
        return self.dynamo.row(TABLE, key)

    def owners(self) -> dict[str, str]:
        return {key: self.row(key)["leaseOwner"]["S"] for key in self.open_shards()}


def lease(key: str, owner: str | None, moved_at: float = 0.0) -> Lease:
    return Lease(key, owner=owner, moved_at=moved_at if owner else NEVER)


def fleet(free: int = 0, **counts: int) -> list[Lease]:
    owned = [lease(f"{owner}-{n}", owner) for owner, count in counts.items() for n in range(count)]
    return owned + [lease(f"free-{n}", None) for n in range(free)]


@pytest.mark.parametrize(
    ("leases", "priority", "taken", "victims"),
    [
        (fleet(bar=2, baz=2, foo=1), True, 0, []),
        (fleet(bar=1, baz=5), True, 0, ["baz"]),
        (fleet(free=1, bar=3), False, 1, []),
        (fleet(free=3, bar=1), True, 3, []),
        (fleet(free=3, bar=1), False, 2, []),
    ],
)
def test_the_examples_of_taking_and_stealing(leases, priority, taken, victims):
    take, steal = choose("foo", leases, 1.0, lease_s=10.0, steals_max=1, rng=Random(1), priority=priority)
    assert (len(take), [lease.owner for lease in steal]) == (taken, victims)


def test_a_lease_is_very_old_after_more_than_three_lease_durations():
    leases = [lease("a", "bar", moved_at=0.0), lease("b", "foo", moved_at=30.0), lease("c", "bar", moved_at=1.0)]
    at_30, _ = choose("foo", leases, 30.0, lease_s=10.0, steals_max=1, rng=Random(1))
    at_31, _ = choose("foo", leases, 31.0, lease_s=10.0, steals_max=1, rng=Random(1))
    assert len(at_30) == 2  # a target of three for a worker alone, of which it has one: an ordinary take of two
    assert [taken.key for taken in at_31] == ["a"]  # in spite of the target


@in_world(Java2World, 2)
async def test_children_wait_for_both_parents(world: Java2World) -> None:
    world.start("w1")
    world.records(100)
    await world.clock.sleep(START_S)
    one, other = world.open_shards()
    world.records(200)
    world.kinesis.merge_shards(STREAM, one, other, now=world.clock.wall())
    world.records(100)
    await world.clock.sleep(90.0)
    (child,) = world.open_shards()
    shards = [shard for _, _, shard, _ in world.notes.deliveries]
    assert world.notes.seen() == world.put
    assert child not in shards[: max(n for n, shard in enumerate(shards) if shard != child)]


@in_world(Java2World, 2)
async def test_a_stop_lets_processors_checkpoint_and_leaves_the_rows_alone(world: Java2World) -> None:
    worker = world.start("w1", Rates(child_silent=1.0))
    world.records(100)
    await world.clock.sleep(START_S)
    assert {parse_row(world.row(key)).checkpoint for key in world.open_shards()} == {TRIM_HORIZON}
    worker.request_stop()
    await world.clock.sleep(15.0)
    assert world.exits["w1"].result() == 0
    assert set(world.owners().values()) == {"w1"}
    assert {parse_row(world.row(key)).checkpoint for key in world.open_shards()} != {TRIM_HORIZON}


@in_world(Java2World, 2)
async def test_a_stop_before_the_first_record_writes_no_checkpoint(world: Java2World) -> None:
    worker = world.start("w1")
    await world.clock.sleep(START_S)
    worker.request_stop()
    await world.clock.sleep(15.0)
    assert {parse_row(world.row(key)).checkpoint for key in world.open_shards()} == {TRIM_HORIZON}


@in_world(Java2World, 2)
async def test_a_dying_processor_ends_the_whole_worker(world: Java2World) -> None:
    worker = world.start("w1")
    world.records(100)
    await world.clock.sleep(START_S)
    worker.rates = Rates(child_dies=1.0)
    world.records(100)
    await world.clock.sleep(5.0)
    assert world.exits["w1"].result() == 1
    calls = len(world.dynamo.calls)
    await world.clock.sleep(60.0)
    assert len(world.dynamo.calls) == calls


class _LoseReplyTo:
    """Loses the reply of the next update that sets `attribute`; the SDK sends it once more."""

    def __init__(self, attribute: str | None) -> None:
        self._attribute = attribute
        self.hits = 0

    def __call__(self, sender: str, operation: str, params) -> Fault | None:
        names = set(params.get("ExpressionAttributeNames", {}).values())
        wanted = names == {"leaseCounter"} if self._attribute is None else self._attribute in names
        if operation != "UpdateItem" or self.hits or not wanted:
            return None
        self.hits += 1
        return lost_reply(operation)


@pytest.mark.parametrize(("attribute", "is_kept"), [(None, True), ("checkpoint", False)])
@in_world(Java2World, 1)
async def test_a_request_sent_twice_is_forgiven_for_renewals_only(world: Java2World, attribute, is_kept) -> None:
    worker = world.start("w1")
    await world.clock.sleep(START_S)
    fault = world.dynamo.faults = _LoseReplyTo(attribute)
    world.records(10)
    await world.clock.sleep(5.0)
    assert fault.hits == 1
    assert bool(worker.held()) is is_kept
    await world.clock.sleep(60.0)
    assert worker.held() and world.notes.seen() == world.put


@in_world(Java2World, 1)
async def test_validity_counts_from_the_answer(world: Java2World) -> None:
    worker = world.start("w1")
    await world.clock.sleep(START_S)
    world.dynamo.faults = lambda *_: Fault(delay_after_s=8.0)
    await world.clock.sleep(11.0)  # one slow renewal has come back
    world.dynamo.faults = lambda _, operation, __: Fault(1.0, AwsError(operation, "AccessDenied"))
    writes = [applied.at for applied in world.dynamo.history]
    await world.clock.sleep(max(writes) + 15.0 - world.clock.monotonic())
    assert worker.held()  # others may have taken it 5 s ago
    await world.clock.sleep(10.0)
    assert not worker.held()


@in_world(Java2World, 1)
async def test_taking_leaves_the_checkpoint_owner_where_it_is(world: Java2World) -> None:
    world.start("w1")
    await world.clock.sleep(START_S)
    (key,) = world.open_shards()
    world.kill("w1")
    world.dynamo.put_row(TABLE, {**world.row(key), "checkpointOwner": {"S": "w0"}})
    world.start("w2")
    await world.clock.sleep(60.0)
    row = world.row(key)
    assert (row["leaseOwner"], row["checkpointOwner"]) == ({"S": "w2"}, {"S": "w0"})
    assert row["ownerSwitchesSinceCheckpoint"] == {"N": "1"}
