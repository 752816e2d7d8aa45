"""`mld reset` on the stream of a DynamoDB table, whose shards have no hash keys and no times to be read from."""

from __future__ import annotations

import pytest

from mld.core.positions import LATEST, TRIM_HORIZON, Position
from mld.core.streams import HashRange, Shard, ShardFilter, ShardFilterType, ShardsPage, StreamKind
from mld.operating.application import Application, application_with
from mld.operating.plan import ActRefusedError
from mld.operating.points import Point, PointKind
from mld.operating.resetting import resolve
from tests.support.fleet import settings_of
from tests.twins.dynamo import MemoryDynamo
from tests.twins.streams import MemoryStreams
from tests.virtual_time import virtual

ARN = "arn:aws:dynamodb:us-east-1:123456789012:table/orders/stream/2026-11-23T07:56:39.640"
KEYS = HashRange(0, 1)
ENDED = Shard("shardId-00000001795422986941-aaaaaaaa", KEYS, "100", "200")
OPEN = [Shard(f"shardId-00000001795423135644-{letter * 8}", KEYS, "300", None, ENDED.shard_id) for letter in "bc"]


class FamilyOfShards(MemoryStreams):
    """A parent that has ended, and its two children."""

    async def list_shards(self, shard_filter: ShardFilter | None, next_token: str | None) -> ShardsPage:
        newest = shard_filter is not None and shard_filter.type is ShardFilterType.AT_LATEST
        return ShardsPage(tuple(OPEN if newest else [ENDED, *OPEN]))


def application() -> Application:
    streams = FamilyOfShards(ENDED.shard_id, *(shard.shard_id for shard in OPEN))
    settings = settings_of(streamName="", streamArn=ARN)
    return application_with(settings, MemoryDynamo(streams.clock), streams, streams.clock)


async def positions_at(point: Point, shard: str | None = None) -> dict[str, Position]:
    app = application()
    assert app.kind is StreamKind.DYNAMODB
    await app.leases.ensure()
    seen = await app.look()
    return dict((await resolve(app, seen.table, point, shard)).positions)


@virtual
async def test_the_oldest_shards_are_read_from_the_beginning() -> None:
    assert await positions_at(Point(PointKind.TRIM_HORIZON)) == {ENDED.shard_id: TRIM_HORIZON}


@virtual
async def test_open_shards_are_read_from_now_on() -> None:
    assert await positions_at(Point(PointKind.LATEST)) == {shard.shard_id: LATEST for shard in OPEN}


@pytest.mark.parametrize("shard", [None, ENDED.shard_id])
@virtual
async def test_a_time_is_refused(shard: str | None) -> None:
    with pytest.raises(ActRefusedError, match=r"cannot be read from a time on: reset to trim-horizon or latest"):
        await positions_at(Point(PointKind.TIME, time_s=1_795_422_000.0), shard)
