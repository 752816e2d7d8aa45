"""Decides which leases to take in 2.x mode. Pure; `taker` takes them.

Rules: leases#taker-observation, leases#taker-target, leases#very-old-leases, leases#stealing-of-leases,
leases#even-shares. Three things differ from Java. The time of the last change of a lease without an owner is `NEVER`;
Java uses time 0. If there are very old leases, other free or expired leases are taken in the same pass, too, up to the
target; Java takes them one period later. And shares are even.

*Even shares.* In Java the target of every worker is the fair share rounded up, and nobody steals from a worker that has
no more than that. If a fleet of 100 workers with 500 leases grows to 200 workers, the old workers therefore keep 3
leases each, and the new ones get 2: half the fleet, possibly in another cluster or on other machines, carries 60 % of
the load for good. Even shares are whole numbers whose sum is the number of leases: `leases mod workers` workers have
the fair share rounded up, the others have it rounded down. Whose share is rounded up is decided by hashes of the worker
ids, so the result is the same in every worker, and does not depend on age or cluster. A worker below its own share
steals from a worker above its own share, but never that worker's only lease: with fewer leases than workers, that would
gain nothing.

Java workers in the same table need not know about even shares: they steal by their own rule, and a steal is the same
conditional take. The two rules together cannot move a lease in circles. In a steal by Java's rule, the thief has at
least two leases less than the victim, so the loads become more even. In a steal by shares, the thief has at least one
lease less; such a steal never makes the loads less even, and brings both workers nearer to their shares. So each steal
lowers the pair (unevenness, distance from the shares), and stealing ends; `test_take_plan` tries random mixed fleets.
Even shares cost at most one more move for each worker.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import TypeAlias

from mld.core.stillness import NEVER, Stillness
from mld.leases.lease import Lease
from mld.properties.settings import LeaseSettings

VERY_OLD_LEASE_DURATIONS = 3
"""A lease is very old if its row was not written for this many lease durations."""
LOT_BYTES = 8  # of a worker id's hash; two of 10,000 workers have equal hashes in one of 10^11 fleets
_KEY = attrgetter("key")


SeenCounters: TypeAlias = Stillness[str, int]
"""Since when the counter of each lease has been unchanged; `NEVER` if the lease had no owner when it was first seen."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A lease to take. `is_steal`: the lease has an owner that renews it."""

    lease: Lease
    is_steal: bool = False


@dataclass(frozen=True, slots=True)
class TakePlan:
    """The leases to take, and the figures that led to the choice."""

    choices: tuple[Choice, ...] = ()
    target: int = 0
    """How many leases this worker should have."""
    needed: int = 0
    """How many leases this worker lacks; negative if it has too many."""
    spillover: int = 0
    """By how many leases this worker's maximum lowers its target."""
    workers: int = 0
    """How many workers renew at least one lease, this worker included."""
    available: int = 0
    """How many leases have no owner, or have expired."""
    very_old: int = 0
    """How many of `choices` are taken because they are very old (`VERY_OLD_LEASE_DURATIONS`)."""
    left: frozenset[str] = frozenset()
    """The available leases of open shards that this worker leaves to others, because it has no room."""


def observe(seen: SeenCounters, leases: Collection[Lease], now: float) -> None:
    """Note the counters of a scan that ended at `now`, and forget rows that are gone. A row that is new here counts as
    unchanged since `now`; without an owner, as unchanged since `NEVER`, so that it may be taken at once.
    """
    for lease in leases:
        seen.saw(lease.key, lease.counter, now, NEVER if lease.owner is None else now)
    seen.keep({lease.key for lease in leases})


def decide(
    leases: Collection[Lease],
    seen: SeenCounters,
    me: str,
    now: float,
    rng: random.Random,
    settings: LeaseSettings,
    *,
    even_shares: bool = True,
) -> TakePlan:
    """Return the leases that worker `me` should take. `seen` must have an observation of each lease (`observe`).

    Very old leases are taken first, as far as there is room, then other available leases up to the target. Leases are
    stolen only if none is available. Available leases of finished shards are always taken. Without `even_shares` steals
    follow Java's rule alone.
    """
    if not leases:
        return TakePlan()
    available, ended, loads = _survey(leases, seen, me, now, settings.duration_s)
    target, spillover = _target(len(available) + sum(loads.values()), len(loads), settings.held_max)
    needed = target - loads[me]
    room = max(0, settings.held_max - loads[me])

    very_old: list[Lease] = []
    if settings.very_old_first:  # available leases whose rows nobody has written for three lease durations
        before = now - VERY_OLD_LEASE_DURATIONS * settings.duration_s
        very_old = [lease for lease in available if seen.since(lease.key) < before]
    chosen = [Choice(lease) for lease in _some(very_old, room, rng)]
    very_old_count = len(chosen)
    if available:
        taken = {choice.lease.key for choice in chosen}
        rest = [lease for lease in available if lease.key not in taken]
        chosen += [Choice(lease) for lease in _some(rest, needed - len(chosen), rng)]
    else:
        victim, count = _victim(loads, me, target, rng, settings, even_shares=even_shares)
        stolen = (lease for lease in leases if lease.owner == victim and lease.is_load) if count else ()
        chosen = [Choice(lease, is_steal=True) for lease in _some(stolen, count, rng)]
    left = {lease.key for lease in available} if len(chosen) >= room else set()
    left.difference_update(choice.lease.key for choice in chosen)
    chosen += [Choice(lease) for lease in ended]
    return TakePlan(
        choices=tuple(chosen),
        target=target,
        needed=needed,
        spillover=spillover,
        workers=len(loads),
        available=len(available) + len(ended),
        very_old=very_old_count,
        left=frozenset(left),
    )


