"""Several accounts and regions: by access key and by the region of the signature."""

from __future__ import annotations

from typing import Any

import pytest
from botocore.exceptions import ClientError

from mld.local.accounts import Accounts
from mld.local.kinesis_errors import ACCOUNT as DEFAULT_ACCOUNT
from tests.support.servers import EmbeddedAws

OURS, THEIRS = "111111111111", "222222222222"
ROLE = f"arn:aws:iam::{THEIRS}:role/reader"
SCHEMA = {
    "KeySchema": [{"AttributeName": "k", "KeyType": "HASH"}],
    "AttributeDefinitions": [{"AttributeName": "k", "AttributeType": "S"}],
    "BillingMode": "PAY_PER_REQUEST",
    "StreamSpecification": {"StreamEnabled": True, "StreamViewType": "KEYS_ONLY"},
}


def client(aws: EmbeddedAws, service: str, key: str, region: str = "us-east-1", token: str | None = None) -> Any:
    return aws.client(service, region=region, key=key, token=token)


@pytest.mark.parametrize(
    ("authorization", "account"),
    [
        ("", DEFAULT_ACCOUNT),
        ("AWS4-HMAC-SHA256 Credential=local/20260101/us-east-1/kinesis/aws4_request", DEFAULT_ACCOUNT),
        (f"AWS4-HMAC-SHA256 Credential={OURS}/20260101/us-east-1/kinesis/aws4_request", OURS),
        ("AWS4-HMAC-SHA256 Credential=1111/20260101/us-east-1/kinesis/aws4_request", DEFAULT_ACCOUNT),
        ("AWS4-HMAC-SHA256 Credential=ASIAROLE/20260101/us-east-1/kinesis/aws4_request", THEIRS),
        ("AWS4-HMAC-SHA256 Credential=ASIAUSER/20260101/us-east-1/kinesis/aws4_request", DEFAULT_ACCOUNT),
    ],
)
def test_the_access_key_tells_the_account(authorization: str, account: str) -> None:
    accounts = Accounts()
    user = f"<Arn>arn:aws:sts::{THEIRS}:assumed-role/reader/me</Arn>"
    accounts.learn(f"<Result><AccessKeyId>ASIAROLE</AccessKeyId>{user}</Result>".encode())
    accounts.learn(b"<ErrorResponse><Error><Code>AccessDenied</Code></Error></ErrorResponse>")
    accounts.learn(user.encode())
    assert accounts.of(authorization) == account


def test_the_keys_remembered_have_a_bound() -> None:
    accounts = Accounts()
    for number in range(10_001):
        answer = f"<AccessKeyId>K{number}</AccessKeyId><Arn>arn:aws:sts::{THEIRS}:assumed-role/r/s</Arn>"
        accounts.learn(answer.encode())
    assert accounts.of("Credential=K0/") == DEFAULT_ACCOUNT
    assert accounts.of("Credential=K1/") == accounts.of("Credential=K10000/") == THEIRS


def test_streams_of_one_name_do_not_mix(aws: EmbeddedAws) -> None:
    places = [(account, region) for account in (OURS, THEIRS) for region in ("us-east-1", "eu-west-1")]
    clients = {place: client(aws, "kinesis", *place) for place in places}
    for number, (place, kinesis) in enumerate(clients.items(), 1):
        kinesis.create_stream(StreamName="orders", ShardCount=number)
        kinesis.put_record(StreamName="orders", Data="/".join(place).encode(), PartitionKey="k")
    for number, ((account, region), kinesis) in enumerate(clients.items(), 1):
        summary = kinesis.describe_stream_summary(StreamName="orders")["StreamDescriptionSummary"]
        assert summary["StreamARN"] == f"arn:aws:kinesis:{region}:{account}:stream/orders"
        assert summary["OpenShardCount"] == number
        assert read_all(kinesis, StreamName="orders") == [f"{account}/{region}".encode()]


