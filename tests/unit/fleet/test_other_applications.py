"""Two applications with one lease table: who lives there refuses the other, who died there does not."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import pytest

from mld.core.errors import StartupError
from mld.core.periods import RENEWALS_PER_LEASE
from mld.core.positions import TRIM_HORIZON
from mld.fleet.membership import FleetMembership
from mld.fleet.other_applications import shows_life, suspects
from mld.fleet.report import reports
from mld.fleet.report.reports import ReportRules, WorkerReport, application_on
from mld.leases.lease import Lease
from mld.local.kinesis import PutEntry
from mld.metrics.events import EventKind
from tests.support.fleet import STREAM, TABLE, Fleet, in_fleet, settings_of

V3X = {"clientVersionConfig": "CLIENT_VERSION_CONFIG_3X"}
OTHER = "orders"


def put_report(world: Fleet, worker: str, stream: str, *, age_s: float = 0.0) -> None:
    own = reports.own_report(worker, {}, world.clock.wall() - age_s, "0.2", members={"stream": stream})
    world.dynamo.put_row(TABLE, {"leaseKey": {"S": worker}, **reports.attributes(own)})


async def started(world: Fleet) -> None:
    first = world.start("a")
    await world.until(lambda: len(first.worker.held()) == 2)
    await world.advance(40.0)


@in_fleet(2, **V3X)
async def test_a_start_beside_a_living_worker_of_another_stream_is_refused(world: Fleet) -> None:
    await started(world)
    world.kinesis.create_stream(OTHER, now=world.clock.wall(), shard_count=2)
    rows = set(world.dynamo.rows(TABLE))
    other = world.start("b", streamName=OTHER)
    with pytest.raises(StartupError) as refused:
        async with asyncio.timeout(120.0):
            await other.task
    said = str(refused.value)
    assert said.startswith(f"applicationName: worker a reads stream {STREAM} with the lease table {TABLE}")
    assert "Set another applicationName (or tableName)" in said
    assert set(world.dynamo.rows(TABLE)) == rows


@in_fleet(2, **V3X)
async def test_a_dead_worker_of_another_stream_delays_a_start_and_does_not_stop_it(world: Fleet) -> None:
    await started(world)
    await world.running[0].stop()
    put_report(world, "dead", OTHER)
    second = world.start("b")
    assert await world.until(lambda: len(second.worker.held()) == 2, 90.0) <= 70.0


@in_fleet(2, **V3X)
async def test_a_report_that_is_missing_from_one_look_proves_no_death(
    world: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    await started(world)
    await world.running[0].stop()
    put_report(world, "alive", OTHER)
    second = world.start("b")
    await world.until(lambda: "watching whether one lives" in caplog.text)
    world.dynamo.delete_row(TABLE, "alive")
    await world.advance(1.5 * settings_of(**V3X).leases.duration_s / RENEWALS_PER_LEASE)
    put_report(world, "alive", OTHER)
    with pytest.raises(StartupError, match="worker alive reads stream orders"):
        async with asyncio.timeout(120.0):
            await second.task


@in_fleet(2, **V3X)
async def test_an_old_report_and_one_without_a_stream_cost_a_start_nothing(world: Fleet) -> None:
    await started(world)
    put_report(world, "gone", OTHER, age_s=61.0)
    put_report(world, "java", "")
    second = world.start("b")
    await world.until(lambda: second.worker.is_ready, 10.0)


@in_fleet(2, **V3X)
async def test_one_that_is_there_all_the_same_is_said_and_gets_nothing(world: Fleet) -> None:
    await started(world)
    one = world.running[0]
    for _ in range(4):
        put_report(world, "b", OTHER)
        await world.advance(30.0)
    assert len(one.worker.held()) == 2, "no lease is given to who reads another stream"
    assert one.metrics.worker.table.strangers == 1
    told = [event for event in one.metrics.events.take() if event.kind is EventKind.STRANGER]
    assert [(event.worker, event.text) for event in told] == [("b", f"reads stream {OTHER}")]
    await world.advance(120.0)
    assert one.metrics.worker.table.strangers == 0, "it is gone"


@in_fleet(2, **V3X)
async def test_any_number_of_forged_reports_is_told_of_in_twenty_lines(
    world: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    await started(world)
    one = world.running[0]
    for _ in range(4):
        for number in range(60):
            put_report(world, f"forged-{number}", OTHER)
        await world.advance(15.0)
    assert one.metrics.worker.table.strangers == 60
    lines = [record for record in caplog.records if getattr(record, "action", "") == "other_application"]
    told = [event for event in one.metrics.events.take() if event.kind is EventKind.STRANGER]
    assert len(lines) == len(told) == 20
    assert len(one.worker.held()) == 2
    world.put(10)
    await world.advance(10.0)
    assert sorted(world.recorder.data()) == sorted(world.put_data)


@pytest.mark.parametrize("shards", [1, 6])
@in_fleet(2, **V3X)
async def test_of_two_that_start_at_once_one_works_and_both_say_it_within_a_minute(world: Fleet, shards: int) -> None:
    """Neither finds a report of the other in the empty table, so that neither is refused."""
    world.kinesis.create_stream(OTHER, now=world.clock.wall(), shard_count=shards)
    both = one, other = world.start("a"), world.start("b", streamName=OTHER)
    world.put(10)
    world.kinesis.put_record(OTHER, PutEntry.of(b"not of clicks", "k"), now=world.clock.wall())
    await world.advance(60.0)
    assert [running.metrics.worker.table.strangers for running in both] == [1, 1]
    assert [running.task.done() for running in both] == [False, False]
    assert (len(one.worker.held()), len(other.worker.held())) == (2, 0), "who leads gives the other nothing"
    assert sorted(world.recorder.data()) == sorted(world.put_data)


# --- decisions --------------------------------------------------------------------------------------------------------


def report(worker: str, at_s: float, **told: str) -> WorkerReport:
    return reports.own_report(worker, {}, at_s, "0.2", members=told)


@pytest.mark.parametrize(
    ("ours", "theirs", "is_stranger"),
    [
        ("clicks", "orders", True),
        ("clicks", "clicks", False),
        ("clicks", "", False),  # several streams, Java, or mld before 0.2
        ("", "orders", False),
        ("us-east-1$1$t$2026-01-01T00_00_00.000", "us-east-1$1$t$2026-02-02T00_00_00.000", False),
        ("us-east-1$1$t$2026-01-01T00_00_00.000", "us-east-1$1$u$2026-01-01T00_00_00.000", True),
        ("t" * 600, "t" * 600, False),
    ],
)
def test_what_is_another_application(ours: str, theirs: str, is_stranger: bool) -> None:
    settings = replace(settings_of(streamName="any"), stream_name=ours)
    membership = FleetMembership("me", settings)
    now = time.time()
    row = {"leaseKey": {"S": "x"}, **reports.attributes(report("x", now, stream=theirs))}
    found = reports.parse_row(row, "leaseKey")
    assert membership.is_stranger(found) is is_stranger
    assert not membership.is_stranger(replace(found, worker="me")), "a former life of ours"
    assert bool(suspects([found], membership, now, ReportRules())) is is_stranger
    assert not suspects([found], membership, now + 61, ReportRules())


def test_a_stream_of_several_names_no_application() -> None:
    assert application_on("") is None


def test_life_is_a_new_report_a_heartbeat_or_a_renewal() -> None:
    before = report("x", 1000.0, stream="orders")
    lease = Lease("shardId-0", TRIM_HORIZON, owner="x", counter=4)
    assert not shows_life(before, [lease], before, [lease])
    assert shows_life(before, [lease], replace(before, updated_at_s=1030), [lease])
    marked = [replace(lease, heartbeat=f"a.{number}") for number in (1, 2)]
    assert shows_life(before, marked[:1], before, marked[1:])
    assert not shows_life(before, marked[:1], before, marked[:1])
    assert shows_life(before, [lease], before, [replace(lease, counter=3)]), "any change is one"
    assert not shows_life(before, [lease], before, [replace(lease, counter=9, owner="y")]), "that was somebody else"
