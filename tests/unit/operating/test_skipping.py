"""Which record is left out, what is saved of it, and what is refused."""

from __future__ import annotations

import base64
import json

import pytest

from mld.core.errors import MldError
from mld.core.positions import LATEST, TRIM_HORIZON, Position
from mld.core.streams import HashRange
from mld.leases.lease import Lease
from mld.operating.application import Application, application_with
from mld.operating.leaving_out import Unwanted, parse_record, records_after, records_at, saved_line
from mld.operating.plan import ActRefusedError
from tests.support.fleet import settings_of
from tests.support.kpl import User, aggregate
from tests.twins.dynamo import MemoryDynamo
from tests.twins.streams import MemoryStreams
from tests.virtual_time import virtual

SHARD = "shard-0"


def application(streams: MemoryStreams) -> Application:
    return application_with(settings_of(), MemoryDynamo(streams.clock), streams, streams.clock)


def test_a_number_with_a_slash_names_a_user_record():
    assert parse_record("12/03") == "12/3"
    assert parse_record("12/0") == "12/0"
    assert parse_record(" 12 ") == "12"


@pytest.mark.parametrize("text", ["", "x", "1/", "-1", "1/99999999999999999999", "1" * 130, "LATEST"])
def test_what_is_no_sequence_number_is_refused(text: str) -> None:
    with pytest.raises(ActRefusedError, match="is no sequence number"):
        parse_record(text)


@virtual
async def test_one_record_is_found_wherever_the_checkpoint_is() -> None:
    streams = MemoryStreams()
    numbers = streams.put(5)
    (packed,) = streams.put(data=aggregate([User("key", bytes([number])) for number in range(3)]))
    lease = Lease(SHARD, TRIM_HORIZON)

    async def found(text: str) -> list[tuple[str, int]]:
        records = await records_at(application(streams), lease, parse_record(text))
        return [(record.sequence, record.sub) for record in records]

    assert await found(numbers[3]) == [(numbers[3], 0)]
    assert await found(packed) == [(packed, 0), (packed, 1), (packed, 2)]
    assert await found(f"{packed}/1") == [(packed, 1)]
    for absent in (f"{packed}/3", str(int(numbers[3]) + 1)):
        with pytest.raises(MldError, match=r"has no record|has no such place"):
            await found(absent)


@virtual
async def test_a_record_of_another_shard_in_an_aggregate_is_not_there() -> None:
    streams = MemoryStreams()
    (packed,) = streams.put(data=aggregate([User("key", b"x", explicit_hash_key="5")]))
    lease = Lease(SHARD, TRIM_HORIZON, hash_range=HashRange(10, 20))
    with pytest.raises(ActRefusedError, match="has no record"):
        await records_at(application(streams), lease, packed)


@virtual
async def test_records_after_the_checkpoint_are_named_one_by_one_and_whole_aggregates_at_once() -> None:
    streams = MemoryStreams()
    numbers = streams.put(3)
    (packed,) = streams.put(data=aggregate([User("key", bytes([number])) for number in range(3)]))
    (last,) = streams.put(1)
    app, lease = application(streams), Lease(SHARD, Position(numbers[0]))

    async def marks(**meant: object) -> list[str]:
        found, marked = await records_after(app, lease, Unwanted(**meant))  # type: ignore[arg-type]
        assert len(found) == len(marked)
        return list(dict.fromkeys(marked))

    assert await marks(count=1) == [numbers[1]]
    assert await marks(count=4) == [*numbers[1:], f"{packed}/0", f"{packed}/1"]
    assert await marks(count=6) == await marks(past=last) == [*numbers[1:], packed, last]
    assert await marks(past=packed) == [*numbers[1:], packed]
    assert await marks(past=f"{packed}/0") == [*numbers[1:], f"{packed}/0"]
    absent = str(int(last) + 1)
    for meant, why in (
        ({"count": 7}, "has 6 records, and not 7, after its checkpoint"),
        ({"past": numbers[0]}, f"has no record {numbers[0]} after its checkpoint"),
        ({"past": absent}, f"has no record {absent} after"),
        ({"past": f"{packed}/3"}, "has no record"),
    ):
        with pytest.raises(ActRefusedError, match=why):
            await marks(**meant)
    with pytest.raises(ActRefusedError, match="nothing was checkpointed yet"):
        await records_after(app, Lease(SHARD, LATEST), Unwanted(count=1))


@virtual
async def test_a_line_of_the_file_is_the_record_as_the_child_gets_it() -> None:
    streams = MemoryStreams()
    (number,) = streams.put(data=b"\x00\xff")
    (record,) = await records_at(application(streams), Lease(SHARD, TRIM_HORIZON), number)
    value = json.loads(saved_line(Lease(SHARD, TRIM_HORIZON), record))
    assert base64.b64decode(value.pop("data")) == b"\x00\xff"
    assert value == {
        "shardId": SHARD,
        "sequenceNumber": number,
        "subSequenceNumber": 0,
        "partitionKey": "key",
        "approximateArrivalTimestamp": streams.shards[SHARD].records[0].approximate_arrival_ms,
    }
