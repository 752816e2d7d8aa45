"""How often leases move while ten workers start one after the other; whole workers in virtual time.

On a fresh table, and where a fleet of as many workers was stopped just before, one by one or all at once. A lease's
first owner among those that start is no move; each later change of owner is one. Every move costs the gap of a handoff,
and a child.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from random import Random

from tests.benchmarks.tables import table
from tests.support.fleet import TABLE, Fleet, Running
from tests.twins.dynamo import Applied
from tests.virtual_time import run_virtual

SHARDS = 64
WORKERS = 10
BETWEEN_S = (0.0, 1.0, 5.0, 30.0)
"""Between the starts of two workers; each comes up to half of that late, as machines do."""
SETTLE_S = 150.0  # two scheduled rounds of balancing
OLD_FLEET_S = 60.0
PAUSE_S = 10.0  # between the end of the old fleet and the start of the new one
KEYS = {
    "clientVersionConfig": "CLIENT_VERSION_CONFIG_3X",
    "idleTimeBetweenReadsInMillis": "60000",
    "mld.leaseAssignmentStrategy": "count",
}
FRESH, STOPPED_IN_TURN, STOPPED_TOGETHER = "fresh table", "fleet stopped one by one", "fleet stopped all at once"


async def roll(between_s: float, before: str, *, seed: int = 1) -> tuple[Counter[int], int, float]:
    """(how many leases moved how often, the most that one worker holds in the end, seconds until all were held)."""
    world = Fleet(SHARDS, **{name.replace(".", "__"): value for name, value in KEYS.items()})
    rng = Random(seed)
    new: list[Running] = []

    async def start() -> None:
        for number in range(WORKERS):
            new.append(world.start(f"new-{number}", seed=seed + 100 + number))
            await world.advance(between_s * rng.uniform(0.5, 1.0))

    def all_held() -> bool:
        return sum(len(running.worker.held()) for running in new) >= SHARDS

    try:
        if before != FRESH:
            await _come_and_go(world, together=before == STOPPED_TOGETHER)
        world.dynamo.history.clear()
        starting = asyncio.create_task(start())
        held_s = await world.until(all_held, SETTLE_S, "all leases held")
        await starting
        await world.advance(SETTLE_S)
        moves = Counter(len(owners) - 1 for owners in owners_of(world.dynamo.history).values())
        return moves, max(len(running.worker.held()) for running in new), held_s
    finally:
        await world.close()


async def _come_and_go(world: Fleet, *, together: bool) -> None:
    """A fleet of as many workers, at rest and then stopped."""
    old = [world.start(f"old-{number}", seed=number) for number in range(WORKERS)]
    await world.advance(OLD_FLEET_S)
    for running in old:
        running.worker.request_stop()
        if not together:
            await running.task
    for running in old:
        await running.task
    await world.advance(PAUSE_S)


def owners_of(history: Iterable[Applied]) -> dict[str, list[str]]:
    """Who has owned each lease, one after the other."""
    found: dict[str, list[str]] = {}
    for applied in history:
        key, owner = applied.after.get("leaseKey", {}).get("S"), applied.after.get("leaseOwner", {}).get("S")
        if applied.table == TABLE and key is not None and owner is not None:
            owners = found.setdefault(key, [])
            if owners[-1:] != [owner]:
                owners.append(owner)
    return found


def measure() -> None:
    """Run everything and print it."""
    logging.disable(logging.CRITICAL)
    rows: list[Sequence[str]] = []
    for before in (FRESH, STOPPED_IN_TURN, STOPPED_TOGETHER):
        for between_s in BETWEEN_S:
            moves, most, held_s = run_virtual(roll(between_s, before))
            often = [sum(leases for times, leases in moves.items() if is_so(times)) for is_so in _OFTEN]
            figures = (*often, max(moves), most)
            rows.append((before, f"{between_s:g}", *map(str, figures), f"{held_s:.1f}"))
    logging.disable(logging.NOTSET)
    table(
        f"{WORKERS} workers start one after the other, {SHARDS} leases, virtual time: how often each lease moves",
        ("before", "s between", "never", "once", "twice", "more", "most moves", "most leases", "held after, s"),
        rows,
        f"goal: at most once; most leases: of one worker in the end, {-(-SHARDS // WORKERS)} if spread evenly; held: "
        "from the first start until every lease had a worker that reads",
    )


_OFTEN = (lambda times: times == 0, lambda times: times == 1, lambda times: times == 2, lambda times: times > 2)


if __name__ == "__main__":
    measure()
