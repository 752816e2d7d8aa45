"""Decides which leases a stream needs, from one listing of its shards and the rows that exist. Pure. It has the shard
graph and the rules of shard sync.

Rules: shards#leases-for-an-empty-table, shards#leases-for-a-filled-table and the rules that follow them there. Rows are
created only for the first generation of shards that must be read; the rows of later generations are created when their
parents end (`mld.shards.ending`).

Two facts help to understand the rules:

* Usually it matters only whether a shard has a row, not what is in the row. If the row of a finished parent exists, the
  rows of its children must exist too (shards#deletion-order-of-rows): a completed row is deleted only after its
  children have started, and a child's row only after its parents' rows.
* Records may be read twice, but must never be skipped. Where a rule cannot know, records are read again.

No lease is created for a shard whose listed parent is still open, or for the child of a merge while a parent has no
row.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass

from mld.core.errors import InvalidStreamResponseError
from mld.core.positions import AT_TIMESTAMP, LATEST, TRIM_HORIZON, InitialPosition, Position
from mld.core.steps import SLICE, Steps
from mld.core.streams import HASH_KEY_MAX, ChildShard, HashRange, Shard
from mld.leases.lease import Lease


class ShardGraph:
    """The shards of one listing, with their parents and children. A parent that a shard names but that is not listed
    was trimmed (it has left retention), and is not one of `shards`.
    """

    def __init__(self, shards: Iterable[Shard] = ()) -> None:
        self.shards: dict[str, Shard] = {}
        self.parents: dict[str, tuple[str, ...]] = {}
        """The parents of each listed shard, even those that are not listed."""
        self.children: dict[str, list[str]] = {}
        """The listed children of each shard that a listed shard names as a parent."""
        for shard in shards:
            self._add(shard)

    @classmethod
    def steps(cls, shards: Iterable[Shard]) -> Steps[ShardGraph]:
        """Make the graph of `shards`, in steps."""
        graph = cls()
        for number, shard in enumerate(shards):
            if number % SLICE == 0:
                yield
            graph._add(shard)
        return graph

    def _add(self, shard: Shard) -> None:
        """Add a shard, and note it as a child of its parents. If it was added before, the later description counts."""
        shard_id = shard.shard_id
        if shard_id not in self.shards:
            self.parents[shard_id] = parents = tuple(sorted(shard.parents))
            for parent in parents:
                self.children.setdefault(parent, []).append(shard_id)
        self.shards[shard_id] = shard

    def listed_parents(self, shard_id: str) -> list[str]:
        """Return those parents of a listed shard that are listed, too."""
        return [parent for parent in self.parents[shard_id] if parent in self.shards]

    def inconsistent(self) -> frozenset[str]:
        """Return the children whose listed parent is still open; a listing can show these during a reshard
        (shards#inconsistent-listing).
        """
        # Few shards have children, so this goes over the parents and not over all open shards.
        parents = (parent for parent in self.children if parent in self.shards and self.shards[parent].is_open)
        return frozenset(child for parent in parents for child in self.children[parent])

    def above(self, shard_ids: Iterable[str]) -> Steps[set[str]]:
        """Return all listed ancestors of `shard_ids`, without `shard_ids` themselves."""
        return _closure(shard_ids, lambda s: self.listed_parents(s) if s in self.shards else ())

    def below(self, shard_ids: Iterable[str]) -> Steps[set[str]]:
        """Return all descendants of `shard_ids`, without `shard_ids` themselves; `shard_ids` need not be listed."""
        return _closure(shard_ids, lambda s: self.children.get(s, ()))

    def kin(self, shard_ids: Iterable[str]) -> Steps[set[str]]:
        """Find all listed shards that are connected with one of `shard_ids` by any chain of parents and children,
        including `shard_ids`.
        """
        ids = [shard_id for shard_id in shard_ids if shard_id in self.shards]
        found = yield from _closure(ids, lambda s: [*self.listed_parents(s), *self.children.get(s, ())])
        return found.union(ids)


def _closure(start: Iterable[str], step: Callable[[str], Iterable[str]]) -> Steps[set[str]]:
    """Return all shards that can be reached from the shards `start` by one or more steps; `step` returns where a shard
    leads in one step. A start shard is included only if a step leads to it.
    """
    found: set[str] = set()
    todo = list(start)
    work = 0
    while todo:
        work += 1
        if work % SLICE == 0:
            yield
        for neighbour in step(todo.pop()):
            if neighbour not in found:
                found.add(neighbour)
                todo.append(neighbour)
    return found


def id_order(shard_id: str) -> tuple[int, str]:
    """Return a key that sorts shard ids from old to young: the numbers in the ids increase."""
    return (len(shard_id), shard_id)


def shares_keys(one: HashRange, other: HashRange | None) -> bool:
    """Return whether both ranges have a hash key in common; False if `other` is unknown."""
    return other is not None and one.start <= other.end and other.start <= one.end


def new_lease(shard: Shard | ChildShard, checkpoint: Position) -> Lease:
    """Return the lease to create for `shard`. It names all parents, including those that are no longer listed."""
    return Lease(shard.shard_id, checkpoint, parents=shard.parents, hash_range=shard.hash_range)


def children_in(shards: Iterable[Shard], shard_id: str) -> tuple[ChildShard, ...]:
    """Return the listed children of `shard_id`, in the form in which the end of a shard names its children. Used if the
    end did not name them (shards#ends-without-children).
    """
    found = sorted((s for s in shards if shard_id in s.parents), key=lambda s: s.shard_id)
    return tuple(ChildShard(s.shard_id, s.parents, s.hash_range) for s in found)


def partition_fault(shards: Iterable[Shard]) -> str | None:
    """Return why `shards` do not cover the hash keys exactly once; None if they do."""
    next_key = 0
    for shard in sorted(shards, key=lambda s: (s.hash_range.start, s.hash_range.end)):
        if shard.hash_range.start > next_key:
            return f"no listed shard covers the hash keys {next_key} to {shard.hash_range.start - 1}"
        if shard.hash_range.start < next_key or shard.hash_range.end < shard.hash_range.start:
            return f"the hash range of {shard.shard_id} overlaps another listed shard"
        next_key = shard.hash_range.end + 1
    if next_key != HASH_KEY_MAX + 1:
        return f"the listed shards end at hash key {next_key - 1} instead of {HASH_KEY_MAX}"
    return None


def oldest_generation(shards: Sequence[Shard]) -> Steps[tuple[Shard, ...]]:
    """Return those of `shards` that do not descend from another of them.

    A snapshot that was taken during a reshard has both the parent and the children. Then only the parent is returned,
    because the children are read after it, from their start, as always. Java fails because the hash ranges overlap, and
    if the configured timestamp is in the reshard, it fails for ever.
    """
    graph = yield from ShardGraph.steps(shards)
    descendants = yield from graph.below(graph.shards)
    return tuple(shard for shard in graph.shards.values() if shard.shard_id not in descendants)


def leases_for_empty_table(shards: Sequence[Shard], initial: InitialPosition) -> Steps[tuple[Lease, ...]]:
    """Return a lease at the configured position for each of `shards`, whether it is open or closed. They are the shards
    of a filtered listing.
    """
    graph = yield from ShardGraph.steps(shards)
    return (yield from ancestors_first(graph, dict.fromkeys(graph.shards, initial.sentinel)))


def missing_leases(
    graph: ShardGraph,
    existing: Sequence[Lease],
    initial: InitialPosition,
    *,
    ignore_unexpected_children: bool,
    unreadable: Collection[str] = (),
    snapshot: Collection[str] = (),
) -> Steps[tuple[Lease, ...]]:
    """Find the leases to create for a table that has rows. They are sorted by starting sequence number, so ancestors
    come first.

    `existing` are the leases of the table. `unreadable` names rows that exist but cannot be parsed; their shards count
    as leased. `snapshot` names the shards that were open at the configured timestamp, if known. `Walk` implements
    Java's rules. There are four additions:

    * `snapshot`: if neither a shard nor any relative of it has a lease, the shard is read from the timestamp on, and
      not from its oldest listed ancestors (shards#interrupted-timestamp-snapshot).
    * `_missing_children`: if the row of a parent shows that the parent has ended, a child without a row gets one at
      TRIM_HORIZON (shards#children-of-ended-parents).
    * Merges: a trimmed parent with a row counts as a leased ancestor.
    * `_settled`: a generation that was read already is not read again just because one lease is missing
      (shards#generations-already-passed).

    Raises InvalidStreamResponseError for an inconsistent listing, unless `ignore_unexpected_children`.
    """
    skipped = _accepted_inconsistency(graph, ignore_unexpected_children)
    rows: dict[str, Lease | None] = {lease.key: lease for lease in existing}
    rows.update(dict.fromkeys(set(unreadable) - rows.keys()))
    settled = yield from _settled(graph, frozenset(rows), snapshot, initial)
    orphaned = yield from _missing_children(graph, rows, skipped, settled)
    leased = frozenset(rows) | orphaned
    if orphaned:
        settled = yield from _settled(graph, leased, snapshot, initial)
    walk = Walk(graph, leased, initial.sentinel, settled=settled, outside=frozenset(rows) - graph.shards.keys())
    found = yield from walk.over_open_shards(skipped)
    return (yield from ancestors_first(graph, {**found, **dict.fromkeys(orphaned, TRIM_HORIZON)}))


def _accepted_inconsistency(graph: ShardGraph, ignore_unexpected_children: bool) -> frozenset[str]:
    """Return the inconsistent shards (`ShardGraph.inconsistent`), which get no lease. If there are any, and they are
    not to be ignored, raise InvalidStreamResponseError.
    """
    inconsistent = graph.inconsistent()
    if inconsistent and not ignore_unexpected_children:
        names = ", ".join(sorted(inconsistent)[:5])
        raise InvalidStreamResponseError(
            f"ListShards shows child shards of a shard that is still open ({names}), as it does during a reshard; "
            "the listing is repeated, and ignoreUnexpectedChildShards=true accepts it"
        )
    return inconsistent


def _missing_children(
    graph: ShardGraph, rows: Mapping[str, Lease | None], skipped: frozenset[str], settled: frozenset[str]
) -> Steps[frozenset[str]]:
    """Find children without a row for which no end of a parent will create one, because a parent that has a row has
    ended already.

    A parent has ended if its row is at SHARD_END. A trimmed parent counts as ended, too, because its consumer will end
    without learning its children; if its row is unfinished, the child waits for it. The child cannot have had a row
    that was deleted (shards#deletion-order-of-rows), so starting it at TRIM_HORIZON repeats nothing. A child with a
    listed parent that has no row and is not `settled` is left to the walk: if its row were created now, it would not
    wait for that parent.

    After an outage that spans several reshards, the children are trimmed, too. Then the oldest listed shards that share
    hash keys with the unfinished row of a trimmed shard take their place, because younger shards with these keys are
    descendants of that shard.
    """
    stranded = [row for row in rows.values() if row is not None and row.key not in graph.shards and not row.is_complete]

    def is_over(parent: str) -> bool:
        """Return whether a parent has a row, and either has ended or was trimmed."""
        row = rows.get(parent)
        return parent in rows and (parent not in graph.shards or (row is not None and row.is_complete))

    def outlived(shard: Shard) -> bool:
        """Return whether the shard takes the place of trimmed children: it has no listed parent, and it shares hash
        keys with a stranded row (the unfinished row of a trimmed shard) that is older.
        """
        return not graph.listed_parents(shard.shard_id) and any(
            id_order(row.key) < id_order(shard.shard_id) and shares_keys(shard.hash_range, row.hash_range)
            for row in stranded
        )

    found = set()
    for number, (shard_id, shard) in enumerate(graph.shards.items()):
        if number % SLICE == 0:
            yield
        if shard_id in rows or shard_id in skipped:
            continue
        if any(parent not in rows and parent not in settled for parent in graph.listed_parents(shard_id)):
            continue
        if any(is_over(parent) for parent in graph.parents[shard_id]) or outlived(shard):
            found.add(shard_id)
    return frozenset(found)


def _settled(
    graph: ShardGraph, leased: frozenset[str], snapshot: Collection[str], initial: InitialPosition
) -> Steps[frozenset[str]]:
    """Find the shards without a row that need not be read (they are *settled*): no ancestor has a row, and a descendant
    has one, or is in the `snapshot`.

    A descendant with a row shows that this shard was read to its end, or that the application began after it. A
    descendant in the `snapshot` shows that the application begins after this shard. If an ancestor has a row, the shard
    will still be reached from there, so the plain rule applies; a merge then needs rows for both parents. Under LATEST
    old shards are not read anyway.
    """
    if initial.sentinel == LATEST:
        return frozenset()
    still_to_come = yield from graph.below(leased)
    begun = [shard_id for shard_id in snapshot if shard_id not in still_to_come]
    passed = yield from graph.above([*(leased & graph.shards.keys()), *begun])
    return frozenset(passed - leased - still_to_come)


@dataclass(eq=False)
class Walk:
    """Walks from the open shards up to their ancestors, and finds the leases to create by Java's rules.

    `leased` are the shards with a row; those of them that are not listed are also in `outside`. `settled` shards are
    treated as if they were not listed. `sentinel` is the configured position. The walk uses a stack and no recursion,
    because Python's recursion limit is too low for long chains of reshards.
    """

    graph: ShardGraph
    leased: frozenset[str]
    sentinel: Position
    _: KW_ONLY
    settled: frozenset[str]
    outside: frozenset[str]

    def __post_init__(self) -> None:
        self._descends: dict[str, bool] = {}
        """For each visited shard: whether it has a lease, or descends from a shard that has a lease or gets one."""
        self._wanted: set[str] = set()
        """Visited shards that have no lease, and no ancestor that has or gets one. Such a shard gets a lease when a
        child of it is visited.
        """
        self._new: dict[str, Position] = {}
        """The leases to create: the checkpoint of each, by shard id."""
        self._work = 0  # steps of the walk so far

    def over_open_shards(self, skipped: frozenset[str]) -> Steps[dict[str, Position]]:
        """Walk up from each open shard without a lease that is not in `skipped`. Return the checkpoint of each lease to
        create, by shard id.

        Ancestors get the leases that are needed first (`_visit`). An open shard that descends from none of them, and
        from no leased shard, gets a lease itself, at the configured position.
        """
        for number, (shard_id, shard) in enumerate(self.graph.shards.items()):
            if number % SLICE == 0:
                yield
            if not shard.is_open or shard_id in self.leased or shard_id in skipped:
                continue
            has_leased_ancestor = yield from self._visit(shard_id)
            if not has_leased_ancestor:
                self._new[shard_id] = self.sentinel
        return self._new

    def _parents(self, shard_id: str) -> list[str]:
        return [p for p in self.graph.listed_parents(shard_id) if p not in self.settled]

    def _visit(self, start: str) -> Steps[bool]:
        """Find out whether `start` descends from a shard that has a lease or gets one, by visiting it and its
        ancestors, parents before children. The result for each visited shard is kept in `_descends`.
        """
        entered: set[str] = set()
        stack = [start]
        while stack:
            self._work += 1
            if self._work % SLICE == 0:
                yield
            shard_id = stack[-1]
            if shard_id not in self._descends and shard_id not in entered and shard_id not in self.leased:
                # The shard stays on the stack, below its parents: it is judged when it is on top again.
                entered.add(shard_id)
                stack.extend(p for p in self._parents(shard_id) if p not in self._descends and p not in entered)
                continue
            stack.pop()
            if shard_id not in self._descends:
                self._descends[shard_id] = shard_id in self.leased or self._conclude(shard_id)
        return self._descends[start]

    def _conclude(self, shard_id: str) -> bool:
        """Decide which leases one shard requires, after its parents were visited. Return whether the shard descends
        from a shard that has a lease or gets one.

        If not, the shard becomes *wanted*: it gets a lease when a child of it is visited. Under LATEST it does not
        become wanted, because old shards are not read. If the shard descends from such a shard, each of its parents
        that has no lease gets one if the parent is wanted, or descends from no shard with a lease.
        """
        parents = self._parents(shard_id)
        # The parents that have a lease or descend from one, and those that get a lease if this shard needs it.
        covered = {p for p in parents if self._descends.get(p, False) or p in self._wanted}
        if not covered and not self.outside.intersection(self.graph.parents[shard_id]):
            if self.sentinel != LATEST:
                self._wanted.add(shard_id)
            return False
        if not parents:  # only a trimmed parent has a row, and its end will not create the row of this shard
            self._new[shard_id] = TRIM_HORIZON
        for parent in parents:
            if parent in self.leased:
                continue
            if parent in self._wanted or parent not in covered:  # it descends from no shard with a lease
                self._new.setdefault(parent, self.sentinel)
            if parent in self._new:  # a covered parent is read from its start, unless a timestamp is configured
                from_start = parent in covered and self.sentinel != AT_TIMESTAMP
                self._new[parent] = TRIM_HORIZON if from_start else self.sentinel
        return True


def ancestors_first(graph: ShardGraph, checkpoints: Mapping[str, Position]) -> Steps[tuple[Lease, ...]]:
    """Return the leases with these `checkpoints` (by shard id), ancestors first, so that the next sync can go on if the
    creation of their rows is interrupted.
    """
    keyed = []
    for number, shard_id in enumerate(checkpoints):
        if number % SLICE == 0:
            yield
        keyed.append((int(graph.shards[shard_id].starting_sequence), shard_id))
    keyed.sort()
    yield
    leases = []
    for number, (_, shard_id) in enumerate(keyed):
        if number % SLICE == 0:
            yield
        leases.append(new_lease(graph.shards[shard_id], checkpoints[shard_id]))
    return tuple(leases)
