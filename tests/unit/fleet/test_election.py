"""Elections in virtual time: who leads, how fast leadership moves, and that it is never in two places."""

from __future__ import annotations

import asyncio
import itertools
import logging
from typing import Any

import pytest

from mld.core.clock import LoopClock
from mld.core.errors import TableUnavailableError
from mld.core.periods import LEADER_HEARTBEAT_S
from mld.fleet.leader.election import AdaptiveElection
from mld.fleet.leader.lock import LEASE_S
from mld.fleet.leader.lock_election import (
    CLOSE_TIMEOUT_S,
    HEARTBEAT_RETRY_S,
    HOOK_TIMEOUT_S,
    RELEASE_ATTEMPTS_MAX,
    LockElection,
)
from mld.fleet.leader.lock_table import LockTable
from mld.fleet.leader.shuffle_election import FIRST_REELECTION_S, NO_OWNERS_RECHECK_S, REELECTION_S, ShuffleElection
from mld.leases.rows import COORDINATOR_TABLE_KEY, LEASE_TABLE_KEY, Place
from tests.support.tables import make_table
from tests.twins.dynamo import Fault, FaultChooser, MemoryDynamo, lost_reply, lost_request, throttled
from tests.unit.leases.support import FaultPlan
from tests.virtual_time import run_virtual, virtual

LEASES = Place("app", LEASE_TABLE_KEY)
LEGACY = Place("app-CoordinatorState", COORDINATOR_TABLE_KEY)

ASK_S = 1.0  # Java's scheduler asks once a second


class Gate:
    """Stops one process: what it sends and what it hears waits, and so do its timers. Its clock goes on."""

    def __init__(self) -> None:
        self._open = asyncio.Event()
        self._open.set()

    @property
    def is_open(self) -> bool:
        return self._open.is_set()

    def shut(self) -> None:
        self._open.clear()

    def open(self) -> None:
        self._open.set()

    async def passed(self) -> None:
        await self._open.wait()


