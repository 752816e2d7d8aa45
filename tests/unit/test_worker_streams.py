"""Workers that consume several streams: rows, streams that come, go, and are made again; in virtual time."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections import Counter

import pytest

from mld.core.errors import StartupError
from mld.core.positions import TRIM_HORIZON
from mld.leases import writes
from mld.leases.dynamodb import DynamoLeaseTable
from mld.leases.lease import Lease
from mld.tracking.list_follower import WantedStream
from mld.tracking.list_table import ListTable
from mld.tracking.stream_list import KEY, ListedStream, TrackedList, parse
from tests.support.fleet import TABLE, settings_of
from tests.support.many import FORMER_WAIT_S, ManyFleet, in_many_fleet
from tests.twins.kinesis_model import ModelFanOut


@in_many_fleet("orders", "clicks", shard_count=2)
async def test_the_records_of_all_streams_are_delivered(world: ManyFleet) -> None:
    world.put_in("orders", 10)
    world.put_in("clicks", 10)
    world.start("w1")
    world.start("w2")
    await world.until(world.all_delivered, 60.0)
    world.check_order()


@in_many_fleet("orders", shard_count=1)
async def test_rows_have_the_form_of_several_streams(world: ManyFleet) -> None:
    world.start("w1")
    await world.until(lambda: bool(world.rows()))
    ((key, row),) = world.rows().items()
    stream = row["streamName"]["S"]
    account, name, epoch = stream.split(":")
    summary = await ModelFanOut(world.kinesis, "orders", world.clock).describe()
    assert summary.created_ms is not None
    assert (account, name, int(epoch)) == (summary.arn.split(":")[4], "orders", summary.created_ms // 1000)
    assert key == f"{stream}:shardId-000000000000"
    assert row["shardId"]["S"] == "shardId-000000000000"


@in_many_fleet("orders", "clicks")
async def test_parents_and_children_are_bare_names_and_ends_come_before_beginnings(world: ManyFleet) -> None:
    world.put_in("orders", 5)
    world.start("w1")
    await world.until(world.all_delivered)
    shard = "shardId-000000000000"
    world.kinesis.split_shard("orders", shard, 2**127, now=world.clock.wall())
    world.put_in("orders", 10)
    await world.until(world.all_delivered, 120.0)
    stream = world.stream_id("orders")
    child = world.rows()[f"{stream}:shardId-000000000001"]
    assert child["parentShardId"]["SS"] == [shard]
    parent = world.rows()[f"{stream}:{shard}"]
    assert parent["checkpoint"]["S"] == "SHARD_END"
    assert sorted(parent["childShardIds"]["SS"]) == ["shardId-000000000001", "shardId-000000000002"]
    world.check_order()


@in_many_fleet("orders")
async def test_a_new_stream_is_read_within_a_minute_of_its_line(world: ManyFleet) -> None:
    world.start("w1")
    world.start("w2")
    world.put_in("orders", 3)
    await world.until(world.all_delivered)
    world.create("clicks", 2)
    world.put_in("clicks", 6)
    world.wanted = [WantedStream("orders"), WantedStream("clicks")]
    await world.until(world.all_delivered, 60.0)


@in_many_fleet("orders")
async def test_each_worker_has_read_its_own_list_when_it_opens_a_new_stream(world: ManyFleet) -> None:
    """The list may give that stream credentials and a command of its own."""
    world.start("w1")
    world.start("w2")
    world.put_in("orders", 3)
    await world.until(world.all_delivered)
    world.create("clicks")
    world.wanted = [WantedStream("orders"), WantedStream("clicks")]
    await world.until(lambda: len(world.opened) == 4, 60.0)
    assert sorted(world.opened)[::2] == [("w1", "clicks", True), ("w2", "clicks", True)]


@in_many_fleet("orders", "clicks", shard_count=2)
async def test_a_removed_stream_is_given_back_within_a_minute_and_its_rows_stay(world: ManyFleet) -> None:
    world.start("w1")
    world.start("w2")
    world.put_in("clicks", 6)
    await world.until(world.all_delivered)
    clicks = world.stream_id("clicks")
    before = {key: row["checkpoint"] for key, row in world.rows().items() if key.startswith(clicks)}
    world.wanted = [WantedStream("orders")]

    def given_back() -> bool:
        rows = [row for key, row in world.rows().items() if key.startswith(clicks)]
        return len(rows) == len(before) and not any("leaseOwner" in row for row in rows)

    await world.until(given_back, 60.0)
    delivered = len(world.recorder.deliveries)
    world.put_in("clicks", 3)
    await world.advance(300.0)
    assert given_back(), "nobody takes them again"
    assert len(world.recorder.deliveries) == delivered
    world.wanted = [WantedStream("orders"), WantedStream("clicks")]
    await world.until(world.all_delivered, 60.0)


def test_daemons_wait_for_an_hour_before_they_delete_leases_of_former_streams() -> None:
    assert settings_of(mld__formerStreams="delete").shards.former_streams_wait_s == 3_600


@in_many_fleet("orders", "clicks", mld__formerStreams="delete")
async def test_leases_of_a_former_stream_are_deleted_after_the_wait(world: ManyFleet) -> None:
    world.start("w1")
    world.start("w2")
    await world.until(lambda: len(world.rows()) == 2)
    world.wanted = [WantedStream("orders")]
    await world.advance(FORMER_WAIT_S - 100.0)
    assert len(world.rows()) == 2
    await world.until(lambda: len(world.rows()) == 1, 300.0)
    world.wanted = [WantedStream("orders"), WantedStream("clicks")]
    await world.until(lambda: len(world.rows()) == 2, 60.0)


@in_many_fleet("orders", "clicks", mld__formerStreams="delete")
async def test_leases_that_somebody_renews_stay_and_cost_no_reads_of_their_own(world: ManyFleet) -> None:
    world.start("w1")
    await world.until(lambda: len(world.rows()) == 2)
    world.wanted = [WantedStream("orders")]
    clicks = f"{world.stream_id('clicks')}:shardId-000000000000"
    await world.until(lambda: "leaseOwner" not in world.rows()[clicks], 120.0)
    table = DynamoLeaseTable(world.dynamo.client("stranger"), world.clock, table_name=TABLE)
    lease = await table.get(clicks)
    assert lease is not None
    lease = await table.apply(writes.assign(lease, "stranger"))
    scans = []
    for _ in range(2):  # until the wait is nearly over, and long after it
        before = world.dynamo.calls.count(("w1", "Scan"))
        for _ in range(170):
            await world.advance(3.0)
            lease = await table.apply(writes.renew(lease))
        scans.append(world.dynamo.calls.count(("w1", "Scan")) - before)
    assert clicks in world.rows(), "its worker lives"
    assert scans[1] - scans[0] < 10, "the scan from which the list is kept serves the deletion, too"


@in_many_fleet("orders", "clicks", mld__formerStreams="keep")
async def test_a_kept_former_stream_is_consumed_on(world: ManyFleet) -> None:
    world.start("w1")
    await world.until(lambda: len(world.rows()) == 2)
    world.wanted = [WantedStream("orders")]
    await world.advance(120.0)
    world.put_in("clicks", 3)
    await world.until(world.all_delivered, 60.0)


@in_many_fleet("orders", "clicks")
async def test_a_stream_that_was_deleted_and_made_again_gets_leases_of_its_own(world: ManyFleet) -> None:
    world.start("w1")
    world.start("w2")
    world.put_in("orders", 3)
    world.put_in("clicks", 3)
    await world.until(world.all_delivered)
    old = world.stream_id("clicks")
    world.delete("clicks")
    await world.advance(90.0)
    assert not any(running.task.done() for running in world.running)
    world.create("clicks")
    world.put_in("clicks", 3)
    await world.until(world.all_delivered, 90.0)
    assert world.stream_id("clicks") != old


@in_many_fleet("orders")
async def test_a_worker_with_an_old_list_consumes_what_the_leader_lists(world: ManyFleet) -> None:
    world.start("w1")
    await world.until(lambda: bool(world.rows()))
    world.create("clicks", 4)
    world.own["w2"] = [WantedStream("orders")]
    world.wanted = [WantedStream("orders"), WantedStream("clicks")]
    second = world.start("w2")
    world.put_in("clicks", 20)
    await world.until(world.all_delivered, 90.0)
    await world.until(lambda: any(world.stream_id("clicks") in key for key in second.worker.held()), 120.0)


@in_many_fleet("orders", "missing")
async def test_a_stream_that_does_not_exist_concerns_itself_alone(world: ManyFleet, caplog) -> None:
    world.delete("missing")
    await world.advance(5.0)
    world.start("w1")
    world.put_in("orders", 3)
    await world.until(world.all_delivered)
    assert "stream missing: " in caplog.text
    world.create("missing")
    world.put_in("missing", 3)
    await world.until(world.all_delivered, 60.0)


@in_many_fleet("orders")
async def test_a_table_of_one_stream_is_refused_by_name(world: ManyFleet) -> None:
    world.start("w1", streamName="orders", mld__streams="")
    await world.until(lambda: "shardId-000000000000" in world.rows())
    await world.running[0].stop()
    second = world.start("w2")
    with pytest.raises(StartupError, match="into which mld restore brings its leases"):
        await second.task


@in_many_fleet("orders", "clicks")
async def test_a_stream_made_again_while_it_was_off_the_list_gets_leases_of_its_own(world: ManyFleet) -> None:
    world.start("w1")
    world.put_in("clicks", 3)
    await world.until(world.all_delivered)
    old = world.stream_id("clicks")
    world.wanted = [WantedStream("orders")]
    await world.advance(60.0)
    world.delete("clicks")
    await world.advance(5.0)
    world.create("clicks")
    world.put_in("clicks", 3)
    world.wanted = [WantedStream("orders"), WantedStream("clicks")]
    await world.until(world.all_delivered, 90.0)
    assert world.stream_id("clicks") != old


@in_many_fleet("orders", "clicks", mld__formerStreams="keep")
async def test_a_stream_made_again_is_kept_when_its_line_goes(world: ManyFleet) -> None:
    world.start("w1")
    await world.until(lambda: len(world.rows()) == 2)
    world.delete("clicks")
    await world.advance(5.0)
    world.create("clicks")
    await world.until(lambda: len(world.rows()) == 3, 90.0)
    world.wanted = [WantedStream("orders")]
    await world.advance(60.0)
    world.put_in("clicks", 3)
    await world.until(world.all_delivered, 60.0)


@in_many_fleet("orders", "clicks", mld__formerStreams="delete")
async def test_ended_shards_of_a_former_stream_are_given_back_and_deleted_too(world: ManyFleet) -> None:
    world.start("w1")
    world.put_in("clicks", 1)
    await world.until(world.all_delivered)
    world.kinesis.split_shard("clicks", "shardId-000000000000", 2**127, now=world.clock.wall())
    await world.until(lambda: len(world.rows()) == 4, 60.0)
    await world.advance(5.0)
    world.wanted = [WantedStream("orders")]
    await world.until(lambda: len(world.rows()) == 1, FORMER_WAIT_S + 120.0)


@in_many_fleet("orders", "clicks", mld__formerStreams="delete")
async def test_a_wall_clock_that_jumps_deletes_no_leases_before_the_wait(world: ManyFleet) -> None:
    world.start("w1")
    await world.until(lambda: len(world.rows()) == 2)
    world.wanted = [WantedStream("orders")]
    await world.advance(60.0)
    wall = world.clock.wall
    world.clock.wall = lambda: wall() + FORMER_WAIT_S
    await world.advance(300.0)
    assert len(world.rows()) == 2


@in_many_fleet("orders")
async def test_a_lease_assigned_before_the_list_is_read_is_found_at_once(world: ManyFleet) -> None:
    world.start("w1")
    await world.until(lambda: bool(world.rows()))
    await world.advance(10.0)
    second = world.start("w2")
    await world.advance(30.0)
    world.create("clicks", 8)
    world.wanted = [WantedStream("orders"), WantedStream("clicks")]

    def assigned() -> bool:
        return any("clicks" in key and row.get("leaseOwner") == {"S": "w2"} for key, row in world.rows().items())

    await world.until(assigned, 60.0)
    await world.until(lambda: any("clicks" in key for key in second.worker.held()), 3.0)


@in_many_fleet("orders")
async def test_a_stream_made_again_is_noticed_though_the_list_was_deleted_by_hand(world: ManyFleet) -> None:
    world.start("w1")
    world.start("w2")
    await world.until(lambda: bool(world.rows()))
    await world.advance(30.0)
    world.delete("orders")
    await world.advance(1.0)
    world.dynamo.delete_row(TABLE, KEY)
    world.create("orders")
    world.put_in("orders", 3)
    await world.until(lambda: len({row["streamName"]["S"] for row in world.rows().values()}) == 2, 60.0)
    await world.until(world.all_delivered)


LISTED = {"stream": "1:clicks:1", "label": "clicks", "arn": "arn:aws:kinesis:us-east-1:1:stream/c"}
DAMAGED_LISTS = {
    "label is a list": json.dumps([{**LISTED, "label": []}]),
    "label is missing": json.dumps([{"stream": LISTED["stream"]}]),
    "former_since_s is text": json.dumps([{**LISTED, "former_since_s": "x"}]),
    "arn is a number": json.dumps([{**LISTED, "arn": 5}]),
    "arn of nothing": json.dumps([{**LISTED, "arn": "no"}]),
    "arn of another stream": json.dumps([LISTED]),
    "created_ms is text": json.dumps([{**LISTED, "created_ms": "x"}]),
    "epoch of 5,000 digits": json.dumps([{**LISTED, "stream": "1:clicks:" + "9" * 5000}]),
    "twice the same": json.dumps([{**LISTED, "arn": "", "former_since_s": 1}] * 2),
    "half a character": json.dumps([{**LISTED, "label": "\ud800", "arn": "", "former_since_s": 1}]),
    "deep": "[" * 100_000,
    "no list": "{}",
}


@pytest.mark.parametrize("is_at_work", [True, False])
@pytest.mark.parametrize("text", DAMAGED_LISTS.values(), ids=DAMAGED_LISTS)
@in_many_fleet("orders", "clicks")
async def test_a_damaged_list_counts_as_none_and_is_mended_with_the_epochs_of_the_leases(
    world: ManyFleet, text: str, is_at_work: bool, caplog
) -> None:
    """Rows of former streams are kept, and no row is read as that of another stream."""
    first = world.start("w1")
    world.put_in("clicks", 3)
    await world.until(world.all_delivered)
    leases = {key: row["checkpoint"] for key, row in world.rows().items()}
    world.wanted = [WantedStream("orders")]
    await world.until(lambda: len(first.worker.held()) == 1, 60.0)
    if not is_at_work:
        await first.stop()
    row = world.dynamo.row(TABLE, KEY)
    world.dynamo.put_row(TABLE, {**row, "streams": {"S": text}, "version": {"N": "77"}})
    if not is_at_work:
        world.start("w2")
    await world.until(lambda: bool(parse(world.dynamo.row(TABLE, KEY)).streams), 60.0)
    mended = parse(world.dynamo.row(TABLE, KEY))
    assert {one.stream: one.former_since_s is None for one in mended.streams} == {
        world.stream_id("orders"): True,
        world.stream_id("clicks"): False,
    }
    assert {key: row["checkpoint"] for key, row in world.rows().items()} == leases
    assert [r.action for r in caplog.records if r.levelname == "WARNING"] == ["stream_list_damaged"]
    world.wanted = [WantedStream("orders"), WantedStream("clicks")]
    world.put_in("clicks", 3)
    world.put_in("orders", 3)
    await world.until(world.all_delivered, 90.0)
    assert world.rows().keys() == leases.keys()


@in_many_fleet("orders")
async def test_only_the_leader_asks_the_service_about_the_streams_of_a_new_fleet(world: ManyFleet) -> None:
    world.wanted = [WantedStream(f"s{number}") for number in range(40)]
    for one in world.wanted:
        world.create(one.label)
    for number in range(4):
        world.start(f"w{number}")
    await world.until(lambda: len(world.rows()) == 40, 60.0)
    assert world.described <= 40 + 20, "the leader: all of them, and twenty in turn"


class JavaLeader:
    """Makes the leases of streams with epochs of its own, and assigns every free one to `w1`. It knows no list."""

    def __init__(self, world: ManyFleet, *names: str) -> None:
        self.world = world
        self.names = names
        self.table = DynamoLeaseTable(world.dynamo.client("java-1"), world.clock, table_name=TABLE)
        self.assigned: Counter[str] = Counter()

    async def publish_as_a_former_leader_did(self, name: str) -> None:
        await self.table.ensure()
        arn = (await ModelFanOut(self.world.kinesis, name, self.world.clock).describe()).arn
        listed = ListedStream(f"123456789012:{name}:7", name, arn)
        await ListTable(self.world.dynamo.client("java-1"), TABLE).write(TrackedList(1, (listed,)))

    async def lead(self) -> None:
        await self.table.ensure()
        for number in itertools.count():
            version = {"S": f"00000000-0000-4000-8000-{number:012}"}
            kind = {"leaseKey": {"S": "Leader"}, "entityType": {"S": "LEADER"}}
            lock = {"ownerName": {"S": "java-1"}, "leaseDuration": {"S": "120000"}, "recordVersionNumber": version}
            self.world.dynamo.put_row(TABLE, kind | lock)
            for name in self.names:
                stream = f"123456789012:{name}:7"
                for shard in self.world.kinesis.list_shards(name, now=self.world.clock.wall()).shards:
                    key = f"{stream}:{shard.shard_id}"
                    await self.table.apply(
                        writes.create(Lease(key, TRIM_HORIZON, hash_range=shard.hash_range, stream=stream))
                    )
            for lease in (await self.table.scan()).leases:
                if lease.owner is None:
                    await self.table.apply(writes.assign(lease, "w1"))
                    self.assigned[lease.key] += 1
            await self.world.advance(1.0)


@pytest.mark.parametrize("published", [(), ("orders",)], ids=["no list", "a list of a former leader"])
@in_many_fleet("orders", "clicks", shard_count=2)
async def test_under_a_java_leader_no_stream_of_the_settings_waits_for_a_list(world: ManyFleet, published) -> None:
    java = JavaLeader(world, "orders", "clicks")
    if published:
        await java.publish_as_a_former_leader_did(*published)
    leading = asyncio.create_task(java.lead())
    await world.advance(2.0)
    world.put_in("orders", 6)
    world.put_in("clicks", 6)
    started_at = world.clock.monotonic()
    first = world.start("w1")
    await world.until(world.all_delivered, 6.0)
    await world.until(lambda: len(first.worker.held()) == 4, 6.0)
    assert world.clock.monotonic() - started_at < 6.0
    await world.advance(60.0)
    assert set(java.assigned.values()) == {1}, "none was given back"
    asked = world.described
    await world.advance(120.0)
    assert world.described == asked, "the service is not asked again and again"
    leading.cancel()


@in_many_fleet("orders", "clicks", shard_count=2)
async def test_who_leads_after_a_java_leader_lists_the_streams_as_its_leases_have_them(world: ManyFleet) -> None:
    leading = asyncio.create_task(JavaLeader(world, "orders", "clicks").lead())
    await world.advance(2.0)
    world.start("w1")
    world.put_in("clicks", 3)
    await world.until(world.all_delivered, 6.0)
    leading.cancel()
    await world.until(lambda: world.dynamo.row(TABLE, KEY) is not None, 300.0)
    assert {row["streamName"]["S"].rpartition(":")[2] for row in world.rows().values()} == {"7"}
    world.put_in("orders", 3)
    await world.until(world.all_delivered, 6.0)


@pytest.mark.parametrize("is_published", [False, True])
@in_many_fleet("orders", "clicks")
async def test_a_stream_that_only_the_java_leader_has_is_given_back(world: ManyFleet, is_published, caplog) -> None:
    world.create("views")
    java = JavaLeader(world, "orders", "clicks", "views")
    if is_published:
        await java.publish_as_a_former_leader_did("orders")
    leading = asyncio.create_task(java.lead())
    await world.advance(2.0)
    world.start("w1")
    await world.advance(90.0)
    given_back = {key for key, times in java.assigned.items() if times > 1}
    assert given_back == {"123456789012:views:7:shardId-000000000000"}
    assert "neither the list of streams nor mld.streams here has its stream" in caplog.text
    leading.cancel()
