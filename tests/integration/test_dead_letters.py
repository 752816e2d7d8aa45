"""Real children that die of a record: parked, or past it with a dead letter; and dead letters in every place."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

import pytest

from mld.aws.client_factory import client_factory
from mld.aws.letter_boxes import letter_box_of
from mld.aws.letters import Letter
from mld.core.errors import DeadLetterError
from tests.integration.world import MakeWorld, World
from tests.support.daemon import Daemon
from tests.support.fleet import settings_of
from tests.support.kpl import User, aggregate
from tests.support.servers import EmbeddedAws, Moto

HOSTILE = "shardId-000000000000"
LIVES_MAX = 500
WITHIN_S = 100.0  # a dozen lives of a child, on a machine that has much else to do
BODY = json.dumps({"data": "cG9pc29u"}).encode()
LETTER = Letter(("app", "clicks", HOSTILE), "4957-3", BODY)


# --- real children ---------------------------------------------------------------------------------------------------


def start(world: World, **keys: object) -> Daemon:
    return world.daemon(child=world.hostile("poison", lives=LIVES_MAX), **keys)


AT_ONCE = {"mld__childRestartBackoffMillis": 0}


def setting_aside(world: World) -> dict[str, object]:
    return {"mld__poisonAttempts": 3, "mld__deadLetter": world.directory / "letters", **AT_ONCE}


def put_poison(world: World, data: bytes = b"poison 1") -> str:
    """Into the hostile shard; its sequence number. Not among the records that must be delivered."""
    answer = world.kinesis.put_record(StreamName=world.stream, Data=data, PartitionKey="k", ExplicitHashKey="0")
    assert answer["ShardId"] == HOSTILE
    return str(answer["SequenceNumber"])


def letters(world: World) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted((world.directory / "letters").rglob("*.json"))]


def note(world: World) -> Any:
    leases = world.leases()
    return leases[HOSTILE].failing if HOSTILE in leases else None


def test_a_poison_record_parks_its_shard_and_the_daemon_lives(make_world: MakeWorld) -> None:
    world = make_world(shards=3)
    sequence = put_poison(world)
    daemon = start(world, mld__childRestartBackoffMillis=1_000)
    daemon.wait_for_event("shard_failing", WITHIN_S, shard=HOSTILE, failures=3)
    fresh = world.put(90)
    world.until_delivered([put for put in fresh if put.shard != HOSTILE], within_s=WITHIN_S)
    world.until(lambda: note(world) is not None, within_s=WITHIN_S, what="the note on the row")
    assert note(world).first.sequence == sequence
    assert daemon.process.poll() is None
    assert daemon.stop(timeout_s=50) == 0
    assert {lease.owner for lease in world.leases().values()} == {None}
    assert [line for line in daemon.lines if "Traceback (" in line] == []


def test_the_culprit_is_set_aside_and_all_else_is_processed(make_world: MakeWorld) -> None:
    world = make_world(shards=2)
    world.put(40)
    sequence = put_poison(world)
    world.put(40)
    daemon = start(world, **setting_aside(world))
    world.until_delivered(within_s=WITHIN_S)
    world.until_caught_up(within_s=WITHIN_S)
    (letter,) = letters(world)
    assert (letter["shardId"], letter["sequenceNumber"]) == (HOSTILE, sequence)
    assert base64.b64decode(letter["data"]) == b"poison 1"
    assert letter["stderr"][-1] == "ValueError: poison"
    assert letter["worker"] == "w1"
    assert world.leases()[HOSTILE].checkpoint.number > int(sequence)
    assert world.leases()[HOSTILE].failing is None
    assert daemon.with_action("record_set_aside", shard=HOSTILE)[0]["letters"] == 1
    assert daemon.stop() == 0
    assert daemon.survivors() == []


def test_a_user_record_inside_an_aggregate_is_set_aside_alone(make_world: MakeWorld) -> None:
    world = make_world(shards=1)
    texts = [b"one", b"two", b"poison 3", b"four"]
    sequence = put_poison(world, aggregate([User("k", text, "0") for text in texts]))
    start(world, **setting_aside(world))
    world.until(
        lambda: [letter["subSequenceNumber"] for letter in letters(world)] == [2], within_s=WITHIN_S, what="the letter"
    )
    world.until(
        lambda: str(world.leases()[HOSTILE].checkpoint) == f"{sequence}/3",
        within_s=WITHIN_S,
        what="the last user record",
    )
    heard = {one.data for life in world.history.lives(HOSTILE) for one in life.delivered}
    assert heard == {"one", "two", "four"}


def test_a_kill_between_the_letter_and_the_checkpoint_loses_nothing(make_world: MakeWorld) -> None:
    world = make_world(shards=1)
    sequence = put_poison(world)
    world.put(30)
    world.aws.inject_faults({"operation": "UpdateItem", "contains": ":checkpoint", "drop": True})
    first = start(world, **setting_aside(world))
    world.until(lambda: letters(world), within_s=WITHIN_S, what="the letter")
    first.kill()
    world.aws.clear_faults()
    assert world.leases()[HOSTILE].checkpoint.sequence == "TRIM_HORIZON"
    second = start(world, **setting_aside(world))
    world.until_delivered(within_s=WITHIN_S)
    world.until_caught_up(within_s=WITHIN_S)
    assert [letter["sequenceNumber"] for letter in letters(world)] == [sequence], "the same file again"
    assert second.with_action("record_set_aside")
    assert second.stop() == 0


def test_a_letter_that_cannot_be_written_leaves_the_record_where_it_is(make_world: MakeWorld) -> None:
    world = make_world(shards=1)
    put_poison(world)
    (world.directory / "letters").write_text("a file where the directory should be")
    daemon = start(world, **setting_aside(world))
    daemon.wait_for_event("letter_failed", WITHIN_S, shard=HOSTILE)
    assert world.leases()[HOSTILE].checkpoint.sequence == "TRIM_HORIZON"
    (world.directory / "letters").unlink()
    world.until(lambda: letters(world), within_s=WITHIN_S, what="the letter")
    daemon.wait_for_event("record_set_aside", WITHIN_S, shard=HOSTILE)
    assert daemon.stop() == 0


# --- services --------------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "123456789012")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "local")


def put(letter: Letter, place: str, times: int = 1, **keys: str) -> str:
    settings = settings_of(
        **{
            "AwsCredentialsProvider": "DefaultCredentialsProvider",
            "mld.deadLetter": place,
            "mld.poisonAttempts": "3",
            **keys,
        }
    )

    async def main() -> str:
        box = letter_box_of(settings, client_factory(settings))
        assert box is not None
        await box.open()
        try:
            for _ in range(times):
                where = await box.put(letter)
            return where
        finally:
            await box.close()

    return asyncio.run(main())


def test_a_letter_in_a_bucket_replaces_itself(moto: Moto, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", moto.endpoint)
    s3 = moto.client("s3")
    s3.create_bucket(Bucket="letters")
    where = put(LETTER, "s3://letters/dead/here", times=2)
    (listed,) = s3.list_objects_v2(Bucket="letters")["Contents"]
    assert listed["Key"] == f"dead/here/app/clicks/{HOSTILE}/4957-3.json"
    assert where == f"s3://letters/{listed['Key']}"
    assert s3.get_object(Bucket="letters", Key=listed["Key"])["Body"].read() == BODY


def test_a_bucket_that_is_not_there_is_an_error_of_ours(moto: Moto, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", moto.endpoint)
    with pytest.raises(DeadLetterError, match="NoSuchBucket"):
        put(LETTER, "s3://nowhere")


@pytest.mark.parametrize("fifo", [False, True])
def test_a_letter_in_a_queue(moto: Moto, fifo: bool) -> None:
    sqs = moto.client("sqs")
    name = "letters.fifo" if fifo else "letters"
    sqs.create_queue(QueueName=name, Attributes={"FifoQueue": "true"} if fifo else {})
    url = f"{moto.endpoint}/123456789012/{name}"
    put(LETTER, url, times=2)
    messages = sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10)["Messages"]
    assert [message["Body"] for message in messages] == [BODY.decode()] * (1 if fifo else 2)


def test_a_letter_that_is_too_large_for_a_queue_is_refused_with_its_size(moto: Moto) -> None:
    moto.client("sqs").create_queue(QueueName="small")
    large = Letter(LETTER.path, LETTER.name, b"x" * (1 << 21))
    with pytest.raises(DeadLetterError, match="a letter of 2097152 bytes"):
        put(large, f"{moto.endpoint}/123456789012/small")


def test_a_letter_in_a_stream(aws: EmbeddedAws) -> None:
    kinesis = aws.client("kinesis")
    kinesis.create_stream(StreamName="letters", ShardCount=1)
    arn = kinesis.describe_stream_summary(StreamName="letters")["StreamDescriptionSummary"]["StreamARN"]
    where = put(LETTER, arn, kinesisEndpoint=aws.endpoint)
    iterator = kinesis.get_shard_iterator(StreamARN=arn, ShardId=HOSTILE, ShardIteratorType="TRIM_HORIZON")
    (record,) = kinesis.get_records(ShardIterator=iterator["ShardIterator"])["Records"]
    assert record["Data"] == BODY
    assert record["PartitionKey"] == HOSTILE
    assert where.endswith(record["SequenceNumber"])
    large = Letter(LETTER.path, LETTER.name, b"x" * (11 << 20))
    with pytest.raises(DeadLetterError, match=f"a letter of {11 << 20} bytes"):
        put(large, arn, kinesisEndpoint=aws.endpoint)


def test_a_service_that_does_not_answer_is_an_error_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9")
    with pytest.raises(DeadLetterError, match="no answer"):
        put(LETTER, "s3://letters")
