"""Whether the lease table is in reach: by renewals, or by a read where there are none, and only while somebody asks."""

from __future__ import annotations

import asyncio

from mld.core.clock import LoopClock
from mld.core.errors import TableUnavailableError
from mld.metrics.registry import Metrics
from mld.serving.daemon_status import ASKED_S, TableSight
from tests.virtual_time import virtual

LEASE_S = 10.0


class Table:
    """`is_reachable` None: it does not answer at all."""

    def __init__(self) -> None:
        self.is_reachable: bool | None = True
        self.reads = 0

    async def read(self) -> None:
        self.reads += 1
        if self.is_reachable is None:
            await asyncio.Event().wait()
        if not self.is_reachable:
            raise TableUnavailableError("GetItem: no answer: refused")


class Stage:
    def __init__(self) -> None:
        self.metrics, self.table = Metrics(), Table()
        self.sight = TableSight(self.metrics, LoopClock(), LEASE_S, self.table.read)

    async def pass_time(self, seconds: int, *, asks: bool = True) -> str | None:
        """As the daemon does it, second by second; what the last answer was."""
        said = None
        for _ in range(seconds):
            await asyncio.sleep(1)
            self.sight.look()
            said = self.sight.why_out_of_sight() if asks else None
        return said


@virtual
async def test_a_worker_without_leases_reads_a_row_now_and_then() -> None:
    stage = Stage()
    assert await stage.pass_time(60) is None
    assert 10 <= stage.table.reads <= 20


@virtual
async def test_nothing_is_read_while_nobody_asks() -> None:
    stage = Stage()
    await stage.pass_time(3600, asks=False)
    assert stage.table.reads == 0
    assert stage.sight.why_out_of_sight() is None, "the first answer may be old"
    await stage.pass_time(int(2 * ASKED_S), asks=False)
    assert 0 < stage.table.reads <= ASKED_S


@virtual
async def test_renewals_are_enough() -> None:
    stage = Stage()
    part = stage.metrics.begin("a", 0.0)
    for _ in range(30):
        part.renewed_at = LoopClock().monotonic()
        assert await stage.pass_time(2) is None
    assert stage.table.reads == 0


@virtual
async def test_a_table_out_of_reach_is_told_after_a_lease_duration_and_forgotten_when_it_is_back() -> None:
    stage = Stage()
    await stage.pass_time(20)
    stage.table.is_reachable = False
    assert await stage.pass_time(5) is None
    said = await stage.pass_time(10)
    assert said is not None
    assert "the lease table was not reached for 1" in said
    assert "refused" in said
    stage.table.is_reachable = True
    assert await stage.pass_time(3) is None


@virtual
async def test_a_table_that_never_answers_does_not_hold_up_the_answer() -> None:
    stage = Stage()
    stage.table.is_reachable = None
    assert "no answer" in str(await stage.pass_time(30))
    stage.sight.close()
