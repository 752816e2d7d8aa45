"""The reporter: its rhythm, its switches, its failures and its end, in virtual time (coordination#report-rhythm)."""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from typing import Any

import pytest

from mld.fleet.report.platform import LoadUnreadableError
from mld.fleet.report.reporter import RETRY_S_MAX, SAMPLES_MAX, Activity, Reporter
from mld.fleet.report.reports import WorkerReport, parse_row
from mld.fleet.report.reports_table import ReportsTable
from mld.leases.rows import Place
from tests.support.settings import rules
from tests.support.tables import make_table
from tests.twins.dynamo import Fault, MemoryDynamo, lost_reply, lost_request
from tests.twins.streams import WALL_EPOCH_S, VirtualClock
from tests.virtual_time import run_virtual

TABLE = "app"
ME = "me"
PERIOD_S = 30.0
FIRST_BY_S = 2.0


class ScriptedSource:
    """Gives one figure after the other; an exception is raised. `readings` counts."""

    name = "script"

    def __init__(self, figures: Iterable[float | Exception | None]) -> None:
        self._figures = iter(figures)
        self.readings = 0

    async def read(self) -> float | None:
        self.readings += 1
        figure = next(self._figures)
        if isinstance(figure, Exception):
            raise figure
        return figure


class World:
    """A reporter over the twin. The times of its writes are relative to the start of the test."""

    def __init__(self, source: ScriptedSource | None, seed: int = 1, **options: Any) -> None:
        self.clock = VirtualClock()
        self.dynamo = MemoryDynamo(self.clock)
        self.rows: list[WorkerReport] = []
        self.reporter = Reporter(
            ReportsTable(self.dynamo, Place(TABLE, "leaseKey")),
            source,
            self.clock,
            random.Random(seed),
            worker_id=ME,
            version="0.2",
            on_own_row=self.rows.append,
            **({"settings": rules().fleet} | options),
        )

    @property
    def row(self) -> WorkerReport | None:
        item = self.dynamo.row(TABLE, ME)
        return None if item is None else parse_row(item, "leaseKey")

    @property
    def written_at(self) -> list[float]:
        return [applied.at for applied in self.dynamo.history]

    @property
    def last_figures(self) -> tuple[float, ...]:
        assert self.row is not None
        return self.row.samples.get("C", ())


def steady(figure: float) -> ScriptedSource:
    return ScriptedSource(itertools.chain([None], itertools.repeat(figure)))


def broken() -> ScriptedSource:
    return ScriptedSource(LoadUnreadableError("gone") for _ in itertools.count())


def in_world(
    story: Callable[[World], Coroutine[Any, Any, None]], source: ScriptedSource | None, **options: Any
) -> World:
    """Run a reporter beside `story` until the story ends."""

    async def main() -> World:
        world = World(source, **options)
        await make_table(world.dynamo, TABLE, "leaseKey")
        running = asyncio.create_task(world.reporter.run())
        try:
            await story(world)
            assert not running.done()
        finally:
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running
        return world

    return run_virtual(main())


def until(time_s: float) -> Callable[[World], Coroutine[Any, Any, None]]:
    async def story(_: World) -> None:
        await asyncio.sleep(time_s)

    return story


# --- rhythm


@pytest.mark.parametrize("seed", range(5))
def test_the_first_report_comes_with_the_first_sample(seed: int) -> None:
    world = in_world(until(FIRST_BY_S), steady(42.0), seed=seed)
    assert len(world.written_at) == 1
    assert 1.0 <= world.written_at[0] <= FIRST_BY_S
    assert world.last_figures == (42.0,)


def test_a_worker_without_a_source_reports_at_once_and_without_figures() -> None:
    world = in_world(until(0.001), None)
    assert world.written_at == [0.0]
    assert world.row == WorkerReport(ME, int(WALL_EPOCH_S), mld={"version": "0.2"})


@pytest.mark.parametrize("source", [broken, lambda: ScriptedSource(itertools.repeat(None))])
def test_a_source_that_never_gives_a_figure_makes_a_default_worker_never_a_failing_one(
    source: Callable[[], ScriptedSource],
) -> None:
    world = in_world(until(1000.0), source())
    assert world.written_at[0] == FIRST_BY_S
    assert all(not row.samples and not row.ranges for row in world.rows)
    assert len(world.rows) == 34


def test_reports_follow_at_a_fixed_rate_however_slow_the_table() -> None:
    async def story(world: World) -> None:
        world.dynamo.faults = lambda *_: Fault(delay_before_s=1.5, delay_after_s=0.5)
        await asyncio.sleep(200.0)

    times = in_world(story, steady(1.0)).written_at
    assert len(times) == 7
    assert [b - a for a, b in itertools.pairwise(times)] == pytest.approx([PERIOD_S] * 6)


