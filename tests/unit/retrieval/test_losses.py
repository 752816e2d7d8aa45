"""Rule: retrieval#lost-to-retention. Fleets in virtual time whose stream keeps records for ten minutes."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from mld.core.errors import StreamUnavailableError
from mld.core.positions import Position
from mld.core.streams import IteratorType, StartingPoint
from mld.leases import writes
from mld.leases.dynamodb import DynamoLeaseTable
from mld.leases.lease import Lease
from mld.leases.table import LeaseWrite
from mld.local.kinesis import PutEntry
from mld.metrics.events import EventKind
from mld.metrics.shard import ShardMetrics
from mld.protocol.messages import Record
from mld.retrieval.losses import Losses, Missing, Proofs, Suspicion, in_words, judge
from mld.retrieval.starting_points import ReadState, advanced, lacks_record, started
from tests.support.fleet import STREAM, TABLE, Fleet, Running, fleet
from tests.support.pages import page_with
from tests.twins.children import Recorder
from tests.twins.kinesis_model import ModelFanOut
from tests.virtual_time import virtual

RETENTION_S = 600.0
HOUR_S = 3_600.0
SLOW_PACE = {"failoverTimeMillis": "60000", "idleTimeBetweenReadsInMillis": "20000"}


@pytest.mark.parametrize(
    ("first", "read_to_s", "oldest", "verdict"),
    [
        pytest.param("20", 99_000.0, "20", Missing.HARMLESS, id="all that may be missing is still there"),
        pytest.param("20", 1_000.0, "20", Missing.LOST, id="not read for longer than the retention"),
        pytest.param("20", None, "20", Missing.LOST, id="nobody knows for how long"),
        pytest.param("20", None, None, Missing.LOST, id="nor what the stream still has"),
        pytest.param(
            "20", 1_000.0, "5", Missing.NEVER_THERE, id="older ones are there: a number that somebody made up"
        ),
        pytest.param(None, 1_000.0, None, Missing.LOST, id="nothing follows, after a long time"),
        pytest.param(None, None, None, Missing.UNKNOWN, id="nothing follows, as on a quiet shard"),
        pytest.param(None, 99_000.0, None, Missing.HARMLESS, id="nothing follows, as on a quiet shard that is read"),
    ],
)
def test_what_a_missing_record_means(
    first: str | None, read_to_s: float | None, oldest: str | None, verdict: Missing
) -> None:
    assert judge(Suspicion("10", first, None, read_to_s), 100_000.0, 24 * HOUR_S, oldest) is verdict


def test_it_says_between_which_records_and_times() -> None:
    assert in_words(Suspicion("10", "20", 7_200.0, 3_600.0)) == (
        "whatever came after record 10, and arrived after 1970-01-01T01:00:00Z, "
        "before 20, which arrived at 1970-01-01T02:00:00Z"
    )


def test_without_a_record_it_says_from_which_time_on() -> None:
    assert in_words(Suspicion("TRIM_HORIZON", "20", 7_200.0, 3_600.0)) == (
        "whatever arrived after 1970-01-01T01:00:00Z, before 20, which arrived at 1970-01-01T02:00:00Z"
    )
    assert in_words(Suspicion("LATEST", None, None, None)) == "whatever was there, until now, and nothing follows"


def test_empty_answers_on_the_way_to_the_first_record_left_hide_no_loss() -> None:
    """Their lag says how far the iterator has come, and not how far the shard was read."""
    state = started(Position("10"), StartingPoint(IteratorType.AT_SEQUENCE_NUMBER, sequence="10"), 9e5, 0.0, None, 5.0)
    state = advanced(state, page_with((), "next", 3_600_000), 9e5, 1.0)
    assert lacks_record(state, page_with((Record(b"", "k", "20", 0, 0),), "next", 3_000_000))
    assert state.read_to_s == 5.0
    assert advanced(state, page_with((), "next", 0), 9e5, 1.0).read_to_s == 9e5, "there is nothing to wait for"


class SlowRecorder(Recorder):
    """A child that takes `hold_s` over the next batch, or over `each_s` over every one."""

    hold_s = each_s = 0.0

    async def process(self, child, records) -> None:
        hold_s, self.hold_s = self.hold_s or self.each_s, 0.0
        if hold_s:
            await self.clock.sleep(hold_s)
        await super().process(child, records)


class World:
    """One worker whose shard has been read to its tip, in such a stream."""

    def __init__(self, fleet_: Fleet, worker: Running, recorder: SlowRecorder) -> None:
        self.fleet, self.worker, self.recorder = fleet_, worker, recorder

    async def act(self, write: Callable[[Lease], LeaseWrite[Any]]) -> None:
        table = DynamoLeaseTable(self.fleet.dynamo.client("operator"), self.fleet.clock, table_name=TABLE)
        lease = await table.get(self.fleet.shards()[0].shard_id)
        assert lease is not None and await table.apply(write(lease))

    async def restart(self) -> None:
        self.worker = self.fleet.start("w1", seed=2)

    async def put_for(self, minutes: int) -> None:
        """Two records a minute, which is more than the buffers of a reader that gets one at a time."""
        for _ in range(2 * minutes):
            data = f"late-{len(self.fleet.put_data)}".encode()
            self.fleet.put_data.append(data)
            self.fleet.kinesis.put_record(STREAM, PutEntry.of(data, "k"), now=self.fleet.clock.wall())
            await self.fleet.advance(30)

    @property
    def lost(self) -> int:
        return len({*self.fleet.put_data} - {*self.recorder.data()})

    @property
    def events(self) -> list[str]:
        return [one.text for one in self.worker.metrics.events.take() if one.kind is EventKind.LOST]

    @property
    def losses(self) -> int:
        return sum(part.losses for part in self.worker.metrics.shards.values())


@asynccontextmanager
async def at_the_tip(mode: str, **keys: str) -> AsyncIterator[World]:
    keys = {**SLOW_PACE, **keys}
    async with fleet(1, retrievalMode=mode, clientVersionConfig="CLIENT_VERSION_CONFIG_3X", **keys) as world:
        world.kinesis.stream(STREAM, world.clock.wall()).retention_h = RETENTION_S / HOUR_S
        world.recorder = recorder = SlowRecorder(world.clock)
        worker = world.start("w1")
        world.put(3)
        await world.until(world.all_delivered)
        await world.advance(60)
        yield World(world, worker, recorder)


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.levelname for one in caplog.records if one.__dict__.get("action") == "checkpoint_trimmed"]


@pytest.mark.parametrize("mode", ["POLLING", "FANOUT"])
@pytest.mark.parametrize("how", ["paused", "hung", "stopped", "killed"])
@virtual
async def test_a_loss_is_reported_however_long_nobody_read(
    mode: str, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with at_the_tip(mode, maxRecords="1") as world:
        match how:
            case "paused":
                await world.act(lambda lease: writes.pause(lease, "by me"))
                await world.fleet.advance(60)
            case "hung":
                world.recorder.hold_s = 3 * RETENTION_S
            case "stopped":
                await world.worker.stop()
            case "killed":
                await world.worker.crash()
        await world.put_for(30)
        if how == "paused":
            await world.act(writes.resume)
        elif how != "hung":
            await world.restart()
        await world.fleet.advance(300)
        assert world.lost > 10
        assert world.losses == len(said(caplog)) == 1
        assert said(caplog) == ["ERROR"]
        assert len(world.worker.metrics.lost_lately(world.fleet.clock.wall())) == 1
        assert world.worker.metrics.lost_lately(world.fleet.clock.wall() + 24 * HOUR_S) == {}
        assert [text.startswith("whatever came after record ") for text in world.events] == [True]


@virtual
async def test_a_reader_that_never_stops_but_falls_behind_the_retention_reports_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with at_the_tip("POLLING", maxRecords="1") as world:
        world.recorder.each_s = 60.0
        await world.put_for(60)
        assert world.losses > 0, "its iterators are all fresh, and skip what was trimmed without a word"
        assert said(caplog)


@pytest.mark.parametrize(
    ("mode", "how"),
    [
        ("POLLING", "stopped"),
        ("POLLING", "killed"),
        ("POLLING", "child restarted"),
        ("POLLING", "iterator lost"),
        ("FANOUT", "child restarted"),
    ],
)
@virtual
async def test_a_quiet_shard_whose_last_record_is_trimmed_has_lost_nothing(
    mode: str, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with at_the_tip(mode) as world:
        await world.fleet.advance(1.2 * RETENTION_S)
        match how:
            case "stopped":
                await world.worker.stop()
                await world.restart()
            case "killed":
                await world.worker.crash()
                await world.fleet.advance(200)
                await world.restart()
            case "child restarted":
                await world.act(lambda lease: writes.ask_restart(lease, "by me"))
            case "iterator lost":
                world.recorder.hold_s = 400.0
                world.fleet.put(1)
        await world.fleet.advance(200)
        await world.put_for(2)
        await world.fleet.advance(500)
        assert world.lost == 0
        assert (world.losses, said(caplog)) == (0, [])


@virtual
async def test_a_number_that_no_record_has_is_no_loss(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with at_the_tip("POLLING") as world:
        await world.worker.stop()
        lease = world.fleet.lease(world.fleet.shards()[0].shard_id)
        assert lease is not None and lease.checkpoint.number is not None
        made_up = Position(str(lease.checkpoint.number - (1 << 36)))  # of this shard, just before the last record
        row = world.fleet.dynamo.row(TABLE, lease.key)
        assert row is not None
        world.fleet.dynamo.put_row(TABLE, {**row, "checkpoint": {"S": made_up.sequence}})
        await world.restart()
        await world.fleet.advance(30)
        assert (world.losses, said(caplog)) == (0, [])
        assert "the stream has older records, and never had this one" in caplog.text


# --- starts without a record ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked_h", "kept_h", "made_h", "losses"),
    [
        pytest.param(30.5, 24, 40, 1, id="longer ago than the stream keeps records"),
        pytest.param(20.5, 24, 40, 0, id="a time that the stream still has"),
        pytest.param(30.5, 48, 40, 0, id="a stream that keeps them for longer"),
        pytest.param(30.5, 24, 10, 0, id="a stream that is younger than its retention"),
    ],
)
@virtual
async def test_a_first_start_at_a_time_that_was_trimmed_reports_it(
    asked_h: float, kept_h: int, made_h: float, losses: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with fleet(1, clientVersionConfig="CLIENT_VERSION_CONFIG_3X") as world:
        world.kinesis.stream(STREAM, world.clock.wall()).retention_h = kept_h
        wanted_s = world.clock.wall() + (made_h - asked_h) * HOUR_S
        for _ in range(int(made_h)):
            world.put(1)
            world.clock.skew_s += HOUR_S
        worker = world.start("w1", initialPositionInStreamExtended=str(int(wanted_s)))
        await world.advance(60)
        assert world.recorder.data()
        assert [part.losses for part in worker.metrics.shards.values()] == [losses]
        assert said(caplog) == ["ERROR"] * losses


@pytest.mark.parametrize("position", ["TRIM_HORIZON", "LATEST"])
@pytest.mark.parametrize("mode", ["POLLING", "FANOUT"])
@pytest.mark.parametrize("hours", [30, 20])
@virtual
async def test_records_of_a_shard_without_a_checkpoint_that_are_trimmed_before_a_restart_are_reported(
    position: str, mode: str, hours: int
) -> None:
    keys = {"initialPositionInStream": position, "retrievalMode": mode, **SLOW_PACE}
    async with fleet(1, clientVersionConfig="CLIENT_VERSION_CONFIG_3X", **keys) as world:
        world.recorder = recorder = SlowRecorder(world.clock, checkpoint_every_batch=False)
        worker = world.start("w1")
        await world.advance(30)
        world.put(1)
        await world.until(world.all_delivered)
        world.clock.skew_s += hours * HOUR_S
        world.put(1)
        await World(world, worker, recorder).act(lambda lease: writes.ask_restart(lease, "by me"))
        await world.advance(300)
        events = [one.text for one in worker.metrics.events.take() if one.kind is EventKind.LOST]
        # The subscription that is renewed before the restart has lost its record, too.
        assert [text.startswith("whatever arrived after ") for text in events[-1:]] == [True] * (hours > 24)


REFUSED = StreamUnavailableError("GetRecords: AccessDeniedException: not authorized to perform kinesis:GetRecords")


def lacks(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.levelname for one in caplog.records if one.__dict__.get("action") == "retention_unknown"]


@virtual
async def test_a_proof_that_the_policy_refuses_stops_no_shard(caplog: pytest.LogCaptureFixture) -> None:
    async with at_the_tip("FANOUT") as world:
        await world.worker.stop()
        await world.put_for(30)
        await world.restart()
        world.worker.streams.faults = lambda operation: REFUSED if operation == "GetRecords" else None
        await world.fleet.advance(300)
        taken = len(world.recorder.data())
        await world.put_for(2)
        assert len(world.recorder.data()) == taken + 4, "it is read on"
        assert (world.losses, lacks(caplog)) == (1, ["WARNING"])


@virtual
async def test_a_proof_that_is_refused_is_a_warning_once_for_all_shards(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with fleet(2) as world:
        model = ModelFanOut(world.kinesis, STREAM, world.clock, faults=lambda operation: REFUSED)
        proofs, parts = Proofs(), [ShardMetrics(shard.shard_id, 0.0) for shard in world.shards()]
        for part in parts:
            losses = Losses(model, model, part.key, world.clock, part, proofs)
            page: Any = SimpleNamespace(first_sequence="20", first_arrival_ms=None)
            await losses.look_into(ReadState(StartingPoint(IteratorType.LATEST), asked="10"), page)
        assert (lacks(caplog), [part.losses for part in parts]) == (["WARNING", "INFO"], [1, 1])
