"""Whether the lease table is in reach: by the answers to the worker's own requests, however seldom somebody asks."""

from __future__ import annotations

import asyncio

import pytest

from mld.metrics.reach import THROTTLED_S, TableReach
from tests.support.fleet import Fleet, fleet
from tests.twins.dynamo import throttled
from tests.virtual_time import virtual

LEASE_S = 10.0
V3X, V2X = "CLIENT_VERSION_CONFIG_3X", "CLIENT_VERSION_CONFIG_COMPATIBLE_WITH_2X"


def reach_at(now: float) -> TableReach:
    return TableReach("app", LEASE_S, now)


def test_an_answer_is_believed_for_a_lease_duration_after_the_next_request() -> None:
    reach = reach_at(0.0)
    reach.asked(1.0)
    reach.answered(1.0)
    reach.asked(4.0)
    assert reach.why_out_of_reach(14.0) is None
    assert reach.why_out_of_reach(14.1) == "the lease table was not reached for 13 s: no answer"
    reach.answered(4.0)
    assert reach.why_out_of_reach(14.1) is None


def test_one_answer_that_is_missing_counts_for_nothing_beside_later_ones() -> None:
    reach = reach_at(0.0)
    reach.asked(1.0)  # and was given up
    reach.asked(2.0)
    reach.answered(2.0)
    assert reach.why_out_of_reach(20.0) is None


def test_answers_that_take_most_of_a_lease_duration_are_answers() -> None:
    reach, said = reach_at(0.0), []
    for second in range(200):
        if second % 3 == 0:
            reach.asked(float(second))
        if second >= 8 and (second - 8) % 3 == 0:
            reach.answered(second - 8.0)
        said.append(reach.why_out_of_reach(float(second)))
    assert set(said) == {None}


def test_a_table_that_nobody_asks_is_unknown_and_says_so() -> None:
    reach = reach_at(0.0)
    assert reach.why_out_of_reach(30.0) is None
    assert "no loop has asked it for 31 s" in str(reach.why_out_of_reach(31.0))


def test_throttling_is_remembered_for_as_long_as_a_worker_may_be_silent() -> None:
    reach = reach_at(0.0)
    reach.failed("too fast", 5.0, is_throttled=True)
    assert reach.is_throttled(5.0)
    assert not reach.is_throttled(5.0 + THROTTLED_S)


@pytest.mark.parametrize(
    ("version", "period_s", "with_leases"),
    [
        (V3X, 61, True),
        pytest.param(V3X, 5, False, marks=pytest.mark.full),
        (V2X, 300, True),
        pytest.param(V2X, 59, False, marks=pytest.mark.full),
    ],
)
@virtual
async def test_no_probe_says_ready_in_an_outage_however_seldom_it_asks(
    version: str, period_s: int, with_leases: bool
) -> None:
    async with fleet(2, clientVersionConfig=version) as world:
        world.counts_requests = True
        one = world.start("w1")
        await world.until(lambda: len(one.worker.held()) == 2)
        if not with_leases:
            one = await _idle(world)
        said = []
        for _ in range(600 // period_s):
            await world.advance(period_s)
            said.append(one.reach.why_out_of_reach(world.clock.monotonic()))
        assert set(said) == {None}, "a healthy worker is ready, with leases or without"

        world.dynamo.faults = lambda _sender, operation, _params: throttled(operation)
        await world.advance(30.0)
        said = []
        for _ in range(900 // period_s):
            await world.advance(period_s)
            said.append(one.reach.why_out_of_reach(world.clock.monotonic()))
        assert None not in said
        assert "ProvisionedThroughputExceeded" in str(said[-1])

        world.dynamo.faults = None
        await asyncio.sleep(30.0)
        assert one.reach.why_out_of_reach(world.clock.monotonic()) is None


async def _idle(world: Fleet):
    """A worker that gets no lease, since two others have them."""
    world.start("w2")
    await world.advance(60.0)
    idle = world.start("w3")
    await world.advance(120.0)
    assert not idle.worker.held()
    return idle
