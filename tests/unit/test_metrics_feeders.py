"""Every metric has a feeder: small fleets live through what can happen to them, and each published name gets a value.

The stories run once, in virtual time; what all workers tell is looked at every second of it. Each metric of the
catalogue must have been above zero at some time, and each of KCL's names must have been sent.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mld.core.clock import Clock
from mld.core.disks import DiskPlace, DiskRoom
from mld.core.errors import AwsError, IteratorExpiredError, StreamThrottledError
from mld.core.steps import finish
from mld.daemon.reload import LogOptions, Reloader, reload_worker
from mld.daemon.systemd import ServiceManager
from mld.fleet.report.platform import LoadUnreadableError
from mld.local.kinesis import PutEntry
from mld.logging.logs import QUEUED_BYTES_MAX, QueuedStream
from mld.metrics.datums import ALL_DIMENSIONS, OPERATION, Wanted, take_datums
from mld.metrics.declaring import Instant, JavaMetric
from mld.metrics.identity import Identity
from mld.metrics.instruments import SpreadValue
from mld.metrics.operations import (
    ShardEndCounts,
    ShardSyncCounts,
    TableMigrationCounts,
    VersionMigrationCounts,
)
from mld.metrics.published import JAVA_METRICS, OF_SHARD, OF_WORKER
from mld.metrics.reach import TableReach
from mld.metrics.registry import Metrics
from mld.metrics.spark_figures import SparkFigures
from mld.properties.loader import load
from mld.properties.scrubber import Scrubber
from mld.properties.values import MetricsLevel, SchemaMode
from mld.schemas.preparer import SchemaPreparer
from mld.schemas.registry import SchemaRegistry
from mld.serving.daemon_status import DaemonStatus
from mld.serving.disks import DiskWatcher
from mld.tracking.list_follower import WantedStream
from tests.support.fleet import STREAM, TABLE, Fleet, Running, fleet
from tests.support.kpl import User, aggregate, sealed
from tests.support.many import FORMER_WAIT_S, many_fleet
from tests.support.metrics_page import CATALOGUE
from tests.twins.children import MemoryChild, Recorder
from tests.twins.decoding import decode_here
from tests.twins.dynamo import Fault, MemoryDynamo, lost_request, throttled
from tests.twins.streams import VirtualClock
from tests.unit.properties.conftest import MINIMUM
from tests.virtual_time import run_virtual

SHARD_0, SHARD_1, SHARD_2 = (f"shardId-{number:012d}" for number in range(3))
V3X = {"clientVersionConfig": "CLIENT_VERSION_CONFIG_3X"}
V2X = {"clientVersionConfig": "CLIENT_VERSION_CONFIG_COMPATIBLE_WITH_2X"}
EVERYTHING = Wanted(MetricsLevel.DETAILED, frozenset({ALL_DIMENSIONS}), worker="w", stream="s")
ME = Identity("app", STREAM, "w", "0")
LOOK_EVERY_S = 1.0

NEVER_CREATED_THERE = "the children of an ended shard start at TRIM_HORIZON, and no lease is born anywhere else"
NOT_FED: dict[tuple[str, str], str] = {
    **{
        (operation, f"CreateLease_{kind}.Success"): NEVER_CREATED_THERE
        for operation, kinds in {
            ShardEndCounts.OPERATION: ("LATEST", "AT_TIMESTAMP", "SHARD_END", "SEQUENCE_NUMBER"),
            ShardSyncCounts.OPERATION: ("SHARD_END", "SEQUENCE_NUMBER"),
        }.items()
        for kind in kinds
    },
}
"""KCL's names that mld knows and never has a value for, with the reason."""


