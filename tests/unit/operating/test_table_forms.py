"""`mld migrate-streams`: the plan against tables, and a table after a command that died anywhere, in virtual time."""

from __future__ import annotations

from typing import Any

import pytest

from mld.core.errors import TableError
from mld.leases import rows
from mld.operating.application import Application
from mld.operating.plan import ActRefusedError, RawTable, Row, raw_table
from mld.operating.reshaping import reshape, to_one, to_several
from mld.operating.table_forms import Reshaping, TableForm
from mld.tracking import stream_list
from mld.tracking.stream_list import ListedStream, TrackedList
from tests.support.changes import operation_of, operator_on, request_for
from tests.support.fleet import STREAM, TABLE, Fleet, in_fleet, settings_of
from tests.twins.dynamo import lost_reply, lost_request

ID = "123456789012:orders:1700000000"
ARN = "arn:aws:kinesis:us-east-1:123456789012:stream/orders"
ORDERS = ListedStream(ID, "orders", ARN, 1_700_000_000_123)
SEVERAL, ONE = Reshaping(TableForm.SEVERAL, ORDERS), Reshaping(TableForm.ONE, ORDERS)
SHARD_0, SHARD_1 = "shardId-000000000000", "shardId-000000000001"


def row(shard: str = SHARD_0, checkpoint: str = "100", *, stream: str | None = None, **more: Any) -> dict[str, Any]:
    made = {
        "leaseKey": {"S": shard if stream is None else f"{stream}:{shard}"},
        "leaseCounter": {"N": "17"},
        "ownerSwitchesSinceCheckpoint": {"N": "2"},
        "checkpoint": {"S": checkpoint},
        "checkpointSubSequenceNumber": {"N": "3" if checkpoint.isdigit() else "0"},
        "entityType": {"S": "LEASE"},
    }
    if stream is not None:
        made |= {"streamName": {"S": stream}, "shardId": {"S": shard}}
    return made | more


FULL = {
    "pendingCheckpoint": {"S": "120"},
    "pendingCheckpointSubSequenceNumber": {"N": "1"},
    "pendingCheckpointState": {"B": b"\x00state"},
    "parentShardId": {"SS": ["shardId-000000000007"]},
    "childShardIds": {"SS": ["shardId-000000000008", "shardId-000000000009"]},
    "startingHashKey": {"S": "0"},
    "endingHashKey": {"S": "340282366920938463463374607431768211455"},
    "throughputKBps": {"N": "12.5"},
    "mldPaused": {"S": "by somebody"},
    "somebodyElse": {"M": {"deep": {"L": [{"N": "1"}]}}},
}
OF_THE_HOLDER = {
    "leaseOwner": {"S": "w1"},
    "checkpointOwner": {"S": "w0"},
    "mldHeartbeat": {"S": "epoch"},
    "mldState": {"S": "idle"},
    "mldBehindAt": {"N": "1"},
    "mldBehindMs": {"N": "1"},
    "mldDelivered": {"S": "100/0"},
}


def table(*found: Row) -> RawTable:
    return raw_table(found)


def test_a_copy_has_all_but_what_is_said_of_the_holder() -> None:
    (copy,) = SEVERAL.next_step(table(row(**FULL, **OF_THE_HOLDER))).changes
    assert operation_of(copy) == "PutItem"
    assert request_for(copy)["ConditionExpression"] == "attribute_not_exists(#leaseKey)"
    assert request_for(copy)["Item"] == row(stream=ID, **FULL)


def test_the_way_back_gives_the_row_of_before() -> None:
    (copy,) = ONE.next_step(table(row(stream=ID, **FULL, **OF_THE_HOLDER))).changes
    assert request_for(copy)["Item"] == row(**FULL)


def test_a_number_is_kept_as_it_is_written() -> None:
    long = "49590338271490256608559692538361571095921575989136588898"
    (copy,) = SEVERAL.next_step(table(row(checkpoint=long, throughputKBps={"N": "1.250E+2"}))).changes
    assert request_for(copy)["Item"]["checkpoint"] == {"S": long}
    assert request_for(copy)["Item"]["throughputKBps"] == {"N": "1.250E+2"}


