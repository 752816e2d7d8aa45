"""A range of the Spark data source that begins at the checkpoints of a lease table; without Spark."""

from __future__ import annotations

import base64
import os
import time
from typing import Any

import pytest

from mld.core.errors import TableError, TableMissingError
from mld.processors.spark.datasource.fetching import Fetcher
from mld.processors.spark.datasource.read_options import options_of
from mld.processors.spark.datasource.source import plan
from mld.properties.loader import load
from tests.support.servers import REGION, EmbeddedAws


@pytest.mark.full
def test_a_range_may_begin_where_the_leases_of_an_application_stand(monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "123456789012")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "local")
    with EmbeddedAws(streams={"s": 1}) as aws:
        kinesis = aws.client("kinesis")
        put = [kinesis.put_record(StreamName="s", Data=str(n).encode(), PartitionKey="k") for n in range(9)]
        given = {
            "stream": "s",
            "applicationName": "reader",
            "region": REGION,
            "endpoint": aws.endpoint,
            "dynamoDBEndpoint": aws.endpoint,
            "credentials": "DefaultCredentialsProvider",
            "fromCheckpoints": "leases",
        }
        now_s = time.time() + 1
        options = options_of(given, now_s)
        settings = load(os.devnull, ("executableName=x", *options.overrides), os.environ).settings
        dynamo = aws.client("dynamodb")
        with Fetcher(settings, read_interval_s=0) as fetcher:
            with pytest.raises(TableMissingError, match="reader"):
                plan(fetcher, options, now_s)
            table(dynamo)
            with pytest.raises(TableError, match="has no leases"):
                plan(fetcher, options, now_s)
            dynamo.put_item(TableName="reader", Item={**lease(put[3]), "leaseCounter": {"S": "one"}})
            with pytest.raises(TableError, match="cannot be read"):
                plan(fetcher, options, now_s)
            dynamo.put_item(TableName="reader", Item=lease(put[3]))
            spans = plan(fetcher, options, now_s)
            found = [f for span in spans for page in fetcher.records(span, goes_on=False) for f in page]
    assert [base64.b64decode(fields["data"]) for fields in found] == [b"4", b"5", b"6", b"7", b"8"]


def table(dynamo: Any) -> None:
    dynamo.create_table(
        TableName="reader",
        KeySchema=[{"AttributeName": "leaseKey", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "leaseKey", "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
    )


def lease(put: dict[str, str]) -> dict[str, Any]:
    return {
        "leaseKey": {"S": put["ShardId"]},
        "leaseCounter": {"N": "1"},
        "ownerSwitchesSinceCheckpoint": {"N": "0"},
        "checkpoint": {"S": put["SequenceNumber"]},
        "checkpointSubSequenceNumber": {"N": "0"},
    }
