"""Which leases to take: the decision of the 2.x-mode taker. Pure; the shell is `taker`.

Rules: leases#taker-observation, leases#taker-target, leases#very-old-leases, leases#stealing-of-leases,
leases#even-shares. There is an explicit "never" instead of time 0, and very old leases do not end the pass: what is
merely free or expired is taken up to the target at once, where Java comes back for it one period later. Even shares
differ from Java, too.

*Even shares.* Java's target is the fair share rounded up, for everyone, and nobody steals from a worker that has it.
When 500 leases of 100 workers are spread over 200, the old workers therefore stop at 3 and the new ones at 2, for good:
half the fleet, possibly another cluster or machine size, carries 60 % of the load. With even shares the shares are
whole numbers that add up: `leases mod workers` workers have the fair share rounded up, the others rounded down. Which
ones is a lottery by hash of worker id that everybody draws alike, so age and cluster have no part in it. A worker below
its own share steals from one above its own, but not its only lease: with fewer leases than workers nothing would be
gained.

Java workers in the same table know nothing of it and need not: the write is the same conditional take, and they steal
as before. The two kinds cannot keep a lease going round. A steal of Java's kind makes the loads more even (from a
worker to one with at least two less). One by share never makes them less even (to one with at least one less) and
brings both workers nearer to their shares. So each steal lowers the pair (unevenness, distance from the shares), and
they end; `test_take_plan` walks through random mixed fleets. It costs at most one more move for each worker.
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
LOT_BYTES = 8  # two of 10,000 workers draw the same lot once in 10^11 fleets; then the order of their ids decides
_KEY = attrgetter("key")


SeenCounters: TypeAlias = Stillness[str, int]
"""Since when the counter of each lease is unchanged: `NEVER` seen to change if it was nobody's at first sight."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A lease to take. A stolen one still belongs to a worker that seems alive: `lease.owner`."""

    lease: Lease
    is_steal: bool = False


@dataclass(frozen=True, slots=True)
class TakePlan:
    """The leases to take, and the figures behind the choice."""

    choices: tuple[Choice, ...] = ()
    target: int = 0
    """How many leases this worker should have."""
    needed: int = 0
    """How many it lacks; less than 0 if it has too many."""
    spillover: int = 0
    """How many more it should have if its maximum allowed that."""
    workers: int = 0
    """Workers with a lease that they renew, and this one."""
    available: int = 0
    """Leases that are nobody's or expired."""
    very_old: int = 0
    """Those of `choices` that nobody has touched for very long."""
    left: frozenset[str] = frozenset()
    """Available leases of open shards for which this worker has no room."""


def observe(seen: SeenCounters, leases: Collection[Lease], now: float) -> None:
    """Take note of a scan that ended at `now`. Rows that are gone are forgotten."""
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
    """Return what worker `me` should take. `seen` holds an observation of each lease.

    Without `even_shares` it decides as Java does.
    """
    if not leases:
        return TakePlan()
    available, ended, loads = _survey(leases, seen, me, now, settings.duration_s)
    target, spillover = _target(len(available) + sum(loads.values()), len(loads), settings.held_max)
    needed = target - loads[me]
    room = max(0, settings.held_max - loads[me])

    very_old: list[Lease] = []
    if settings.very_old_first:  # owned or not, leases that nobody has touched for three lease durations
        before = now - VERY_OLD_LEASE_DURATIONS * settings.duration_s
        very_old = [lease for lease in available if seen.since(lease.key) < before]
    chosen = [Choice(lease) for lease in _some(very_old, room, rng)]
    oldest = len(chosen)
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
        tuple(chosen), target, needed, spillover, len(loads), len(available) + len(ended), oldest, frozenset(left)
    )


def _survey(
    leases: Iterable[Lease], seen: SeenCounters, me: str, now: float, dead_after_s: float
) -> tuple[list[Lease], list[Lease], dict[str, int]]:
    """Return (available leases, those of finished shards, the load of each live worker), in one walk over the table.

    Available is a lease without an owner, or whose counter has not moved for more than a lease duration. One of a
    finished shard costs nothing: whoever has it sees to its deletion.
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
    """Return (target, spillover): how many leases each worker should have, and how many of them I must not have."""
    fair = 1 if workers >= leases else -(-leases // workers)
    target = min(fair, leases_max)
    return target, fair - target


def _victim(
    loads: Mapping[str, int], me: str, target: int, rng: random.Random, settings: LeaseSettings, *, even_shares: bool
) -> tuple[str | None, int]:
    """Choose from whom to steal, and how many (leases#stealing-of-leases). Every lease has a live owner here."""
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
    """Return the victim and how many: one lease of a most loaded worker that is above its own share, if I am below
    mine; nobody's only lease.
    """
    if most <= 1:
        return None, 0
    shares = shares_of(loads)
    if loads[me] >= min(shares[me], settings.held_max):
        return None, 0
    victims = sorted(worker for worker, load in loads.items() if load == most and load > shares[worker])
    return (rng.choice(victims), min(1, settings.steals_max)) if victims else (None, 0)


def shares_of(loads: Mapping[str, int]) -> dict[str, int]:
    """Return how many leases each worker should have, in whole numbers that add up; a lottery decides who has one
    more.
    """
    share, remainder = divmod(sum(loads.values()), len(loads))
    # Unlike a checksum, a real hash has no memory of a common prefix or of numbers at the end of ids.
    drawn = sorted(loads, key=lambda w: (hashlib.blake2b(w.encode(), digest_size=LOT_BYTES).digest(), w))
    return {worker: share + (place < remainder) for place, worker in enumerate(drawn)}


def _some(leases: Iterable[Lease], count: int, rng: random.Random) -> list[Lease]:
    """Draw at most `count` of them: shuffling is what keeps several takers apart."""
    shuffled = sorted(leases, key=_KEY)  # so that the same random seed gives the same choice
    rng.shuffle(shuffled)
    return shuffled[: max(0, count)]
