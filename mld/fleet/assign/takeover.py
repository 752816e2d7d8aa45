"""`Takeover`: decides which leases nobody renews, and which of them this worker takes, and when. Pure.
`failover_watcher` reads the table and writes.

Rules: coordination#take-over-rule and those after it. One rule serves every state of a fleet, whoever leads and
whatever happened before: *a worker that sees a lease unchanged for a lease duration takes it*. In detail, a lease is
*due* for take-over:

    lease                                      due
    has an owner, but its counter (or the      a lease duration after we first saw it with that counter
      owner's heartbeat) does not change
    the owner is a Java worker that was never  a lease duration, and the time that a Java worker may take to discover
      seen to renew this lease                 the lease, after we first saw it with that counter; without the
                                               additional time if that worker has stopped renewing all its leases,
                                               or had stopped before it got this one and has not reported since
    has no owner                               `FREE_GRACE_S` after we first saw it without one: its creator, its last
                                               owner or the leader may be about to assign it
    its owner is known to have ended           at once
    the row names us as the only owner         never: discovery resumes it

If there are many leases without an owner, a worker takes only some of them at once (`FREE_AT_ONCE_MAX`). A lease that
is being handed off by a process with our id becomes due by the first rule, and any worker may take it.

Due leases are dealt among the watchers by a rule that gives the same result in each of them. The watcher to which a
lease falls takes it at once. Any other watcher takes it if it is still unchanged `SECOND_CHANCE_S` later. Each write is
conditional on owners and counter, so it does no harm if several try. A worker takes leases only for itself, because it
cannot know whether another worker lives: a lease that it gave to a worker that has just died would be without renewals
for another lease duration. If a worker takes more than its share, the leader balances that later.

*Watchers.* If a watcher reads the table every `LOOK_PERIOD_S`, a lease is without renewals for at most a lease
duration, plus that period, plus the second chance. It would be expensive if many workers read the whole table so often.
So only some workers do, the *watchers*: at least `WATCHERS` of them, and as many more as are needed to have room
together for all leases of one full worker. Each worker works out who the watchers are, from the workers that it sees to
live: it orders them by a hash of their ids, those with room first and drained ones last. The other workers read the
table once per lease duration; if the table has more than `SLOW_LEASES` leases, less often in proportion. Large tables
are read in parts, and each part has its own watchers. If two workers see different fleets, they choose different
watchers; that only costs more reads, or makes some leases wait for a second chance.

*Newcomers.* The lock of a killed leader stays valid for two minutes. So if a worker sees that the lock's owner shows no
life, and has more leases than its share, it hands one of them off to a living worker without leases
(coordination#newcomers-without-a-leader).
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from mld.core.periods import ALONE_SHARE, LOOK_PERIOD_S, WATCHERS, part_count, slow_period_s
from mld.core.steps import Steps
from mld.core.stillness import Stillness
from mld.fleet.assign.fleet_load import Move, Why, is_pinned
from mld.fleet.membership import FleetMembership, spread
from mld.fleet.observations import STEP_LEASES, Observations
from mld.fleet.report.reports import WorkerReport
from mld.leases.lease import Lease, loads_of
from mld.leases.take_plan import shares_of
from mld.properties.settings import Settings

SECOND_CHANCE_S = 0.3
"""If a due lease is still unchanged after so long, any watcher takes it, not only the one to which it was dealt."""
FREE_GRACE_S = 1.0
"""How long a lease without an owner is left to the workers that may be about to assign it."""
FREE_AT_ONCE_MAX = 32
"""A worker with this many leases takes no more free ones at once. If so many are free, a fleet is starting, and other
workers will want their share.
"""
JAVA_DISCOVERY_SLACK_S = 1.0
"""A Java worker looks for its leases every `leaseAssignmentIntervalMillis` / 2. This is the time in which it renews
them one by one.
"""
FREE_WAIT_S_MAX = 5.0
"""How long such a worker leaves free leases to others; at most a lease duration. After that time, workers that start
together have seen each other renew leases.
"""


@dataclass(eq=False)
class Takeover:
    """What one worker knows of the leases, from repeated reads of the table (*looks*). Times are monotonic seconds.

    A look at the whole table also shows which workers there are; that is passed on to `membership`. A look at a part of
    the table shows only leases.
    """

    settings: Settings
    worker_id: str
    membership: FleetMembership

    def __post_init__(self) -> None:
        self._me = self.worker_id
        self.observations = Observations(lease_duration_s=self.settings.leases.duration_s, handoff_timeout_s=0.0)
        self._ended: dict[str, float] = {}
        """Workers that are known to have ended, and the time until which no process is started under their ids."""
        self.forget()

    def forget(self) -> None:
        """Forget all leases, because the table is gone."""
        self.observations.forget()
        self._rows: dict[str, Lease] = {}
        """Each lease as it was last seen."""
        self._due: dict[str, float] = {}
        """When each lease becomes due for take-over."""
        self._parts: dict[str, int] = {}
        """The part of the table in which each lease was last seen."""
        self._owned: Stillness[str, str | None] = Stillness()
        """Since when each lease has had its present owner, or has had none."""
        self._renewed_once: set[str] = set()
        """The Java workers that were seen to renew a lease, and not seen to live without leases since then."""
        self._watchers: tuple[tuple[str, ...], ...] = ((self.worker_id,),)
        """The watchers of each part of the table."""

    def ended(self, worker: str, until: float) -> None:
        """Note that the process of `worker` is dead, and that none is started under its id before `until`."""
        self._ended[worker] = until

    def has_ended(self, worker: str | None, now: float) -> bool:
        """Return whether the process of `worker` is known to have ended, and no other can run under its id at `now`."""
        return worker is not None and self._ended.get(worker, -math.inf) >= now

    # --- reads of the table -------------------------------------------------------------------------------------------

    def saw_all(self, leases: Sequence[Lease], reports: Sequence[WorkerReport], now: float) -> Steps[None]:
        """Note a read of the whole table that ended at `now`: its leases (others are forgotten), which workers live,
        and who the watchers are now.
        """
        self.membership.saw_reports(reports, now)
        present = {lease.key for lease in leases}
        for key in [key for key in self._rows if key not in present]:
            self._forget(key)
        yield
        yield from self.saw_part(leases, 0, now)
        yield from self.observations.scanned(leases, now)
        owning, renewing = yield from self._owners(leases, now)
        loads: Counter[str] = Counter()
        for start in range(0, len(leases), STEP_LEASES):
            loads.update(loads_of(leases[start : start + STEP_LEASES]))
            yield
        promised = {lease.owner for lease in leases if lease.checkpoint_owner is not None and lease.owner is not None}
        self.membership.saw_owners(owning, renewing, promised, now)
        # A Java worker that lives without leases has to discover its next one, and gets the additional time for that.
        self._renewed_once &= self.membership.java - (self.membership.showing_life - owning)
        yield from self._end_patience(leases)
        living = [worker for worker in self.membership.possible_watchers if not self.has_ended(worker, now)]
        watchers = []
        # The heartbeat of a marked lease may be in a row of another part, so then the table is not read in parts.
        is_marked = any(lease.heartbeat is not None for lease in leases)
        for part in range(1 if is_marked else part_count(len(leases))):
            watchers.append(self._choose_watchers(part, living, loads))
            yield
        self._watchers = tuple(watchers)

    def _choose_watchers(self, part: int, living: Iterable[str], loads: Mapping[str, int]) -> tuple[str, ...]:
        """Choose the watchers of a part: at least `WATCHERS`, and so many that together they have room for all leases
        of one full worker, if the fleet has that room.

        That is enough even if one of the watchers dies: its leases and the room that is lost with it are together no
        more than the leases of one full worker.
        """
        room = {worker: max(0, self.settings.leases.held_max - loads.get(worker, 0)) for worker in living}
        drained = self.membership.drained
        chosen: list[str] = []
        wanted = self.settings.leases.held_max
        for worker in sorted(room, key=lambda worker: (not room[worker], worker in drained, _rank(part, worker))):
            if len(chosen) >= WATCHERS and (wanted <= 0 or not room[worker]):
                break
            chosen.append(worker)
            wanted -= room[worker]
        return tuple(chosen)

    def saw_part(self, leases: Sequence[Lease], part: int, now: float) -> Steps[None]:
        """Note a read of one part that ended at `now`."""
        for number, lease in enumerate(leases):
            self._saw(lease, now)
            self._parts[lease.key] = part
            if number % STEP_LEASES == STEP_LEASES - 1:
                yield

    def _saw(self, lease: Lease, now: float) -> None:
        """Note the row of a lease as it was just read, and compute when the lease becomes due for take-over."""
        self.observations.saw(lease, now)
        key, owner = lease.key, lease.actual_owner
        self._rows[key] = lease
        self._owned.saw(key, owner, now)
        if owner in self.membership.java and self._was_renewed(key):
            self._renewed_once.add(owner)
        self._due[key] = now if self.has_ended(owner, now) else self._due_at(lease)

    def _forget(self, key: str) -> None:
        """Forget one lease."""
        for known in (self._rows, self._due, self._parts):
            known.pop(key, None)
        self._owned.forget(key)

    def _owners(self, leases: Iterable[Lease], now: float) -> Steps[tuple[set[str], set[str]]]:
        """Return two sets, in steps: all owners of leases, and the owners that renew: at least one of their leases has
        moved within a lease duration (`Observations`).
        """
        owning: set[str] = set()
        renewing: set[str] = set()
        for number, lease in enumerate(leases):
            if (owner := lease.actual_owner) is not None:
                owning.add(owner)
                if owner not in renewing and not self._stands_still(lease, now):
                    renewing.add(owner)
            if number % STEP_LEASES == STEP_LEASES - 1:
                yield
        return owning, renewing

    def _end_patience(self, leases: Sequence[Lease]) -> Steps[None]:
        """Make the leases of some Java workers due without the additional time, which is meant for workers that still
        have to discover a new lease: the leases of workers that have renewed leases before (`_renewed_once`), and renew
        none now.
        """
        silent_owners = self.membership.silent & self._renewed_once
        for number, lease in enumerate(leases):
            if lease.actual_owner in silent_owners:
                self._due[lease.key] = self.observations.moved_at(lease.key) + self.settings.leases.duration_s
            if number % STEP_LEASES == STEP_LEASES - 1:
                yield

    def _stands_still(self, lease: Lease, now: float) -> bool:
        """Return whether the lease has not moved for more than a lease duration."""
        return now - self.observations.moved_at(lease.key) > self.settings.leases.duration_s

    def _was_renewed(self, key: str) -> bool:
        """Return whether a lease was seen to move after it was first seen with its owner."""
        return self.observations.moved_at(key) > self._owned.since(key)

    # --- watchers of parts --------------------------------------------------------------------------------------------

    def watchers(self, part: int) -> tuple[str, ...]:
        """Return the watchers of a part, as far as this worker knows the fleet. It counts itself as alive."""
        return self._watchers[part]

    @property
    def part_count(self) -> int:
        return len(self._watchers)

    def my_parts(self) -> tuple[int, ...]:
        """Return the numbers of the parts that this worker reads every `LOOK_PERIOD_S`, as their watcher."""
        return tuple(part for part, watchers in enumerate(self._watchers) if self._me in watchers)

    def whole_period_s(self) -> float:
        """Return how often this worker reads the whole table."""
        duration_s = self.settings.leases.duration_s
        if self.membership.is_alone:
            return max(LOOK_PERIOD_S, ALONE_SHARE * duration_s)
        if self.part_count == 1 and self.my_parts():
            return LOOK_PERIOD_S
        return slow_period_s(len(self._rows), duration_s)

    def bound_s(self) -> float:
        """Return how long a lease can be without renewals at most, while this worker can read and write the table."""
        return self.settings.leases.duration_s + self.whole_period_s() + SECOND_CHANCE_S

    # --- leases to take -----------------------------------------------------------------------------------------------

    def _due_at(self, lease: Lease) -> float:
        """Return when a lease becomes due for take-over, by the table in the module's header; `math.inf` if never. The
        caller (`_saw`) handles owners that have ended.
        """
        owner = lease.actual_owner
        if owner is None:
            return self._owned.since(lease.key) + FREE_GRACE_S
        if owner == self._me and lease.checkpoint_owner is None:
            return math.inf
        still_s_max = self.settings.leases.duration_s  # how long the lease may stand still until it is due
        if owner in self.membership.java and not self._was_renewed(lease.key):
            still_s_max += self.settings.fleet.assignment_interval_s / 2 + JAVA_DISCOVERY_SLACK_S
        return self.observations.moved_at(lease.key) + still_s_max

    def plan(self, now: float) -> tuple[list[Lease], float]:
        """Return the leases to take now, and the time at which more may be taken; `math.inf` if none before the next
        read.

        A due lease is taken at once if it was dealt to this worker or is being handed off to it. Other due leases are
        taken `SECOND_CHANCE_S` later. A worker that has `FREE_AT_ONCE_MAX` leases waits longer with free ones.
        """
        due = sorted(key for key, at in self._due.items() if at < now)
        next_at = min((at for at in self._due.values() if at >= now), default=math.inf)
        if not due:
            return [], next_at
        loads = self._loads_without(due)
        dealt = self._deal(due, loads)
        room = self.settings.leases.held_max - loads.get(self._me, 0)
        free_room = FREE_AT_ONCE_MAX - loads.get(self._me, 0)
        taken: list[Lease] = []
        # Leases that are being handed off to us come first, the others in an order that differs from worker to worker.
        for key in sorted(due, key=lambda key: (self._rows[key].owner != self._me, _rank(self._me, key))):
            if self._rows[key].is_load and room <= 0:
                continue
            is_ours = self._me in (dealt.get(key), self._rows[key].owner)
            ready_at = self._due[key] if is_ours else self._due[key] + SECOND_CHANCE_S
            if ready_at < now and self._rows[key].actual_owner is None and free_room <= 0:
                ready_at = self._owned.since(key) + min(FREE_WAIT_S_MAX, self.settings.leases.duration_s)
            if ready_at < now:
                taken.append(self._rows[key])
                free_room -= 1
                room -= self._rows[key].is_load
            else:
                next_at = min(next_at, ready_at)
        return taken, next_at

    def left(self, now: float) -> list[str]:
        """Return the due leases of open shards that this worker leaves to others, because it has no room for them."""
        due = [key for key, at in self._due.items() if at < now and self._rows[key].is_load]
        return due if due and self._loads_without(due).get(self._me, 0) >= self.settings.leases.held_max else []

    def _loads_without(self, due: Iterable[str]) -> Mapping[str, int]:
        """Return how many leases each worker has. The leases `due` do not count, because nobody reads their shards."""
        due_keys = set(due)
        return loads_of(lease for key, lease in self._rows.items() if key not in due_keys)

    def _deal(self, keys: Iterable[str], loads: Mapping[str, int]) -> dict[str, str]:
        """Deal the due leases among the watchers, with the same result in each of them. Return the worker for each
        lease key. `loads` has the number of leases that each worker holds. A worker that has let a lease become due
        gets none, unless it is this worker.
        """
        by_part: dict[int, list[Lease]] = {}
        for key in keys:
            by_part.setdefault(self._parts[key], []).append(self._rows[key])
        late_owners = {lease.actual_owner for leases in by_part.values() for lease in leases} - {self._me}
        dealt: dict[str, str] = {}
        for part, of_part in by_part.items():
            # The row may have been seen when the table had more parts. The next whole look puts it into a present part.
            watchers = self.watchers(min(part, self.part_count - 1))
            lease_counts = {worker: loads.get(worker, 0) for worker in watchers if worker not in late_owners}
            dealt |= spread(of_part, lease_counts, self.settings.leases.held_max, self.membership.drained)
        return dealt

    def gift(self, living: Iterable[str], now: float, wall_s: float) -> Move | None:
        """Return a handoff of one of our leases to a worker without leases; None if every worker has leases, or if we
        have no more than our share. Used while the fleet has no leader.

        `living` are the other workers that seem to live. A worker without leases that had some earlier counts only if
        it has written a new report since. Leases that are being handed off or pinned to us are kept, and so are those
        of shards that need not be read any more (not `is_load`), and those that we have not renewed for a lease
        duration (`_stands_still`).
        """
        loads = loads_of(self._rows.values())
        others = {worker for worker in living if loads[worker] or worker not in self.membership.unheard}
        newcomers = sorted(worker for worker in others - self.membership.drained if not loads[worker])
        mine = [
            lease
            for lease in self._rows.values()
            if lease.owner == self._me
            and lease.checkpoint_owner is None
            and lease.is_load
            and not is_pinned(lease, wall_s)
            and not self._stands_still(lease, now)
        ]
        share = shares_of({worker: loads[worker] for worker in {*others, self._me}})[self._me]
        if not newcomers or len(mine) <= max(1, share):
            return None
        lease = min(mine, key=lambda lease: _rank(self._me, lease.key))
        return Move(lease, min(newcomers, key=partial(_rank, self._me)), graceful=True, why=Why.BALANCE)

    def tried(self, leases: Iterable[Lease], done: Mapping[str, Lease], now: float) -> None:
        """Note that this worker has tried to take `leases`. `done` has the rows of those that are ours now; the others
        are forgotten until the next read shows them.
        """
        for lease in leases:
            self._forget(lease.key)
            if (row := done.get(lease.key)) is not None:
                self._saw(row, now)
                self._parts[lease.key] = 0  # the part is not known before the next read

    def is_gone(self, owner: str, now: float) -> bool:
        """Return whether `owner` is known to have ended, or no lease of it that we know has moved for a lease
        duration.
        """
        return self.has_ended(owner, now) or all(
            self._stands_still(lease, now) for lease in self._rows.values() if lease.actual_owner == owner
        )


def _rank(one: int | str, other: str) -> bytes:
    """Return a pseudo-random sort key that is the same in every worker. For each `one` it puts the values of `other`
    into another order.
    """
    return hashlib.blake2b(f"{one}/{other}".encode(), digest_size=8).digest()
