"""What one renewal and one checkpoint cost a process: ``python -m tests.benchmarks.path.updates ENDPOINT CALLS``.

The lease table of the daemon over the lean client and over botocore's, and boto3's own update_item. CPU of the whole
process, user and system, one call after the other as each lease waits for its own. Prints JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import boto3

from mld.aws.client_factory import client_factory, service_of
from mld.core.clock import LoopClock
from mld.core.positions import Position
from mld.leases import writes
from mld.leases.dynamodb import DynamoLeaseTable
from mld.leases.lease import Lease
from mld.properties.loader import load
from tests.benchmarks.path.records import sequence_number
from tests.support.servers import REGION

OWNER = "bench"
THREADS = 20
WARM_UP = 100


async def measured(calls: int, call: Callable[[], Awaitable[None]]) -> float:
    """CPU milliseconds of one."""
    for _ in range(WARM_UP):
        await call()
    began = time.process_time()
    for _ in range(calls):
        await call()
    return 1000 * (time.process_time() - began) / calls


async def of_client(endpoint: str, calls: int, *, lean: bool) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "app.properties"
        file.write_text(
            f"executableName=true\nstreamName=s\napplicationName=a\nregionName={REGION}\n"
            f"dynamoDBEndpoint={endpoint}\nAwsCredentialsProvider=DefaultCredentialsProvider\n"
        )
        settings = load(file).settings
    service = service_of(
        client_factory(settings),
        "dynamodb",
        label="DynamoDB",
        lean=lean,
        threads_max=THREADS,
        calls_max=THREADS,
        read_timeout_s=5.0,
        connect_timeout_s=3.0,
    )
    await service.open()
    table = DynamoLeaseTable(service, LoopClock(), table_name=f"updates-{lean}")
    await table.ensure()
    lease = Lease("shardId-000000000000", Position("TRIM_HORIZON"), owner=OWNER)
    await table.apply(writes.create(lease))
    held: Any = await table.apply(writes.take(lease, OWNER))
    number = 0

    async def renew() -> None:
        nonlocal held
        held = await table.apply(writes.renew(held))
        assert isinstance(held, Lease)

    async def checkpoint() -> None:
        nonlocal held, number
        number += 1
        held = await table.apply(writes.checkpoint(held, Position(sequence_number(number))))
        assert isinstance(held, Lease)

    client = "lean client" if lean else "botocore"
    try:
        return {
            f"renewal, {client}": await measured(calls, renew),
            f"checkpoint, {client}": await measured(calls, checkpoint),
        }
    finally:
        await service.close()


async def of_boto3(endpoint: str, calls: int) -> dict[str, float]:
    client = boto3.client("dynamodb", endpoint_url=endpoint, region_name=REGION)
    counter = int(client.get_item(TableName="updates-True", Key=_KEY)["Item"]["leaseCounter"]["N"])

    async def renew() -> None:
        nonlocal counter
        client.update_item(
            TableName="updates-True",
            Key=_KEY,
            UpdateExpression="SET #counter = :new",
            ConditionExpression="#counter = :old AND #owner = :me",
            ExpressionAttributeNames={"#counter": "leaseCounter", "#owner": "leaseOwner"},
            ExpressionAttributeValues={
                ":old": {"N": str(counter)},
                ":new": {"N": str(counter + 1)},
                ":me": {"S": OWNER},
            },
        )
        counter += 1

    return {"renewal, boto3 alone": await measured(calls, renew)}


_KEY: Any = {"leaseKey": {"S": "shardId-000000000000"}}


async def main() -> None:
    endpoint, calls = sys.argv[1], int(sys.argv[2])
    figures = await of_client(endpoint, calls, lean=True)
    figures |= await of_client(endpoint, calls // 3, lean=False)
    figures |= await of_boto3(endpoint, calls // 3)
    print(json.dumps({"cpu_ms": figures}))


if __name__ == "__main__":
    asyncio.run(main())