class Seen:
    """What the workers of all stories have told."""

    def __init__(self) -> None:
        self.ours: set[str] = set()
        self.java: set[tuple[str, str]] = set()
        self.tallies: dict[str, set[str]] = {}

    def look(self, running: Running, world: Fleet) -> None:
        at = Instant(world.clock.monotonic(), world.clock.wall())
        owners = [(metric, part) for metric in OF_SHARD for part in running.metrics.shards.values()]
        for metric, owner in (*owners, *((metric, running.metrics) for metric in OF_WORKER)):
            series = [(labels, value) for labels, value in metric.series(metric.read(owner, at)) if _is_told(value)]
            if series:
                self.ours.add(metric.name)
            if set(metric.labels) - {"shard"}:
                self.tallies.setdefault(metric.name, set()).update(labels[-1] for labels, _ in series)
        for datum in finish(take_datums(running.metrics, EVERYTHING)):
            self.java.add((dict(datum.dimensions)[OPERATION], datum.name))


def _is_told(value: object) -> bool:
    if isinstance(value, SpreadValue):
        return value.count > 0
    return isinstance(value, int | float) and value > 0


def status_of(metrics: Metrics, clock: Clock) -> DaemonStatus:
    """The status of a daemon with these metrics, which only samples."""
    return DaemonStatus(
        identity=ME,
        metrics=metrics,
        reader=None,  # type: ignore[arg-type]  # nobody looks at the tables
        clock=clock,
        reach=TableReach(TABLE, 10.0, clock.monotonic()),
        mode=str,
        is_ready=bool,
        spark_figures=lambda: SparkFigures(0.0, 1.0, 0.0, 0.0, 2, 3, 4, 5),
    )


@asynccontextmanager
async def watched(seen: Seen, shards: int = 1, **keys: str):
    async with fleet(shards, **keys) as world:
        world.counts_requests = True
        world.dynamo = MemoryDynamo(world.clock, priced=True)

        async def watch() -> None:
            while True:
                for running in world.running:
                    seen.look(running, world)
                await world.advance(LOOK_EVERY_S)

        watching = asyncio.create_task(watch())
        try:
            yield world
            for running in world.running:
                seen.look(running, world)
        finally:
            watching.cancel()


@contextmanager
def faulty(world: Fleet, operation: str, fault: Callable[[str], Any] = lost_request, key: str = "") -> Iterator[None]:
    """Requests of this operation to DynamoDB fail within; with `key` those for rows whose key begins so."""

    def choose(_sender: str, what: str, params: Any) -> Any:
        (value,) = params.get("Key", {"": {"S": ""}}).values()
        return fault(what) if what == operation and value["S"].startswith(key) else None

    before, world.dynamo.faults = world.dynamo.faults, choose
    try:
        yield
    finally:
        world.dynamo.faults = before


class Moody(Recorder):
    """Well-behaved unless told: `mood` exit, hang, lie or slow."""

    mood = ""

    async def act(self, child: MemoryChild, message: dict[str, Any]) -> None:
        if message["action"] == "processRecords" and self.mood:
            mood, self.mood = self.mood, ""
            match mood:
                case "exit":
                    child.hang_up()
                    await child.receive()
                case "hang":
                    await asyncio.Event().wait()
                case "lie":
                    child.send({"action": "status", "responseFor": "shardEnded"})
                case "slow":
                    await self.clock.sleep(20.0)
        await super().act(child, message)


