"""Runs that end at the tip of a DynamoDB stream, which does not say where its tip is, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import pytest

from mld.daemon.until_tip import UntilTip
from tests.simulation.table_streams import TableStreamFleet
from tests.virtual_time import asked_of_pytest, virtual

HOUR_S = 3600.0


def in_table_fleet(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """A test that runs in virtual time and is given a fleet as `fleet`."""

    @virtual
    async def run(**asked: Any) -> None:
        fleet = TableStreamFleet()
        try:
            await test(fleet, **asked)
        finally:
            await fleet.close()

    return asked_of_pytest(test, run, "fleet")


async def run_ends(fleet: TableStreamFleet, name: str = "w1", within_s: float = 90.0) -> str | None:
    """Why a run is not caught up; None if it is."""
    running = fleet.start(name, seed=len(fleet.running) + 1, until_tip=UntilTip())
    async with asyncio.timeout(within_s):
        await running.task
    return running.worker.failure


@pytest.mark.parametrize("pages", [0, 1, 3, 9])
@in_table_fleet
async def test_an_empty_stretch_is_not_the_tip(fleet: TableStreamFleet, pages: int) -> None:
    fleet.service.streams.stretch_pages = pages
    fleet.put_items(50, Random(1))
    assert await run_ends(fleet) is None
    assert fleet.everything_is_delivered()


@in_table_fleet
async def test_a_run_on_an_idle_stream_ends(fleet: TableStreamFleet) -> None:
    assert await run_ends(fleet) is None


@in_table_fleet
async def test_a_run_on_a_stream_that_is_never_quiet_ends_with_all_that_was_there_when_it_began(
    fleet: TableStreamFleet,
) -> None:
    async def produce() -> None:
        while True:
            fleet.put_items(1, rng)
            await asyncio.sleep(5)

    rng = Random(1)
    fleet.service.streams.stretch_pages = 1
    fleet.put_items(50, rng)
    there = {item: list(values) for item, values in fleet.values.items()}
    producing = asyncio.create_task(produce())
    try:
        assert await run_ends(fleet) is None
    finally:
        producing.cancel()
    found = fleet.delivered()
    assert all(set(values) <= set(found[item]) for item, values in there.items())


@in_table_fleet
async def test_a_stretch_that_was_too_long_is_read_at_the_latest_after_its_shard_has_ended(
    fleet: TableStreamFleet,
) -> None:
    fleet.service.streams.stretch_pages = 60
    fleet.put_items(20, Random(1))
    assert await run_ends(fleet) is None
    assert not fleet.everything_is_delivered(), "the stretch was longer than a run waits"
    await asyncio.sleep(5 * HOUR_S)
    assert await run_ends(fleet, "w2", within_s=600) is None
    assert fleet.everything_is_delivered()
