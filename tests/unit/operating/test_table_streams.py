"""Acts on an application that reads a stream of DynamoDB: its shards have no hash keys, and rotate."""

from __future__ import annotations

from typing import Any

import pytest

from mld.aws.dynamo_streams import DynamoDBStreams
from mld.core.positions import LATEST, SHARD_END, TRIM_HORIZON
from mld.core.streams import HashRange, StreamKind
from mld.leases import writes
from mld.leases.dynamodb import DynamoLeaseTable
from mld.leases.lease import Lease
from mld.operating.application import application_with
from mld.operating.plan import ActRefusedError
from mld.operating.points import Point, PointKind
from mld.operating.resetting import Reset, resolve
from mld.retrieval.rawbody import page_of
from tests.support.fleet import TABLE, settings_of
from tests.twins.dynamo import MemoryDynamo
from tests.twins.streams import VirtualClock
from tests.twins.table_streams import TableStreamsService
from tests.virtual_time import virtual

FIVE_HOURS_S = 5 * 3600.0


class ChangesApplication:
    """A table with changes in shards of two generations, and leases of both."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.service = TableStreamsService(self.clock)
        self.arn = self.service.enable()
        self.settings = settings_of(streamName="", streamArn=self.arn)
        self.dynamo = MemoryDynamo(self.clock)
        streams = DynamoDBStreams(self.service, self.clock, stream_arn=self.arn, page_of=page_of)
        self.app = application_with(self.settings, self.dynamo.client("operator"), streams, self.clock)
        assert self.app.kind is StreamKind.DYNAMODB

    async def fill(self) -> tuple[str, str]:
        """The parent and the child."""
        for number in range(3):
            self.service.put(self.arn, str(number), "a")
        await self.clock.sleep(FIVE_HOURS_S)
        self.service.put(self.arn, "0", "b")
        shards = await self.app.shards()
        (parent,) = (shard.shard_id for shard in shards if not shard.is_open)
        (child,) = (shard.shard_id for shard in shards if shard.is_open)
        table = DynamoLeaseTable(self.dynamo.client("w1"), self.clock, table_name=TABLE)
        await table.ensure()
        keys = HashRange(0, 1)
        await table.apply(writes.create(Lease(parent, SHARD_END, children=frozenset({child}), hash_range=keys)))
        await table.apply(writes.create(Lease(child, TRIM_HORIZON, parents=frozenset({parent}), hash_range=keys)))
        return parent, child

    def places(self) -> dict[str, Any]:
        rows = self.dynamo.rows(TABLE)
        return {key: row["checkpoint"]["S"] for key, row in rows.items() if "checkpoint" in row}


async def reset(world: ChangesApplication, point: Point, shard: str | None = None) -> Reset:
    return await resolve(world.app, (await world.app.require_table()).table, point, shard)


@virtual
async def test_the_stream_is_read_again_from_its_beginning() -> None:
    world = ChangesApplication()
    parent, _ = await world.fill()
    wanted = await reset(world, Point(PointKind.TRIM_HORIZON))
    await world.app.carry_out(wanted.plan, lambda _: None, await world.app.require_table())
    assert world.places() == {parent: "TRIM_HORIZON"}, "the child's lease comes with the end of its parent"


@virtual
async def test_open_shards_are_read_from_now_on() -> None:
    world = ChangesApplication()
    _, child = await world.fill()
    assert dict((await reset(world, Point(PointKind.LATEST))).positions) == {child: LATEST}


@pytest.mark.parametrize("of_one_shard", [False, True])
@virtual
async def test_a_time_is_refused(of_one_shard: bool) -> None:
    world = ChangesApplication()
    parent, _ = await world.fill()
    with pytest.raises(ActRefusedError, match=r"cannot be read from a time on: reset to trim-horizon or latest"):
        await reset(world, Point(PointKind.TIME, time_s=1_795_422_000.0), parent if of_one_shard else None)