async def a_day_of_a_fleet(seen: Seen) -> None:
    """3.x: two workers, children in all moods, throttles, a split and a merge, a corrupt row, a hole, a dead worker."""
    async with watched(seen, 4, **V3X, timeoutInSeconds="5", maxRecords="10") as world:
        world.recorder = child = Moody(world.clock)
        first, second = world.start("w1"), world.start("w2", seed=2)
        status = status_of(first.metrics, world.clock)
        sampling = asyncio.create_task(status.run())
        world.put(40)
        await world.until(world.all_delivered)
        await world.advance(120.0)
        for mood in ("exit", "hang", "lie", "slow"):
            child.mood = mood
            world.put(400)
            await world.advance(40.0)
        for running in (first, second):
            errors = iter([StreamThrottledError("x"), IteratorExpiredError("x"), *[StreamThrottledError("x")] * 5])
            running.streams.faults = lambda what, errors=errors: next(errors, None) if what == "GetRecords" else None
        await world.advance(30.0)
        world.put(100)
        await world.until(world.all_delivered)
        world.dynamo.put_row(TABLE, world.dynamo.row(TABLE, SHARD_0) | {"mldPaused": {"S": "by me"}})
        await world.advance(10.0)
        world.dynamo.put_row(TABLE, {k: v for k, v in world.dynamo.row(TABLE, SHARD_0).items() if k != "mldPaused"})
        await world.advance(10.0)
        _put_aggregates(world)
        await world.advance(5.0)
        with faulty(world, "UpdateItem", throttled):
            world.put(10)
            await world.advance(3.0)
        with faulty(world, "Query"):
            await world.advance(5.0)

        world.split(SHARD_0)
        await world.advance(60.0)
        world.merge(SHARD_1, SHARD_2)
        world.dynamo.put_row(TABLE, {"leaseKey": {"S": "broken"}, "leaseCounter": {"N": "1"}})
        world.put(100)
        await world.advance(400.0)
        world.dynamo.delete_row(TABLE, "broken")
        world.dynamo.index_lag = lambda: 8.0
        open_shard = max(running for running in first.worker.held() | second.worker.held())
        row = dict(world.dynamo.row(TABLE, open_shard))
        world.dynamo.put_row(TABLE, {**row, "leaseOwner": {"S": "somebody"}, "leaseCounter": {"N": "1000000"}})
        await world.advance(60.0)
        world.dynamo.delete_row(TABLE, open_shard)
        await world.advance(600.0)
        await second.crash()
        await world.advance(30.0)
        third = world.start("w3", seed=3)
        with faulty(world, "GetItem", key="shardId-"):
            await world.advance(100.0)
        await world.advance(200.0)
        await first.stop()
        await third.stop()
        sampling.cancel()


def _put_aggregates(world: Fleet) -> None:
    for data in (aggregate([User("key", b"elsewhere", str(2**128 - 1))]), sealed(b"\x0a\xff")):
        world.kinesis.put_record(STREAM, PutEntry.of(data, "a", 0), now=world.clock.wall())


async def the_reports_of_a_fleet(seen: Seen) -> None:
    """3.x: loads that cannot be read, reports that say nonsense, a leader whose runs fail; no room for all leases."""

    class Broken:
        name = "broken"

        async def meter(self) -> str:
            return ""

        async def read(self) -> float | None:
            raise LoadUnreadableError("nothing there")

    async def detect() -> Any:
        return Broken()

    async with watched(seen, 4, **V3X, maxLeasesForWorker="2") as world:
        world.start("w1", detect_load=detect)
        await world.advance(30.0)
        report = dict(world.dynamo.row(TABLE, "w1"))
        told = {"sts": {"M": {"C": {"L": [{"N": "-1"}]}}}, "opr": {"M": {"C": {"L": [{"N": "100"}]}}}}
        world.dynamo.put_row(TABLE, {**report, **told, "leaseKey": {"S": "failing"}})
        world.dynamo.put_row(TABLE, {**{k: v for k, v in report.items() if k != "lut"}, "leaseKey": {"S": "invalid"}})
        for _ in range(2):
            other = {"leaseKey": {"S": "stranger"}, "mldStream": {"S": "another"}}
            world.dynamo.put_row(TABLE, {**report, **other, "lut": {"N": str(int(world.clock.wall()))}})
            await world.advance(12.0)
        with faulty(world, "Scan"):
            await world.advance(200.0)


async def a_fleet_of_2x(seen: Seen) -> None:
    """2.x: two takers, one of them late, a row that others were faster to take, and a row of nobody."""
    keys = {"clientVersionConfig": "CLIENT_VERSION_CONFIG_COMPATIBLE_WITH_2X_PHASE1", "maxLeasesForWorker": "3"}
    async with watched(seen, 8, **keys) as world:
        world.start("w1")
        await world.advance(30.0)
        second = world.start("w2", seed=2)
        await world.advance(100.0)
        with faulty(world, "UpdateItem"):
            await world.advance(40.0)
        await second.crash()
        await world.advance(100.0)


