"""`FleetMembership`: judges from scans and reports which workers of the fleet live, and which may get leases. Pure.

Rules: coordination#choice-of-watchers, coordination#reports-of-dead-workers, coordination#reports-and-clocks,
coordination#leaving-workers. Each worker has one membership. The worker's failover watcher passes each scan of the
table to it; the assigner, the failover watcher and the departure ask it about other workers. Times are monotonic
seconds, unless they are called wall time.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Container, Iterable, Mapping
from dataclasses import dataclass
from heapq import heapify, heapreplace
from typing import NamedTuple

from mld.fleet.report import reports
from mld.fleet.report.reports import ReportRules, WorkerReport
from mld.fleet.report.sightings import Sightings
from mld.leases.lease import Lease, loads_of
from mld.properties.settings import Settings

LEASES_MAX = 2**31 - 1
"""The default of maxLeasesForWorker."""
TRACE_S = 300.0
"""A report that is at most this old shows that its worker was here lately, even if it is dead now. No deployment keeps
a whole fleet away for longer.
"""


class FoundDead(NamedTuple):
    """When a worker was found dead (by our wall clock), and the times in its last reports (by the worker's own
    clock).
    """

    at_s: float
    reported_s: frozenset[int]


@dataclass(eq=False)
class FleetMembership:
    """What the worker `worker_id` knows of all workers of the table."""

    worker_id: str
    settings: Settings

    def __post_init__(self) -> None:
        self._me = self.worker_id
        self._rules = ReportRules.of(self.settings.fleet)
        self._application = reports.application_on(self.settings.stream_name)
        self._looks = Sightings()
        """When each worker's report was seen to change, by the scans of the failover watcher."""
        self._mld: frozenset[str] = frozenset()
        """The workers whose reports mld wrote."""
        self._of_others: Mapping[str, str] = {}
        """The workers of other applications, alive or not, with the stream of each."""
        self.drained: frozenset[str] = frozenset()
        """The workers that an operator drains: they get leases only if no other worker has room. This field and the
        next five are as of the last scan of the whole table.
        """
        self.java: frozenset[str] = frozenset()
        """The workers whose reports mld did not write."""
        self.strangers: Mapping[str, str] = {}
        """The workers of other applications that show life, with the stream of each."""
        self.silent: frozenset[str] = frozenset()
        """The owners whose leases have all been unchanged for a lease duration."""
        self.unheard: frozenset[str] = frozenset()
        """Owners of leases, and former owners, that have not been seen to write a new report since they had leases.
        For these workers a report in the table does not prove that its writer lives.
        """
        self.showing_life: frozenset[str] = frozenset()
        """The workers that were seen to renew a lease, or that own none and were seen to report twice."""
        self.is_alone = True
        """Whether no other worker owned a lease, was about to get one, or reported lately."""
        self._gave_at = -math.inf
        """When this worker last gave a lease to another one."""
        self._runs = Sightings()
        """When each worker's report was seen to change, by the assignment runs since this worker leads."""
        self._standing_still: frozenset[str] = frozenset()
        """The workers that the last assignment run found dead, because their reports were unchanged for too long."""
        self._found_dead: dict[str, FoundDead] = {}  # workers that get no leases until they report again
        self.ends: deque[tuple[str, float]] = deque(maxlen=reports.ENDS_MAX)
        """The workers found dead, and when (epoch seconds), for people."""

    # --- scans of the whole table -------------------------------------------------------------------------------------

    def saw_reports(self, found: Collection[WorkerReport], now: float) -> None:
        """Note all reports of a scan, one for each worker: which workers run mld, run Java, are drained, or belong to
        another application (`is_stranger`), and whose report has changed since the last scan. For the same scan, call
        it before `saw_owners`, which decides from these notes.
        """
        self._mld = frozenset(report.worker for report in found if "version" in report.mld)
        self.java = frozenset(report.worker for report in found) - self._mld
        self.drained = frozenset(report.worker for report in found if reports.is_drained(report))
        self._looks.saw(found, now)
        self._of_others = {report.worker: report.mld["stream"] for report in found if self.is_stranger(report)}

    def is_stranger(self, report: WorkerReport) -> bool:
        """Return whether a worker of another application wrote the report: one that names a stream other than ours. A
        report without a stream, or of a worker that reads several streams, does not show its application.
        """
        application = reports.application_of(report)
        if report.worker == self._me or application is None or self._application is None:
            return False
        return application != self._application

    def saw_owners(
        self, owning: Collection[str], renewing: Collection[str], promised: Collection[str], now: float
    ) -> None:
        """Note who has leases: all owners (`owning`), those of them that have renewed one (`renewing`), and the next
        owners of pending handoffs (`promised`). Derive from that, and from the reports, which workers are silent,
        unheard, strangers or show life, and whether this worker is alone.
        """
        reporting = self._looks.moving(now, self._rules)
        # An owner shows life by renewing leases. A worker without leases shows life by a report that was seen to change
        # after the worker lost its last lease. That a report exists proves nothing, because its writer may be dead.
        for worker in owning:
            self._looks.doubt(worker)
        idle = {worker for worker in reporting.difference(owning) if self._looks.has_moved(worker)}
        self.silent = frozenset(owning).difference(renewing)
        self.unheard = frozenset(worker for worker in self.unheard.union(owning) if not self._looks.has_moved(worker))
        self.showing_life = frozenset(renewing) | idle
        self.strangers = {one: stream for one, stream in self._of_others.items() if one in self.showing_life}
        has_given = now - self._gave_at <= self.settings.leases.duration_s
        self.is_alone = not has_given and not reporting.union(owning, promised) - {self._me}

    def gave(self, now: float) -> None:
        """Note that this worker gave a lease to another one. It is not alone then, even if a scan that began earlier
        shows nobody else. (The other worker may be dead, and then its lease has to be taken.)
        """
        self._gave_at = now
        self.is_alone = False

    @property
    def possible_watchers(self) -> frozenset[str]:
        """The mld workers that show life, and this one."""
        return self.showing_life & self._mld | {self._me}

    # --- workers that may get leases ----------------------------------------------------------------------------------

    def forget(self) -> None:
        """Forget the leases and reports of a table that is gone."""
        self._looks.forget()
        self._runs.forget()
        self._found_dead.clear()
        self._standing_still = self.silent = self.unheard = self.showing_life = frozenset()

    def begin_leadership(self) -> None:
        """Note that this worker begins to lead: forget the reports that an earlier leadership of it has seen. Whether a
        report changes is watched anew, by the runs from now on.
        """
        self._runs.forget()

    def exclude_dead(self, worker: str, wall_s: float) -> None:
        """Note that a worker was found dead. It gets no leases until it writes another report, even if its last report
        still looks fresh.
        """
        # Entries are dropped once the last report no longer looks fresh, so that they do not become more and more.
        kept_s = max(TRACE_S, reports.EXPIRED_AFTER_PERIODS * self._rules.report_period_s)
        kept = {other: found for other, found in self._found_dead.items() if abs(wall_s - found.at_s) < kept_s}
        reported = (seen.time_of(worker) for seen in (self._looks, self._runs))
        self._found_dead = kept | {worker: FoundDead(wall_s, frozenset(at_s for at_s in reported if at_s is not None))}
        self.ends.append((worker, wall_s))

    def saw_run(self, everything: Iterable[WorkerReport], now: float, wall_s: float) -> reports.SortedReports:
        """Return the reports of all workers, sorted by state, for a leader that has just read them (`everything`).

        A worker whose report was seen to change is alive, whatever time the clock of its machine shows.
        """
        found = tuple(everything)
        self._runs.saw(reports.newest_of_each(found), now, wall_s)
        return reports.sort_out(found, wall_s, self._rules, self._runs.alive(now, self._rules))

    @property
    def clocks_off(self) -> Mapping[str, float]:
        """The workers whose clocks disagree with ours, with the seconds by which they are ahead."""
        return self._runs.off()

    def assignable(
        self, active: Iterable[WorkerReport], now: float
    ) -> tuple[tuple[WorkerReport, ...], list[WorkerReport]]:
        """Return two things: the reports of workers that may get leases, and the reports that were unchanged for too
        long at this run, but not yet at the run before, so that the caller logs each once.

        `active` are reports that look fresh. A worker that was found dead may get leases again when it has written a
        newer report. That it was found dead is forgotten when its report has expired.
        """
        by_id = {report.worker: report for report in active if not self.is_stranger(report)}
        unchanged = frozenset(worker for worker in by_id if self._runs.is_still(worker, now, self._rules))
        newly_unchanged = [by_id[worker] for worker in sorted(unchanged - self._standing_still)]
        self._standing_still = unchanged
        moving = {worker: report for worker, report in by_id.items() if worker not in unchanged}
        self._found_dead = {
            worker: found
            for worker, found in self._found_dead.items()
            if worker in moving and self._is_found_dead(moving[worker])
        }
        return tuple(report for worker, report in moving.items() if worker not in self._found_dead), newly_unchanged

    def _is_found_dead(self, report: WorkerReport) -> bool:
        """Return whether the worker of this report was found dead and has not written a newer report since.

        The report is an old one if it has a time that the worker's report had when the worker was found dead. If we had
        seen no report of the worker then, only the time in the report and our clock can be compared.
        """
        found = self._found_dead.get(report.worker)
        if found is None or report.updated_at_s is None:
            return found is not None
        return report.updated_at_s in found.reported_s if found.reported_s else report.updated_at_s <= found.at_s

    def living(self, found: Iterable[WorkerReport], now: float, wall_s: float) -> set[str]:
        """Return the other workers that report, except for those that are silent, found dead, leaving, or of another
        application.
        """
        active = reports.sort_out(found, wall_s, self._rules, self._looks.alive(now, self._rules)).active
        live = {report.worker for report in active if not (self._is_found_dead(report) or self.is_stranger(report))}
        return live - self.silent - {self._me}

    def receivers(
        self,
        keys: Iterable[str],
        leases: Iterable[Lease],
        found: Collection[WorkerReport],
        now: float,
        wall_s: float,
        leases_max: int,
    ) -> dict[str, str]:
        """Map each of our lease `keys` to the worker that takes it over when we leave; no worker exceeds `leases_max`.

        The writer of a report may be dead, even if the time in the report is recent. So leases go to workers that were
        seen to show life (`showing_life`), and to others only if there are none of these.
        """
        by_key = {lease.key: lease for lease in leases}
        loads = loads_of(by_key.values())
        live = self.living(found, now, wall_s)
        chosen = live & self.showing_life or live
        drained = {report.worker for report in found if reports.is_drained(report)}
        given = [by_key[key] for key in keys if key in by_key]
        return spread(given, {worker: loads[worker] for worker in chosen}, leases_max, drained)


def spread(
    leases: Iterable[Lease], loads: Mapping[str, int], leases_max: int = LEASES_MAX, drained: Container[str] = ()
) -> dict[str, str]:
    """Deal leases to workers with these loads: each to the worker with the lowest load, and of several to the smallest
    id.

    Return the new owner of each lease by key. A lease for which no worker has room is absent; leases of finished
    shards need no room. A drained worker gets a lease only if no other worker has room.
    """
    # The next receiver is on top: not full, not drained, with the fewest leases, with the smallest id.
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