def test_first_all_copies_then_the_list_then_the_old_rows_go() -> None:
    old = [row(SHARD_0), row(SHARD_1)]
    new = [row(SHARD_0, stream=ID), row(SHARD_1, stream=ID)]
    listed = _list_row(TrackedList(1, (ORDERS,)))
    steps = [
        SEVERAL.next_step(table(*old)),
        SEVERAL.next_step(table(*old, new[0])),
        SEVERAL.next_step(table(*old, *new)),
        SEVERAL.next_step(table(*old, *new, listed)),
        SEVERAL.next_step(table(old[1], *new, listed)),
        SEVERAL.next_step(table(*new, listed)),
    ]
    assert [[(operation_of(one), one.key) for one in step.changes] for step in steps] == [
        [("PutItem", f"{ID}:{SHARD_0}"), ("PutItem", f"{ID}:{SHARD_1}")],
        [("PutItem", f"{ID}:{SHARD_1}")],
        [("PutItem", "mldStreams")],
        [("DeleteItem", SHARD_0), ("DeleteItem", SHARD_1)],
        [("DeleteItem", SHARD_1)],
        [],
    ]


def test_back_the_list_goes_last() -> None:
    old, new = row(stream=ID), row()
    listed = _list_row(TrackedList(4, (ORDERS,)))
    steps = [ONE.next_step(table(*found)) for found in ([old, listed], [old, new, listed], [new, listed], [new])]
    assert [[(operation_of(one), one.key) for one in step.changes] for step in steps] == [
        [("PutItem", SHARD_0)],
        [("DeleteItem", f"{ID}:{SHARD_0}")],
        [("DeleteItem", "mldStreams")],
        [],
    ]


def test_an_old_row_goes_only_as_it_was_read() -> None:
    listed = _list_row(TrackedList(1, (ORDERS,)))
    (gone,) = SEVERAL.next_step(table(row(leaseOwner={"S": "w1"}), row(stream=ID), listed)).changes
    condition, values = request_for(gone)["ConditionExpression"], request_for(gone)["ExpressionAttributeValues"]
    for name in ("leaseCounter", "checkpoint", "checkpointSubSequenceNumber", "leaseOwner"):
        assert f"#{name} = :{name}" in condition
    for name in ("checkpointOwner", "pendingCheckpoint", "streamName"):
        assert f"attribute_not_exists(#{name})" in condition
    assert values[":leaseCounter"] == {"N": "17"}


@pytest.mark.parametrize(
    ("old", "new"),
    [("100", "100"), ("100", "99"), ("100", "TRIM_HORIZON"), ("SHARD_END", "100"), ("SHARD_END", "SHARD_END")]
    + [("LATEST", "LATEST"), ("LATEST", "TRIM_HORIZON"), ("AT_TIMESTAMP", "AT_TIMESTAMP")],
)
def test_a_copy_that_is_not_after_the_old_row_counts(old: str, new: str) -> None:
    listed = _list_row(TrackedList(1, (ORDERS,)))
    step = SEVERAL.next_step(table(row(checkpoint=old), row(checkpoint=new, stream=ID), listed))
    assert [(operation_of(one), one.key) for one in step.changes] == [("DeleteItem", SHARD_0)]


@pytest.mark.parametrize(
    ("old", "new"),
    [("100", "101"), ("100", "LATEST"), ("100", "SHARD_END"), ("100", "AT_TIMESTAMP"), ("LATEST", "100")]
    + [("TRIM_HORIZON", "100"), ("TRIM_HORIZON", "LATEST"), ("AT_TIMESTAMP", "100")],
)
def test_a_new_row_that_moved_on_is_neither_overwritten_nor_trusted(old: str, new: str) -> None:
    for act in (SEVERAL.next_step, SEVERAL.whole):
        with pytest.raises(ActRefusedError, match="two rows of shard") as refused:
            act(table(row(checkpoint=old), row(checkpoint=new, stream=ID)))
        assert SHARD_0 in str(refused.value)


def test_rows_of_other_streams_stay_where_there_may_be_several() -> None:
    other = row(stream="123456789012:clicks:5")
    assert [one.key for one in SEVERAL.next_step(table(row(), other)).changes] == [f"{ID}:{SHARD_0}"]


def test_rows_of_other_streams_stand_in_the_way_back_and_are_named() -> None:
    with pytest.raises(ActRefusedError, match="123456789012:clicks:5"):
        ONE.whole(table(row(stream=ID), row(stream="123456789012:clicks:5")))


