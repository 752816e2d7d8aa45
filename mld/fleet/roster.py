"""Who is in the fleet, as one worker sees it: looks, reports and gifts go in, judgements about workers come out. Pure.

Rules: coordination#choice-of-lookers, coordination#reports-of-dead-workers, coordination#reports-standing-still,
coordination#leaving-workers. There is one roster in each worker: the lookout tells it what the table shows, and the
assigner, the lookout and a worker that leaves ask it about the others. What is known of each lease is elsewhere
(`observations`, `takeover`). Times are monotonic seconds unless they are called wall time.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping
from heapq import heapify, heappop, heapreplace

from mld.fleet.report import reports
from mld.fleet.report.reports import ReportRules
from mld.fleet.values import LEASES_MAX, WorkerReport
from mld.leases.lease import Lease

TRACE_S = 300.0  # a fleet that is deployed anew is not away for longer


class Roster:
    """What the worker `worker_id` knows of all workers."""

    def __init__(self, worker_id: str, *, lease_duration_s: float, rules: ReportRules) -> None:
        self._me = worker_id
        self._lease_duration_s = lease_duration_s
        self._rules = rules
        self._looks = reports.Sightings()
        self._mld: frozenset[str] = frozenset()
        self.drained: frozenset[str] = frozenset()
        """The workers that an operator wants to have no leases, as of the last whole look."""
        self.java: frozenset[str] = frozenset()
        """The workers whose reports mld did not write. This and the next three are as of the last whole look."""
        self.silent: frozenset[str] = frozenset()
        """The owners none of whose leases had moved for a lease duration."""
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
        self._leaving: frozenset[str] = frozenset()

    # --- what a look at the whole table showed ------------------------------------------------------------------------

    def saw_reports(self, found: Collection[WorkerReport], now: float) -> None:
        """All reports there are, one for each worker. Told before the owners of the same look."""
        self._mld = frozenset(report.worker for report in found if "version" in report.mld)
        self.java = frozenset(report.worker for report in found) - self._mld
        self.drained = frozenset(report.worker for report in found if reports.is_drained(report))
        self._looks.saw(found, now)

    def saw_owners(
        self, owning: Collection[str], renewing: Collection[str], promised: Collection[str], now: float
    ) -> None:
        """Who owns leases, who of them has renewed one of them, and to whom a handoff promises one."""
        reporting = self._looks.moving(now, self._rules)
        # A worker without leases shows life by its reports alone. One report is none: who wrote it may be dead.
        idle = {worker for worker in reporting.difference(owning) if self._looks.has_moved(worker)}
        self.silent = frozenset(owning).difference(renewing)
        self.showing_life = frozenset(renewing) | idle
        has_given = now - self._gave_at <= self._lease_duration_s
        self.is_alone = not has_given and not reporting.union(owning, promised) - {self._me}

    def gave(self, now: float) -> None:
        """A lease of ours goes to somebody else, who may be dead: we are not alone, though a stale look may say so."""
        self._gave_at = now
        self.is_alone = False

    @property
    def possible_lookers(self) -> frozenset[str]:
        """The mld workers that show life and are not drained, and this one."""
        return self.showing_life & self._mld - self.drained | {self._me}

    @property
    def is_needed(self) -> bool:
        """Whether this worker may take leases: it is not drained, or no other worker that shows life is there."""
        return self._me not in self.drained or not self.showing_life - self.drained - {self._me}

    # --- who may get leases -------------------------------------------------------------------------------------------

    def begin_term(self) -> None:
        """We lead from now on; a new leader has to watch reports for as long as any."""
        self._runs.forget()

    def exclude_dead(self, worker: str, wall_s: float) -> None:
        """A worker was found dead, though its report may look fresh: it gets nothing until it reports anew."""
        self._found_dead = {other: since for other, since in self._found_dead.items() if abs(wall_s - since) < TRACE_S}
        self._found_dead[worker] = wall_s
        self.ends.append((worker, wall_s))

    def leaving(self, workers: Iterable[str]) -> None:
        """These leave when we do: nothing of ours goes to them."""
        self._leaving = frozenset(workers)

    def assignable(
        self, active: Iterable[WorkerReport], everything: Iterable[WorkerReport], now: float
    ) -> tuple[tuple[WorkerReport, ...], list[WorkerReport]]:
        """(the `active` reports of workers that may get leases, those of them newly found to stand still).

        A worker found dead is back with a newer report, and forgotten when its report has expired.
        """
        self._runs.saw(reports.newest_of_each(everything), now)
        by_id = {report.worker: report for report in active}
        still = frozenset(worker for worker in by_id if self._runs.is_still(worker, now, self._rules))
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

    def receivers(
        self,
        keys: Iterable[str],
        leases: Iterable[Lease],
        found: Iterable[WorkerReport],
        wall_s: float,
        leases_max: int,
    ) -> dict[str, str]:
        """Who of the others gets these leases when we leave; nobody who is seen to be silent, or was found dead.

        A report may be of a dead worker, whatever its time says. So those whom we saw renew or report come first.
        """
        active = reports.sort_out(found, wall_s, self._rules).active
        counts = Counter(lease.actual_owner for lease in leases)
        live = {report.worker for report in active if not self._is_found_dead(report)} - self.silent
        live -= self._leaving | {self._me}
        live = live - {report.worker for report in active if reports.is_drained(report)} or live
        chosen = live & self.showing_life or live
        return spread(keys, {worker: counts[worker] for worker in chosen}, leases_max)


def spread(keys: Iterable[str], workers_by_count: Mapping[str, int], leases_max: int = LEASES_MAX) -> dict[str, str]:
    """Deal leases over workers that hold so many already: each to the one with the fewest, then the smallest id.

    The answer is the new owner by key; keys for which nobody has room are absent.
    """
    heap = [(count, worker) for worker, count in workers_by_count.items() if count < leases_max]
    heapify(heap)
    dealt = {}
    for key in sorted(keys):
        if not heap:
            break
        count, worker = heap[0]
        dealt[key] = worker
        if count + 1 < leases_max:
            heapreplace(heap, (count + 1, worker))
        else:
            heappop(heap)
    return dealt
