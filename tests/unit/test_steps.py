"""Decisions in slices: the same result, many turns, and none of them long."""

from __future__ import annotations

import asyncio
from collections.abc import Generator

import pytest

from mld.core.positions import AT_TIMESTAMP, LATEST, TRIM_HORIZON, InitialPosition, Position
from mld.core.steps import SLICE, Steps, finish
from mld.core.streams import HASH_KEY_MAX, Shard
from mld.core.turns import in_turns
from mld.shards.graph import ShardGraph, leases_for_empty_table, missing_leases
from mld.shards.identity import foreign_evidence
from tests.unit.shards.twins import FROM_HORIZON, FROM_LATEST, row, shard
from tests.virtual_time import run_virtual

ROOTS = 1000


def split_once(roots: int) -> tuple[Shard, ...]:
    """So many shards, each split in two."""
    width = (HASH_KEY_MAX + 1) // roots
    parents = [shard(n, born=n + 1, ended=10 * roots, keys=(n * width, (n + 1) * width - 1)) for n in range(roots)]
    children = []
    for n, parent in enumerate(parents):
        low, high = parent.hash_range.start, parent.hash_range.end
        middle = (low + high) // 2
        for side, keys in enumerate(((low, middle), (middle + 1, high))):
            children.append(shard(roots + 2 * n + side, (n,), born=11 * roots + n, keys=keys))
    return (*parents, *children)


def chain(length: int) -> tuple[Shard, ...]:
    """A shard that was replaced by one child again and again (no service does that; the deepest walk there is)."""
    return tuple(
        shard(n, (n - 1,) if n else (), born=n + 1, ended=n + 1 if n < length - 1 else None) for n in range(length)
    )


LARGE = split_once(ROOTS)


def turns_of(steps: Steps[object]) -> int:
    turns = 0

    def counted() -> Generator[None, None, object]:
        nonlocal turns
        while True:
            try:
                next(steps)
            except StopIteration as stop:
                return stop.value
            turns += 1
            yield

    finish(counted())
    return turns


@pytest.mark.parametrize("sentinel", [LATEST, TRIM_HORIZON, AT_TIMESTAMP])
@pytest.mark.parametrize("shards", [LARGE, chain(1000)])
def test_a_large_decision_gives_way_at_least_once_for_every_slice_of_shards(
    shards: tuple[Shard, ...], sentinel: Position
) -> None:
    initial = InitialPosition(sentinel, 150.0)
    graph = ShardGraph(shards)

    assert turns_of(missing_leases(graph, [], initial, ignore_unexpected_children=False)) > len(shards) / SLICE
    assert turns_of(ShardGraph.steps(shards)) >= len(shards) / SLICE
    assert turns_of(leases_for_empty_table(shards, initial)) > len(shards) / SLICE
    assert turns_of(foreign_evidence(shards, [row(n, 10**9) for n in range(len(shards))])) > 0


def test_slices_do_not_change_the_result() -> None:
    leases = [row(n) for n in range(0, ROOTS, 3)]
    graph = run_virtual(in_turns(ShardGraph.steps(LARGE)))
    for initial in (FROM_LATEST, FROM_HORIZON):
        sliced = run_virtual(in_turns(missing_leases(graph, leases, initial, ignore_unexpected_children=False)))
        assert sliced == finish(missing_leases(ShardGraph(LARGE), leases, initial, ignore_unexpected_children=False))
        assert sliced


def test_others_have_their_turns_while_a_decision_is_made() -> None:
    async def scenario() -> int:
        turns = 0

        async def other() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        running = asyncio.create_task(other())
        await in_turns(ShardGraph.steps(LARGE))
        running.cancel()
        return turns

    assert run_virtual(scenario()) >= len(LARGE) // SLICE


def test_a_decision_that_fails_fails_in_turns_too() -> None:
    def failing() -> Steps[int]:
        yield
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        run_virtual(in_turns(failing()))
