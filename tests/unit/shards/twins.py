"""Small stand-ins for the shards tests: a lease table in a dict, a stream as a list of shards, and shard graphs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, MutableSequence, Sequence
from typing import Any, ParamSpec, TypeVar

from mld.core.errors import TableError
from mld.core.positions import AT_TIMESTAMP, LATEST, SHARD_END, TRIM_HORIZON, InitialPosition, Position
from mld.core.steps import Steps, finish
from mld.core.streams import HASH_KEY_MAX, ChildShard, HashRange, Shard, ShardFilter, ShardsPage
from mld.leases import rows
from mld.leases.lease import Lease
from mld.leases.table import AnswerT, LeaseWrite, TableScan
from mld.shards import graph, holes, identity
from tests.twins.lease_rows import NotWrittenError, carry_out

P, T = ParamSpec("P"), TypeVar("T")


def in_one_go(decision: Callable[P, Steps[T]]) -> Callable[P, T]:
    """`decision` without turns for others."""
    return lambda *args, **options: finish(decision(*args, **options))


foreign_evidence = in_one_go(identity.foreign_evidence)
leases_for_empty_table = in_one_go(graph.leases_for_empty_table)
examine = in_one_go(holes.examine)
survey = in_one_go(identity.Survey.steps)


def missing_leases(shards: Iterable[Shard], *args: Any, **options: Any) -> tuple[Lease, ...]:
    options = {"ignore_unexpected_children": False} | options
    return finish(graph.missing_leases(graph.ShardGraph(shards), *args, **options))


def plain_missing_leases(shards: Iterable[Shard], leased: Iterable[str], initial: InitialPosition) -> tuple[Lease, ...]:
    """What KCL for Java creates for a table with rows, to the letter; it leaves out unexpected children."""
    listed = graph.ShardGraph(shards)
    walk = graph.Walk(listed, frozenset(leased), initial.sentinel, settled=frozenset(), outside=frozenset())
    return finish(graph.ancestors_first(listed, finish(walk.over_open_shards(listed.inconsistent()))))


def judge_missing_shard(lease: Lease, leases: Sequence[Lease], shards: Sequence[Shard] | None) -> identity.ShardVerdict:
    return survey(leases, shards).judge(lease)


FROM_LATEST = InitialPosition(LATEST)
FROM_HORIZON = InitialPosition(TRIM_HORIZON)
FROM_TIMESTAMP = InitialPosition(AT_TIMESTAMP, 150.0)


class MemoryTable:
    """The `ShardRows` port. `writes` is the order of effects; `fail` may raise for (verb, key)."""

    def __init__(self, leases: Iterable[Lease] = (), corrupt: Iterable[str] = ()) -> None:
        self.rows = {lease.key: lease for lease in leases}
        self.corrupt = tuple(corrupt)
        self.writes: list[tuple[str, str]] = []
        self.reads: list[str] = []
        self.fail: Callable[[str, str], TableError | None] = lambda operation, key: None

    def _called(self, operation: str, key: str) -> None:
        error = self.fail(operation, key)
        if error is not None:
            raise error

    async def scan(self) -> TableScan:
        self._called("scan", "")
        self.reads.append("*")
        return TableScan(tuple(self.rows.values()), tuple((key, "unreadable") for key in self.corrupt))

    async def get(self, key: str, *, consistent: bool = True) -> Lease | None:
        self._called("get", key)
        self.reads.append(key)
        return self.rows.get(key)

    async def apply(self, write: LeaseWrite[AnswerT]) -> AnswerT:
        self._called(write.verb, write.key)
        try:
            if write.creates is not None and write.key in self.corrupt:
                raise NotWrittenError
            item = carry_out(write, self.rows.get(write.key))
        except NotWrittenError:
            answer = write.refused(self.rows.get(write.key))
            assert not isinstance(answer, LeaseWrite)
            return answer
        self.writes.append((write.verb, write.key))
        lease = rows.parse_row(item) if item else None
        if lease is None:
            del self.rows[write.key]
        else:
            self.rows[write.key] = lease
        return write.accepted(item)


class ListedStream:
    """Lists `shards`, `page_size` a page. `answers` are raised or, if None, passed over, one for each call."""

    def __init__(self, shards: Iterable[Shard] = (), *, page_size: int = 1000) -> None:
        self.shards = tuple(shards)
        self.page_size = page_size
        self.answers: MutableSequence[Any] = []
        self.listings: list[tuple[Shard, ...]] = []
        self.calls: list[tuple[ShardFilter | None, str | None]] = []

    async def list_shards(self, shard_filter: ShardFilter | None, next_token: str | None) -> ShardsPage:
        self.calls.append((shard_filter, next_token))
        answer = self.answers.pop(0) if self.answers else None
        if answer is not None:
            raise answer
        if next_token is None and self.listings:
            self.shards = self.listings.pop(0)
        start = int(next_token or "0")
        end = start + self.page_size
        return ShardsPage(self.shards[start:end], str(end) if end < len(self.shards) else None)


def sid(number: int) -> str:
    return f"shardId-{number:012d}"


def numbers(leases: Iterable[Lease]) -> set[int]:
    return {int(lease.key.removeprefix("shardId-")) for lease in leases}


def shard(
    number: int,
    parents: tuple[int, ...] = (),
    *,
    born: int,
    ended: int | None = None,
    keys: tuple[int, int] = (0, HASH_KEY_MAX),
) -> Shard:
    names = [sid(parent) for parent in parents] + [None, None]
    return Shard(sid(number), HashRange(*keys), str(born), None if ended is None else str(ended), names[0], names[1])


def row(number: int, checkpoint: Position | int = TRIM_HORIZON, parents: tuple[int, ...] = (), **more: Any) -> Lease:
    position = Position(str(checkpoint)) if isinstance(checkpoint, int) else checkpoint
    return Lease(sid(number), position, parents=frozenset(map(sid, parents)), **more)


def done(number: int, parents: tuple[int, ...] = (), children: tuple[int, ...] = (), **more: Any) -> Lease:
    return row(number, SHARD_END, parents, children=frozenset(map(sid, children)), **more)


def child(number: int, *parents: int, keys: tuple[int, int] = (0, HASH_KEY_MAX)) -> ChildShard:
    return ChildShard(sid(number), frozenset(map(sid, parents)), HashRange(*keys))


def grow(
    edges: dict[int, tuple[int, ...]], births: dict[int, int], order: Iterable[int] | None = None
) -> tuple[Shard, ...]:
    """A listing from child -> parents. Roots get equal parts of the key space; a shard ends where its child is born."""
    roots = [number for number in births if not edges.get(number)]
    width = (HASH_KEY_MAX + 1) // len(roots)
    keys = {number: (i * width, (i + 1) * width - 1) for i, number in enumerate(sorted(roots))}
    keys[max(roots)] = (keys[max(roots)][0], HASH_KEY_MAX)
    children: dict[int, list[int]] = {}
    for number in sorted(births):
        for parent in edges.get(number, ()):
            children.setdefault(parent, []).append(number)
    for number in sorted(births):
        parents = edges.get(number, ())
        if len(parents) == 1:
            low, high = keys[parents[0]]
            middle = (low + high) // 2
            keys[number] = (low, middle) if children[parents[0]].index(number) == 0 else (middle + 1, high)
        elif parents:
            keys[number] = (min(keys[p][0] for p in parents), max(keys[p][1] for p in parents))
    return tuple(
        shard(
            number,
            edges.get(number, ()),
            born=births[number],
            ended=births[children[number][0]] - 1 if number in children else None,
            keys=keys[number],
        )
        for number in (order or sorted(births))
    )


# The graphs of shards#worked-examples.
GRAPH_A = grow(
    {6: (0, 1), 7: (2, 3), 8: (6, 7), 9: (5,), 10: (5,)},
    {0: 11, 1: 11, 2: 11, 3: 11, 4: 11, 5: 11, 6: 103, 7: 103, 8: 206, 9: 206, 10: 206},
)
GRAPH_B = grow(
    {2: (0, 1), 3: (2,), 4: (2,), 5: (3, 4), 6: (5,), 7: (5,), 8: (6, 7), 9: (8,), 10: (8,)},
    {0: 10, 1: 10, 2: 20, 3: 30, 4: 30, 5: 40, 6: 50, 7: 50, 8: 60, 9: 70, 10: 70},
)
GRAPH_C = grow(
    {4: (0,), 5: (0,), 6: (2, 3), 7: (4,), 8: (4,), 9: (5,), 10: (5,)},
    {0: 10, 1: 10, 2: 10, 3: 10, 4: 20, 5: 20, 6: 20, 7: 30, 8: 30, 9: 30, 10: 30},
)
GRAPH_S = grow({1: (0,), 2: (0,)}, {0: 10, 3: 10, 1: 20, 2: 20})
GRAPH_M = grow({2: (0, 1)}, {0: 10, 1: 10, 2: 20})
