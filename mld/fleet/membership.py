"""Who is in the fleet, as one worker sees it: looks, reports and gifts go in, judgements about workers come out. Pure.

Rules: coordination#choice-of-watchers, coordination#reports-of-dead-workers, coordination#reports-standing-still,
coordination#leaving-workers. There is one membership in each worker: the failover watcher tells it what the table
shows, and the assigner, the failover watcher and a worker that leaves ask it about the others. What is known of each
lease is elsewhere (`observations`, `takeover`). Times are monotonic seconds unless they are called wall time.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Container, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass
from heapq import heapify, heapreplace

from mld.fleet.report import reports
from mld.fleet.report.reports import ReportRules
from mld.fleet.values import LEASES_MAX, WorkerReport
from mld.leases.lease import Lease, loads_of

TRACE_S = 300.0  # a fleet that is deployed anew is not away for longer


@dataclass(eq=False)
class FleetMembership:
    """What the worker `worker_id` knows of all workers."""

    worker_id: str
    _: KW_ONLY
    lease_duration_s: float
    rules: ReportRules

    def __post_init__(self) -> None:
        self._me = self.worker_id
        self._looks = reports.Sightings()
        self._mld: frozenset[str] = frozenset()
        self.drained: frozenset[str] = frozenset()
        """The workers that get leases only if no others have room, as of the last whole look: an operator wants so."""
        self.java: frozenset[str] = frozenset()
        """The workers whose reports mld did not write. This and the next three are as of the last whole look."""
        self.silent: frozenset[str] = frozenset()
        """The owners none of whose leases had moved for a lease duration."""
        self.unheard: frozenset[str] = frozenset()
        """Who has leases, or had some and has not reported since."""
        self.showing_life: frozenset[str] = frozenset()
        """Who was seen to renew a lease, or owns none and was seen to report twice."""
        self.is_alone = True
        """Whether nobody else owned anything or reported lately."""
        self._gave_at = -math.inf
        self._runs = reports.Sightings()
        self._standing_still: frozenset[str] = frozenset()
        self._found_dead: dict[str, float] = {}
        self.ends: deque[tuple[str, float]] = deque(maxlen=reports.ENDS_MAX)
        """The workers found dead, with when, in epoch seconds: for people."""

    # --- what a look at the whole table showed ------------------------------------------------------------------------

    def saw_reports(self, found: Collection[WorkerReport], now: float) -> None:
        """Take note of all reports there are, one for each worker, before the owners of the same look."""
        self._mld = frozenset(report.worker for report in found if "version" in report.mld)
        self.java = frozenset(report.worker for report in found) - self._mld
        self.drained = frozenset(report.worker for report in found if reports.is_drained(report))
        self._looks.saw(found, now)

    def saw_owners(
        self, owning: Collection[str], renewing: Collection[str], promised: Collection[str], now: float
    ) -> None:
        """Take note of who owns leases, who of them has renewed one of them, and to whom a handoff promises one."""
        reporting = self._looks.moving(now, self.rules)
        # An owner shows life by its leases, a worker without any by its reports alone, by those since it had some. One
        # report is none: who wrote it may be dead.
        for worker in owning:
            self._looks.doubt(worker)
        idle = {worker for worker in reporting.difference(owning) if self._looks.has_moved(worker)}
        self.silent = frozenset(owning).difference(renewing)
        self.unheard = frozenset(worker for worker in self.unheard.union(owning) if not self._looks.has_moved(worker))
        self.showing_life = frozenset(renewing) | idle
        has_given = now - self._gave_at <= self.lease_duration_s
        self.is_alone = not has_given and not reporting.union(owning, promised) - {self._me}

    def gave(self, now: float) -> None:
        """Note that a lease of ours goes to somebody else, who may be dead: we are not alone, though a stale look
        may say so.
        """
        self._gave_at = now
        self.is_alone = False

    @property
    def possible_watchers(self) -> frozenset[str]:
        """The mld workers that show life, and this one."""
        return self.showing_life & self._mld | {self._me}

    # --- who may get leases -------------------------------------------------------------------------------------------

    def begin_leadership(self) -> None:
        """Begin to lead; a new leader has to watch reports for as long as any."""
        self._runs.forget()

    def exclude_dead(self, worker: str, wall_s: float) -> None:
        """Give nothing to a worker that was found dead, though its report may look fresh, until it reports anew."""
        self._found_dead = {other: since for other, since in self._found_dead.items() if abs(wall_s - since) < TRACE_S}
        self._found_dead[worker] = wall_s
        self.ends.append((worker, wall_s))

    def assignable(
        self, active: Iterable[WorkerReport], everything: Iterable[WorkerReport], now: float
    ) -> tuple[tuple[WorkerReport, ...], list[WorkerReport]]:
        """Return (the `active` reports of workers that may get leases, those of them newly found to stand still).

        A worker found dead is back with a newer report, and forgotten when its report has expired.
        """
        self._runs.saw(reports.newest_of_each(everything), now)
        by_id = {report.worker: report for report in active}
        still = frozenset(worker for worker in by_id if self._runs.is_still(worker, now, self.rules))
        newly_still = [by_id[worker] for worker in sorted(still - self._standing_still)]
        self._standing_still = still
        moving = {worker: report for worker, report in by_id.items() if worker not in still}
        self._found_dead = {
            worker: since
            for worker, since in self._found_dead.items()
            if worker in moving and self._is_found_dead(moving[worker])
        }
        return tuple(report for worker, report in moving.items() if worker not in self._found_dead), newly_still

    def _is_found_dead(self, report: WorkerReport) -> bool:
        since = self._found_dead.get(report.worker)
        return since is not None and (report.updated_at_s or 0) <= since

    def living(self, found: Iterable[WorkerReport], wall_s: float) -> set[str]:
        """Return the others that report; nobody who is seen to be silent, was found dead, or leaves too."""
        active = reports.sort_out(found, wall_s, self.rules).active
        live = {report.worker for report in active if not self._is_found_dead(report)}
        return live - self.silent - {self._me}

    def receivers(
        self,
        keys: Iterable[str],
        leases: Iterable[Lease],
        found: Collection[WorkerReport],
        wall_s: float,
        leases_max: int,
    ) -> dict[str, str]:
        """Return who of the others gets these of all `leases` when we leave; nobody beyond its limit.

        A report may be of a dead worker, whatever its time says. So those whom we saw renew or report come first.
        """
        by_key = {lease.key: lease for lease in leases}
        loads = loads_of(by_key.values())
        live = self.living(found, wall_s)
        chosen = live & self.showing_life or live
        drained = {report.worker for report in found if reports.is_drained(report)}
        given = [by_key[key] for key in keys if key in by_key]
        return spread(given, {worker: loads[worker] for worker in chosen}, leases_max, drained)


def spread(
    leases: Iterable[Lease], loads: Mapping[str, int], leases_max: int = LEASES_MAX, drained: Container[str] = ()
) -> dict[str, str]:
    """Deal leases over workers with these loads: each to the one with the lowest, then the smallest id.

    A drained worker gets a lease that no other has room for. The answer is the new owner by key; keys for which nobody
    has room are absent. Leases of finished shards need none.
    """
    heap = [(load >= leases_max, worker in drained, load, worker) for worker, load in loads.items()]
    heapify(heap)
    dealt = {}
    for lease in sorted(leases, key=lambda lease: lease.key) if heap else ():
        is_full, is_drained, load, worker = heap[0]
        if not lease.is_load:
            dealt[lease.key] = worker
        elif not is_full:
            dealt[lease.key] = worker
            heapreplace(heap, (load + 1 >= leases_max, is_drained, load + 1, worker))
    return dealt
