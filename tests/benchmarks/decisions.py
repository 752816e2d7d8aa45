"""``python -m tests.benchmarks.decisions``: how long the largest decisions keep the event loop from its timers.

The same decisions, about 10,000 leases of 1,000 workers and about a listing of 10,000 shards, are made in one go, in
turns of the loop (as the daemon does), and in a thread. Meanwhile a timer is due every millisecond; what is printed is
how late it was, and how long the decision took.
"""

from __future__ import annotations

import asyncio
import gc
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from statistics import quantiles

from mld.core.positions import TRIM_HORIZON, InitialPosition
from mld.core.steps import Steps, finish
from mld.core.streams import HASH_KEY_MAX, HashRange, Shard
from mld.core.turns import in_turns
from mld.fleet.assign.assignment import Plan, decide, shuffling
from mld.fleet.assign.loads import LiveWorker
from mld.fleet.assign.observations import Observations
from mld.leases.lease import Lease
from mld.shards.graph import ShardGraph, missing_leases
from tests.support.settings import rules

LEASES = 10_000
WORKERS = 1_000
ROUNDS = 7
PROBE_S = 0.001

Decision = Callable[[], Steps[object]]
Way = Callable[[Decision], Awaitable[object]]


def assignment() -> Decision:
    """Every worker is dead but for half of them, so that half of the leases must be moved."""
    rng = random.Random(1)
    leases = [
        Lease(f"shardId-{n:012d}", TRIM_HORIZON, 1, f"w{n % WORKERS}", throughput_kbps=rng.uniform(1, 999))
        for n in range(LEASES)
    ]
    workers = [LiveWorker(f"w{n}", {"C": rng.uniform(10, 90)}, {"C": 100.0}) for n in range(WORKERS // 2)]
    seen = Observations(lease_duration_s=10.0, handoff_timeout_s=30.0)
    for n, lease in enumerate(leases):
        seen.saw(lease, 0.0)
        if n % WORKERS < WORKERS // 2:
            seen.saw(replace(lease, counter=2), 95.0)

    def steps() -> Steps[Plan]:
        order = shuffling(random.Random(2))
        return decide(
            leases,
            workers,
            seen,
            100.0,
            rules(),
            order,
            leader="w0",
            balance=True,
            wall_s=0.0,
        )

    return steps


def shard_sync() -> Decision:
    """Half of the rows of a stream that was split once are missing."""
    roots = LEASES // 3
    width = (HASH_KEY_MAX + 1) // roots
    shards = []
    for n in range(roots):
        low, middle, high = n * width, n * width + width // 2, (n + 1) * width - 1
        parent = f"shardId-{n:012d}"
        shards.append(Shard(parent, frozenset(), HashRange(low, high), str(n), str(10**9 + n)))
        for side, keys in enumerate((HashRange(low, middle - 1), HashRange(middle, high))):
            child = f"shardId-{roots + 2 * n + side:012d}"
            shards.append(Shard(child, frozenset({parent}), keys, str(10**9 + n + 1), None))
    existing = [Lease(shard.shard_id, TRIM_HORIZON) for shard in shards[::6]]

    def steps() -> Steps[object]:
        graph = yield from ShardGraph.steps(shards)
        initial = InitialPosition(TRIM_HORIZON)
        return (yield from missing_leases(graph, existing, initial, ignore_unexpected_children=False))

    return steps


async def in_one_go(decision: Decision) -> object:
    return finish(decision())


async def turn_by_turn(decision: Decision) -> object:
    return await in_turns(decision())


async def in_a_thread(decision: Decision) -> object:
    return await asyncio.to_thread(lambda: finish(decision()))


WAYS: dict[str, Way] = {"one go": in_one_go, "turns": turn_by_turn, "thread": in_a_thread}


async def lateness(late_ms: list[float]) -> None:
    while True:
        due = time.perf_counter() + PROBE_S
        await asyncio.sleep(PROBE_S)
        late_ms.append((time.perf_counter() - due) * 1000)


async def measure(decision: Decision, way: Way) -> tuple[float, list[float]]:
    """(seconds, milliseconds by which each timer was late)."""
    late_ms: list[float] = []
    probe = asyncio.create_task(lateness(late_ms))
    await asyncio.sleep(0.02)
    gc.collect()
    gc.freeze()  # the collector's pauses are long and the same in each way
    late_ms.clear()
    began = time.perf_counter()
    await way(decision)
    took_s = time.perf_counter() - began
    await asyncio.sleep(2 * PROBE_S)
    probe.cancel()
    return took_s, late_ms


def main() -> None:
    print(f"{'decision':<12}{'way':<9}{'took ms':>9}{'timers':>8}{'median late ms':>16}{'99 % ms':>9}{'worst ms':>10}")
    for name, decision in (("assignment", assignment()), ("shard sync", shard_sync())):
        for way in WAYS:
            taken: list[float] = []
            late: list[float] = []
            for _ in range(ROUNDS):
                took_s, late_ms = asyncio.run(measure(decision, WAYS[way]))
                taken.append(took_s * 1000)
                late += late_ms
            cuts = quantiles(late, n=100)
            print(
                f"{name:<12}{way:<9}{sorted(taken)[ROUNDS // 2]:>9.0f}{len(late):>8}"
                f"{cuts[49]:>16.2f}{cuts[98]:>9.2f}{max(late):>10.2f}"
            )


if __name__ == "__main__":
    main()
