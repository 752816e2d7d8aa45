"""Worker heartbeats: values, observation, fences, Java workers, whole workers in virtual time (`leases.validity`)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import pytest

from mld.core.clock import LoopClock
from mld.core.errors import StartupError, TableUnavailableError
from mld.core.positions import TRIM_HORIZON
from mld.core.steps import finish
from mld.fleet import heartbeat_writer
from mld.fleet.assign.assigner import MoveWriter
from mld.fleet.assign.assignment import Move, Why
from mld.fleet.heartbeat_writer import HeartbeatTable
from mld.fleet.observations import Observations
from mld.fleet.report import reports
from mld.fleet.report.reports import FleetSnapshot, ReportRules, WorkerReport
from mld.leases import writes
from mld.leases.dynamodb import DynamoLeaseTable
from mld.leases.lease import Lease
from mld.properties.lines import ConfigurationError
from tests.support.fleet import TABLE, Fleet, in_fleet, settings_of
from tests.twins.dynamo import Fault, lost_reply, lost_request
from tests.unit.fleet.heartbeat_bed import KeepersAtWork, java_peers_of
from tests.unit.leases.support import new_dynamo
from tests.virtual_time import run_virtual, virtual

E1, E2 = "a" * 16, "b" * 16
D = 10.0
V3X = {"clientVersionConfig": "CLIENT_VERSION_CONFIG_3X"}
WORKER = {**V3X, "mld__heartbeat": "worker"}


def covered(key: str = "s", owner: str = "w", counter: int = 5, mark: str | None = E1) -> Lease:
    return Lease(key, TRIM_HORIZON, counter=counter, owner=owner, heartbeat=mark)


# --- values


@pytest.mark.parametrize(
    ("value", "epoch"),
    [
        (f"{E1}.1", E1),
        (f"{E1}.123456", E1),
        ("fenced by w.1", None),
        (f"fenced by {E1}.7", None),
        (None, None),
        ("", None),
        (E1, None),
        (f"{E1}.", None),
        (f"{E1}.-1", None),
    ],
)
def test_the_epoch_of_a_heartbeat(value: str | None, epoch: str | None) -> None:
    assert reports.epoch_of(value) == epoch


def test_heartbeats_are_found_on_damaged_reports_too() -> None:
    report = {"leaseKey": {"S": "w"}, "entityType": {"S": "WORKER_METRIC_STATS"}, "mldHeartbeat": {"S": f"{E1}.1"}}
    rows = [
        {**report, "sts": {"S": "damaged"}},
        {**report, "leaseKey": {"S": "x"}, "mldHeartbeat": {"N": "1"}},
        {**report, "leaseKey": {"S": "y"}, "entityType": {"S": "LEADER"}},
    ]
    assert reports.heartbeats_among(rows) == {"w": f"{E1}.1"}


# --- who is no mld worker

NOW = 1_000_000.0


def report(worker: str, ago_s: float = 0.0, version: str | None = "1") -> WorkerReport:
    mld = {} if version is None else {"version": version}
    return WorkerReport(worker, int(NOW - ago_s), mld=mld)


@pytest.mark.parametrize(
    ("found", "java"),
    [
        ([report("w1"), report("w2")], []),
        ([report("w1"), report("j1", version=None)], ["j1"]),
        ([report("j1", ago_s=61, version=None)], []),
        ([report("j1", ago_s=60, version=None)], ["j1"]),
        ([replace(report("j1", version=None), updated_at_s=None)], []),
        ([replace(report("j1", version=None), legacy=True)], ["j1"]),
        ([report("w1"), replace(report("w1", ago_s=9, version=None), legacy=True)], []),
    ],
)
def test_a_live_report_without_our_version_is_a_java_worker(found: list[WorkerReport], java: list[str]) -> None:
    assert heartbeat_writer.java_workers(found, NOW, ReportRules()) == java


def test_owners_of_living_leases_without_any_report() -> None:
    leases = [
        covered("a", "reported"),
        covered("c", "silent", 7),
        covered("b", "silent", 6),
        covered("d", "dead"),
        replace(covered("e", "next"), checkpoint_owner="silent"),
        replace(covered("f"), owner=None),
    ]
    owners = heartbeat_writer.unreported_owners(leases, [report("reported", ago_s=9999)], {"d"})
    assert owners == {"silent": ("b", 6)}


class WallClock(LoopClock):
    def wall(self) -> float:
        return NOW + self.monotonic()


@virtual
async def test_a_leader_tells_of_owners_that_go_on_without_a_report_and_of_no_young_worker() -> None:
    dynamo, clock = await new_dynamo(), WallClock()
    table = DynamoLeaseTable(dynamo, clock, table_name=TABLE)
    beats = HeartbeatTable(dynamo, TABLE, "me")
    java_peers = java_peers_of(dynamo, table, beats, clock, D)
    ours = replace(report("w"), mld={"version": "1", "heartbeat": f"{E1}.1"})

    def look(*leases: Lease, found: WorkerReport = ours) -> object:
        return java_peers.look(FleetSnapshot(leases, (found,), frozenset()))

    assert look(covered("a", "x", 5, None)) is None
    await clock.sleep(D)
    assert look(covered("a", "x", 9, None)) is None, "it may be young"
    await clock.sleep(0.1)
    assert look(covered("a", "x", 5, None)) is None, "nothing shows that it lives"
    assert look(covered("a", "x", 9, None)) == ("x", ("w",))
    assert look(covered("a", "x", 9, None), found=report("w")) is None, "nobody sends heartbeats"


# --- what a leader observes


class Watcher:
    """Observations over scans."""

    def __init__(self) -> None:
        self.observations = Observations(lease_duration_s=D, handoff_timeout_s=30.0)

    def scan(self, now: float, *leases: Lease, **beats: str) -> list[str]:
        """The keys that are expired at `now`."""
        self.observations.heard(beats, now)
        finish(self.observations.scanned(leases, now))
        return [lease.key for lease in leases if self.observations.is_expired(lease, now)]


def test_a_covered_lease_lives_as_long_as_its_owners_heartbeat_moves() -> None:
    it = Watcher()
    for number in range(1, 9):
        assert it.scan(20.0 * number, covered(), w=f"{E1}.{number}") == []
    assert it.scan(165.0, covered(), w=f"{E1}.8") == []
    assert it.scan(170.1, covered(), w=f"{E1}.8") == ["s"]


def test_a_heartbeat_does_not_help_leases_of_other_epochs_or_owners() -> None:
    it = Watcher()
    rows = covered("unmarked", mark=None), covered("old", mark=E2), covered("others", owner="v"), covered("mine")
    for number in range(3):
        expired = it.scan(20.0 * number, *rows, w=f"{E1}.{number}")
    assert expired == ["unmarked", "old", "others"]


def test_the_counter_of_a_covered_lease_is_a_sign_of_life_too() -> None:
    it = Watcher()
    it.scan(0.0, covered(), w=f"{E1}.1")
    assert it.scan(20.0, covered(counter=6), w=f"{E1}.1") == []


def test_during_a_handoff_the_old_owners_heartbeat_counts() -> None:
    it = Watcher()
    row = replace(covered(owner="next"), checkpoint_owner="w")
    it.scan(0.0, row, w=f"{E1}.1", next=f"{E2}.1")
    assert it.scan(20.0, row, w=f"{E1}.2", next=f"{E2}.1") == []
    assert it.scan(40.0, row, w=f"{E1}.2", next=f"{E2}.2") == ["s"]


@pytest.mark.parametrize("beats", [{"w": f"{E2}.1"}, {}])
def test_an_epoch_that_was_replaced_or_is_gone_is_waited_for(beats: dict[str, str]) -> None:
    it = Watcher()
    it.scan(0.0, covered(), w=f"{E1}.1")
    assert it.scan(20.0, covered(), **beats) == []
    assert it.scan(30.0, covered(), **beats) == []
    assert it.scan(30.1, covered(), **beats) == ["s"]


def test_after_a_fence_nothing_is_waited_for() -> None:
    it = Watcher()
    it.scan(0.0, covered(), w=f"{E1}.1")
    assert it.scan(10.1, covered(), w="fenced by v") == ["s"]


def test_a_new_leader_watches_for_a_lease_duration_first() -> None:
    it = Watcher()
    it.scan(0.0, covered(), w=f"{E1}.1")
    it.observations.forget()
    assert it.scan(50.0, covered(), w=f"{E1}.1") == []
    assert it.scan(60.1, covered(), w=f"{E1}.1") == ["s"]


# --- what a watcher sees

# --- the row


def heartbeat_row(dynamo, value: str | None) -> None:
    own = reports.attributes(reports.own_report("w", {}, NOW, "1"))
    row = {"leaseKey": {"S": "w"}, **own}
    dynamo.put_row(TABLE, row if value is None else {**row, "mldHeartbeat": {"S": value}})


@pytest.mark.parametrize(
    ("now", "seen", "marks", "may", "after"),
    [
        (f"{E1}.3", f"{E1}.3", {E1}, True, "fenced by me"),
        (f"{E1}.4", f"{E1}.3", {E1}, False, f"{E1}.4"),
        (f"{E2}.1", f"{E1}.3", {E1}, False, f"{E2}.1"),
        ("fenced by x", f"{E1}.3", {E1}, True, "fenced by x"),
        (None, f"{E1}.3", {E1}, False, None),
        (f"{E2}.1", f"{E2}.1", {E1}, True, f"{E2}.1"),
        (f"{E1}.1", f"{E2}.1", {E1}, False, f"{E1}.1"),
        (None, None, {E1}, True, None),
        (f"{E1}.1", None, {E1}, False, f"{E1}.1"),
    ],
)
@virtual
async def test_a_fence_needs_the_heartbeat_as_it_was_observed(
    now: str | None, seen: str | None, marks: set[str], may: bool, after: str | None
) -> None:
    dynamo = await new_dynamo()
    heartbeat_row(dynamo, now)
    table = HeartbeatTable(dynamo, TABLE, "me")
    assert await table.fence("w", seen, marks) is may
    row = await table.read("w")
    assert row is not None
    assert row.value == after


@virtual
async def test_a_fence_of_unknown_outcome_is_an_error_and_no_leave() -> None:
    dynamo = await new_dynamo()
    heartbeat_row(dynamo, f"{E1}.1")
    dynamo.faults = lambda sender, operation, params: lost_reply()
    table = HeartbeatTable(dynamo, TABLE, "me")
    with pytest.raises(TableUnavailableError):
        await table.fence("w", f"{E1}.1", {E1})
    dynamo.faults = None
    assert await table.fence("w", f"{E1}.1", {E1}), "the row says so"


@virtual
async def test_only_our_own_kind_of_report_is_written() -> None:
    dynamo = await new_dynamo()
    table = HeartbeatTable(dynamo, TABLE, "me")
    for row in (None, {"leaseKey": {"S": "w"}, "entityType": {"S": "LEADER"}, "mldVersion": {"S": "1"}}):
        if row is not None:
            dynamo.put_row(TABLE, row)
        assert not isinstance(await table.claim("w", None, f"{E1}.1"), heartbeat_writer.HeartbeatRow)
        assert not await table.tell("w", "java")
        assert dynamo.row(TABLE, "w") == row


# --- the leader's writes


class Fences:
    """Answers for the fences of each owner, and what was asked."""

    def __init__(self, **answers: bool | Exception) -> None:
        self.answers = answers
        self.asked: list[tuple[str, str | None, set[str]]] = []

    async def __call__(self, owner: str, seen: str | None, marked: Collection[str]) -> bool:
        self.asked.append((owner, seen, set(marked)))
        answer = self.answers[owner]
        if isinstance(answer, Exception):
            raise answer
        return answer


async def written(fences: Fences, moves: list[Move], rows: Sequence[Lease], beats: dict[str, str]) -> tuple[Any, Any]:
    """(what the writer says, owners by key afterwards)."""
    dynamo = await new_dynamo()
    table = DynamoLeaseTable(dynamo, LoopClock(), table_name=TABLE)
    for row in rows:
        await table.apply(writes.create(replace(row, counter=0, heartbeat=None)))
        item = dynamo.row(TABLE, row.key)
        mark = {} if row.heartbeat is None else {"mldHeartbeat": {"S": row.heartbeat}}
        dynamo.put_row(TABLE, {**item, "leaseCounter": {"N": str(row.counter)}, **mark})
    observations = Observations(lease_duration_s=D, handoff_timeout_s=30.0)
    observations.heard(beats, 0.0)
    writer = MoveWriter(table, observations, LoopClock(), "me", lambda _: None, fences)
    answer = await writer.write(moves)
    leases = {row.key: await table.get(row.key) for row in rows}
    return answer, {key: lease.owner for key, lease in leases.items() if lease is not None}


def expired(*rows: Lease) -> list[Move]:
    return [Move(row, "new", False, Why.EXPIRED) for row in rows]


@virtual
async def test_leases_of_an_owner_that_cannot_be_fenced_stay() -> None:
    rows = [covered("a", "dead"), covered("b", "alive"), covered("c", "alive", mark=E2), covered("d", "odd")]
    rows += [covered("e", "alive", mark=None)]
    fences = Fences(dead=True, alive=False, odd=TableUnavailableError("no answer"))
    beats = {"dead": f"{E1}.1", "alive": f"{E1}.9"}
    answer, owners = await written(fences, expired(*rows), rows, beats)
    assert owners == {"a": "new", "b": "alive", "c": "alive", "d": "odd", "e": "new"}
    assert sorted(answer.done) == ["a", "e"]
    assert answer.refused == 3
    assert [str(error) for error in answer.errors] == ["no answer"]
    assert fences.asked == [("alive", f"{E1}.9", {E1, E2}), ("dead", f"{E1}.1", {E1}), ("odd", None, {E1})]


@virtual
async def test_a_marked_lease_that_was_written_since_it_was_seen_stays() -> None:
    now, seen = covered("a", counter=6), covered("a", counter=5)
    answer, owners = await written(Fences(w=True), expired(seen), [now], {})
    assert owners == {"a": "w"}
    assert answer.refused == 1


@virtual
async def test_who_lives_is_not_fenced_for_moves_that_do_not_say_otherwise() -> None:
    rows = [covered("a"), replace(covered("b"), owner=None)]
    moves = [Move(rows[0], "new", True, Why.BALANCE), Move(rows[1], "new", False, Why.FREE)]
    fences = Fences()
    answer, owners = await written(fences, moves, rows, {"w": f"{E1}.1"})
    assert owners == {"a": "new", "b": "new"}
    assert not fences.asked
    assert answer.done["a"].checkpoint_owner == "w"
    assert answer.done["a"].heartbeat == E1


# --- settings


def test_the_setting_needs_a_fleet_in_3x_mode() -> None:
    with pytest.raises(ConfigurationError) as raised:
        settings_of(mld__heartbeat="worker")
    assert "mld.heartbeat" in str(raised.value)
    assert "clientVersionConfig" in str(raised.value)
    assert settings_of(**WORKER).leases.heartbeat.value == "worker"


# --- whole workers


def owners(world: Fleet) -> dict[str, str | None]:
    if not world.dynamo.has_table(TABLE):
        return {}
    leases = {shard.shard_id: world.lease(shard.shard_id) for shard in world.shards()}
    return {key: lease.owner for key, lease in leases.items() if lease is not None}


def is_shared(world: Fleet, *workers: str) -> bool:
    found = list(owners(world).values())
    counts = [found.count(worker) for worker in workers]
    return sum(counts) == len(world.shards()) and max(counts) - min(counts) <= 1


def marks(world: Fleet) -> set[str | None]:
    return {world.lease(key).heartbeat for key in owners(world)}


def counters(world: Fleet) -> dict[str, int]:
    return {key: world.lease(key).counter for key in owners(world)}


def beat_of(world: Fleet, worker: str) -> str | None:
    row = world.dynamo.row(TABLE, worker)
    return None if row is None else row.get("mldHeartbeat", {}).get("S")


def java_report(world: Fleet, worker: str = "java") -> None:
    row = reports.attributes(reports.own_report(worker, {}, world.clock.wall(), "1"))
    del row["mldVersion"]
    world.dynamo.put_row(TABLE, {"leaseKey": {"S": worker}, **row})


def writes_of(world: Fleet) -> int:
    return world.dynamo.usage(operation="UpdateItem", table=TABLE).requests


async def settled(world: Fleet, *workers: str) -> None:
    """The leases are shared and covered."""
    await world.until(lambda: is_shared(world, *workers), 250)
    await world.until(lambda: None not in marks(world) and len(marks(world)) == len(workers), 60)


@in_fleet(6, **WORKER)
async def test_leases_stand_still_while_heartbeats_move_and_records_flow(world) -> None:
    world.start("w1")
    world.start("w2", seed=2)
    await settled(world, "w1", "w2")
    await world.advance(30)
    before, owned = counters(world), owners(world)
    await world.advance(300)
    assert counters(world) == before
    assert owners(world) == owned
    world.put(30)
    await world.until(world.all_delivered)
    assert sum(len(running.worker.held()) for running in world.running) == 6


@in_fleet(9, **WORKER)
async def test_a_killed_worker_is_noticed_within_failover_and_two_seconds_even_if_it_led(world) -> None:
    first = world.start("w1")
    others = [world.start("w2", seed=2), world.start("w3", seed=3)]
    await settled(world, "w1", "w2", "w3")
    await world.advance(90)
    await first.crash()
    took = await world.until(
        lambda: "w1" not in owners(world).values() and sum(len(o.worker.held()) for o in others) == 9, 60
    )
    assert took <= 12.3, took
    assert (beat_of(world, "w1") or "").startswith("fenced by")
    world.put(30)
    await world.until(world.all_delivered)


@in_fleet(6, **WORKER)
async def test_a_leaving_worker_gives_its_leases_to_the_others_at_once_without_their_marks(world) -> None:
    first, second = world.start("w1"), world.start("w2", seed=2)
    await settled(world, "w1", "w2")
    await first.stop()
    assert set(owners(world).values()) == {"w2"}
    assert await world.until(lambda: len(second.worker.held()) == 6) <= 2.0
    await settled(world, "w2")
    assert world.dynamo.row(TABLE, "w1") is None


@in_fleet(4, **WORKER)
async def test_lost_replies_of_heartbeats_cost_nothing(world) -> None:
    world.start("w1")
    await settled(world, "w1")
    number = 0

    def faults(sender: str, operation: str, params: object) -> Fault | None:
        nonlocal number
        if operation == "UpdateItem" and "mldHeartbeat" in str(params):
            number += 1
            return lost_reply() if number % 3 else None
        return None

    world.dynamo.faults = faults
    before = counters(world)
    await world.advance(120)
    assert counters(world) == before
    assert len(world.running[0].worker.held()) == 4


@in_fleet(4, **WORKER)
async def test_cut_off_a_worker_stops_in_time_and_comes_back_under_a_new_epoch(world) -> None:
    first, second = world.start("w1"), world.start("w2", seed=2)
    await settled(world, "w1", "w2")
    await world.advance(40)
    epoch = reports.epoch_of(beat_of(world, "w1"))
    cut_at = world.clock.monotonic()
    world.dynamo.faults = lambda sender, *_: lost_request() if sender == "w1" else None

    def nobody_doubly() -> bool:
        both = first.worker.held() & second.worker.held()
        assert not both, both
        return len(second.worker.held()) == 4

    await world.until(nobody_doubly, 60)
    assert not first.worker.held()
    assert world.clock.monotonic() - cut_at <= 13.0
    world.dynamo.faults = None
    await world.until(lambda: reports.epoch_of(beat_of(world, "w1")) not in (None, epoch), 30)
    await settled(world, "w1", "w2")


def tokens(worker: Any) -> set[str]:
    """One for each uninterrupted possession of a lease."""
    return {holding.token for holding in worker.worker.parts.keeper.held().values()}


@in_fleet(4, **WORKER)
async def test_fenced_by_mistake_it_drops_everything_and_finds_it_again(world) -> None:
    first = world.start("w1")
    await settled(world, "w1")
    await world.advance(5)
    epoch, row = reports.epoch_of(beat_of(world, "w1")), world.dynamo.row(TABLE, "w1")
    world.dynamo.put_row(TABLE, {**row, "mldHeartbeat": {"S": "fenced by somebody"}})
    before = tokens(first)
    await world.until(lambda: len(tokens(first)) == 4 and not before & tokens(first), 7)
    await world.until(lambda: marks(world) not in ({epoch}, {None}) and len(marks(world)) == 1, 10)
    world.put(10)
    await world.until(world.all_delivered)


@in_fleet(2, **WORKER)
async def test_a_deleted_report_is_as_good_as_a_fence(world) -> None:
    first = world.start("w1")
    await settled(world, "w1")
    tokens = {held.token for held in first.worker.parts.keeper.held().values()}
    world.dynamo.delete_row(TABLE, "w1")
    await world.until(lambda: not tokens & {held.token for held in first.worker.parts.keeper.held().values()}, 4)
    await world.until(lambda: len(first.worker.held()) == 2, 3)
    await world.until(lambda: beat_of(world, "w1") is not None, 35)
    await settled(world, "w1")


@in_fleet(2, **WORKER)
async def test_a_heartbeat_that_cannot_be_read_is_not_claimed_over_and_over(world) -> None:
    first = world.start("w1")
    await settled(world, "w1")
    row = world.dynamo.row(TABLE, "w1")
    world.dynamo.put_row(TABLE, {**row, "mldHeartbeat": {"N": "1"}})
    world.dynamo.calls.clear()
    await world.advance(60)
    assert len(world.dynamo.calls) < 10 * 60, "each lease is renewed by itself, and few claims"
    assert len(first.worker.held()) == 2


@in_fleet(4, **WORKER)
async def test_restarted_under_its_id_a_worker_resumes_at_once_and_takes_over_the_heartbeat(world) -> None:
    first = world.start("w1")
    await settled(world, "w1")
    epoch = reports.epoch_of(beat_of(world, "w1"))
    await first.crash()
    await world.advance(2)
    again = world.start("w1", seed=9)
    assert await world.until(lambda: len(again.worker.held()) == 4) <= 2.0
    assert marks(world) == {None}
    await settled(world, "w1")
    assert epoch not in marks(world)


@in_fleet(4, **WORKER)
async def test_a_row_changed_by_hand_is_noticed_by_the_index(world) -> None:
    running = [world.start("w1"), world.start("w2", seed=2)]
    await world.until(lambda: is_shared(world, "w1", "w2"), 200)
    await world.advance(40)
    key, worker = next((key, each) for each in running for key in sorted(each.worker.held()))
    row = world.dynamo.row(TABLE, key)
    world.dynamo.put_row(TABLE, {**row, "leaseOwner": {"S": "somebody"}})
    assert await world.until(lambda: key not in worker.worker.held(), 10) <= 2.6


@in_fleet(4, **WORKER)
async def test_where_the_index_is_forbidden_it_is_noticed_within_a_lease_duration(world) -> None:
    first = world.start("w1")
    await settled(world, "w1")
    world.dynamo.forbidden = {("Query", TABLE), ("Scan", TABLE)}
    await world.advance(20)
    key = sorted(owners(world))[0]
    row = world.dynamo.row(TABLE, key)
    world.dynamo.put_row(TABLE, {**row, "leaseOwner": {"S": "somebody"}})
    assert await world.until(lambda: key not in first.worker.held(), 20) <= 10.0


# --- beside others


@in_fleet(6, **V3X)
async def test_both_settings_share_a_table_and_the_setting_is_changed_one_by_one(world) -> None:
    running = [world.start("w1"), world.start("w2", seed=2)]
    await world.until(lambda: is_shared(world, "w1", "w2"), 200)
    await world.advance(40)
    for setting in ("worker", "lease"):
        for number in range(2):
            held = running[number].worker_id
            await running[number].stop()
            running[number] = world.start(f"{held}x", seed=20 + number, mld__heartbeat=setting)
            await world.until(
                lambda: (
                    set(owners(world).values()) == {one.worker_id for one in running}
                    and sum(len(one.worker.held()) for one in running) == 6
                ),
                250,
            )
            world.put(12)
            await world.until(world.all_delivered)
            await world.advance(45)
        assert (marks(world) == {None}) is (setting == "lease")
        before = sum(counters(world).values())
        await world.advance(60)
        assert (sum(counters(world).values()) - before < 25) is (setting == "worker")


@in_fleet(6, **V3X)
async def test_a_worker_of_the_other_setting_takes_over_from_a_dead_one(world) -> None:
    first = world.start("w1", mld__heartbeat="worker")
    second = world.start("w2", seed=2)
    await world.until(lambda: is_shared(world, "w1", "w2"), 250)
    await world.advance(90)
    assert len(marks(world)) == 2
    await first.crash()
    assert await world.until(lambda: len(second.worker.held()) == 6, 60) <= 12.0
    assert marks(world) == {None}


@in_fleet(2, **V3X)
async def test_beside_a_java_worker_it_refuses_to_start(world) -> None:
    world.start("w1")
    await world.until(lambda: is_shared(world, "w1"), 60)
    java_report(world)
    second = world.start("w2", seed=2, mld__heartbeat="worker")
    with pytest.raises(StartupError, match=r"mld\.heartbeat=worker, but java .*mld\.heartbeat=lease"):
        await second.task
    java_report(world)
    await world.advance(70)
    world.start("w3", seed=3, mld__heartbeat="worker")
    await world.until(lambda: beat_of(world, "w3") is not None, 60)


@in_fleet(6, **WORKER)
async def test_when_a_java_worker_joins_the_leader_tells_all_and_each_lease_is_renewed_again(world) -> None:
    running = [world.start("w1"), world.start("w2", seed=2)]
    await settled(world, "w1", "w2")
    await world.advance(40)
    java_report(world)
    took = await world.until(lambda: marks(world) == {None}, 60)
    assert took <= 20 + 5, took
    assert await world.until(lambda: beat_of(world, "w1") is None and beat_of(world, "w2") is None, 5) <= 4.0
    assert {world.dynamo.row(TABLE, one)["mldStranger"]["S"] for one in ("w1", "w2")} == {"java"}
    world.dynamo.delete_row(TABLE, "java")
    await world.until(lambda: sum(len(one.worker.held()) for one in running) == 6, 60)
    before = counters(world)
    await world.advance(35)
    assert all(counter >= before[key] + 10 for key, counter in counters(world).items())
    assert not any(one.task.done() for one in running)


@in_fleet(4, **WORKER)
async def test_a_java_leader_is_noticed_without_anybody_telling(world) -> None:
    first = world.start("w1")
    await settled(world, "w1")
    await world.advance(20)
    lock = world.dynamo.row(TABLE, "Leader")
    world.dynamo.put_row(TABLE, {**lock, "ownerName": {"S": "java"}, "recordVersionNumber": {"S": "v"}})
    took = await world.until(lambda: marks(world) == {None}, 60)
    assert took <= 10.5, "a Java leader judges by two runs, 20 s apart"
    assert len(first.worker.held()) == 4


@in_fleet(4, **WORKER)
async def test_an_mld_leader_without_a_report_yet_is_no_java_worker(world) -> None:
    world.start("w1")
    await settled(world, "w1")
    lock = world.dynamo.row(TABLE, "Leader")
    world.dynamo.put_row(TABLE, {**lock, "ownerName": {"S": "young"}, "recordVersionNumber": {"S": "v"}})
    await world.advance(6)
    row = reports.attributes(reports.own_report("young", {}, world.clock.wall(), "1"))
    world.dynamo.put_row(TABLE, {"leaseKey": {"S": "young"}, **row})
    await world.advance(60)
    assert beat_of(world, "w1") is not None


# --- the price


@pytest.mark.full
def test_heartbeats_of_workers_with_100_leases_cost_a_fiftieth_of_the_renewals(capsys) -> None:
    def cost(setting: str, seconds: float) -> float:
        """UpdateItems a second of keepers and heartbeats, every shard delivering."""
        return run_virtual(KeepersAtWork(workers=4, leases=400, setting=setting).writes_a_second(seconds))

    renewals, beats = cost("lease", 10.0), cost("worker", 620.0)
    with capsys.disabled():
        print(f"\nwrites a second: {renewals:.1f} renewals, {beats:.2f} with heartbeats: 1/{renewals / beats:.0f}")
    assert beats * 50 <= renewals
