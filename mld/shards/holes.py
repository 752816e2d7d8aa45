"""Finds what is wrong in the lease rows of one scan, above all *holes*: hash keys that no lease covers. Used by the
`Auditor`, and to show the fleet to operators. Pure.

Rules: shards#holes-in-coverage, shards#certain-and-watched-holes and shards#missing-children. The differences from
Java's auditor are intended:

* The sorted ranges cover all keys up to the highest end of any range so far. Java takes the end of the last range in
  the sort order, and so reports a hole for `[0, N]` and `[5, 10]`, which cover all keys.
* A hole is defined by the missing keys, not by the two leases around it. All holes are found. For each it is counted
  how many audits in a row have seen it. The count goes on if the hole grows or shrinks between two audits; in Java it
  begins anew.
* An unreadable row covers the keys of its shard: because the row exists, no sync could create it.
* If a completed row names a child that has no row, that is reported even if another lease covers the child's keys.
* A hole is *certain* at once if the list of shards shows a shard that must have a lease and has none. Java always
  waits until it has seen a hole in three audits.

A new leader begins to count from the start.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from mld.core.steps import SLICE, Steps, in_order
from mld.core.streams import HASH_KEY_MAX, HashRange, Shard
from mld.leases.lease import Lease

SIGHTINGS_MIN = 3
"""A hole is *urgent* when this many audits in a row have seen it
(leasesRecoveryAuditorInconsistencyConfidenceThreshold)."""


@dataclass(frozen=True, slots=True)
class Findings:
    """What is wrong with the rows of one scan, as far as the rows alone show it."""

    is_empty: bool = False
    """Whether the table has no lease at all."""
    holes: tuple[HashRange, ...] = ()
    """The hash keys that no active lease covers, as ranges in order that do not touch each other."""
    missing_children: frozenset[str] = frozenset()
    """Children that a completed row names and that have no row."""
    rangeless: frozenset[str] = frozenset()
    """Active or unreadable rows whose hash range must be looked up in the list of shards."""

    @property
    def is_clean(self) -> bool:
        return not (self.is_empty or self.holes or self.missing_children or self.rangeless)

    def without(self, children: Collection[str]) -> Findings:
        """Return the findings without these missing children."""
        return replace(self, missing_children=self.missing_children.difference(children))

    def sentence(self) -> str:
        """Return a text for the log that says what is missing."""
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
    """Find what is wrong with the rows of one scan.

    `known` has, by shard id, the hash ranges that were looked up in the list of shards for rows without one; None means
    that the shard is not listed any more.
    """
    if not leases and not unreadable:
        return Findings(is_empty=True)
    looked_up = known or {}
    ranges: list[HashRange] = []
    rangeless: set[str] = set()

    def look(key: str, hash_range: HashRange | None) -> None:
        """Add the hash range of a row, or of the shard with its key; if neither is known, note the key."""
        hash_range = hash_range or looked_up.get(key)
        if hash_range is not None:
            ranges.append(hash_range)
        elif key not in looked_up:
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
    """Find the hash keys, 0 to 2^128-1, that no range covers. Ranges may overlap, repeat and hold a single key."""
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
    """Return the children that completed rows name and that have no row, because a person deleted it or a write was
    lost.
    """
    rows = {lease.key for lease in leases}.union(unreadable)
    return frozenset(child for lease in leases if lease.is_complete for child in lease.children if child not in rows)


def sightings(before: Mapping[HashRange, int], holes: Sequence[HashRange]) -> dict[HashRange, int]:
    """Return how many audits in a row have seen each hole, including the present audit. `before` is what this function
    returned in the previous audit.

    A hole has the highest count of the earlier holes with which it shares keys, plus one, because these keys were
    missing in that audit, too.
    """
    earlier = sorted(before.items(), key=lambda item: item[0].start)
    counts: dict[HashRange, int] = {}
    first = 0  # the first earlier hole that may share keys with this hole or a later one
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
    """Return whether a hole was seen in so many audits that a sync must list the shards once more."""
    return any(count >= SIGHTINGS_MIN for count in counts.values())


def ranges_to_fill(leases: Sequence[Lease], shards: Iterable[Shard]) -> dict[str, HashRange]:
    """Return the hash ranges to write into active rows that lack one, by shard id; only for shards that are listed.

    A range of a single key is left out: Java cannot read a row that has one.
    """
    bare = {lease.key for lease in leases if not lease.is_complete and lease.hash_range is None}
    listed = {shard.shard_id: shard.hash_range for shard in shards if shard.shard_id in bare}
    return {key: hash_range for key, hash_range in listed.items() if hash_range.start < hash_range.end}


def abandoned(before: Mapping[str, int], leases: Sequence[Lease]) -> tuple[tuple[Lease, ...], dict[str, int]]:
    """Return two things: the completed rows that nobody has renewed since the last audit, and the counters of all
    completed rows, which are `before` of the next audit.

    A worker that has to delete a completed row still renews its lease. So if nobody renews it, no worker remembers that
    the row must be deleted.
    """
    finished = {lease.key: lease for lease in leases if lease.is_complete}
    unrenewed = tuple(lease for key, lease in finished.items() if before.get(key) == lease.counter)
    return unrenewed, {key: lease.counter for key, lease in finished.items()}
