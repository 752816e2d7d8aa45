"""Who is in the fleet, as one worker sees it: looks, reports and gifts go in, judgements about workers come out. Pure.

Rules: coordination#choice-of-lookers, coordination#reports-of-dead-workers, coordination#reports-standing-still,
coordination#leaving-workers. There is one roster in each worker: the lookout tells it what the table shows, and the
assigner, the lookout and a worker that leaves ask it about the others. What is known of each lease is elsewhere
(`observations`, `takeover`). Times are monotonic seconds unless they are called wall time.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from heapq import heapify, heappop, heapreplace
from typing import NamedTuple

from mld.fleet.report import reports
from mld.fleet.report.reports import EXPIRED_AFTER_PERIODS, ReportRules
from mld.fleet.values import LEASES_MAX, WorkerReport
from mld.leases.lease import Lease

TRACE_S = 300.0  # a fleet that is deployed anew is not away for longer


class _Reported(NamedTuple):
    """A report's time stamp, when we first saw that one, and whether we have seen another one before."""

    updated_at_s: int | None
    since: float
    moves: bool


class Roster:
    """What the worker `worker_id` knows of all workers."""

    def __init__(self, worker_id: str, *, lease_duration_s: float, rules: ReportRules) -> None:
        self._me = worker_id
        self._lease_duration_s = lease_duration_s
        self._rules = rules
        self._reported: dict[str, _Reported] = {}
        self._mld: frozenset[str] = frozenset()
        self._java: frozenset[str] = frozenset()
        self._silent: frozenset[str] = frozenset()
        self._showing_life: frozenset[str] = frozenset()
        self._is_alone = True
        self._gave_at = -math.inf
        self._sightings = reports.Sightings()
        self._standing_still: frozenset[str] = frozenset()
        self._found_dead: dict[str, float] = {}

    # --- what a look at the whole table showed ------------------------------------------------------------------------

    def saw_reports(self, found: Collection[WorkerReport], now: float) -> None:
        """All reports there are, one for each worker. Told before the owners of the same look."""
        self._mld = frozenset(report.worker for report in found if "version" in report.mld)
        self._java = frozenset(report.worker for report in found) - self._mld
        before, self._reported = self._reported, {}
        for report in found:
            old = before.get(report.worker)
            if old is None or old.updated_at_s != report.updated_at_s:
                self._reported[report.worker] = _Reported(report.updated_at_s, now, moves=old is not None)
            else:
                self._reported[report.worker] = old

    def saw_owners(
        self, owning: Collection[str], renewing: Collection[str], promised: Collection[str], now: float
    ) -> None:
        """Who owns leases, who of them has renewed one of them, and to whom a handoff promises one."""
        believed_s = EXPIRED_AFTER_PERIODS * self._rules.report_period_s
        reporting = {worker for worker, seen in self._reported.items() if now - seen.since <= believed_s}
        # A worker without leases shows life by its reports alone. One report is none: who wrote it may be dead.
        idle = {worker for worker in reporting.difference(owning) if self._reported[worker].moves}
        self._silent = frozenset(owning).difference(renewing)
        self._showing_life = frozenset(renewing) | idle
        has_given = now - self._gave_at <= self._lease_duration_s
        self._is_alone = not has_given and not reporting.union(owning, promised) - {self._me}

    def gave(self, now: float) -> None:
        """A lease of ours goes to somebody else, who may be dead: we are not alone, though a stale look may say so."""
        self._gave_at = now
        self._is_alone = False

    @property
    def java(self) -> frozenset[str]:
        """The workers whose reports mld did not write."""
        return self._java

    @property
    def silent(self) -> frozenset[str]:
        """The owners none of whose leases had moved for a lease duration at the last whole look."""
        return self._silent

    @property
    def showing_life(self) -> frozenset[str]:
        """Who was seen to renew a lease, or owns none and was seen to report twice, as of the last whole look."""
        return self._showing_life

    @property
    def possible_lookers(self) -> frozenset[str]:
        """The mld workers that show life, and this one."""
        return self._showing_life & self._mld | {self._me}

    @property
    def is_alone(self) -> bool:
        """Whether nobody else owned anything or reported lately, as of the last whole look."""
        return self._is_alone

    # --- who may get leases -------------------------------------------------------------------------------------------

    def begin_term(self) -> None:
        """We lead from now on; a new leader has to watch reports for as long as any."""
        self._sightings.forget()

    def exclude_dead(self, worker: str, wall_s: float) -> None:
        """A worker was found dead, though its report may look fresh: it gets nothing until it reports anew."""
        self._found_dead = {other: since for other, since in self._found_dead.items() if abs(wall_s - since) < TRACE_S}
        self._found_dead[worker] = wall_s

    def assignable(
        self, active: Iterable[WorkerReport], everything: Iterable[WorkerReport], now: float
    ) -> tuple[tuple[WorkerReport, ...], list[WorkerReport]]:
        """(the `active` reports of workers that may get leases, those of them newly found to stand still).

        A worker found dead is back with a newer report, and forgotten when its report has expired.
        """
        self._sightings.saw(reports.newest_of_each(everything), now)
        by_id = {report.worker: report for report in active}
        still = frozenset(worker for worker in by_id if self._sightings.is_still(worker, now, self._rules))
        newly_still = [by_id[worker] for worker in sorted(still - self._standing_still)]
        self._standing_still = still
        moving = {worker: report for worker, report in by_id.items() if worker not in still}
        self._found_dead = {
            worker: since
            for worker, since in self._found_dead.items()
            if worker in moving and (moving[worker].updated_at_s or 0) <= since
        }
        return tuple(report for worker, report in moving.items() if worker not in self._found_dead), newly_still

    def receivers(
        self,
        keys: Iterable[str],
        leases: Iterable[Lease],
        found: Iterable[WorkerReport],
        wall_s: float,
        leases_max: int,
    ) -> dict[str, str]:
        """Who of the others gets these leases when we leave; nobody who is seen to be silent.

        A report may be of a dead worker, whatever its time says. So those whom we saw renew or report come first.
        """
        active = reports.sort_out(found, wall_s, self._rules).active
        counts = Counter(lease.actual_owner for lease in leases)
        live = {report.worker for report in active} - self._silent - {self._me}
        chosen = live & self._showing_life or live
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