def read_all(kinesis: Any, **stream: Any) -> list[bytes]:
    found = []
    for shard in kinesis.list_shards(**stream)["Shards"]:
        iterator = kinesis.get_shard_iterator(ShardId=shard["ShardId"], ShardIteratorType="TRIM_HORIZON", **stream)
        # By the iterator alone: it names the account.
        found += [r["Data"] for r in kinesis.get_records(ShardIterator=iterator["ShardIterator"])["Records"]]
    return found


def test_a_stream_of_another_account_is_read_by_its_arn(aws: EmbeddedAws) -> None:
    ours, theirs = client(aws, "kinesis", OURS), client(aws, "kinesis", THEIRS)
    theirs.create_stream(StreamName="partner", ShardCount=3)
    arn = theirs.describe_stream_summary(StreamName="partner")["StreamDescriptionSummary"]["StreamARN"]
    ours.put_record(StreamARN=arn, Data=b"by arn", PartitionKey="k")
    assert read_all(ours, StreamARN=arn) == read_all(theirs, StreamName="partner") == [b"by arn"]
    page = ours.list_shards(StreamARN=arn, MaxResults=2)
    assert len(ours.list_shards(NextToken=page["NextToken"])["Shards"]) == 1
    with pytest.raises(ClientError, match="ResourceNotFound"):
        ours.list_shards(StreamName="partner")
    with pytest.raises(ClientError, match="ResourceNotFound"):
        client(aws, "kinesis", OURS, "eu-west-1").list_shards(StreamARN=arn)


def test_a_consumer_of_another_account_gets_records(aws: EmbeddedAws) -> None:
    ours, theirs = client(aws, "kinesis", OURS), client(aws, "kinesis", THEIRS)
    theirs.create_stream(StreamName="fanned", ShardCount=1)
    arn = theirs.describe_stream_summary(StreamName="fanned")["StreamDescriptionSummary"]["StreamARN"]
    consumer = theirs.register_stream_consumer(StreamARN=arn, ConsumerName="app")["Consumer"]["ConsumerARN"]
    assert ours.describe_stream_consumer(ConsumerARN=consumer)["ConsumerDescription"]["StreamARN"] == arn
    subscription = ours.subscribe_to_shard(
        ConsumerARN=consumer, ShardId="shardId-000000000000", StartingPosition={"Type": "TRIM_HORIZON"}
    )
    events = iter(subscription["EventStream"])
    theirs.put_record(StreamName="fanned", Data=b"pushed", PartitionKey="k")
    # The record wakes the subscription: the first event that has one comes long before the heartbeat.
    seen = next(
        event["SubscribeToShardEvent"]["Records"] for event in events if event["SubscribeToShardEvent"]["Records"]
    )
    assert [record["Data"] for record in seen] == [b"pushed"]
    subscription["EventStream"].close()


def test_tables_of_one_name_do_not_mix(aws: EmbeddedAws) -> None:
    for account, region in ((OURS, "us-east-1"), (OURS, "eu-west-1"), (THEIRS, "us-east-1")):
        dynamodb = client(aws, "dynamodb", account, region)
        table = dynamodb.create_table(TableName="orders", **SCHEMA)["TableDescription"]
        assert table["TableArn"] == f"arn:aws:dynamodb:{region}:{account}:table/orders"
        dynamodb.put_item(TableName="orders", Item={"k": {"S": f"{account}/{region}"}})
    for account, region in ((OURS, "eu-west-1"), (THEIRS, "us-east-1")):
        items = client(aws, "dynamodb", account, region).scan(TableName="orders")["Items"]
        assert items == [{"k": {"S": f"{account}/{region}"}}]
        streams = client(aws, "dynamodbstreams", account, region)
        (listed,) = streams.list_streams(TableName="orders")["Streams"]
        assert changed_keys(streams, listed["StreamArn"]) == [f"{account}/{region}"]


def changed_keys(streams: Any, arn: str) -> list[str]:
    (shard,) = streams.describe_stream(StreamArn=arn)["StreamDescription"]["Shards"]
    asked = {"StreamArn": arn, "ShardId": shard["ShardId"], "ShardIteratorType": "TRIM_HORIZON"}
    records = streams.get_records(ShardIterator=streams.get_shard_iterator(**asked)["ShardIterator"])["Records"]
    return [record["dynamodb"]["Keys"]["k"]["S"] for record in records]