def _survey(
    leases: Iterable[Lease], seen: SeenCounters, me: str, now: float, dead_after_s: float
) -> tuple[list[Lease], list[Lease], dict[str, int]]:
    """Return three things: the available leases of unfinished shards, those of finished shards (`ended`), and how many
    leases of unfinished shards each live worker has.

    A lease is available if it has no owner, or if its counter has not changed for more than `dead_after_s`, a lease
    duration. A lease of a finished shard is no load, because its owner only has to delete its row.
    """
    available: list[Lease] = []
    ended: list[Lease] = []
    loads = {me: 0}
    for lease in leases:
        owner = lease.owner
        if owner is None or seen.is_still(lease.key, now, dead_after_s):
            (available if lease.is_load else ended).append(lease)
        else:
            loads[owner] = loads.get(owner, 0) + lease.is_load
    return available, ended, loads


def _target(leases: int, workers: int, leases_max: int) -> tuple[int, int]:
    """Return (target, spillover): how many leases each worker should have, and by how many leases the limit
    `leases_max` lowers that number.
    """
    fair = 1 if workers >= leases else -(-leases // workers)
    target = min(fair, leases_max)
    return target, fair - target


def _victim(
    loads: Mapping[str, int], me: str, target: int, rng: random.Random, settings: LeaseSettings, *, even_shares: bool
) -> tuple[str | None, int]:
    """Choose a worker to steal leases from; return it, and how many leases to steal (leases#stealing-of-leases). Return
    (None, 0) if nothing is to be stolen. Called only if no lease is available.

    By Java's rule, the victim is one of the workers with the most leases, and it keeps at least the target. The
    exception is a worker `me` that lacks two leases or more: it also takes one lease from a victim at the target. With
    `even_shares`, the even shares decide instead if `me` lacks only one lease, or if no worker has more than the
    target.
    """
    most = max(loads.values())
    needed = target - loads[me]
    if needed <= 0 or most < target:
        return None, 0
    if even_shares and (needed == 1 or most == target):
        return _victim_by_share(loads, me, most, rng, settings)
    count = min(needed, most - target)
    if needed > 1 and count == 0:
        count = 1
    if not count:
        return None, 0
    victim = rng.choice(sorted(worker for worker, load in loads.items() if load == most))
    return victim, min(count, settings.steals_max)


def _victim_by_share(
    loads: Mapping[str, int], me: str, most: int, rng: random.Random, settings: LeaseSettings
) -> tuple[str | None, int]:
    """Choose a worker to steal from by even shares: if worker `me` is below its share, it steals one lease from one of
    the workers with the most leases, if that one is above its own share.

    Return the victim, and how many leases to steal. A worker's only lease is never stolen.
    """
    if most <= 1:
        return None, 0
    shares = shares_of(loads)
    if loads[me] >= min(shares[me], settings.held_max):
        return None, 0
    victims = sorted(worker for worker, load in loads.items() if load == most and load > shares[worker])
    return (rng.choice(victims), min(1, settings.steals_max)) if victims else (None, 0)


def shares_of(loads: Mapping[str, int]) -> dict[str, int]:
    """Return each worker's even share of the leases. If the leases cannot be divided evenly, the hashes of the worker
    ids decide which workers have one more.
    """
    share, remainder = divmod(sum(loads.values()), len(loads))
    # A mere checksum would not do: the order of ids that differ only in a number at the end would not be random.
    drawn = sorted(loads, key=lambda w: (hashlib.blake2b(w.encode(), digest_size=LOT_BYTES).digest(), w))
    return {worker: share + (place < remainder) for place, worker in enumerate(drawn)}


def _some(leases: Iterable[Lease], count: int, rng: random.Random) -> list[Lease]:
    """Choose at most `count` leases at random, so that several workers seldom choose the same ones."""
    shuffled = sorted(leases, key=_KEY)  # so that the same random seed gives the same choice
    rng.shuffle(shuffled)
    return shuffled[: max(0, count)]
