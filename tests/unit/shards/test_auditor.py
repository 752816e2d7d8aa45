"""The auditor: when it looks, what it lists, what it repairs, and that only the leader does."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable
from dataclasses import replace

from mld.core.clock import LoopClock
from mld.core.errors import StreamInUseError, TableError, TableThrottledError, TableUnavailableError
from mld.core.positions import LATEST
from mld.core.streams import Shard
from mld.leases.lease import Lease
from mld.shards.auditor import Auditor
from mld.shards.detector import ShardDetector
from mld.shards.stream_leases import StreamLeases
from mld.shards.sync import ShardSync
from tests.unit.shards.twins import (
    FROM_LATEST,
    GRAPH_S,
    ListedStream,
    MemoryTable,
    done,
    numbers,
    row,
    sid,
)
from tests.virtual_time import run_virtual

S_RANGES = {shard.shard_id: shard.hash_range for shard in GRAPH_S}


def leased(*which: int) -> list[Lease]:
    return [row(n, 25, hash_range=S_RANGES[sid(n)]) for n in which]


class Scene:
    """An auditor over a table and a stream. `leads` says who leads at a second of the scene."""

    def __init__(self, rows: Iterable[Lease], shards: Iterable[Shard] = GRAPH_S) -> None:
        self.table = MemoryTable(rows)
        self.stream = ListedStream(shards)
        self.leads: Callable[[float], bool] = lambda second: True
        self.wakes = 0
        self.abandoned: list[str] = []

    def _auditor(self) -> Auditor:
        clock = LoopClock()
        stream = StreamLeases(self.table, ShardDetector(self.stream, clock, random.Random(7)), clock)

        async def is_leader() -> bool:
            return self.leads(clock.monotonic())

        return Auditor(
            stream,
            ShardSync(stream, initial=FROM_LATEST),
            is_leader,
            on_created=self._woken,
            on_abandoned=lambda lease: self.abandoned.append(lease.key),
        )

    def _woken(self) -> None:
        self.wakes += 1

    def audits(self, count: int = 1) -> list[bool]:
        async def scenario() -> list[bool]:
            auditor = self._auditor()
            return [await auditor.audit() for _ in range(count)]

        return run_virtual(scenario())

    def scans_at(self, seconds: float) -> list[float]:
        """The seconds at which the table was scanned by `run`."""
        at: list[float] = []

        def note(operation: str, _: str) -> TableError | None:
            if operation == "scan":
                at.append(asyncio.get_running_loop().time())
            return failing(operation, _)

        failing, self.table.fail = self.table.fail, note

        async def scenario() -> None:
            auditor = self._auditor()
            running = asyncio.create_task(auditor.run())
            await asyncio.sleep(seconds)
            running.cancel()

        run_virtual(scenario())
        return at


# --- when ------------------------------------------------------------------------------------------------------------


def test_a_clean_table_is_scanned_at_once_and_every_two_minutes_and_never_listed() -> None:
    scene = Scene(leased(1, 2, 3))

    assert scene.scans_at(250) == [0, 120, 240]
    assert scene.stream.calls == []


def test_who_does_not_lead_reads_nothing_and_who_wins_audits_at_once() -> None:
    scene = Scene(leased(1, 2, 3))
    scene.leads = lambda second: 50 <= second < 80 or second >= 100

    assert scene.scans_at(230) == [50, 100, 220]


def test_an_audit_that_failed_is_repeated_soon() -> None:
    scene = Scene(leased(1, 2, 3))
    failures = [TableThrottledError("slow down")]
    scene.table.fail = lambda operation, key: failures.pop() if failures else None

    assert scene.scans_at(125) == [0, 10]


def test_a_stream_that_is_not_ready_is_asked_again_soon() -> None:
    scene = Scene(leased(1, 3))
    scene.stream.answers = [StreamInUseError("CREATING")]

    assert scene.scans_at(15) == [0, 10]
    assert scene.table.writes == [("create", sid(2))]


# --- what it repairs -------------------------------------------------------------------------------------------------


def test_a_table_without_leases_is_filled_at_once() -> None:
    scene = Scene([], [s for s in GRAPH_S if s.is_open])

    assert scene.audits() == [True]
    assert numbers(scene.table.rows.values()) == {1, 2, 3}
    assert scene.wakes == 1


def test_a_row_deleted_by_hand_is_back_after_one_audit_and_one_listing() -> None:
    # Java: after the third sighting, four to six minutes.
    scene = Scene(leased(1, 3))

    assert scene.audits(2) == [True, True]
    assert scene.table.rows[sid(2)].checkpoint == LATEST
    assert len(scene.stream.calls) == 1


def test_ranges_are_filled_in_once_and_nothing_else_is_written() -> None:
    bare = [replace(lease, hash_range=None) for lease in leased(1, 2, 3)]
    scene = Scene(bare)

    assert scene.audits(2) == [True, True]
    assert {operation for operation, _ in scene.table.writes} == {"fill_hash_range"}
    assert {key: scene.table.rows[key].hash_range for key in (sid(1), sid(2), sid(3))} == {
        key: S_RANGES[key] for key in (sid(1), sid(2), sid(3))
    }
    assert len(scene.stream.calls) == 1


def test_a_range_that_cannot_be_written_is_remembered() -> None:
    scene = Scene([replace(lease, hash_range=None) for lease in leased(1, 2, 3)])
    scene.table.fail = lambda operation, key: TableUnavailableError("x") if operation == "fill_hash_range" else None

    assert scene.audits(3) == [True] * 3
    assert len(scene.stream.calls) == 1


def test_a_child_that_left_retention_without_a_row_is_looked_for_once() -> None:
    scene = Scene([done(0, children=(77,)), *leased(1, 2, 3)])

    assert scene.audits(3) == [True] * 3
    assert len(scene.stream.calls) == 1


def test_a_hole_without_a_shard_gets_a_listing_of_its_own_at_the_third_sighting() -> None:
    scene = Scene(leased(1, 2), [s for s in GRAPH_S if s.shard_id != sid(3)])

    assert scene.audits(3) == [True] * 3
    assert len(scene.stream.calls) == 4
    assert scene.table.writes == []


def test_another_leadership_counts_anew() -> None:
    scene = Scene(leased(1, 2), [s for s in GRAPH_S if s.shard_id != sid(3)])
    scene.leads = lambda second: not 130 <= second < 140

    assert scene.scans_at(270) == [0, 120, 140, 260]
    assert len(scene.stream.calls) == 4  # one each: none is the third in its leadership


def test_nothing_is_created_in_the_table_of_another_stream() -> None:
    scene = Scene([row(1, 5, hash_range=S_RANGES[sid(1)])])  # before the first record of that shard

    assert scene.audits() == [False]
    assert scene.table.writes == []


def test_completed_rows_that_nobody_renews_are_handed_over() -> None:
    scene = Scene([done(0, children=(1, 2), counter=9, owner="dead"), *leased(1, 2, 3)])

    scene.audits(1)
    assert scene.abandoned == []
    scene.audits(3)
    assert scene.abandoned == [sid(0), sid(0)]
