"""The end of a run: liveness (1, 6), resources (7) and the price (8)."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Any

from mld.daemon.worker import Worker
from tests.simulation.checkers import SHARD_END, Violation
from tests.simulation.world.plan import Kind
from tests.support.fleet import TABLE

if TYPE_CHECKING:
    from tests.simulation.world.plan import Plan
    from tests.simulation.world.world import World

CAUGHT_UP_S = 40.0
"""From the last record put to its checkpoint: the idle interval, a batch, and whatever is still being retried."""
JAVA_LOOKS_S = 10.0
UNHEARD_MAX = 5
"""So often a lease may run out before its new owner hears of it, where the index lags behind for longer than leases
last: Java workers look every ten seconds, and only there."""
STILL_S = 60.0
"""For so long no lease changes its owner."""
ROW_CHANGES_MAX = 40
QUIET_PERIODS = 3
"""For so many taker periods nothing moves before the fleet counts as at rest: or more, see `_quiet_periods`."""
REFUSED_BY_CHANCE = 0.001
"""So rarely every steal of that time may have been refused though there was more to steal."""
WINDOWS_MAX = 20
FADING_S = 200.0
"""Until the throughput of the last records has faded from the rows, and its effects from the reports."""
RUNS_PER_BALANCING = 3
"""`varianceBalancingFrequency`: leases move for balance's sake in every third assignment run."""
RENEWALS_PER_FAILOVER = 3.2
DYNAMO_CALLS_PER_WORKER_HOUR = 1200.0
"""Beside renewals and checkpoints: a taker's scans (one in 2 lease durations) and a cleaner's looks."""
DYNAMO_CALLS_PER_WORKER_HOUR_3X = 7_500.0
"""3,600 queries of the own leases, 2,400 looks at all of them, assignment runs, reports, the lock."""


async def check_rest(world: World) -> None:
    """Raises Violation unless the world has come to rest and stays there."""
    await _until_caught_up(world)
    if world.plan.fleet is not None:
        await asyncio.sleep(FADING_S)
    for _ in range(WINDOWS_MAX):
        await _until_at_rest(world)
        before, rows, calls, started = _owners(world), set(world.lease_rows()), _calls(world), world.now()
        await asyncio.sleep(STILL_S)
        world._raise_failures()
        # A Java leader goes by figures of load, and may still move a lease minutes after the one before.
        if set(world.lease_rows()) == rows and (_owners(world) == before or not world.is_led_by_java()):
            break
    _check_rows(world)
    _check_neighbours(world)
    if (after := _owners(world)) != before:
        moved = sorted(key for key in after.keys() | before.keys() if after.get(key) != before.get(key))
        raise Violation(f"checker 6: leases still move after {world.plan.quiet_s:.0f} s of calm: {moved}")
    _check_resources(world)
    _check_price(world, calls, world.now() - started)


async def _until_at_rest(world: World) -> None:
    """Stealing evens out a few leases in each taker period, and a row that is cleaned up changes everybody's share."""
    period_s = 2 * world.plan.failover_s * (1 if world.plan.fleet is None else RUNS_PER_BALANCING)
    steals = int(world.plan.settings.get("maxLeasesToStealAtOneTime", "1"))
    moves_max = len(world.lease_rows()) / steals + ROW_CHANGES_MAX
    deadline = world.now() + moves_max * period_s
    while world.now() < deadline:
        before, rows = _owners(world), set(world.lease_rows())
        await asyncio.sleep(_quiet_periods(world.plan) * period_s)
        if _owners(world) == before and set(world.lease_rows()) == rows:
            return
    raise Violation(f"checker 6: leases still move {moves_max * period_s:.0f} s after the calm")


def _quiet_periods(plan: Plan) -> int:
    """A Java 2.x worker steals by the counter of its scan: where scans lag, whatever was renewed since is refused."""
    lag_s, renewed_s = plan.stale_reads_s, plan.failover_s / 3
    if not lag_s or all(spec.kind != "java2" for spec in plan.workers):
        return QUIET_PERIODS
    refused = lag_s / renewed_s / 2 if lag_s < renewed_s else 1 - renewed_s / lag_s / 2  # lags are drawn up to `lag_s`
    return max(QUIET_PERIODS, math.ceil(math.log(REFUSED_BY_CHANCE) / math.log(refused)))


async def _until_caught_up(world: World) -> None:
    patience_s = CAUGHT_UP_S + _unheard_s(world.plan)
    deadline = world.now() + patience_s
    while (owed := _owed(world)) and world.now() < deadline:
        await asyncio.sleep(1.0)
    if owed:
        raise Violation(f"checker 1 and 6: not caught up {patience_s:.0f} s after the last record: {owed[:3]}")


def _unheard_s(plan: Plan) -> float:
    """How long a lease that moves may be with nobody.

    A Java worker hears of its leases from the owner index alone, ours read the table while there is none.
    """
    if plan.fleet is None or all(spec.kind == "mld" for spec in plan.workers):
        return 0.0
    hears_s = JAVA_LOOKS_S + plan.fleet.index_lag_max_s
    unheard_s = UNHEARD_MAX * hears_s if plan.fleet.index_lag_max_s > plan.failover_s else 0.0
    if any(action.kind is Kind.INDEX_GONE for action in plan.actions):
        unheard_s += 2 * plan.fleet.index_creation_s + hears_s  # it is deleted, made again, and read
    return unheard_s