class ProcessClock(LoopClock):
    """The clock of a process that may be stopped. Its wall clock is of no use to anybody."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    def wall(self) -> float:
        raise AssertionError("leadership is judged without wall clocks")

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        await self._gate.passed()


class ProcessService:
    def __init__(self, dynamo: MemoryDynamo, name: str, gate: Gate) -> None:
        self._client = dynamo.client(name)
        self._gate = gate

    async def call(self, operation: str, params: dict[str, Any], *, timeout_s: float | None = None) -> dict[str, Any]:
        await self._gate.passed()
        try:
            return await self._client.call(operation, params, timeout_s=timeout_s)
        finally:
            await self._gate.passed()


class Elector:
    """One process with a lock election."""

    def __init__(self, dynamo: MemoryDynamo, name: str, *, worker_id: str | None = None, process: int = 1) -> None:
        numbers = itertools.count(1)
        self.name = name
        self.gate = Gate()
        self.place = LEASES
        self.changes: list[tuple[float, bool]] = []
        self.checked: list[bool] = []
        self.hook_error: Exception | None = None
        self.hook_delay_s = 0.0
        self.moves_to: Place | None = None
        """Where the next check finds that the lock has moved."""
        self._service = ProcessService(dynamo, name, self.gate)
        self.election = LockElection(
            lambda: LockTable(self._service, self.place),
            ProcessClock(self.gate),
            worker_id=worker_id or name,
            new_version=lambda: f"{name}-{process}-{next(numbers)}",
            on_check=self._checked,
            on_change=lambda leads: self.changes.append((now(), leads)),
        )

    async def _checked(self, is_leader: bool) -> None:
        self.checked.append(is_leader)
        await asyncio.sleep(self.hook_delay_s)
        if self.moves_to is not None:
            self.place, self.moves_to = self.moves_to, None
            raise TableUnavailableError("the migration is complete")
        if self.hook_error is not None:
            raise self.hook_error

    async def leads(self) -> bool:
        return await self.election.is_leader()

    def holds(self) -> bool:
        return self.election.holds_lock

    def crash(self) -> None:
        """Stop for good, without a word."""
        self.gate.shut()


def now() -> float:
    return asyncio.get_running_loop().time()


async def world(*, faults: FaultChooser | None = None) -> MemoryDynamo:
    dynamo = MemoryDynamo(LoopClock(), faults=faults)
    for place in (LEASES, LEGACY):
        await make_table(dynamo, place.table, place.key)
    return dynamo


def owner(dynamo: MemoryDynamo, place: Place = LEASES) -> str | None:
    row = dynamo.row(place.table, "Leader")
    return None if row is None else str(row["ownerName"]["S"])


def calls(dynamo: MemoryDynamo, name: str) -> list[str]:
    return [operation for sender, operation in dynamo.calls if sender == name]


async def poll(elector: Elector, seconds: float) -> float | None:
    """Ask once a second for some time, until the elector leads; when that was."""
    until = now() + seconds
    while now() < until:
        if await elector.leads():
            return now()
        await asyncio.sleep(ASK_S)
    return None


# --- the lock: winning, holding, following


@virtual
async def test_a_leader_asks_the_table_only_by_its_heartbeat() -> None:
    dynamo = await world()
    a = Elector(dynamo, "a")
    while now() < 590:
        assert await a.leads()
        await asyncio.sleep(ASK_S)
    assert calls(dynamo, "a")[:2] == ["GetItem", "PutItem"]
    assert calls(dynamo, "a")[2:] == ["UpdateItem"] * 19
    beats = [applied.at for applied in dynamo.history]
    assert beats == [30.0 * number for number in range(20)]
    assert len({applied.after["recordVersionNumber"]["S"] for applied in dynamo.history}) == 20


@virtual
async def test_a_follower_reads_once_a_heartbeat() -> None:
    dynamo = await world()
    a, b = Elector(dynamo, "a"), Elector(dynamo, "b")
    assert await a.leads()
    assert await poll(b, 600) is None
    assert calls(dynamo, "b") == ["GetItem"] * 20


@virtual
async def test_those_who_ask_together_share_one_check() -> None:
    dynamo = await world(faults=lambda *_: Fault(delay_before_s=1.0))
    a = Elector(dynamo, "a")
    answers = await asyncio.gather(*(a.leads() for _ in range(10)))
    assert answers == [True] * 10
    assert calls(dynamo, "a") == ["GetItem", "PutItem"]
    assert a.checked == [True]


@virtual
async def test_a_caller_that_gives_up_leaves_the_check_to_the_others() -> None:
    dynamo = await world(faults=lambda *_: Fault(delay_before_s=1.0))
    a = Elector(dynamo, "a")
    first, second = asyncio.create_task(a.leads()), asyncio.create_task(a.leads())
    await asyncio.sleep(0.5)
    first.cancel()
    assert await second
    assert first.cancelled()


# --- the lock: changes


@virtual
async def test_a_graceful_stop_lets_the_next_check_win_at_once() -> None:
    dynamo = await world()
    a, b = Elector(dynamo, "a"), Elector(dynamo, "b")
    assert await a.leads()
    assert not await b.leads()
    await asyncio.sleep(100)
    assert not await b.leads()
    await a.election.close()
    assert owner(dynamo) is None
    assert a.changes[-1] == (100.0, False)
    assert not await a.leads()
    won_at = await poll(b, 60)
    assert won_at is not None
    assert won_at - 100 <= LEADER_HEARTBEAT_S


@pytest.mark.parametrize("crash_at", [0.0, 29.5, 77.7])
@virtual
async def test_after_a_crash_leadership_moves_within_120_to_150_s_of_the_last_heartbeat(crash_at: float) -> None:
    dynamo = await world()
    a, b = Elector(dynamo, "a"), Elector(dynamo, "b")
    assert await a.leads()
    polled = asyncio.create_task(poll(b, 1000))
    await asyncio.sleep(crash_at)
    a.crash()
    last_beat = dynamo.history[-1].at
    won_at = await polled
    assert won_at is not None
    assert LEASE_S < won_at - last_beat <= LEASE_S + LEADER_HEARTBEAT_S + ASK_S
    assert not a.holds()


@virtual
async def test_a_paused_leader_does_not_lead_after_its_lease_and_the_follower_does() -> None:
    dynamo = await world()
    a, b = Elector(dynamo, "a"), Elector(dynamo, "b")
    assert await a.leads()
    polled = asyncio.create_task(poll(b, 400))
    a.gate.shut()
    await asyncio.sleep(LEASE_S - 0.1)
    assert a.holds()
    await asyncio.sleep(0.2)
    assert not a.holds()
    assert await polled is not None
    a.gate.open()
    assert not await a.leads()
    assert await b.leads()
    assert a.changes[-1][1] is False


@virtual
async def test_a_lock_taken_by_force_is_lost_at_the_next_heartbeat() -> None:
    dynamo = await world()
    a = Elector(dynamo, "a")
    assert await a.leads()
    dynamo.put_row(LEASES.table, foreign_row())
    await asyncio.sleep(LEADER_HEARTBEAT_S + 0.1)
    assert not a.holds()
    assert a.changes[-1] == (LEADER_HEARTBEAT_S, False)
    assert owner(dynamo) == "java"
    assert not await a.leads()


def foreign_row(**changes: Any) -> dict[str, Any]:
    row = {
        "leaseKey": {"S": "Leader"},
        "ownerName": {"S": "java"},
        "leaseDuration": {"S": "120000"},
        "recordVersionNumber": {"S": "foreign"},
    }
    return {name: value for name, value in (row | changes).items() if value is not None}


# --- the lock: lost requests and replies


@virtual
async def test_a_claim_without_an_answer_is_no_leadership_until_it_is_recognized() -> None:
    dynamo = await world()
    FaultPlan(dynamo, "a", ["PutItem"]).next(lost_reply())
    a = Elector(dynamo, "a")
    assert not await a.leads()
    assert owner(dynamo) == "a"
    assert not a.holds()
    won_at = await poll(a, 30)
    assert won_at is not None
    assert won_at <= 3.0
    assert calls(dynamo, "a").count("PutItem") == 1
    await asyncio.sleep(200)
    assert a.holds()


@virtual
async def test_an_unreachable_table_has_no_leader_and_raises_nothing() -> None:
    dynamo = await world()
    FaultPlan(dynamo, "a", ["GetItem"]).always = lost_request()
    a = Elector(dynamo, "a")
    assert await poll(a, 300) is None
    assert len(calls(dynamo, "a")) == 10


@virtual
async def test_who_loses_the_race_for_a_claim_follows_the_winner() -> None:
    dynamo = await world(faults=lambda *_: Fault(delay_before_s=1.0))
    a, b = Elector(dynamo, "a"), Elector(dynamo, "b")
    assert sorted(await asyncio.gather(a.leads(), b.leads())) == [False, True]
    loser = a if owner(dynamo) == "b" else b
    assert await poll(loser, LEADER_HEARTBEAT_S - 2) is None
    assert calls(dynamo, loser.name) == ["GetItem", "PutItem"]
    assert loser.election.leader == owner(dynamo)


@virtual
async def test_a_renewal_without_an_answer_is_tried_again_soon_and_may_be_what_refuses() -> None:
    dynamo = await world()
    a = Elector(dynamo, "a")
    assert await a.leads()
    FaultPlan(dynamo, "a", ["UpdateItem"]).next(lost_reply())
    await asyncio.sleep(LEADER_HEARTBEAT_S + HEARTBEAT_RETRY_S + 0.1)
    assert calls(dynamo, "a").count("UpdateItem") == 2
    await asyncio.sleep(LEASE_S)
    assert a.holds()
    assert a.changes == [(0.0, True)]


@virtual
async def test_a_release_goes_for_the_version_that_is_in_the_row() -> None:
    """Also for that of a renewal or a claim without an answer."""
    dynamo = await world()
    a, b = Elector(dynamo, "a"), Elector(dynamo, "b")
    faults = FaultPlan(dynamo, "a")
    assert await a.leads()
    faults.next(lost_reply())
    await asyncio.sleep(LEADER_HEARTBEAT_S + 1)
    await a.election.close()
    assert owner(dynamo) is None
    FaultPlan(dynamo, "b", ["PutItem"]).next(lost_reply())
    assert not await b.leads()
    assert owner(dynamo) == "b"
    await b.election.close()
    assert owner(dynamo) is None


@virtual
async def test_a_release_is_tried_a_few_times() -> None:
    dynamo = await world()
    a = Elector(dynamo, "a")
    assert await a.leads()
    FaultPlan(dynamo, "a", ["DeleteItem"]).always = throttled()
    await a.election.step_down(5.0)
    assert calls(dynamo, "a").count("DeleteItem") == RELEASE_ATTEMPTS_MAX
    assert a.changes[-1][1] is False


@virtual
async def test_the_locks_of_all_siblings_that_have_ended_are_claimed_at_once_while_that_is_sure() -> None:
    dynamo = await world()
    b = Elector(dynamo, "b")
    dynamo.put_row(LEASES.table, foreign_row())
    assert not await b.leads()
    b.election.ended("java", now() + 3)
    b.election.ended("other", now() + 9)
    await asyncio.sleep(3.1)
    assert not await b.leads(), "a new process may run under that name"
    b.election.ended("java", now() + 3)
    assert await b.leads()
    assert owner(dynamo) == "b"


@virtual
async def test_the_longest_hold_off_counts() -> None:
    dynamo = await world()
    a = Elector(dynamo, "a")
    await a.election.step_down(45.0)
    await a.election.step_down(5.0)
    assert await poll(a, 44) is None
    assert await poll(a, 30) is not None


# --- stepping down, closing


@virtual
async def test_stepping_down_during_a_claim_gives_it_back() -> None:
    dynamo = await world(faults=lambda *_: Fault(delay_before_s=1.0))
    a = Elector(dynamo, "a")
    asking = asyncio.create_task(a.leads())
    await asyncio.sleep(1.5)
    await a.election.step_down(45.0)
    assert not await asking
    assert owner(dynamo) is None
    assert a.changes == []


@virtual
async def test_closing_is_bounded_and_final() -> None:
    dynamo = await world()
    a = Elector(dynamo, "a")
    assert await a.leads()
    a.crash()
    started_at = now()
    await a.election.close()
    assert now() - started_at <= CLOSE_TIMEOUT_S
    a.gate.open()
    await asyncio.sleep(100)
    assert not a.holds()
    assert not await a.leads()
    assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []


@virtual
async def test_closing_during_a_check_answers_false() -> None:
    dynamo = await world()
    a = Elector(dynamo, "a")
    a.hook_delay_s = 20.0
    asking = asyncio.create_task(a.leads())
    await asyncio.sleep(1)
    assert owner(dynamo) == "a"
    await a.election.close()
    assert not await asking
    assert owner(dynamo) is None


@virtual
async def test_a_lost_delete_cannot_end_a_later_leadership() -> None:
    """The delete arrives when the same process leads again: it must not take its row away."""
    dynamo = await world()
    faults = FaultPlan(dynamo, "a", ["DeleteItem"])
    faults.next(Fault(delay_before_s=15.0), lost_request(), lost_request())
    a, b = Elector(dynamo, "a"), Elector(dynamo, "b")
    assert await a.leads()
    await a.election.step_down(5.0)
    assert owner(dynamo) == "a"
    assert await poll(a, 10) is not None
    await asyncio.sleep(16.0 - now())
    assert owner(dynamo) == "a"
    assert not await b.leads()
    assert a.holds()


# --- the hook and the place of the lock


@virtual
async def test_the_hook_hears_of_each_fresh_result() -> None:
    dynamo = await world()
    a, b = Elector(dynamo, "a"), Elector(dynamo, "b")
    for _ in range(60):
        await a.leads()
        await b.leads()
        await asyncio.sleep(ASK_S)
    assert a.checked == [True] * 60
    assert b.checked == [False] * 2


@virtual
async def test_a_failing_hook_gives_the_lock_up() -> None:
    dynamo = await world()
    a = Elector(dynamo, "a")
    assert await a.leads()
    a.hook_error = TableUnavailableError("no answer")
    assert not await a.leads()
    assert owner(dynamo) is None
    a.hook_error = None
    won_at = await poll(a, 60)
    assert won_at == LEADER_HEARTBEAT_S
    assert [leads for _, leads in a.changes] == [True, False, True]


@virtual
async def test_a_hanging_hook_gives_the_lock_up() -> None:
    dynamo = await world()
    a = Elector(dynamo, "a")
    a.hook_delay_s = 1000.0
    assert not await a.leads()
    assert now() == HOOK_TIMEOUT_S
    assert owner(dynamo) is None


@virtual
async def test_when_the_lock_moves_the_old_one_is_released_and_false_answered_once() -> None:
    dynamo = await world()
    a = Elector(dynamo, "a")
    a.place = LEGACY
    assert await a.leads()
    assert owner(dynamo, LEGACY) == "a"
    a.place = LEASES
    assert not a.holds()
    assert not await a.leads()
    assert owner(dynamo, LEGACY) is None
    assert await a.leads()
    assert owner(dynamo) == "a"
    await asyncio.sleep(300)
    assert a.holds()


@virtual
async def test_a_hook_that_moves_the_lock_and_fails_costs_one_false() -> None:
    dynamo = await world()
    a = Elector(dynamo, "a")
    a.place = LEGACY
    assert await a.leads()

    a.moves_to = LEASES
    assert not await a.leads()
    assert owner(dynamo, LEGACY) is None
    assert await a.leads()
    assert owner(dynamo) == "a"


# --- damaged rows


def test_a_damaged_row_is_reported_once_and_replaced(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        dynamo = await world()
        dynamo.put_row(LEASES.table, foreign_row(ownerName=None))
        won_at = await poll(Elector(dynamo, "a"), 300)
        assert won_at is not None
        assert LEASE_S < won_at <= LEASE_S + 2

    with caplog.at_level(logging.ERROR):
        run_virtual(main())
    (record,) = caplog.records
    assert "ownerName" in record.getMessage()


# --- the shuffle


class Owners:
    def __init__(self, *names: str) -> None:
        self.names = list(names)
        self.error: Exception | None = None
        self.asked_at: list[float] = []

    async def __call__(self) -> list[str]:
        self.asked_at.append(now())
        await asyncio.sleep(0.1)
        if self.error is not None:
            raise self.error
        return list(self.names)


def shuffled(owners: Owners, worker_id: str) -> ShuffleElection:
    return ShuffleElection(owners, LoopClock(), worker_id=worker_id)


@virtual
async def test_the_shuffle_elects_exactly_one_owner() -> None:
    owners = Owners("wa", "wb", "wc")
    leads = {name: await shuffled(owners, name).is_leader() for name in ("wa", "wb", "wc", "wd")}
    assert leads == {"wa": False, "wb": False, "wc": True, "wd": False}


@virtual
async def test_elections_are_held_at_0_60_and_then_every_300_s() -> None:
    owners = Owners("wa", "wb", "wc")
    election = shuffled(owners, "wa")
    while now() < 900:
        await asyncio.gather(election.is_leader(), election.is_leader())
        await asyncio.sleep(0.9)
    expected = [0.0, FIRST_REELECTION_S, FIRST_REELECTION_S + REELECTION_S, FIRST_REELECTION_S + 2 * REELECTION_S]
    assert [round(at / 10) * 10.0 for at in owners.asked_at] == expected


@virtual
async def test_a_new_owner_changes_the_leader_at_the_next_election() -> None:
    owners = Owners("wa", "wb", "wc")
    changes: list[bool] = []
    election = ShuffleElection(owners, LoopClock(), worker_id="wc", on_change=changes.append)
    assert await election.is_leader()
    owners.names.append("wd")
    assert await election.is_leader()
    await asyncio.sleep(FIRST_REELECTION_S)
    assert not await election.is_leader()
    assert changes == [True, False]


@virtual
async def test_while_nobody_owns_leases_everybody_leads_and_looks_again_soon() -> None:
    owners = Owners()
    election = shuffled(owners, "wz")
    assert await election.is_leader()
    owners.names = ["wa", "wz"]
    await asyncio.sleep(NO_OWNERS_RECHECK_S)
    assert not await election.is_leader()
    assert len(owners.asked_at) == 2


@virtual
async def test_a_failed_election_keeps_the_old_leader() -> None:
    owners = Owners("wa")
    election = shuffled(owners, "wa")
    assert await election.is_leader()
    owners.error = TableUnavailableError("no answer")
    await asyncio.sleep(FIRST_REELECTION_S)
    assert await election.is_leader()
    assert len(owners.asked_at) == 2


@virtual
async def test_before_the_first_election_nobody_leads() -> None:
    owners = Owners("wa")
    owners.error = TableUnavailableError("no answer")
    election = shuffled(owners, "wa")
    assert not await election.is_leader()
    owners.error = None
    await asyncio.sleep(NO_OWNERS_RECHECK_S)
    assert await election.is_leader()


@virtual
async def test_a_shuffled_leader_steps_down_for_a_while_and_closes_for_good() -> None:
    election = shuffled(Owners("wa"), "wa")
    assert await election.is_leader()
    await election.step_down(40.0)
    assert not await election.is_leader()
    await asyncio.sleep(40.0)
    assert await election.is_leader()
    await election.close()
    assert not await election.is_leader()


# --- changing between them


@virtual
async def test_a_switch_releases_the_lock_and_goes_on_with_the_other() -> None:
    dynamo = await world()
    a = Elector(dynamo, "wa")
    election = AdaptiveElection()
    assert not await election.is_leader()
    await election.switch(a.election)
    assert await election.is_leader()
    await election.switch(shuffled(Owners("wa", "wb"), "wb"))
    assert owner(dynamo) is None
    assert not await election.is_leader()
    await election.switch(shuffled(Owners("wa", "wb"), "wa"))
    assert await election.is_leader()
    again = Elector(dynamo, "wa", process=2)
    await election.switch(again.election)
    assert await election.is_leader()
    assert owner(dynamo) == "wa"
    await election.close()
    assert owner(dynamo) is None
    assert not await election.is_leader()


@virtual
async def test_an_answer_of_the_election_before_does_not_count() -> None:
    owners = Owners("wa")
    election = AdaptiveElection()
    await election.switch(shuffled(owners, "wa"))
    asking = asyncio.create_task(election.is_leader())
    await asyncio.sleep(0.05)
    await election.switch(shuffled(owners, "wb"))
    assert not await asking


@virtual
async def test_nobody_leads_during_a_switch() -> None:
    dynamo = await world(faults=lambda *_: Fault(delay_before_s=1.0))
    a = Elector(dynamo, "wa")
    election = AdaptiveElection()
    await election.switch(a.election)
    assert await election.is_leader()
    switching = asyncio.create_task(election.switch(shuffled(Owners("wa"), "wa")))
    await asyncio.sleep(0.5)
    assert not await election.is_leader()
    await switching
    assert await election.is_leader()


@virtual
async def test_a_switch_after_closing_closes_what_it_is_given() -> None:
    dynamo = await world()
    a = Elector(dynamo, "wa")
    election = AdaptiveElection()
    await election.switch(shuffled(Owners("wa"), "wa"))
    await election.close()
    await election.switch(a.election)
    assert not await a.leads()