async def a_fleet_that_takes_against_others(seen: Seen) -> None:
    """2.x: the rows move between a taker's scan and its writes."""
    async with watched(seen, 4, clientVersionConfig="CLIENT_VERSION_CONFIG_COMPATIBLE_WITH_2X_PHASE1") as world:
        running = world.start("w1")
        await world.advance(5.0)
        await running.crash()
        await world.advance(30.0)
        late = world.start("w2", seed=2)
        table = late.worker.table
        apply = table.apply

        async def take_too_late(write: Any) -> Any:
            if write.verb == "take":
                row = dict(world.dynamo.row(TABLE, write.key))
                world.dynamo.put_row(TABLE, {**row, "leaseCounter": {"N": str(int(row["leaseCounter"]["N"]) + 7)}})
            return await apply(write)

        table.apply = take_too_late
        await world.advance(30.0)


async def subscriptions(seen: Seen) -> None:
    """Enhanced fan-out, for longer than a subscription lives, and one that breaks."""
    async with watched(seen, 1, **V3X, retrievalMode="FANOUT") as world:
        running = world.start("w1")
        world.put(20)
        await world.until(world.all_delivered)
        await world.advance(400.0)
        running.streams.faults = lambda what: StreamThrottledError(what) if what == "SubscribeToShard" else None
        await world.advance(400.0)


async def several_children(seen: Seen) -> None:
    """They share the records of a shard."""
    async with watched(seen, 1, mld__childrenPerShard="2") as world:
        world.start("w1")
        world.put(20)
        await world.until(world.all_delivered)
        await world.advance(5.0)


async def births(seen: Seen) -> None:
    """Empty tables at each position, a start with trouble, and a stream that is made again: shards are not found."""
    latest, horizon = {"initialPositionInStream": "LATEST"}, {"initialPositionInStream": "TRIM_HORIZON"}
    for position in (latest, horizon, {"initialPositionInStreamExtended": "1400000000"}):
        async with watched(seen, 2, **V3X, **position) as world:
            with faulty(world, "GetItem", key="Migration3.0"):
                world.start("w1")
                await world.advance(3.0)
            await world.advance(10.0)
            if position is horizon:
                await world.recreate_stream(1, gone_s=30.0)
                await world.advance(120.0)


async def an_end_that_contradicts_itself(seen: Seen) -> None:
    """A merge whose other parent has no lease, and one that names a single parent."""
    async with watched(seen, 2, **V3X) as world:
        world.start("w1")
        world.put(10)
        await world.until(world.all_delivered)
        world.dynamo.delete_row(TABLE, SHARD_1)
        world.merge(SHARD_0, SHARD_1)
        await world.advance(60.0)
    async with watched(seen, 2, **V3X) as world:
        running = world.start("w1")
        world.put(10)
        await world.until(world.all_delivered)

        def with_one_parent(page: Any) -> Any:
            children = tuple(
                replace(child, parents=frozenset(sorted(child.parents)[:1])) for child in page.child_shards
            )
            return replace(page, child_shards=children) if children else page

        running.streams.bend_page = with_one_parent
        world.merge(SHARD_0, SHARD_1)
        await world.advance(30.0)


async def migrations(seen: Seen) -> None:
    """From 2.x to 3.x on three tables, with faults."""
    quiet = {"idleTimeBetweenReadsInMillis": "60000"}
    async with watched(seen, 1, **V2X, **quiet, mld__metadataLayout="legacy") as world:
        world.start("w1")
        await world.advance(300.0)
        with faulty(world, "UpdateItem", key="Migration3.0"):
            await world.advance(900.0)
        await world.advance(300.0)


async def what_nobody_expects(seen: Seen) -> None:
    """A bug in a loop, which survives it."""
    async with watched(seen, 1, **V3X) as world:
        running = world.start("w1")
        status = status_of(running.metrics, world.clock)
        sampling = asyncio.create_task(status.run())
        await world.advance(5.0)

        async def broken() -> bool:
            raise RuntimeError("a bug")

        running.worker.sources._tracked[None].auditor.audit = broken
        await world.advance(150.0)
        sampling.cancel()