def _owed(world: World) -> list[str]:
    """What is not delivered or not checkpointed yet."""
    owed = []
    for record in world.ledger.shards.values():
        if world.sources is not None and not world.sources.is_owed(record.shard_id):
            continue
        by_hand = record.edited or world.ledger.has_edited_ancestor(record)
        if by_hand and world.plan.initial == "LATEST":
            continue  # a row was deleted by hand: what lay before the new one is skipped, as documented
        if left := world.ledger.owed(record):
            owed.append(f"{left} records of {record.shard_id} undelivered")
        elif record.at_latest and not record.has_news_since_the_tip:
            continue
        elif record.put and not record.ended and not world.ledger.has_left_unseen(record):
            row = world.dynamo.row(TABLE, record.shard_id)
            text = row["checkpoint"]["S"] if row else "no row"
            stored = (int(text), int(row["checkpointSubSequenceNumber"]["N"])) if row and text.isdigit() else (-1, 0)
            if stored < record.put[-1] and text != SHARD_END:
                last, sub = record.put[-1]
                owed.append(f"{record.shard_id} checkpointed at {text[-8:]}, last record {last % 10**8}/{sub}")
    return owed


def _owners(world: World) -> dict[str, str | None]:
    rows = world.lease_rows()
    return {key: row.get("leaseOwner", {}).get("S") for key, row in rows.items() if _checkpoint(row) != SHARD_END}


def _checkpoint(row: Any) -> str:
    return str(row["checkpoint"]["S"])


def _check_rows(world: World) -> None:
    """Every open shard has a row with a living owner who works on it."""
    living = {m.worker_id: m for m in world.machines if m.process is not None and m.wanted}
    for shard in world._open_shards():
        row = world.dynamo.row(TABLE, shard.shard_id)
        if row is None:
            raise Violation(f"checker 6: the open shard {shard.shard_id} has no lease")
        owner = row.get("leaseOwner", {}).get("S")
        if owner not in living:
            raise Violation(f"checker 6: the open shard {shard.shard_id} belongs to {owner}, which does not run")
        machine = living[owner]
        if machine.spec.kind == "mld" and not machine.believes(shard.shard_id):
            raise Violation(f"checker 6: {owner} does not know that it owns {shard.shard_id}")


def _check_neighbours(world: World) -> None:
    """Workers of one machine have the same number of open leases, or one more, however busy it is."""
    counts: dict[str, dict[str, int]] = {}
    owners = list(_owners(world).values())
    steered = {action.kind for action in world.plan.actions} & {Kind.OPERATE}
    for machine in world.machines:
        if machine.load is not None and machine.process is not None and machine.wanted and not steered:
            meter = machine.load.load.meter or machine.worker_id
            counts.setdefault(meter, {})[machine.worker_id] = owners.count(machine.worker_id)
    for meter, each in counts.items():
        if max(each.values()) - min(each.values()) > 1:
            raise Violation(f"checker 6: workers of {meter} share unevenly at rest: {each}")


def _check_resources(world: World) -> None:
    """Checker 7: nothing of lost shards is left."""
    for machine in world.machines:
        if machine.spec.kind != "mld" or not isinstance(machine.worker, Worker) or machine.process is None:
            continue
        held = machine.worker.held()
        load = len(held & _owners(world).keys())
        if all(spec.kind == "mld" for spec in world.plan.workers) and load > world.settings.leases.held_max:
            raise Violation(f"checker 6: {machine.worker_id} holds {load} open leases at rest, more than it may")
        assert machine.host is not None
        living = [(child.shard_id, child.of_shard) for child in machine.host.living()]
        if len(living) != len(set(living)) or not {shard for shard, _ in living} <= set(held):
            raise Violation(f"checker 7: {machine.worker_id} has children {sorted(living)} for {sorted(held)}")
        assert machine.kinesis is not None
        since = world.now() - STILL_S / 2
        if read := sorted(key for key, at in machine.kinesis.read_at.items() if at > since and key not in held):
            raise Violation(f"checker 7: {machine.worker_id} still reads {read}, which it does not hold")
        if machine.fan_out is not None and (left := sorted(set(machine.fan_out.open_shards()) - set(held))):
            raise Violation(f"checker 7: {machine.worker_id} is still subscribed to {left}, which it does not hold")


def _calls(world: World) -> dict[str, int]:
    return {m.dynamo.sender: m.dynamo.calls for m in world.machines if m.dynamo is not None and m.spec.kind == "mld"}


def _check_price(world: World, before: dict[str, int], seconds: float) -> None:
    """Checker 8: DynamoDB requests of our workers at rest."""
    leases = len(world.lease_rows())
    calls = sum(count - before.get(sender, count) for sender, count in _calls(world).items())
    workers = max(1, len(before))
    renewals = leases * RENEWALS_PER_FAILOVER * seconds / world.plan.failover_s
    records = world.plan.records_per_s * seconds * 1.5 + 3 * leases
    per_hour = DYNAMO_CALLS_PER_WORKER_HOUR if world.plan.fleet is None else DYNAMO_CALLS_PER_WORKER_HOUR_3X
    most = renewals + records + workers * (per_hour * seconds / 3600 + 5)
    if calls > most:
        raise Violation(f"checker 8: {calls} DynamoDB requests in {seconds:.0f} s for {leases} leases, over {most:.0f}")
