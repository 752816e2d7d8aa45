"""How often shards are read, and what keys their records have, by the kind of their stream."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from mld.core.positions import TRIM_HORIZON
from mld.core.streams import IteratorType, StartingPoint, StreamKind
from mld.retrieval.pacing import Pace, delay_s
from mld.retrieval.reader_factory import polling_intervals, streams_port
from tests.support.fleet import settings_of
from tests.twins.streams import VirtualClock
from tests.unit.aws.test_dynamo_streams import ARN, OLD, ScriptedService, record
from tests.virtual_time import virtual


@pytest.mark.parametrize(
    ("kind", "lag_ms", "wait_s"),
    [
        pytest.param(StreamKind.KINESIS, 1, 0.2, id="of Kinesis, any lag is one"),
        pytest.param(StreamKind.DYNAMODB, 60_000, 0.9, id="the newest record of a table's shard is always old"),
        pytest.param(StreamKind.DYNAMODB, 60_001, 0.3, id="a minute behind, a third"),
        pytest.param(StreamKind.DYNAMODB, 0, 0.9, id="nothing new"),
    ],
)
def test_the_wait_between_reads(kind: StreamKind, lag_ms: int, wait_s: float) -> None:
    pacing = polling_intervals(settings_of(idleTimeBetweenReadsInMillis="900"), kind)
    assert delay_s(pacing, Pace(100.0, lag_ms), 100.0, 0.5) == pytest.approx(wait_s)


@virtual
@pytest.mark.parametrize(("children", "key"), [("1", "7"), ("2", '{"id":{"S":"a"}}')])
async def test_changes_have_the_key_of_their_item_where_children_share_a_shard(children: str, key: str) -> None:
    change = record(7, 0)
    change["dynamodb"] |= {"Keys": {"id": {"S": "a"}}}
    service: Any = ScriptedService(
        GetShardIterator=[{"ShardIterator": "it"}], GetRecords=[{"Records": [change], "NextShardIterator": "next"}]
    )
    settings = settings_of(mld__childrenPerShard=children)
    streams = streams_port(service, VirtualClock(), settings, "orders", ARN)
    iterator = await streams.shard_iterator(OLD, StartingPoint(IteratorType.TRIM_HORIZON))
    page = await streams.get_records(iterator, 1000)
    (one,) = json.loads(b"".join(page.after(TRIM_HORIZON).line()))["records"]
    assert (one["partitionKey"], one["sequenceNumber"]) == (key, "7")
    assert json.loads(base64.b64decode(one["data"]))["dynamodb"]["Keys"] == {"id": {"S": "a"}}
