"""`WorkerView`: one worker as operators see it: whether it is alive, where it runs, and its share of the leases. Pure.

Anything that a worker writes shows that it is alive: its report, or the status in a lease row. A worker that has not
written for too long counts as dead. While the table refuses writes for lack of capacity, silence proves nothing: then
it is unknown whether the worker is alive.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from mld.core.steps import SLICE, Steps
from mld.fleet.report.reports import (
    WorkerReport,
    application_of,
    average,
    is_default,
)
from mld.operating.durations import duration
from mld.operating.shard_view import (
    AHEAD_MAX_S,
    REPORT_RULES,
    THROTTLED,
    ShardView,
    ViewRules,
    clocks_disagree,
    furthest,
)

JAVA, UNREPORTED = "java", "unknown"
"""Kinds of workers that are not known to run mld: ``java`` for one whose reports are like Java's, ``unknown`` for one
without reports.
"""
END_SHOWN_S = 3600.0
"""How long a dead worker without leases is still shown."""
NO_REPORT = "of KCL 2.x, which never reports, or gone"


@dataclass(frozen=True, slots=True)
class WorkerPlace:
    """Where a worker runs, according to its report. A value that the report lacks is None."""

    host: str | None = None
    pid: str | None = None
    started_s: int | None = None
    meter: str | None = None
    """The machine or container whose CPU the worker measures; several workers may share one."""

    @classmethod
    def of(cls, report: WorkerReport) -> WorkerPlace:
        """Return the place that a report names."""
        own, started = report.mld, report.mld.get("started")
        return cls(own.get("host"), own.get("pid"), None if started is None else int(started), own.get("meter"))


@dataclass(frozen=True, slots=True)
class WorkerView:
    """A worker that reports or owns leases."""

    worker: str
    kind: str
    """``mld``, with the version if the worker has a report; ``java``; or ``unknown`` if it has neither a report nor a
    status in a row.
    """
    leases: int
    share: float
    """Its share of all open leases, from 0 to 1."""
    is_alive: bool | None
    """None if unknown: whether a worker without reports is alive shows only in its renewals."""
    is_leader: bool
    heard_s: float | None
    """Seconds since it wrote its report or the status of a lease, by the time that it wrote; None if it never did."""
    cpu_percent: float | None
    behind_s: float | None
    """Lag in seconds of its shard that is furthest behind; None if no lag is known."""
    drained: str | None = None
    """In words: the operator who has drained the worker, when, and why; None if it is not drained."""
    why: str | None = None
    """How the worker ended, or why it is unknown whether it is alive."""
    place: WorkerPlace = WorkerPlace()
    application: str | None = None
    """A name that differs between workers of different applications that share a table (`reports.application_of`)."""
    is_stranger: bool = False
    """Whether it is known to belong to another application than the one whose fleet is viewed."""

    @property
    def where(self) -> str:
        """Host and process of the worker, for people; empty if unknown."""
        pid = None if self.place.pid is None else f"pid {self.place.pid}"
        return " ".join(filter(None, (self.place.host, pid)))

    @property
    def is_ahead(self) -> bool:
        """Whether the time that it wrote last is in the future. Then its clock or ours is wrong."""
        return self.heard_s is not None and self.heard_s < -AHEAD_MAX_S


def worker_steps(
    shards: Sequence[ShardView],
    reports: Mapping[str, WorkerReport],
    heard: Mapping[str, int | None],
    silent: Collection[str],
    ends: Mapping[str, tuple[int, str]],
    leader: str | None,
    now_s: float,
    rules: ViewRules,
) -> Steps[tuple[WorkerView, ...]]:
    """Return the views of all workers that report, own a lease, or have been found dead lately, sorted by their ids.

    `heard` has the latest time that each worker wrote, in epoch seconds. `silent` are the workers for which that is too
    long ago. `ends` has for each dead worker when it was found dead, and by which worker.
    """
    shards_of: dict[str | None, list[ShardView]] = {worker: [] for worker in reports}
    open_count = 0
    for number, shard in enumerate(shards):
        if number % SLICE == 0:
            yield
        if not shard.lease.is_complete:
            open_count += 1
            shards_of.setdefault(shard.owner, []).append(shard)
    views = []
    for worker in sorted({*ends, *(name for name in shards_of if name is not None)}):
        yield
        report, own_shards = reports.get(worker), shards_of.get(worker, [])
        heard_at_s, end = heard.get(worker), ends.get(worker)
        if own_shards and (end is None or report is not None or heard_at_s is None or heard_at_s > end[0]):
            end = None  # it owns leases, and may have written since it was found dead
        is_silent = worker in silent
        is_alive, why = _life(report, heard_at_s, end, now_s, is_silent=is_silent, is_throttled=rules.is_throttled)
        if is_alive is False and not own_shards and now_s - max(heard_at_s or 0, end[0] if end else 0) > END_SHOWN_S:
            continue
        application = None if report is None else application_of(report)
        views.append(
            WorkerView(
                worker=worker,
                kind=_kind(report, has_status=any(shard.age_s is not None for shard in own_shards)),
                leases=len(own_shards),
                share=len(own_shards) / open_count if open_count else 0.0,
                is_alive=is_alive,
                is_leader=worker == leader,
                heard_s=None if heard_at_s is None else now_s - heard_at_s,
                cpu_percent=_cpu(report),
                behind_s=furthest(own_shards),
                drained=None if report is None else report.mld.get("drain"),
                why=why,
                place=WorkerPlace() if report is None else WorkerPlace.of(report),
                application=application,
                is_stranger=None not in (application, rules.application) and application != rules.application,
            )
        )
    return tuple(views)


def _life(
    report: WorkerReport | None,
    heard_at_s: int | None,
    end: tuple[int, str] | None,
    now_s: float,
    *,
    is_silent: bool,
    is_throttled: bool,
) -> tuple[bool | None, str | None]:
    """Return whether a worker is alive (None: unknown), and in words how it ended, or why it is unknown.

    `heard_at_s` is the latest time that the worker wrote, in epoch seconds; if that is too long ago, `is_silent` is
    set. `end` is when another worker found it dead, and the id of that worker.
    """
    if heard_at_s is not None and heard_at_s - now_s > AHEAD_MAX_S:
        return None, clocks_disagree(heard_at_s - now_s)
    if is_silent and is_throttled:
        return None, f"silent: {THROTTLED}"
    if end is not None and (report is None or is_silent):
        return False, f"found dead {duration(now_s - end[0])} ago by {end[1]}, which took leases of it"
    if report is None:
        return None, NO_REPORT if heard_at_s is None else None
    return not is_silent, None


def _kind(report: WorkerReport | None, *, has_status: bool) -> str:
    """Return the program that a worker runs: ``mld`` with its version, ``java`` or ``unknown``.

    `has_status`: a row of its leases has a status, which only mld writes.
    """
    if report is not None:
        return f"mld {report.mld['version']}" if "version" in report.mld else JAVA
    return "mld" if has_status else UNREPORTED


def _cpu(report: WorkerReport | None) -> float | None:
    """Return the CPU in percent by which a leader judges the worker; None if the report has no measured CPU."""
    if report is None or is_default(report) or "C" not in report.samples:
        return None
    return average(report.samples["C"], REPORT_RULES.ema_alpha)