async def streams_that_go(seen: Seen) -> None:
    """Several streams, of which one leaves the list and its leases are deleted."""
    async with many_fleet("orders", "clicks", mld__formerStreams="delete") as world:
        running = world.start("w1")
        await world.until(lambda: len(world.rows()) == 2)
        world.wanted = [WantedStream("orders")]
        await world.until(lambda: len(world.rows()) == 1, FORMER_WAIT_S + 300.0)
        await world.advance(60.0)
        seen.look(running, world)


async def records_past_retention(seen: Seen) -> None:
    """A worker comes back to a shard after longer than its stream keeps records."""
    async with watched(seen, 1) as world:
        running = world.start("w1")
        world.put(2)
        await world.until(world.all_delivered)
        await running.stop()
        world.put(2, "lost")
        world.kinesis.stream(STREAM, world.clock.wall()).retention_h = 0.5
        await world.advance(3_600.0)
        world.put(2)
        world.start("w1")
        await world.advance(10.0)


async def records_with_frames(seen: Seen) -> None:
    """A producer writes through a schema registry, which knows one of his versions; he makes up the others."""
    async with watched(seen, 1, **V3X) as world:
        clock = world.clock

        def prepare_of(metrics: Metrics) -> Any:
            registry = SchemaRegistry(Glue(), clock, write_file=lambda *_: None, in_thread=not_at_all)
            results = metrics.worker.framed_records
            return SchemaPreparer(registry, clock, SchemaMode.STRIP, decode_here, waits=False, results=results).prepare

        world.prepare_of = prepare_of
        versions = range(1, 31)
        for version in versions:
            data = b"\3\0" + version.to_bytes(16) + b"{}"
            world.kinesis.put_record(STREAM, PutEntry.of(data, "key"), now=clock.wall())
        world.start("w1")
        await world.until(lambda: len(world.recorder.deliveries) == len(versions))
        await world.advance(2 * LOOK_EVERY_S)


async def a_log_that_nobody_reads(seen: Seen) -> None:
    """The reader of standard error stops, and comes back."""
    async with watched(seen, 1, **V3X) as world:
        running = world.start("w1")
        sampling = asyncio.create_task(status_of(running.metrics, world.clock).run())
        unread, written = os.pipe()
        stream = QueuedStream(written, "utf-8")
        for line in ("x" * QUEUED_BYTES_MAX, "one too many\n"):
            stream.write(line)
        await world.advance(2 * LOOK_EVERY_S)
        sampling.cancel()
        os.close(unread)  # its thread gives up


async def at_once(read: Callable[[], Any]) -> Any:
    return read()


async def a_file_that_is_read_again(seen: Seen) -> None:
    """An operator changes the properties file twice, and the second time it cannot be used."""
    async with watched(seen, 1, **V3X) as world:
        running = world.start("w1")
        await world.until(lambda: running.worker.is_ready)
        with tempfile.TemporaryDirectory() as place:
            file = Path(place, "app.properties")
            file.write_text(MINIMUM.replace("=child", "=/bin/cat"))
            loaded = load(str(file), (), {})
            reloader = Reloader(loaded, str(file), (), {}, LogOptions(Scrubber(), level="warning"), at_once)
            for text in ("maxRecords=5\n", "maxRecords=many\n"):
                file.write_text(MINIMUM.replace("=child", "=/bin/cat") + text)
                await reload_worker(running.worker, reloader, ServiceManager(None), running.metrics, world.clock)
                await world.advance(2 * LOOK_EVERY_S)


async def a_disk(seen: Seen) -> None:
    """The dead letter has a directory with room."""
    async with watched(seen, 1, **V3X) as world:
        running = world.start("w1")
        place = DiskPlace("deadLetter", Path(tempfile.gettempdir()))

        async def look_at(_: DiskPlace) -> DiskRoom:
            return DiskRoom(1_000, 0.5)

        metrics = running.metrics
        await DiskWatcher([place], look_at, metrics.worker.disks, metrics.events, world.clock).look()
        await world.advance(2 * LOOK_EVERY_S)


async def a_lost_table(seen: Seen) -> None:
    """Somebody deletes the table."""
    async with watched(seen, 1, **V3X) as world:
        running = world.start("w1")
        await world.until(lambda: running.worker.is_ready)
        await world.dynamo.call("DeleteTable", {"TableName": TABLE})
        await world.until(lambda: running.metrics.worker.tables_lost == 1)
        await world.advance(2 * LOOK_EVERY_S)