def test_a_table_stream_of_another_account_is_read_by_its_arn(aws: EmbeddedAws) -> None:
    theirs = client(aws, "dynamodb", THEIRS)
    table = theirs.create_table(TableName="shared", **SCHEMA)["TableDescription"]
    theirs.put_item(TableName="shared", Item={"k": {"S": "a"}})
    assert changed_keys(client(aws, "dynamodbstreams", OURS), table["LatestStreamArn"]) == ["a"]
    with pytest.raises(ClientError, match="ResourceNotFound"):
        client(aws, "dynamodbstreams", OURS, "eu-west-1").describe_stream(StreamArn=table["LatestStreamArn"])


@pytest.mark.parametrize(("region", "partition"), [("cn-north-1", "aws-cn"), ("us-gov-west-1", "aws-us-gov")])
def test_arns_are_of_the_partition_of_their_region(aws: EmbeddedAws, region: str, partition: str) -> None:
    kinesis = client(aws, "kinesis", OURS, region)
    kinesis.create_stream(StreamName="s", ShardCount=1)
    arn = kinesis.describe_stream_summary(StreamName="s")["StreamDescriptionSummary"]["StreamARN"]
    assert arn == f"arn:{partition}:kinesis:{region}:{OURS}:stream/s"
    assert len(kinesis.list_shards(StreamARN=arn)["Shards"]) == 1
    dynamodb = client(aws, "dynamodb", OURS, region)
    table = dynamodb.create_table(TableName="t", **SCHEMA)["TableDescription"]
    dynamodb.put_item(TableName="t", Item={"k": {"S": "a"}})
    assert table["LatestStreamArn"].startswith(f"arn:{partition}:dynamodb:{region}:{OURS}:table/t/stream/")
    assert changed_keys(client(aws, "dynamodbstreams", OURS, region), table["LatestStreamArn"]) == ["a"]


def test_an_assumed_role_acts_in_its_account(aws: EmbeddedAws) -> None:
    given = client(aws, "sts", "local").assume_role(RoleArn=ROLE, RoleSessionName="test")["Credentials"]
    key, token = given["AccessKeyId"], given["SessionToken"]
    assert client(aws, "sts", key, token=token).get_caller_identity()["Account"] == THEIRS
    kinesis = client(aws, "kinesis", key, token=token)
    kinesis.create_stream(StreamName="of-role", ShardCount=1)
    assert "of-role" in client(aws, "kinesis", THEIRS).list_streams()["StreamNames"]
    assert "of-role" not in client(aws, "kinesis", "local").list_streams()["StreamNames"]
    table = client(aws, "dynamodb", key, token=token).create_table(TableName="of-role", **SCHEMA)["TableDescription"]
    assert THEIRS in table["TableArn"]


def test_a_web_identity_acts_in_its_account(aws: EmbeddedAws) -> None:
    given = client(aws, "sts", "local").assume_role_with_web_identity(
        RoleArn=ROLE, RoleSessionName="test", WebIdentityToken="x" * 20
    )["Credentials"]
    kinesis = client(aws, "kinesis", given["AccessKeyId"], token=given["SessionToken"])
    kinesis.create_stream(StreamName="of-web-identity", ShardCount=1)
    assert "of-web-identity" in client(aws, "kinesis", THEIRS).list_streams()["StreamNames"]


def test_a_header_of_moto_does_not_choose_the_account(aws: EmbeddedAws) -> None:
    dynamodb = client(aws, "dynamodb", OURS)
    dynamodb.meta.events.register(
        "before-sign.dynamodb.*", lambda request, **_: request.headers.add_header("x-moto-account-id", THEIRS)
    )
    table = dynamodb.create_table(TableName="headed", **SCHEMA)["TableDescription"]
    assert table["TableArn"] == f"arn:aws:dynamodb:us-east-1:{OURS}:table/headed"
