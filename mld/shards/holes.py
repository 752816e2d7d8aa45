"""Holes: hash keys of a stream that no lease covers, and how sure one may be of each. Pure.

Rules: shards#holes-in-coverage, shards#certain-and-watched-holes and shards#missing-children. What differs from Java's
auditor, on purpose:

* Coverage is judged by the highest key covered so far. Java looks at the last range in sort order and calls `[0, N]`
  with `[5, 10]` a hole.
* A hole is the keys that are missing, not the two leases around them; all holes are found, each with its own count.
  A hole that grows or shrinks between two audits keeps its count, where Java's begins anew.
* An unreadable row covers the keys of its shard: it exists, and no sync could create it.
* A completed row that names a child without a row is a finding even if something else covers the child's keys.
* A hole is *certain* at once if the list of shards names a shard that must have a lease and has none. Java waits for
  three sightings in all cases.

Counts belong to one leadership; a new leader begins with none.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from mld.core.steps import SLICE, Steps, in_order
from mld.core.streams import HASH_KEY_MAX, HashRange, Shard
from mld.leases.lease import Lease

SIGHTINGS_MIN = 3
"""leasesRecoveryAuditorInconsistencyConfidenceThreshold: audits in a row that make an unexplained hole urgent."""


@dataclass(frozen=True, slots=True)
class Findings:
    """What is wrong with the rows of one scan, as far as the rows alone can tell."""

    is_empty: bool = False
    """There is no lease at all."""
    holes: tuple[HashRange, ...] = ()
    """Keys that no active lease covers, in order and apart from each other."""
    missing_children: frozenset[str] = frozenset()
    """Shards without a row that a completed row names as its children."""
    rangeless: frozenset[str] = frozenset()
    """Active or unreadable rows whose hash range the list of shards must tell."""

    @property
    def is_clean(self) -> bool:
        return not (self.is_empty or self.holes or self.missing_children or self.rangeless)

    def without(self, children: Collection[str]) -> Findings:
        """Return the same without these missing children."""
        return replace(self, missing_children=self.missing_children.difference(children))

    def sentence(self) -> str:
        """Return what is missing, for the log."""
        parts = []
        if self.holes:
            hole = self.holes[0]
            parts.append(f"no active lease has the hash keys {hole.start} to {hole.end}")
        if len(self.holes) > 1:
            parts.append(f"{len(self.holes) - 1} other holes")
        if self.missing_children:
            parts.append(f"{min(self.missing_children)} has no row although its parent is over")
        return ", ".join(parts)


def examine(
    leases: Sequence[Lease], unreadable: Collection[str] = (), known: Mapping[str, HashRange | None] | None = None
) -> Steps[Findings]:
    """Find what is wrong: the findings of one scan. `known`: ranges that rows lack, None for trimmed shards."""
    if not leases and not unreadable:
        return Findings(is_empty=True)
    learnt = known or {}
    ranges: list[HashRange] = []
    rangeless: set[str] = set()

    def look(key: str, hash_range: HashRange | None) -> None:
        hash_range = hash_range or learnt.get(key)
        if hash_range is not None:
            ranges.append(hash_range)
        elif key not in learnt:
            rangeless.add(key)

    for number, lease in enumerate(leases):
        if number % SLICE == 0:
            yield
        if not lease.is_complete:
            look(lease.key, lease.hash_range)
    for key in unreadable:
        look(key, None)
    yield
    missing = missing_children(leases, unreadable)
    holes = yield from hole_steps(ranges)
    return Findings(holes=holes, missing_children=missing, rangeless=frozenset(rangeless))


def hole_steps(ranges: Iterable[HashRange]) -> Steps[tuple[HashRange, ...]]:
    """Find the keys of 0 .. 2^128-1 that none of `ranges` has; ranges may overlap, repeat and hold a single key."""
    holes = []
    next_key = 0
    ordered = yield from in_order(ranges, key=lambda one: (one.start, one.end))
    for number, hash_range in enumerate(ordered):
        if number % SLICE == 0:
            yield
        if hash_range.start > next_key:
            holes.append(HashRange(next_key, hash_range.start - 1))
        next_key = max(next_key, hash_range.end + 1)
    if next_key <= HASH_KEY_MAX:
        holes.append(HashRange(next_key, HASH_KEY_MAX))
    return tuple(holes)


def missing_children(leases: Sequence[Lease], unreadable: Collection[str] = ()) -> frozenset[str]:
    """Return children named on a completed row that have no row: somebody deleted them, or a write was lost."""
    rows = {lease.key for lease in leases}.union(unreadable)
    return frozenset(child for lease in leases if lease.is_complete for child in lease.children if child not in rows)


def sightings(before: Mapping[HashRange, int], holes: Sequence[HashRange]) -> dict[HashRange, int]:
    """Return how many audits in a row have seen each hole, this one included.

    A hole continues every earlier one with which it shares keys: those keys were missing then and are missing now.
    """
    earlier = sorted(before.items(), key=lambda item: item[0].start)
    counts: dict[HashRange, int] = {}
    first = 0
    for hole in sorted(holes, key=lambda one: one.start):
        while first < len(earlier) and earlier[first][0].end < hole.start:
            first += 1
        count, at = 0, first
        while at < len(earlier) and earlier[at][0].start <= hole.end:
            count = max(count, earlier[at][1])
            at += 1
        counts[hole] = count + 1
    return counts


def is_urgent(counts: Mapping[HashRange, int]) -> bool:
    """Return whether some hole was seen often enough for a sync with a listing of its own."""
    return any(count >= SIGHTINGS_MIN for count in counts.values())


def ranges_to_fill(leases: Sequence[Lease], shards: Iterable[Shard]) -> dict[str, HashRange]:
    """Hash ranges to write on rows that lack them: those of active rows of listed shards.

    A range of one key is left out: Java cannot read a row that has one.
    """
    bare = {lease.key for lease in leases if not lease.is_complete and lease.hash_range is None}
    listed = {shard.shard_id: shard.hash_range for shard in shards if shard.shard_id in bare}
    return {key: hash_range for key, hash_range in listed.items() if hash_range.start < hash_range.end}


def abandoned(before: Mapping[str, int], leases: Sequence[Lease]) -> tuple[tuple[Lease, ...], dict[str, int]]:
    """Return the completed rows that nobody renewed since the previous audit, and the counters for the next one.

    Whoever completed such a row has forgotten that it waits for its deletion. `before` is what the previous call gave.
    """
    finished = {lease.key: lease for lease in leases if lease.is_complete}
    still = tuple(lease for key, lease in finished.items() if before.get(key) == lease.counter)
    return still, {key: lease.counter for key, lease in finished.items()}
