"""Commands that read a shard up to its tip, over a stream that does not say where its tip is."""

from __future__ import annotations

import pytest

from mld.aws.dynamo_streams import DynamoDBStreams
from mld.core.positions import TRIM_HORIZON, InitialPosition
from mld.core.streams import IteratorType, StartingPoint
from mld.leases.lease import Lease
from mld.operating.points import Point, PointKind
from mld.operating.probes import probe
from mld.operating.stream_access import SpanReader, peek_at, span_start
from mld.retrieval.rawbody import page_of
from tests.twins.streams import VirtualClock
from tests.twins.table_streams import TableStreamsService
from tests.virtual_time import virtual

FROM_THE_OLDEST = StartingPoint(IteratorType.TRIM_HORIZON)
INITIAL = InitialPosition(TRIM_HORIZON)


class Table:
    """A table of three changes, in a shard whose pages come after empty ones."""

    def __init__(self, pages: int) -> None:
        self.clock = VirtualClock()
        self.service = TableStreamsService(self.clock)
        arn = self.service.enable()
        for number in range(3):
            self.service.put(arn, str(number), "a")
        self.service.streams.stretch_pages = pages
        self.streams = DynamoDBStreams(self.service, self.clock, stream_arn=arn, page_of=page_of)
        (shard,) = self.service.stream(arn).shards(self.clock.wall())
        self.shard_id = shard.shard_id


@pytest.mark.parametrize("pages", [0, 4])
def test_peek_shows_what_follows_an_empty_stretch_and_ends_at_the_tip(pages: int) -> None:
    @virtual
    async def look() -> None:
        table = Table(pages)
        start = span_start(Point(PointKind.TRIM_HORIZON), table.shard_id, None, INITIAL)
        shown: list[str] = []
        reader = SpanReader(table.streams, table.clock, table.shard_id, start.start)
        count = await peek_at(reader, start, 10, lambda view: shown.append(view.sequence))
        assert (count, reader.is_at_tip, len(shown)) == (3, True, 3)

    look()


@pytest.mark.parametrize("pages", [0, 4])
def test_a_walk_goes_through_an_empty_stretch_and_ends_at_the_tip(pages: int) -> None:
    @virtual
    async def walk() -> None:
        table = Table(pages)
        walking = SpanReader(table.streams, table.clock, table.shard_id, FROM_THE_OLDEST)
        page = await walking.page_with_records()
        assert page is not None and page.count == 3
        assert await walking.page_with_records() is None

    walk()


@virtual
async def test_a_probe_that_sees_an_empty_page_knows_nothing() -> None:
    table = Table(1)
    answers, refused = await probe(table.streams, [Lease(table.shard_id, TRIM_HORIZON)], INITIAL)
    assert (answers, refused) == ({}, {})