def test_rows_that_are_no_leases_are_left_alone() -> None:
    others = [
        {"leaseKey": {"S": "Leader"}, "entityType": {"S": "LEADER"}},
        {"leaseKey": {"S": "Migration3.0"}, "entityType": {"S": "CLIENT_VERSION_MIGRATION"}},
        {"leaseKey": {"S": "w1"}, "entityType": {"S": "WORKER_METRIC_STATS"}},
    ]
    assert [one.key for one in SEVERAL.next_step(table(row(), *others)).changes] == [f"{ID}:{SHARD_0}"]


def test_the_list_keeps_other_streams_and_takes_this_one_back() -> None:
    clicks = ListedStream("123456789012:clicks:5", "clicks", "arn:aws:kinesis:us-east-1:123456789012:stream/clicks")
    former = ListedStream(ID, "orders", ARN, None, former_since_s=7)
    before = _list_row(TrackedList(4, (clicks, former)))
    (write,) = SEVERAL.next_step(table(row(), row(stream=ID), before)).changes
    after = stream_list.parse(request_for(write)["Item"])
    assert after == TrackedList(5, (clicks, ORDERS))
    assert request_for(write)["ExpressionAttributeValues"] == {f":{name}": before[name] for name in stream_list.FIELDS}


def test_the_way_back_says_which_listed_streams_are_forgotten() -> None:
    clicks = ListedStream("123456789012:clicks:5", "clicks", "arn:aws:kinesis:us-east-1:123456789012:stream/clicks")
    plan = ONE.whole(table(row(stream=ID), _list_row(TrackedList(4, (clicks, ORDERS)))))
    assert plan.notes == ("stream clicks is listed, too, has no leases, and is forgotten",)


def test_a_key_with_a_stream_that_the_row_does_not_name_is_refused() -> None:
    strange = row() | {"leaseKey": {"S": f"{ID}:{SHARD_0}"}}
    with pytest.raises(ActRefusedError, match="repair it"):
        SEVERAL.whole(table(strange))


def test_a_row_that_moves_meanwhile_ends_it() -> None:
    first = SEVERAL.sources(table(row()))
    with pytest.raises(ActRefusedError, match="moved meanwhile"):
        SEVERAL.require_still(first, table(row(leaseCounter={"N": "18"})))
    with pytest.raises(ActRefusedError, match="came meanwhile"):
        SEVERAL.require_still(first, table(row(), row(SHARD_1)))


# --- a command that dies ----------------------------------------------------------------------------------------------


async def _reshape(app: Application, form: TableForm) -> bool:
    seen = await app.require_table(any_form=True)
    wanted = await (
        to_one(app, seen.table, settings_of()) if form is TableForm.ONE else to_several(app, seen.table, STREAM, None)
    )
    return wanted is None or await reshape(app, wanted, seen.table, lambda _: None)


async def _stopped(world: Fleet) -> dict[str, Any]:
    """The rows of an application with shards of two generations, whose worker has stopped."""
    worker = world.start("w1")
    world.put(30)
    await world.until(world.all_delivered)
    world.split(SHARD_0)
    world.put(30)
    await world.until(world.all_delivered, 200)
    await world.advance(15)
    await worker.stop()
    return world.dynamo.rows(TABLE)


def _leases(world: Fleet) -> dict[str, Any]:
    return {key: row for key, row in world.dynamo.rows(TABLE).items() if rows.is_lease(row)}


def _plant(world: Fleet, wanted: dict[str, Any]) -> None:
    for key in set(world.dynamo.rows(TABLE)) - set(wanted):
        world.dynamo.delete_row(TABLE, key)
    for one in wanted.values():
        world.dynamo.put_row(TABLE, one)


