"""AWS in trouble while a daemon works: throttling, errors, dropped connections, lost replies, expired iterators.

Whatever it is, the daemon lives, every record arrives, and nothing is checkpointed that was not delivered.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.world import SHORT_LEASE, MakeWorld, World
from tests.support.tiers import sliced

RATE = 0.25  # of the calls; a lease that is renewed three times in its life mostly lives
FAULTS_MAX = 25  # so that waits that double with each failure come to an end
DYNAMO_FAULTS: dict[str, dict[str, Any]] = {
    "throttling": {"code": "ProvisionedThroughputExceededException"},
    "500": {"code": "InternalServerError", "status": 500},
    "503 after the write": {"code": "ServiceUnavailable", "status": 503, "after": True},
    "dropped connections": {"drop": True},
    "lost replies": {"drop": True, "after": True},
    "late replies": {"delay_s": 0.5},
}
KINESIS_FAULTS: dict[str, dict[str, Any]] = {
    "throttling": {"operation": "GetRecords", "code": "ProvisionedThroughputExceededException"},
    "500": {"operation": "GetRecords", "code": "InternalFailure", "status": 500},
    "dropped connections": {"operation": "GetRecords", "drop": True},
    "expired iterators": {"operation": "GetRecords", "code": "ExpiredIteratorException"},
    "empty answers": {"operation": "GetRecords", "empty": True},
    "no iterators": {"operation": "GetShardIterator", "code": "LimitExceededException"},
}


def work_under(world: World, fault: dict[str, Any]) -> None:
    """A split in the middle, and small batches, so that there are many calls of every kind."""
    world.put(80)
    daemon = world.daemon(child=world.recorder(checkpoint="last"), maxRecords=20, **SHORT_LEASE)
    daemon.wait_for_event("consumer_started")
    world.aws.inject_faults({**fault, "rate": RATE, "seed": 7, "count": FAULTS_MAX})
    world.put(80)
    world.split("shardId-000000000000")
    world.put(40)
    world.until_delivered()
    world.aws.clear_faults()
    world.put(40)  # makes up for checkpoints that failed as often as they are tried
    world.until_delivered()
    world.until_caught_up()
    assert daemon.stop() == 0
    world.check()


@pytest.mark.parametrize("kind", sliced(DYNAMO_FAULTS, "throttling", "lost replies"))
def test_trouble_with_dynamodb_costs_no_record_and_no_order(make_world: MakeWorld, kind: str) -> None:
    work_under(make_world(shards=2), {"service": "dynamodb", **DYNAMO_FAULTS[kind]})


@pytest.mark.parametrize("kind", sliced(KINESIS_FAULTS, "dropped connections", "expired iterators"))
def test_trouble_with_kinesis_costs_no_record_and_no_order(make_world: MakeWorld, kind: str) -> None:
    work_under(make_world(shards=2), {"service": "kinesis", **KINESIS_FAULTS[kind]})


def test_iterators_that_really_expire_are_replaced(make_world: MakeWorld) -> None:
    world = make_world(shards=1)
    world.put(50)
    daemon = world.daemon()
    world.until_delivered()
    world.aws.advance_clock(301)
    world.put(50)
    world.until_delivered()
    assert daemon.stop() == 0
    world.check()


def test_a_start_while_aws_fails_succeeds_once_it_answers(make_world: MakeWorld) -> None:
    world = make_world(shards=2)
    world.put(50)
    world.aws.inject_faults(
        {"service": "dynamodb", "operation": "Scan", "code": "InternalServerError", "status": 500, "count": 3},
        {"service": "dynamodb", "operation": "CreateTable", "drop": True, "after": True, "count": 1},
        {"service": "kinesis", "operation": "ListShards", "code": "LimitExceededException", "count": 3},
        {"service": "kinesis", "operation": "GetShardIterator", "drop": True, "count": 2},
    )
    daemon = world.daemon(**SHORT_LEASE)
    world.until_delivered()
    assert daemon.stop() == 0
    world.check()


def test_a_table_out_of_reach_for_longer_than_a_lease_ends_the_work_and_resumes_it(make_world: MakeWorld) -> None:
    world = make_world(shards=1)
    world.put(50)
    daemon = world.daemon(**SHORT_LEASE)
    world.until_delivered()
    world.aws.inject_faults({"service": "dynamodb", "drop": True})
    daemon.wait_for_event("lease_expired")
    world.until(lambda: "leaseLost" in world.history.lives()[0].actions, what="the child loses its lease")
    world.put(50)
    world.aws.clear_faults()
    world.until_delivered()
    assert daemon.stop() == 0
    world.check()
