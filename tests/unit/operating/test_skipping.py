"""What is skipped, and what is refused to be."""

from __future__ import annotations

import base64
import json

import pytest

from mld.core.errors import MldError
from mld.core.positions import AT_TIMESTAMP, LATEST, SHARD_END, SUB_MAX, TRIM_HORIZON, InitialPosition, Position
from mld.core.streams import HashRange
from mld.leases.lease import Lease
from mld.operating.application import Application, application_with
from mld.operating.plan import ActRefusedError
from mld.operating.skipping import (
    Passed,
    SkipRange,
    parse_past,
    pass_records,
    records_at,
    saved_line,
)
from mld.protocol.codec import FramedRecord
from tests.support.fleet import settings_of
from tests.support.kpl import User, aggregate
from tests.twins.dynamo import MemoryDynamo
from tests.twins.streams import MemoryStreams
from tests.virtual_time import virtual

SHARD = "shard-0"
BEGINNING = InitialPosition(TRIM_HORIZON)


def application(streams: MemoryStreams) -> Application:
    return application_with(settings_of(), MemoryDynamo(streams.clock), streams, streams.clock)


async def passed_of(
    streams: MemoryStreams, wanted: SkipRange, checkpoint: Position = TRIM_HORIZON, **more: HashRange
) -> tuple[Passed, list[FramedRecord]]:
    kept: list[FramedRecord] = []
    lease = Lease(SHARD, checkpoint, hash_range=more.get("keys"))
    return await pass_records(application(streams), lease, wanted, BEGINNING, kept.append), kept


def test_a_number_with_a_slash_names_a_user_record():
    assert parse_past("12/3") == SkipRange(past=Position("12", 3), names_user_record=True)
    assert parse_past("12/0") == SkipRange(past=Position("12", 0), names_user_record=True)
    assert parse_past("12") == SkipRange(past=Position("12", SUB_MAX))


@pytest.mark.parametrize("text", ["", "x", "1/", "-1", "1/99999999999999999999", "1" * 130, "LATEST"])
def test_what_is_no_sequence_number_is_refused(text: str) -> None:
    with pytest.raises(ActRefusedError, match="is no sequence number"):
        parse_past(text)


@virtual
async def test_records_are_counted_as_the_child_gets_them() -> None:
    streams = MemoryStreams()
    users = [User("key", bytes([number])) for number in range(3)]
    (first,) = streams.put()
    (packed,) = streams.put(data=aggregate(users))
    (last,) = streams.put()

    assert (await passed_of(streams, SkipRange(count=3)))[0] == Passed(3, Position(first), Position(packed, 1))
    after = Position(packed, 1)
    assert (await passed_of(streams, SkipRange(count=2), after))[0] == Passed(2, Position(packed, 2), Position(last))
    assert (await passed_of(streams, parse_past(packed)))[0] == Passed(4, Position(first), Position(packed, 2))
    assert (await passed_of(streams, parse_past(f"{packed}/0")))[0].last == Position(packed, 0)


@virtual
async def test_aggregates_of_another_shard_are_not_counted() -> None:
    streams = MemoryStreams()
    streams.put(data=aggregate([User("key", b"x", explicit_hash_key="5")]))
    (plain,) = streams.put()
    passed, kept = await passed_of(streams, SkipRange(count=1), keys=HashRange(10, 20))
    assert passed == Passed(1, Position(plain), Position(plain))
    assert len(kept) == 1


@virtual
async def test_many_pages_are_read_and_no_record_more_is_kept() -> None:
    streams = MemoryStreams()
    numbers = streams.put(2_500)
    passed, kept = await passed_of(streams, SkipRange(count=2_400))
    assert passed.last == Position(numbers[2_399])
    assert [record.sequence for record in kept] == numbers[:2_400]


@virtual
async def test_one_record_is_found_wherever_the_checkpoint_is() -> None:
    streams = MemoryStreams()
    numbers = streams.put(5)
    (packed,) = streams.put(data=aggregate([User("key", bytes([number])) for number in range(3)]))
    lease = Lease(SHARD, TRIM_HORIZON)

    async def found(text: str) -> list[tuple[str, int]]:
        records = await records_at(application(streams), lease, parse_past(text))
        return [(record.sequence, record.sub) for record in records]

    assert await found(numbers[3]) == [(numbers[3], 0)]
    assert await found(packed) == [(packed, 0), (packed, 1), (packed, 2)]
    assert await found(f"{packed}/1") == [(packed, 1)]
    for absent in (f"{packed}/3", str(int(numbers[3]) + 1)):
        with pytest.raises(MldError, match=r"has no record|has no such place"):
            await found(absent)


@pytest.mark.parametrize(
    ("checkpoint", "wanted", "said"),
    [
        (SHARD_END, SkipRange(count=1), "is read to its end"),
        (LATEST, SkipRange(count=1), "nothing was checkpointed yet"),
        (AT_TIMESTAMP, SkipRange(count=1), "nothing was checkpointed yet"),
        (Position("9" * 56), parse_past("8" * 56), "which is not before up to 8888"),
        (TRIM_HORIZON, SkipRange(count=4), "has 3 records after its checkpoint TRIM_HORIZON, not 4"),
        (TRIM_HORIZON, parse_past("9" * 56), "has no record 9999"),
    ],
)
@virtual
async def test_what_is_not_exactly_there_is_refused(checkpoint: Position, wanted: SkipRange, said: str) -> None:
    streams = MemoryStreams()
    streams.put(3)
    with pytest.raises(ActRefusedError, match=said):
        await passed_of(streams, wanted, checkpoint)


@virtual
async def test_a_user_record_that_the_aggregate_does_not_have_is_refused() -> None:
    streams = MemoryStreams()
    (packed,) = streams.put(data=aggregate([User("key", b"x")] * 3))
    with pytest.raises(ActRefusedError, match="has no record"):
        await passed_of(streams, parse_past(f"{packed}/3"))


@virtual
async def test_a_line_of_the_file_is_the_record_as_the_child_gets_it() -> None:
    streams = MemoryStreams()
    (number,) = streams.put(data=b"\x00\xff")
    _, (record,) = await passed_of(streams, SkipRange(count=1))
    value = json.loads(saved_line(Lease(SHARD, TRIM_HORIZON), record))
    assert base64.b64decode(value.pop("data")) == b"\x00\xff"
    assert value == {
        "shardId": SHARD,
        "sequenceNumber": number,
        "subSequenceNumber": 0,
        "partitionKey": "key",
        "approximateArrivalTimestamp": streams.shards[SHARD].records[0].approximate_arrival_ms,
    }