@pytest.mark.parametrize("loss", [lost_request, lost_reply])
@pytest.mark.parametrize("form", list(TableForm))
@in_fleet(2)
async def test_wherever_it_dies_the_same_command_again_makes_the_same_table(
    world: Fleet, form: TableForm, loss: Any
) -> None:
    before = await _stopped(world)
    if form is TableForm.ONE:
        assert await _reshape(operator_on(world), TableForm.SEVERAL)
        before = world.dynamo.rows(TABLE)
    assert await _reshape(operator_on(world), form)
    wanted = world.dynamo.rows(TABLE)
    writes = 2 * len([one for one in before.values() if rows.is_lease(one)]) + 1

    for survived in range(writes + 1):
        _plant(world, before)
        sent = 0

        def dies(sender: str, operation: str, _: Any, last: int = survived) -> Any:
            nonlocal sent
            if sender != "operator":
                return None
            sent += operation in ("PutItem", "DeleteItem")
            # The request in which it dies may be applied or not; nothing follows it.
            return None if sent <= last else loss() if sent == last + 1 else lost_request()

        world.dynamo.faults = dies
        with pytest.raises(TableError):
            assert await _reshape(operator_on(world), form)
            raise TableError("the last one of all writes has no fault")
        world.dynamo.faults = None
        mixed = _leases(world)
        for key, one in before.items():
            if rows.is_lease(one):
                shard = key.rpartition(":")[2]
                places = {row["checkpoint"]["S"] for name, row in mixed.items() if name.rpartition(":")[2] == shard}
                assert places == {one["checkpoint"]["S"]}, f"{shard} after {survived} writes"

        assert await _reshape(operator_on(world, "again"), form)
        assert world.dynamo.rows(TABLE) == wanted


@in_fleet(2)
async def test_there_and_back_is_the_table_of_before(world: Fleet) -> None:
    await _stopped(world)
    before = _leases(world)
    assert await _reshape(operator_on(world), TableForm.SEVERAL)
    assert all(key.endswith(row["shardId"]["S"]) and ":" in key for key, row in _leases(world).items())
    assert await _reshape(operator_on(world), TableForm.ONE)
    told = {"leaseOwner", *rows.STATUS}
    assert _leases(world) == {
        key: {name: value for name, value in row.items() if name not in told} for key, row in before.items()
    }
    assert stream_list.KEY not in world.dynamo.rows(TABLE)


@in_fleet(2)
async def test_a_living_worker_stands_in_the_way(world: Fleet) -> None:
    world.start("w1")
    world.put(10)
    await world.until(world.all_delivered)
    app = operator_on(world)
    with pytest.raises(ActRefusedError, match="w1"):
        await app.require_no_workers(await app.require_table(), "stop them first")


@pytest.mark.parametrize(
    "mode",
    [
        "CLIENT_VERSION_CONFIG_3X",
        pytest.param("CLIENT_VERSION_CONFIG_COMPATIBLE_WITH_2X", marks=pytest.mark.full),
    ],
)
@pytest.mark.parametrize(
    "ahead_s", [0.05, *(pytest.param(one, marks=pytest.mark.full) for one in (0.0, 0.3, 0.8, 2.0))]
)
@in_fleet(2)
async def test_a_worker_that_starts_at_the_same_time_keeps_its_rows_or_does_not_start(
    world: Fleet, ahead_s: float, mode: str
) -> None:
    """It has looked at the table of before, perhaps: without its rows it would begin at LATEST, and skip records."""
    before = {key: one["checkpoint"]["S"] for key, one in (await _stopped(world)).items() if rows.is_lease(one)}
    worker = world.start("w2", initialPositionInStream="LATEST", clientVersionConfig=mode)
    await world.advance(ahead_s)
    with pytest.raises(ActRefusedError, match="meanwhile"):
        await _reshape(operator_on(world), TableForm.SEVERAL)
    assert {key: one["checkpoint"]["S"] for key, one in _leases(world).items() if ":" not in key} == before
    await worker.crash()
    await world.advance(60.0)
    assert await _reshape(operator_on(world), TableForm.SEVERAL)
    assert {key.rpartition(":")[2]: one["checkpoint"]["S"] for key, one in _leases(world).items()} == before


@in_fleet(2)
async def test_rows_of_another_stream_are_not_taken_for_those_of_this_one(world: Fleet) -> None:
    await _stopped(world)
    for row_ in list(_leases(world).values()):
        world.dynamo.put_row(TABLE, row_ | {"checkpoint": {"S": "1"}})
    with pytest.raises(ActRefusedError, match="check streamName"):
        await _reshape(operator_on(world), TableForm.SEVERAL)


def _list_row(streams: TrackedList) -> dict[str, Any]:
    return {"leaseKey": {"S": stream_list.KEY}, **stream_list.values_of(streams)}