def test_each_report_adds_the_mean_of_its_interval_and_keeps_ten() -> None:
    # The first reading is a base; the first report has one sample, the others thirty, each a little higher.
    source = ScriptedSource(itertools.chain([None], (number / 100 for number in itertools.count())))
    world = in_world(until(2.0 + 11 * PERIOD_S), source)
    expected = tuple((30 * number + 15.5) / 100 for number in range(1, 11))
    assert len(world.written_at) == 12
    assert world.last_figures == pytest.approx(expected, abs=0.011)  # a sample of the very moment may go either way
    assert world.rows[0].samples["C"] == (0.0,)


def test_the_settings_are_obeyed() -> None:
    settings = rules(capture_period_s=5.0, report_period_s=20.0, samples_per_report=2).fleet
    source = steady(7.0)
    world = in_world(until(100.0), source, settings=settings)
    assert world.last_figures == (7.0, 7.0)
    assert [b - a for a, b in itertools.pairwise(world.written_at)] == pytest.approx([20.0] * 4)
    assert 19 <= source.readings <= 20


def test_what_is_no_percentage_is_no_sample() -> None:
    world = in_world(
        until(FIRST_BY_S + PERIOD_S), ScriptedSource(itertools.cycle([None, 50.0, 101.0, -1.0, float("nan")]))
    )
    assert world.last_figures == (50.0, 50.0)


def test_the_samples_of_an_interval_are_bounded() -> None:
    settings = rules(capture_period_s=0.01).fleet
    figures = itertools.chain([None, 99.0], itertools.repeat(99.0, 1000), itertools.repeat(10.0))
    world = in_world(until(31.0), ScriptedSource(figures), settings=settings)
    assert world.last_figures == (99.0, 10.0)
    assert SAMPLES_MAX < 1000


# --- failures


def test_an_interval_without_samples_is_a_failure_and_the_next_one_recovers(caplog: pytest.LogCaptureFixture) -> None:
    gone = [LoadUnreadableError("gone")] * 35
    figures = itertools.chain([None, 40.0], itertools.repeat(40.0, 28), gone, itertools.repeat(60.0))
    with caplog.at_level(logging.WARNING):
        world = in_world(until(100.0), ScriptedSource(figures))
    figures_sent = [row.samples["C"] for row in world.rows]
    assert figures_sent == [(40.0,), (40.0, 40.0), (40.0, 40.0, -1.0), (40.0, 40.0, -1.0, 60.0)]
    assert caplog.messages == ["no figure from script: gone"]


def test_a_source_that_died_is_left_out_after_ten_intervals() -> None:
    figures = itertools.chain([None, 40.0], (LoadUnreadableError("gone") for _ in itertools.count()))
    world = in_world(until(400.0), ScriptedSource(figures))
    assert world.rows[9].samples["C"] == (40.0,) + (-1.0,) * 9
    assert world.rows[10].samples == world.rows[10].ranges == {}


def test_a_failed_report_is_repeated_soon_and_the_rhythm_stays() -> None:
    async def story(world: World) -> None:
        await asyncio.sleep(10.0)
        world.dynamo.faults = lambda *_: lost_request()
        await asyncio.sleep(30.0)
        world.dynamo.faults = None
        await asyncio.sleep(30.0)

    world = in_world(story, steady(5.0))
    first, repeated, regular = world.written_at
    assert repeated - first - PERIOD_S == pytest.approx(2 * RETRY_S_MAX)
    assert regular - first == pytest.approx(2 * PERIOD_S)
    assert [len(row.samples["C"]) for row in world.rows] == [1, 3, 3]  # the repetition carries the figures so far


def test_a_table_that_is_gone_is_only_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def story(world: World) -> None:
        world.dynamo.faults = lambda *_: lost_request()
        await asyncio.sleep(100.0)

    with caplog.at_level(logging.WARNING):
        world = in_world(story, steady(5.0))
    assert world.rows == []
    assert {record.__dict__["action"] for record in caplog.records} == {"report_failed"}


# --- own row, and reports out of turn


def test_a_row_that_a_leader_deleted_comes_back_whole() -> None:
    async def story(world: World) -> None:
        await asyncio.sleep(5.0)
        world.dynamo.delete_row(TABLE, ME)
        await asyncio.sleep(PERIOD_S)

    world = in_world(story, steady(5.0))
    assert world.row is not None
    assert world.row.ranges == {"C": (100,)}


