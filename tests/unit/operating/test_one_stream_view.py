"""Acts on one of several streams: they see and write the rows of that stream, and of no other."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mld.core.positions import TRIM_HORIZON, Position
from mld.leases.lease import Lease
from mld.leases.rows import new_row
from mld.operating.application import Application
from mld.operating.backup import BackupHeader, save_rows
from mld.operating.held_writes import create, remove, rewrite
from mld.operating.one_stream import in_stream, of_stream, require_form, stream_id_in, within
from mld.operating.options import Invocation
from mld.operating.plan import (
    ActPlan,
    ActRefusedError,
    Change,
    RawTable,
    raw_table,
)
from mld.operating.points import Point, PointKind
from mld.operating.resetting import resolve
from mld.operating.restoring import Saved, of_its_stream, restore_from
from mld.operating.table_access import read_table
from mld.properties.settings import StreamSetting
from mld.properties.values import StreamArn
from mld.tracking import stream_list
from mld.tracking.stream_list import ListedStream, TrackedList
from tests.support.changes import operator_on, request_for
from tests.support.fleet import TABLE, settings_of
from tests.support.many import ManyFleet, in_many_fleet

SHARD_0, SHARD_1 = "shardId-000000000000", "shardId-000000000001"
ORDERS, CLICKS = "111111111111:orders:17", "111111111111:clicks:18"


def lease(stream: str | None, shard: str = SHARD_0, at: str = "100") -> Lease:
    return Lease(shard if stream is None else f"{stream}:{shard}", Position(at), stream=stream)


def table(*leases: Lease, listed: TrackedList | None = None) -> RawTable:
    rows: list[dict[str, Any]] = [new_row(one) for one in leases]
    if listed is not None:
        rows.append({"leaseKey": {"S": stream_list.KEY}, **stream_list.values_of(listed)})
    return raw_table(rows)


def setting(name: str, arn: str | None = None) -> StreamSetting:
    found = settings_of(streamName="", mld__streams=name).streams[0]
    return replace(found, arn=None if arn is None else StreamArn.parse(arn))


def test_only_the_leases_of_the_stream_are_seen_and_by_the_shards_own_names() -> None:
    both = table(lease(ORDERS), lease(CLICKS), lease(CLICKS, SHARD_1))
    seen = within(of_stream(both, CLICKS))
    assert [one.key for one in seen.scan.leases] == [SHARD_0, SHARD_1]
    assert seen.rows == both.rows  # all of them are saved


def test_what_is_planned_is_written_to_the_rows_of_the_stream() -> None:
    new = Lease(SHARD_1, TRIM_HORIZON)
    changes = (
        Change("new", create(new, "me")),
        Change("back", rewrite(lease(None), Lease(SHARD_0, TRIM_HORIZON), "me")),
        Change("gone", remove(SHARD_0, "me")),
    )
    put, update, delete = in_stream(ActPlan("", changes), ORDERS).changes
    assert request_for(put)["Item"]["leaseKey"] == {"S": f"{ORDERS}:{SHARD_1}"}
    assert request_for(put)["Item"]["streamName"] == {"S": ORDERS}
    assert request_for(put)["Item"]["shardId"] == {"S": SHARD_1}
    assert request_for(update)["Key"] == request_for(delete)["Key"] == {"leaseKey": {"S": f"{ORDERS}:{SHARD_0}"}}
    assert [one.key for one in (put, update, delete)] == [f"{ORDERS}:{SHARD_1}", *[f"{ORDERS}:{SHARD_0}"] * 2]


def test_a_table_of_the_other_form_is_refused_with_the_remedy() -> None:
    with pytest.raises(ActRefusedError, match="mld restore --from-another"):
        require_form(table(lease(None)), is_several=True)
    with pytest.raises(ActRefusedError, match="mld restore --from-another"):
        require_form(table(lease(ORDERS)), is_several=False)
    require_form(table(lease(ORDERS)), is_several=True)
    require_form(table(lease(None)), is_several=False)


def test_the_identifier_is_that_of_the_leases() -> None:
    assert stream_id_in(table(lease(ORDERS), lease(CLICKS)), setting("orders")) == ORDERS
    with pytest.raises(ActRefusedError, match=f"it has {ORDERS}"):
        stream_id_in(table(lease(ORDERS)), setting("clicks"))


def test_of_two_incarnations_it_is_the_listed_one_or_the_named_one() -> None:
    newer = "111111111111:orders:99"
    both = (lease(ORDERS), lease(newer))
    arn = "arn:aws:kinesis:us-east-1:111111111111:stream/orders"
    listed = TrackedList(1, (ListedStream(ORDERS, "orders", arn, None, 5), ListedStream(newer, "orders", arn)))
    assert stream_id_in(table(*both, listed=listed), setting("orders")) == newer
    assert stream_id_in(table(*both), setting("orders"), ORDERS) == ORDERS
    with pytest.raises(ActRefusedError, match="whole identifier"):
        stream_id_in(table(*both), setting("orders"))


def test_an_account_in_the_arn_tells_streams_of_one_name_apart() -> None:
    other = "222222222222:orders:17"
    there = table(lease(ORDERS), lease(other))
    assert stream_id_in(there, setting("orders", "arn:aws:kinesis:us-east-1:222222222222:stream/orders")) == other


def test_a_file_gives_what_it_has_of_the_stream_as_a_table_of_one_stream_has_it() -> None:
    leases = (lease(ORDERS), lease(CLICKS))
    saved = Saved(BackupHeader("a", "t", "", "", "export"), leases, {one.key: new_row(one) for one in leases})
    for mine, keys in ((setting("clicks"), {}), (None, {"streamName": "clicks"})):
        found = of_its_stream(saved, settings_of(**keys), mine, None)
        assert found.stream == CLICKS
        assert [one.key for one in found.leases] == [SHARD_0]
        assert found.rows == {SHARD_0: new_row(lease(None))}
    with pytest.raises(ActRefusedError, match=f"has leases of {CLICKS}, {ORDERS}, and"):
        of_its_stream(saved, settings_of(streamName="x"), None, None)
    old = Saved(saved.header, (lease(None),), {SHARD_0: new_row(lease(None))})
    for mine in (setting("orders"), None):
        assert of_its_stream(old, settings_of(), mine, None) == old
        named = replace(old, header=replace(saved.header, stream="another"))
        with pytest.raises(ActRefusedError, match="the file has the leases of stream another, not of "):
            of_its_stream(named, settings_of(), mine, None)


def test_of_a_stream_that_was_made_again_a_table_of_one_gets_the_last() -> None:
    newer = "111111111111:orders:99"
    leases = (lease(newer), lease(ORDERS))
    saved = Saved(BackupHeader("a", "t", "", "", "export"), leases, {one.key: new_row(one) for one in leases})
    arn = "arn:aws:kinesis:us-east-1:111111111111:stream/orders"
    assert of_its_stream(saved, settings_of(streamName="", streamArn=arn), None, None).stream == newer
    with pytest.raises(ActRefusedError, match="names stream orders"):
        of_its_stream(saved, settings_of(streamName="", streamArn=arn.replace("1111", "2222")), None, None)


def test_of_streams_of_one_name_in_two_accounts_a_table_of_one_gets_that_of_its_arn() -> None:
    other = "222222222222:orders:99"
    leases = (lease(other), lease(ORDERS))
    saved = Saved(BackupHeader("a", "t", "", "", "export"), leases, {one.key: new_row(one) for one in leases})
    with pytest.raises(ActRefusedError, match="of several accounts: name the stream by streamArn"):
        of_its_stream(saved, settings_of(streamName="orders"), None, None)
    arn = "arn:aws:kinesis:us-east-1:111111111111:stream/orders"
    assert of_its_stream(saved, settings_of(streamName="", streamArn=arn), None, None).stream == ORDERS


# --- a fleet ----------------------------------------------------------------------------------------------------------


def application(world: ManyFleet, name: str) -> Application:
    return replace(operator_on(world, streamName=name), stream=world.stream_id(name), is_several=True)


@in_many_fleet("orders", "clicks", shard_count=2)
async def test_one_stream_is_read_again_while_the_other_goes_on(world: ManyFleet) -> None:
    world.start("w1")
    world.put_in("orders", 10)
    world.put_in("clicks", 10)
    await world.until(world.all_delivered, 60.0)
    await world.advance(15.0)
    clicks = world.stream_id("clicks")
    before = {key: row["checkpoint"] for key, row in world.rows().items() if key.startswith(clicks)}
    world.recorder.deliveries.clear()

    app = application(world, "orders")
    seen = await app.require_table()
    await app.require_nobody(seen, stop_fleet=True)
    wanted = await resolve(app, seen.table, Point(PointKind.TRIM_HORIZON), None)
    await app.carry_out(wanted.plan, lambda _: None, seen, stop_fleet=True)

    await world.until(lambda: set(world.put_to["orders"]) <= set(world.recorder.data()), 120.0)
    assert not set(world.put_to["clicks"]) & set(world.recorder.data())
    assert {key: world.rows()[key]["checkpoint"] for key in before} == before
    assert all(row["streamName"]["S"] and ":" in key for key, row in world.rows().items())
    assert world.dynamo.has_table(TABLE)


# --- leases of a table of the other form ------------------------------------------------------------------------------


@pytest.mark.parametrize("is_back", [False, True])
@in_many_fleet("orders", shard_count=2)
async def test_leases_go_into_a_table_of_the_other_form_and_the_next_worker_goes_on_there(
    world: ManyFleet, is_back: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    forms: list[dict[str, str]] = [{"streamName": "orders", "mld__streams": ""}, {"tableName": "several"}]
    old, new = reversed(forms) if is_back else forms
    worker = world.start("w1", **old)
    world.put_in("orders", 10)
    await world.until(world.all_delivered, 60.0)
    await world.advance(15.0)
    assert await worker.stop()
    before = operator_on(world, **{"streamName": "orders", "mld__streams": "", **old})
    rows = (await read_table(before.calls, before.clock)).rows
    file = save_rows("export", before.settings, rows, before.clock.wall(), tmp_path / "rows.jsonl")
    world.put_in("orders", 10)

    app = operator_on(world, **{"streamName": "orders", **new, "mld__streams": ""})
    if not is_back:
        app = replace(app, setting=setting("orders"), is_several=True)
    asked = Invocation("f", execute=True)
    code = await restore_from(app, asked, file, None, from_another=True, may_skip=False, stop_fleet=False)

    assert code == 0
    world.recorder.deliveries.clear()
    world.start("w2", **new)
    await world.until(lambda: len(world.recorder.deliveries) >= 10, 120.0)
    await world.advance(30.0)
    assert sorted(world.recorder.data()) == sorted(world.put_to["orders"][10:])
    known = world.dynamo.rows(app.settings.lease_table.name)
    leases = [key for key, row in known.items() if "checkpoint" in row]
    assert all((":" in key) is not is_back for key in leases)
    assert len(leases) == 2
