"""Records read by enhanced fan-out: real daemons, real children, the embedded AWS.

Whatever befalls a subscription, every record arrives, in order, parents before children; and the mode is Java's choice.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.integration.world import SHORT_LEASE, MakeWorld, World
from tests.support.daemon import Daemon
from tests.support.forward_proxy import ForwardProxy
from tests.support.tiers import sliced

FANOUT: dict[str, Any] = {"retrievalMode": "FANOUT"}
NO_POLLING_KEY: dict[str, Any] = {"retrievalMode": "DEFAULT", "idleTimeBetweenReadsInMillis": 0}  # 0 means: not set
FIRST = "shardId-000000000000"
IN_STREAM: dict[str, dict[str, Any]] = {
    "cut": {"drop": True},
    "taken over": {"code": "ResourceInUseException"},
    "500": {"code": "InternalFailureException", "status": 500},
    "KMS": {"code": "KMSThrottlingException"},
    "not found": {"code": "ResourceNotFoundException"},
}
AT_CALL: dict[str, dict[str, Any]] = {
    "throttling": {"code": "LimitExceededException"},
    "in use": {"code": "ResourceInUseException"},
    "500": {"code": "InternalFailure", "status": 500},
    "not found": {"code": "ResourceNotFoundException"},
    "dropped": {"drop": True},
    "late": {"delay_s": 0.5},
}


def fault_of(kind: str) -> dict[str, Any]:
    where, _, name = kind.partition(": ")
    if where == "in the stream":
        return {"operation": "SubscribeToShard", "after_events": 2, "count": 3, **IN_STREAM[name]}
    return {"operation": "SubscribeToShard", "count": 3, **AT_CALL[name]}


def subscriptions(world: World) -> int:
    return world.aws.log().get("kinesis.SubscribeToShard", 0)


def finish(world: World, daemon: Daemon) -> None:
    world.until_delivered()
    world.until_caught_up()
    assert daemon.stop() == 0
    world.check()


def test_a_split_and_a_merge_under_load(make_world: MakeWorld) -> None:
    world = make_world(shards=2)
    world.aws.clear_log()
    world.put(300)
    daemon = world.daemon(child=world.recorder(checkpoint="last"), **FANOUT)
    for turn in range(12):
        world.put(100, size=250)
        if turn == 3:
            world.split(FIRST)
        if turn == 8:
            world.merge("shardId-000000000002", "shardId-000000000003")
    world.put(100)
    finish(world, daemon)
    assert subscriptions(world) >= 5, "each shard has been subscribed to"
    assert "kinesis.GetRecords" not in world.aws.log()


def test_two_workers_share_a_stream_and_one_is_killed(make_world: MakeWorld) -> None:
    world = make_world(shards=4)
    world.put(200)
    first = world.daemon("w1", **FANOUT, **SHORT_LEASE)
    second = world.daemon("w2", **FANOUT, **SHORT_LEASE)
    world.until_delivered()
    world.put(200)
    first.kill()
    world.put(200)
    finish(world, second)


def test_a_killed_daemon_resumes_where_its_checkpoints_are(make_world: MakeWorld) -> None:
    world = make_world(shards=1)
    world.put(500, size=250)
    daemon = world.daemon(child=world.recorder(checkpoint="middle"), **FANOUT, **SHORT_LEASE)
    world.until_delivered()
    daemon.kill()
    world.put(500)
    finish(world, world.daemon("w2", **FANOUT, **SHORT_LEASE))


@pytest.mark.parametrize(
    "kind",
    sliced(
        [*(f"in the stream: {name}" for name in IN_STREAM), *(f"at the call: {name}" for name in AT_CALL)],
        "in the stream: cut",
        "at the call: in use",
        "at the call: 500",
    ),
)
def test_trouble_costs_no_record_and_no_order(make_world: MakeWorld, kind: str) -> None:
    world = make_world(shards=2)
    world.put(100)
    world.aws.inject_faults({"service": "kinesis", **fault_of(kind)})
    daemon = world.daemon(child=world.recorder(checkpoint="last"), **FANOUT)
    for _ in range(4):
        world.until_delivered()
        world.put(40)
    world.split(FIRST)
    world.put(40)
    finish(world, daemon)


@pytest.mark.full
@pytest.mark.parametrize("operation", ["DescribeStreamSummary", "DescribeStreamConsumer", "RegisterStreamConsumer"])
@pytest.mark.parametrize("code", ["LimitExceededException", "InternalFailure"])
def test_a_registration_in_trouble_is_repeated(make_world: MakeWorld, operation: str, code: str) -> None:
    world = make_world(shards=2)
    world.put(50)
    world.aws.inject_faults({"service": "kinesis", "operation": operation, "code": code, "count": 3})
    finish(world, world.daemon(**FANOUT, fanoutConfig__retryBackoffMillis=100))


@pytest.mark.full
def test_subscriptions_that_come_to_their_end_are_renewed(make_world: MakeWorld) -> None:
    world = make_world(shards=2)
    world.put(50)
    daemon = world.daemon(**FANOUT)
    world.until_delivered()
    for _ in range(3):
        world.aws.clear_log()
        world.aws.advance_clock(301)
        world.until(lambda: subscriptions(world) == 2, what="two new subscriptions")
        world.put(50)
        world.until_delivered()
    assert daemon.with_action("subscription_failed") == []
    finish(world, daemon)


@pytest.mark.full
def test_a_consumer_that_somebody_deregisters_is_registered_anew(make_world: MakeWorld) -> None:
    world = make_world(shards=2)
    world.put(50)
    daemon = world.daemon(**FANOUT)
    world.until_delivered()
    arn = daemon.wait_for_event("consumer_registered")["consumer"]
    world.aws.advance_clock(2)  # the next one has another time in its ARN
    world.kinesis.deregister_stream_consumer(ConsumerARN=arn)
    world.put(50)
    finish(world, daemon)
    assert len(daemon.with_action("consumer_registered")) == 2
    assert daemon.with_action("shard_ended") == []


@pytest.mark.full
def test_a_slow_child_holds_up_its_own_shard_and_loses_nothing(make_world: MakeWorld) -> None:
    world = make_world(shards=1)
    daemon = world.daemon(child=world.recorder(pause_s=0.2), mld__prefetchBytesMax=1_048_576, **FANOUT)
    for _ in range(20):
        world.put(400, size=250)
    finish(world, daemon)


@pytest.mark.parametrize(
    ("keys", "subscribes"),
    [
        (FANOUT, True),  # although a polling key is there
        ({"retrievalMode": "DEFAULT"}, False),  # idleTimeBetweenReadsInMillis is set
    ],
)
def test_the_mode_is_javas_choice(make_world: MakeWorld, keys: dict[str, object], subscribes: bool) -> None:
    world = make_world(shards=1)
    world.aws.clear_log()
    world.put(20)
    daemon = world.daemon(**{name.replace(".", "__"): value for name, value in keys.items()})
    finish(world, daemon)
    calls = world.aws.log()
    assert ("kinesis.SubscribeToShard" in calls, "kinesis.GetRecords" in calls) == (subscribes, not subscribes)


def behind(proxy_url: str) -> dict[str, object]:
    environment = {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "y", "NO_PROXY": "", "no_proxy": ""}
    return {"environment": environment | {"HTTP_PROXY": proxy_url, "http_proxy": proxy_url}}


def test_records_come_through_a_proxy(make_world: MakeWorld, tmp_path: Path) -> None:
    world = make_world(shards=2)
    world.aws.clear_log()
    world.put(200)
    with ForwardProxy(tmp_path, user="user:secret") as proxy:
        daemon = world.daemon(process=behind(f"http://user:secret@{proxy.address}"), **NO_POLLING_KEY)
        world.put(200)
        finish(world, daemon)
    assert f"POST 127.0.0.1:{world.aws.port}" in proxy.log()
    assert "kinesis.SubscribeToShard" in world.aws.log()
    assert "kinesis.GetRecords" not in world.aws.log()
    assert "secret@" not in daemon.log()


@pytest.mark.full
def test_behind_a_proxy_that_speaks_tls_the_default_polls_and_fan_out_is_refused(make_world: MakeWorld) -> None:
    world = make_world(shards=1)
    process = behind("https://127.0.0.1:1")
    daemon = world.daemon(process=process, **NO_POLLING_KEY)
    daemon.wait_for_event("fan_out_impossible")
    daemon.kill()
    refused = world.daemon("w2", process=process, **FANOUT)
    assert refused.wait() == 1
    assert "no proxy that speaks TLS" in refused.log()


def test_a_configured_consumer_is_used_and_none_registered(make_world: MakeWorld) -> None:
    world = make_world(shards=1)
    stream_arn = world.kinesis.describe_stream_summary(StreamName=world.stream)["StreamDescriptionSummary"]["StreamARN"]
    made = world.kinesis.register_stream_consumer(StreamARN=stream_arn, ConsumerName="mine")
    world.aws.clear_log()
    world.put(20)
    finish(world, world.daemon(**FANOUT, fanoutConfig__consumerArn=made["Consumer"]["ConsumerARN"]))
    consumers = world.kinesis.list_stream_consumers(StreamARN=stream_arn)["Consumers"]
    assert [consumer["ConsumerName"] for consumer in consumers] == ["mine"]
    assert not {"kinesis.RegisterStreamConsumer", "kinesis.DescribeStreamConsumer"} & world.aws.log().keys()


@pytest.mark.full
def test_a_consumer_of_another_name_survives_the_daemon(make_world: MakeWorld) -> None:
    world = make_world(shards=1)
    world.put(20)
    finish(world, world.daemon(**FANOUT, fanoutConfig__consumerName="other-name"))
    stream_arn = world.kinesis.describe_stream_summary(StreamName=world.stream)["StreamDescriptionSummary"]["StreamARN"]
    consumers = world.kinesis.list_stream_consumers(StreamARN=stream_arn)["Consumers"]
    assert [consumer["ConsumerName"] for consumer in consumers] == ["other-name"]


def test_check_tells_the_mode_and_the_consumer(make_world: MakeWorld) -> None:
    world = make_world(shards=1)
    file = world.directory / "check.properties"
    keys = world.keys("w1", "true", {**NO_POLLING_KEY, "fanoutConfig.consumerName": "reports"})
    file.write_text("".join(f"{key} = {value}\n" for key, value in keys.items()))
    command = [sys.executable, "-m", "mld", "check", "-o", "json", str(file)]
    printed = json.loads(subprocess.run(command, capture_output=True, check=True, cwd=file.parents[0]).stdout)
    said = [remark["message"] for remark in printed["remarks"] if remark["key"] == "retrievalMode"]
    assert said == [
        "records are read by enhanced fan-out as the consumer reports, "
        "which is registered if it is not there and which AWS bills"
    ]


def consumers(world: World) -> int:
    arn = world.kinesis.describe_stream_summary(StreamName=world.stream)["StreamDescriptionSummary"]["StreamARN"]
    return len(world.kinesis.list_stream_consumers(StreamARN=arn)["Consumers"])
