"""Checker 13: no lease is left without a renewing owner for longer than the bound, as long as one worker of ours lives.

A lease is renewed by an accepted write of whoever owns it before or after. The gap since the last one counts while at
least one process of ours has been up, finished with its start, neither stopped nor cut off, and free of drawn faults
and late answers of the table, for the whole of its own bound: then it has seen the lease stand still, and should have
taken it.

The bound is the lease duration and 2 s for a worker that looks often: in a fleet of up to three of ours that is each
of them. One that looks once per lease duration is held to that (`Takeover.bound_s`). A free lease counts anew
once it is given to a worker. One that was given to a Java worker has the time on top that Java may take to discover it.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mld.aws.table_calls import READ_AGAIN_S
from mld.core.periods import LOOK_PERIOD_S
from mld.daemon.worker import Worker
from mld.fleet.assign.failover_watcher import FailoverWatcher
from mld.fleet.assign.takeover import SECOND_CHANCE_S
from tests.simulation.checkers import SHARD_END, Violation
from tests.simulation.world.fleet3x import is_lease
from tests.support.fleet import TABLE
from tests.twins.dynamo import Applied

if TYPE_CHECKING:
    from tests.simulation.world.world import Machine, World

BOUND_S = 2.0
"""On top of the lease duration."""
REQUESTS = 8
"""One after the other, of a look that takes over: pages, write, read, renewal."""
HANGING_S = READ_AGAIN_S + 1.0
"""A look that left while nothing came through is sent again so long after the way is free, at the latest."""
JAVA_RENEWS_S = 1.0
"""On top of half of `leaseAssignmentIntervalMillis`, in which a Java worker discovers a lease: the time to renew it."""


@dataclass(slots=True)
class _Sound:
    """Since when a process has been able to see and act, and the bounds it had on the way."""

    process: Any
    since: float
    bounds: deque[tuple[float, float]] = field(default_factory=deque)


class Liveness:
    """Told of every accepted write, and once a second to look at the gaps."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._renewed: dict[str, float] = {}
        self._given_to_java: dict[str, float] = {}
        self._sound: dict[int, _Sound] = {}
        self._open: set[str] = set()
        """The open leases, as of this look."""
        self._late: set[str] = set()

    def applied(self, write: Applied) -> None:
        row = write.after or write.before
        if write.table != TABLE or not is_lease(row):
            return
        key = str(row["leaseKey"]["S"])
        if not write.after:
            self._renewed.pop(key, None)
            return
        now, owner = self._world.now(), _actual_owner(write.after)
        is_written_by_owner = write.sender.split("#")[0] in (owner, _actual_owner(write.before))
        if not write.before or (is_written_by_owner and _counter(write.before) != _counter(write.after)):
            self._renewed[key] = now
        if owner is not None and _actual_owner(write.before) is None:
            self._renewed[key] = now  # whoever is given a free lease has its time from then on, and may be frozen
        if owner != _actual_owner(write.before) and self._is_java(_actual_owner(write.before)):
            self._renewed[key] = now  # until then it had the time of a Java worker
        # It may be given back to the worker that was to hand it over, and has started anew since.
        if _owners(write.before) != _owners(write.after) and self._is_java(owner):
            self._given_to_java[key] = now

    def _is_java(self, worker: str | None) -> bool:
        """Whoever has or had this id: those of one machine begin with its number."""
        number = (worker or "w").split(".")[0].removeprefix("w")
        return number.isdigit() and self._world.machines[int(number)].spec.kind != "mld"

    def check(self) -> None:
        """Raises Violation."""
        rows = self._world.lease_rows()
        self._open = {key for key, row in rows.items() if row["checkpoint"]["S"] != SHARD_END}
        self._late = self._late_ones()
        sound = self._sound_ones()
        if not sound:
            return
        for key, row in rows.items():
            renewed = self._renewed.get(key)
            if self._world.sources is not None and renewed is not None:
                renewed = max(renewed, self._world.sources.known_since(key))
            if renewed is None or row["checkpoint"]["S"] == SHARD_END or self._world.ledger.shard(key).edited:
                continue
            since, more_s, owner = renewed, 0.0, _actual_owner(row)
            if self._is_java(owner):
                since = max(since, self._given_to_java.get(key, since))
                more_s = self._world.plan.failover_s + JAVA_RENEWS_S
            self._check_gap(key, owner, self._world.now() - since, more_s, sound)

    def _late_ones(self) -> set[str]:
        """The open leases that may be due to be taken now."""
        since = self._world.now() - self._world.plan.failover_s / 2
        return {key for key in self._open if self._renewed.get(key, math.inf) < since}

    def _check_gap(
        self, key: str, owner: str | None, gap_s: float, more_s: float, sound: list[tuple[Any, float, float]]
    ) -> None:
        for machine, sound_s, bound_s in sound:
            if min(gap_s, sound_s) > bound_s + more_s:
                text = (
                    f"checker 13 at {self._world.now():.2f} s: {key} of {owner} is not renewed for {gap_s:.1f} s, "
                    f"though {machine.worker_id}, sound for {sound_s:.1f} s, should act within {bound_s + more_s:.1f} s"
                )
                self._world.trace(text)
                raise Violation(text)

    def _sound_ones(self) -> list[tuple[Machine, float, float]]:
        """(machine, for how long it could see and act, its bound: the largest that it had within that)."""
        now, slow = self._world.now(), self._world.plan.slow
        slow_s = 0.0 if slow is None else slow.most_s  # what was sent before the calm is still on its way
        found = []
        for machine in self._world.machines:
            failover_watcher = self._failover_watcher_of(machine)
            if failover_watcher is None:
                self._sound.pop(machine.number, None)
                continue
            sound = self._sound.get(machine.number)
            if sound is None or sound.process is not machine.process:
                sound = self._sound[machine.number] = _Sound(machine.process, now + HANGING_S + slow_s)
            bound_s = self._bound_s(machine, failover_watcher)
            sound.bounds.append((now, bound_s))
            while sound.bounds[0][0] < now - 3 * self._world.plan.failover_s:
                sound.bounds.popleft()
            found.append((machine, now - sound.since, max(bound for _, bound in sound.bounds)))
        return found

    def _failover_watcher_of(self, machine: Machine) -> FailoverWatcher | None:
        """Of a worker that can see and act now."""
        rates, door, worker = machine.rates, machine.dynamo, machine.worker
        faulty = rates.dynamo_error or rates.dynamo_lost_reply or rates.dynamo_throttled or rates.dynamo_slow
        if faulty or machine.process is None or machine.paused or door is None or door.cut or not machine.wanted:
            return None
        slow = self._world.dynamo.slowness
        if slow is not None and slow.applies_to(machine.number):
            return None
        if self._world.now() < self._world.dynamo.outage_until or not isinstance(worker, Worker):
            return None
        if len((worker.held() & self._open) | self._late) > self._world.settings.leases.held_max:
            return None  # it need not have room for all that has no reader now
        fleet = worker.fleet
        return (
            fleet.failover_watcher
            if "failover watcher" in fleet.running() and fleet.failover_watcher._looked_at > -math.inf
            else None
        )

    def _bound_s(self, machine: Machine, failover_watcher: FailoverWatcher) -> float:
        failover_s, takeover = self._world.plan.failover_s, failover_watcher.takeover
        slack_s = REQUESTS * 2 * machine.spec.latency_s + self._world.plan.stale_reads_s
        if takeover.my_parts() or failover_watcher.membership.is_alone:
            assert LOOK_PERIOD_S + SECOND_CHANCE_S < BOUND_S
            return failover_s + BOUND_S + slack_s
        return takeover.bound_s() + slack_s + BOUND_S - LOOK_PERIOD_S


def _owners(row: Any) -> tuple[str | None, ...]:
    return tuple(row[name]["S"] if name in row else None for name in ("leaseOwner", "checkpointOwner"))


def _actual_owner(row: Any) -> str | None:
    for name in ("checkpointOwner", "leaseOwner"):
        if name in row:
            return str(row[name]["S"])
    return None


def _counter(row: Any) -> str:
    return str(row.get("leaseCounter", {}).get("N"))
