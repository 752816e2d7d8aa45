"""The API of DynamoDB Streams over the pure model of `mld/local`: a service for the real adapter, in virtual time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from random import Random
from typing import Any, TypeVar

from mld.core.clock import Clock
from mld.core.errors import AwsError, AwsUnreachableError
from mld.local import dynamo_streams as json_api
from mld.local.change_stream import TableStream
from mld.local.item_changes import ItemChange, TableStreamKey, ViewType
from mld.local.kinesis_errors import ServiceError
from mld.local.table_streams import TableStreams

T = TypeVar("T")
ACCOUNT, REGION, TABLE = "123456789012", "us-east-1", "orders"
KEYS = [{"AttributeName": "id", "KeyType": "HASH"}]


class TableStreamsService:
    """`aws.service.RawService`. `fault_share` of the calls fail in some way; `lists_late_s`: for so long, half of the
    answers of DescribeStream leave out a shard that is new, and GetShardIterator does not know it."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.streams = TableStreams()
        self.fault_share = 0.0
        self.lists_late_s = 0.0
        self._rng = Random("faults of table streams")

    def enable(self, label: str = "2026-11-23T00:00:00.000") -> str:
        """Switch the stream of the table on; its ARN."""
        key = TableStreamKey(ACCOUNT, REGION, TABLE, label)
        self.streams.enable(key, ViewType.NEW_IMAGE, KEYS, now=self.clock.wall())
        return key.arn

    def stream(self, arn: str) -> TableStream:
        return self.streams.stream(arn, self.clock.wall())

    def put(self, arn: str, item: str, value: str) -> None:
        """A new value of an item."""
        keys = {"id": {"S": item}}
        change = ItemChange(keys, None, {**keys, "value": {"S": value}})
        self.streams.record(arn, [change], now=self.clock.wall())

    async def call(self, operation: str, params: dict[str, Any], *, timeout_s: float | None = None) -> dict[str, Any]:
        return json.loads(await self._asked(operation, params))

    async def fetch(self, operation: str, params: dict[str, Any], read: Callable[[bytes], T], **_: Any) -> T:
        return read(await self._asked(operation, params))

    async def _asked(self, operation: str, params: dict[str, Any]) -> bytes:
        await asyncio.sleep(0.01)
        if self._rng.random() < self.fault_share:
            raise self._rng.choice(
                [
                    AwsUnreachableError(operation, "no answer"),
                    AwsError(operation, "LimitExceededException", "slowly"),
                    AwsError(operation, "InternalServerError", "oops", status=500),
                    AwsError(operation, "ExpiredIteratorException", "too old"),
                ]
            )
        now = self.clock.wall()
        if operation == "GetShardIterator" and self.lists_late_s and self._is_new(params["ShardId"], now):
            raise AwsError(operation, "ResourceNotFoundException", "no such shard")
        try:
            body = json_api.dispatch(
                self.streams, operation, json.dumps(params).encode(), now, account=ACCOUNT, region=REGION
            )
        except ServiceError as error:
            raise AwsError(operation, error.code, error.message, status=error.status) from error
        return self._listed_late(body, now) if operation == "DescribeStream" and self.lists_late_s else body

    def _is_new(self, shard_id: str, now: float) -> bool:
        """Whether this answer is one that does not know the shard yet."""
        return int(shard_id.split("-")[1]) > (now - self.lists_late_s) * 1000 and self._rng.random() < 0.5

    def _listed_late(self, body: bytes, now: float) -> bytes:
        answer = json.loads(body)
        described = answer["StreamDescription"]
        described["Shards"] = [
            shard
            for shard in described["Shards"]
            if "ParentShardId" not in shard or not self._is_new(shard["ShardId"], now)
        ]
        return json.dumps(answer).encode()