def test_a_report_out_of_turn_shows_the_figures_so_far_and_changes_no_later_one() -> None:
    async def story(world: World) -> None:
        await asyncio.sleep(10.0)
        assert await world.reporter.report_now()
        assert await world.reporter.report_now()
        await asyncio.sleep(PERIOD_S)

    world = in_world(story, ScriptedSource(itertools.chain([None, 10.0], itertools.repeat(20.0))))
    assert [row.samples["C"] for row in world.rows] == [(10.0,), (10.0, 20.0), (10.0, 20.0), (10.0, 20.0)]


def test_a_report_out_of_turn_without_new_samples_is_no_failure() -> None:
    async def story(world: World) -> None:
        while not world.rows:
            await asyncio.sleep(0.01)
        assert await world.reporter.report_now()

    assert in_world(story, steady(10.0)).last_figures == (10.0,)


# --- switches


def test_off_does_nothing_at_all() -> None:
    source = steady(1.0)
    world = in_world(until(100.0), source, activity=Activity.OFF)
    assert (source.readings, world.dynamo.calls) == (0, [("", "CreateTable")])


def test_after_a_rollback_only_sampling_goes_on_and_the_row_stays() -> None:
    source = steady(1.0)

    async def story(world: World) -> None:
        await asyncio.sleep(10.0)
        world.reporter.switch(Activity.SAMPLING)
        readings = source.readings
        await asyncio.sleep(100.0)
        assert source.readings == readings + 100
        assert len(world.written_at) == 1
        world.reporter.switch(Activity.REPORTING)
        await asyncio.sleep(0.001)

    world = in_world(story, source)
    assert world.written_at[1:] == [110.0]  # at once, with the samples there are
    assert world.row is not None


def test_what_is_switched_on_again_has_no_old_figures() -> None:
    figures = itertools.chain([None], itertools.repeat(90.0, 9), itertools.repeat(10.0))

    async def story(world: World) -> None:
        await asyncio.sleep(9.9)
        world.reporter.switch(Activity.OFF)
        await asyncio.sleep(500.0)
        world.reporter.switch(Activity.REPORTING)
        await asyncio.sleep(FIRST_BY_S)

    world = in_world(story, ScriptedSource(figures))
    assert [row.samples["C"] for row in world.rows] == [(90.0,), (10.0,)]


def test_switching_to_and_fro_at_once_keeps_one_rhythm() -> None:
    async def story(world: World) -> None:
        await asyncio.sleep(10.0)
        for activity in (Activity.OFF, Activity.REPORTING) * 3:
            world.reporter.switch(activity)
        await asyncio.sleep(65.0)

    world = in_world(story, steady(1.0))
    assert len(world.written_at) == 4
    assert [b - a for a, b in itertools.pairwise(world.written_at[1:])] == pytest.approx([PERIOD_S] * 2)


# --- the end


def test_closing_deletes_the_row_and_ends_reporting() -> None:
    async def story(world: World) -> None:
        await asyncio.sleep(40.0)
        await world.reporter.close()
        assert world.row is None
        calls = len(world.dynamo.calls)
        assert not await world.reporter.report_now()
        world.reporter.switch(Activity.REPORTING)
        await asyncio.sleep(100.0)
        await world.reporter.close()
        assert len(world.dynamo.calls) == calls

    assert in_world(story, steady(1.0)).row is None


def test_closing_waits_for_a_report_under_way() -> None:
    async def story(world: World) -> None:
        world.dynamo.faults = lambda _s, operation, _p: Fault(delay_before_s=2.0) if operation == "UpdateItem" else None
        await asyncio.sleep(FIRST_BY_S + 0.5)
        assert world.row is None
        await world.reporter.close()
        await asyncio.sleep(10.0)

    world = in_world(story, steady(1.0))
    assert [applied.operation for applied in world.dynamo.history] == ["UpdateItem", "DeleteItem"]


def test_closing_deletes_a_row_whose_answer_was_lost() -> None:
    async def story(world: World) -> None:
        world.dynamo.faults = lambda _s, operation, _p: lost_reply() if operation == "UpdateItem" else None
        await asyncio.sleep(FIRST_BY_S)
        assert world.row is not None
        await world.reporter.close()

    assert in_world(story, steady(1.0)).row is None


def test_closing_without_a_report_asks_nothing() -> None:
    async def story(world: World) -> None:
        await world.reporter.close()

    assert in_world(story, steady(1.0)).dynamo.calls == [("", "CreateTable")]


def test_closing_does_not_fail_with_the_table(caplog: pytest.LogCaptureFixture) -> None:
    async def story(world: World) -> None:
        await asyncio.sleep(5.0)
        world.dynamo.faults = lambda *_: lost_request()
        await world.reporter.close()

    with caplog.at_level(logging.WARNING):
        in_world(story, steady(1.0))
    assert [record.__dict__["action"] for record in caplog.records] == ["report_delete_failed"]