async def a_clock_that_is_off(seen: Seen) -> None:
    """A machine's clock is ten minutes ahead, and nothing tells it."""
    async with watched(seen, 1, **V3X) as world:
        world.start("w1")
        await world.advance(2 * LOOK_EVERY_S)
        right, world.clock = world.clock, VirtualClock(600.0)
        world.start("w2", seed=2)
        world.clock = right
        await world.advance(120.0)


async def a_table_that_answers_late(seen: Seen) -> None:
    """Answers take nine tenths of a lease duration."""
    async with watched(seen, 1, **V3X) as world:
        running = world.start("w1")
        await world.until(lambda: len(running.worker.held()) == 1)
        with faulty(world, "UpdateItem", lambda _: Fault(delay_after_s=9.0), key="shardId"):
            await world.advance(60.0)


class Glue:
    """Knows one version."""

    async def call(self, operation: str, params: dict[str, Any], **_: object) -> dict[str, Any]:
        if not params["SchemaVersionId"].endswith("01"):
            raise AwsError(operation, "EntityNotFoundException", "no such version")
        return {"DataFormat": "JSON", "SchemaDefinition": "{}"}


async def not_at_all(*_: object) -> None:
    return None


STORIES: tuple[Callable[[Seen], Awaitable[None]], ...] = (
    a_day_of_a_fleet,
    the_reports_of_a_fleet,
    a_fleet_of_2x,
    a_fleet_that_takes_against_others,
    subscriptions,
    several_children,
    births,
    an_end_that_contradicts_itself,
    what_nobody_expects,
    records_with_frames,
    records_past_retention,
    a_log_that_nobody_reads,
    a_file_that_is_read_again,
    a_disk,
    a_lost_table,
    a_clock_that_is_off,
    a_table_that_answers_late,
    streams_that_go,
)


def is_of_migrations(metric: JavaMetric) -> bool:
    """Only workers of a fleet that comes from 2.x tell it."""
    of_migrations = (VersionMigrationCounts.OPERATION, TableMigrationCounts.OPERATION)
    return metric.operation in of_migrations or metric.name == "DynamoDBLockBasedLeaderDecider"


TALLIES = {
    "mld_child_restarts_total": {"exit", "timeout", "protocol"},
    "mld_lease_moves_total": {"taken", "assigned", "resumed", "handed_off", "released", "lost", "expired"},
    "mld_subscriptions_total": {"opened", "renewed", "refused", "ended"},
    "mld_fetches_total": {"records", "empty", "throttled", "expired"},
    "mld_checkpoints_total": {"stored", "error"},
    "mld_aggregates_dropped_total": {"range", "malformed"},
    "mld_lease_rows_total": {"created", "deleted"},
    "mld_dynamodb_units_total": {"read", "write"},
    "mld_shard_state": {"idle", "processing", "failing", "parked", "ending", "paused"},
    "mld_aws_requests_total": {"ok", "unreachable", "ConditionalCheckFailedException"},
}
"""What each of these figures tells apart, and must have happened."""


@pytest.mark.full
def test_each_metric_of_ours_and_of_kcl_is_fed_by_something_that_happens() -> None:
    """One test, because the stories that feed them take seconds and each process would tell them again."""
    seen = Seen()
    for story in STORIES:
        run_virtual(story(seen))  # type: ignore[arg-type]
    assert {metric.name for metric in CATALOGUE} - seen.ours == set()
    of_kcl = {(m.operation, m.name) for m in JAVA_METRICS if not is_of_migrations(m)}
    assert of_kcl - seen.java == of_kcl & set(NOT_FED)
    assert {name: values - seen.tallies[name] for name, values in TALLIES.items() if values - seen.tallies[name]} == {}


@pytest.mark.full
def test_each_name_of_kcls_migrations_is_fed() -> None:
    seen = Seen()
    run_virtual(migrations(seen))
    assert {(m.operation, m.name) for m in JAVA_METRICS if is_of_migrations(m)} - seen.java == set()
