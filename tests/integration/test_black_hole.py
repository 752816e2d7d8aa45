"""Connections that lead nowhere, by the dozen: the leases of a worker are renewed on new ones in time."""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import AsyncIterator
from random import Random

import pytest
from botocore.credentials import Credentials

from mld.aws.client import BotoService
from mld.aws.service_factory import AwsService
from mld.aws.service_time import ServiceTime
from mld.aws.table_calls import ANSWER_S_MAX
from mld.aws.wire.client import WireService
from mld.core.clock import LoopClock
from mld.core.positions import TRIM_HORIZON
from mld.leases import writes
from mld.leases.dynamodb import DynamoLeaseTable
from mld.leases.keeper import LeaseKeeper
from mld.leases.lease import Lease
from tests.support.blackhole import BlackHole
from tests.support.servers import ACCOUNT, EmbeddedAws, make_client
from tests.support.settings import rules

pytestmark = pytest.mark.full

LEASE_S = 10.0
CONNECTIONS = 20
LEASES = [f"shardId-{number:012d}" for number in range(4)]
PATIENCE_S = 90.0


@pytest.fixture
async def service(aws: EmbeddedAws, hole: BlackHole, request: pytest.FixtureRequest) -> AsyncIterator[AwsService]:
    client = make_client("dynamodb", hole.endpoint, timeout_s=ANSWER_S_MAX)
    plain = BotoService(lambda: client, threads_max=CONNECTIONS, name="dynamodb")
    made: AwsService = plain
    if request.param == "lean":
        made = WireService(
            plain,
            credentials=lambda: Credentials(ACCOUNT, "local"),
            ca_bundle=lambda: None,
            threads_max=CONNECTIONS,
            calls_max=CONNECTIONS,
            name="dynamodb",
            read_timeout_s=ANSWER_S_MAX,
            connect_timeout_s=ANSWER_S_MAX,
            service_time=ServiceTime(),
        )
    await made.open()
    yield made
    await made.close()


@pytest.fixture
def hole(aws: EmbeddedAws) -> BlackHole:
    return BlackHole(aws.endpoint)


@pytest.mark.parametrize("service", ["lean", "botocore"], indirect=True)
async def test_no_lease_is_lost_when_all_connections_are_forgotten(service: AwsService, hole: BlackHole) -> None:
    """Many more connections are kept than leases held, so that retries could draw one dead connection after another."""
    name = f"hole-{os.getpid()}-{type(service).__name__}"
    table = DynamoLeaseTable(service, LoopClock(), table_name=name)
    with hole:
        await table.ensure()
        for key in LEASES:
            await table.apply(writes.create(Lease(key, TRIM_HORIZON, owner="w")))
        while hole.connections < CONNECTIONS / 2:
            await asyncio.gather(*[table.get(LEASES[0]) for _ in range(5 * CONNECTIONS)])
        changes: list[None] = []
        keeper = LeaseKeeper(
            table,
            LoopClock(),
            Random(1),
            worker_id="w",
            settings=rules(duration_s=LEASE_S).leases,
            new_token=lambda: str(uuid.uuid4()),
            on_change=lambda: changes.append(None),
        )
        await keeper.resumer.reacquire((await table.scan()).leases)
        held = keeper.held()
        assert set(held) == set(LEASES)
        del changes[:]
        running = asyncio.create_task(keeper.run())
        try:
            async with asyncio.timeout(PATIENCE_S):
                assert hole.forget() >= CONNECTIONS / 2
                forgotten_at = {key: lease.lease.counter for key, lease in held.items()}
                # Each lease is renewed twice more, so that its first renewal after the loss was not the last.
                while any(keeper.held()[key].lease.counter < forgotten_at[key] + 2 for key in LEASES):
                    await asyncio.sleep(0.01)
        finally:
            running.cancel()
            await asyncio.wait({running})
    assert hole.swallowed, "no call met a dead connection"
    assert not changes, "a lease was lost, if only for a moment"
