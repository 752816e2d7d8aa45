"""Workers of one machine that others keep busy share its leases within seconds, whoever came first."""

from __future__ import annotations

from mld.core.periods import LOOK_PERIOD_S
from mld.fleet.assign.failover_watcher import NEIGHBOUR_RUNS
from mld.fleet.report import reports
from tests.support.fleet import TABLE, Fleet, Running, in_fleet

V3X = {"clientVersionConfig": "CLIENT_VERSION_CONFIG_3X"}


class Busy:
    """Processors that do nothing but other people's work."""

    name = "busy"

    def __init__(self, meter: str) -> None:
        self._meter = meter

    async def meter(self) -> str:
        return self._meter

    async def read(self) -> float | None:
        return 100.0


def start(world: Fleet, worker: str, meter: str) -> Running:
    async def detect() -> Busy:
        return Busy(meter)

    return world.start(worker, detect_load=detect)


def counts(*running: Running) -> list[int]:
    return [len(one.worker.held()) for one in running]


@in_fleet(4, **V3X)
async def test_two_that_start_together_share_within_seconds(world: Fleet) -> None:
    both = [start(world, "p-1", "boot"), start(world, "p-2", "boot")]
    await world.until(lambda: sum(counts(*both)) == 4)
    await world.until(lambda: counts(*both) == [2, 2], 20.0)
    before = [set(one.worker.held()) for one in both]
    await world.advance(600.0)
    assert [set(one.worker.held()) for one in both] == before, "and rest"


@in_fleet(8, **V3X)
async def test_each_that_comes_later_gets_its_part(world: Fleet) -> None:
    running = [start(world, "a", "boot")]
    await world.until(lambda: counts(*running) == [8])
    await world.advance(300.0)
    for name, expected in (("b", [4, 4]), ("c", [3, 3, 2])):
        running.append(start(world, name, "boot"))
        await world.until(lambda expected=expected: sorted(counts(*running), reverse=True) == expected, 40.0)
        await world.advance(300.0)


@in_fleet(4, **V3X)
async def test_a_busy_machine_takes_nothing_from_another(world: Fleet) -> None:
    one = start(world, "a", "boot 1")
    await world.until(lambda: counts(one) == [4])
    other = start(world, "b", "boot 2")
    await world.advance(200.0)
    assert counts(one, other) == [4, 0], "each measures processors of its own, and they are alike"


@in_fleet(2, **V3X)
async def test_reports_forged_under_ever_new_names_make_nobody_read_the_table_at_each_second(world: Fleet) -> None:
    """A writer of rows who seems to start workers all the time, on a machine that has other workers."""
    one = start(world, "a", "boot")
    await world.until(lambda: counts(one) == [2])
    await world.advance(120.0)
    reads = world.dynamo.usage(operation="Scan").requests
    for number in range(300):
        forged = reports.own_report(f"forged-{number}", {}, world.clock.wall(), "0.3", members={"meter": "boot"})
        world.dynamo.put_row(TABLE, {"leaseKey": {"S": forged.worker}, **reports.attributes(forged)})
        await world.advance(1.0)
    looks, runs = 300 / LOOK_PERIOD_S, 300 / 60 * NEIGHBOUR_RUNS.tokens
    assert world.dynamo.usage(operation="Scan").requests - reads <= looks + runs + 10, "as beside any other worker"
    assert counts(one) == [2]
