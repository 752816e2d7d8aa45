"""A whole fleet as its tables show it: shards with owner, lag and verdict, workers with their shares. Pure.

One scan of the lease table is enough, because each renewal also tells lag and activity (`leases.lease.ShardStatus`).
What is older than two renewals is unknown, never zero, and so is everything about the shards of workers that tell
nothing, such as Java's. A worker is heard of by whatever it writes, its report or a row: a table that refuses writes
kills nobody. The page of a daemon and the commands of an operator show the same values.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import groupby

from mld.core.errors import MldError
from mld.core.periods import RENEWALS_PER_LEASE
from mld.core.positions import TRIM_HORIZON
from mld.core.steps import SLICE, Steps, at_once, in_order
from mld.core.stream_ids import stream_of_key
from mld.core.streams import HASH_KEY_MAX, HashRange
from mld.fleet.leader.lock import LockRow, SeenLock
from mld.fleet.report.reports import (
    ReportRules,
    WorkerReport,
    application_of,
    average,
    is_default,
    is_expired,
    newest_of_each,
)
from mld.leases.lease import Failing, Lease, ShardStatus
from mld.metrics.events import Event
from mld.metrics.shard import ShardActivity, ShardMetrics
from mld.operating.naming import names_of
from mld.shards.graph import id_order
from mld.shards.holes import hole_steps

UNITS = ((2.0, "s", 1.0), (120.0, "s", 1.0), (7_200.0, "min", 60.0), (172_800.0, "h", 3_600.0))
DAY_S = 86_400.0

RENEWALS_UNTIL_UNKNOWN = 2
NO_HASH_KEYS = HashRange(0, 1)
"""What every shard of a stream of DynamoDB has."""
LAG_MAX_S = 60.0
"""A shard that is further behind than this is lagging, unless the operator names another bound."""
JAVA, UNREPORTED = "java", "unknown"
"""Kinds of workers that are not known to be of mld: one reports as Java's do, one does not report."""
THROTTLED = "the lease table is throttled"
AHEAD_MAX_S = 60.0
"""How far in the future a stored time may be; beyond, one of the two clocks is wrong, and it tells nothing."""
END_SHOWN_S = 3600.0
"""How long a dead worker is shown that has no leases any more."""
NO_REPORT = "of KCL 2.x, which never reports, or gone"
REPORT_RULES = ReportRules()


# --- one word for a shard ---------------------------------------------------------------------------------------------


class Verdict(Enum):
    """The worst first. All but OK and ENDED are for somebody to look at."""

    STOPPED = "stopped"  # nobody works on it
    UNREADABLE = "unreadable"  # its reads fail, all of them
    PARKED = "parked"  # it waits for an operator
    FAILING = "failing"  # its record processor fails on and on
    STALLED = "stalled"  # behind, and its record processor stands still
    UNKNOWN = "unknown"  # somebody works on it and does not say how far
    LAGGING = "lagging"  # behind, and moving
    PAUSED = "paused"  # an operator wants it to wait
    OK = "ok"
    ENDED = "ended"  # a closed shard, read to its end


RANKS: Mapping[str, int] = {verdict.value: rank for rank, verdict in enumerate(Verdict)}
"""By the word; the worst is 0."""
TROUBLE = frozenset(Verdict) - {Verdict.OK, Verdict.ENDED}
_TOLD: Mapping[str, Verdict] = {
    ShardActivity.UNREADABLE.value: Verdict.UNREADABLE,
    ShardActivity.PARKED.value: Verdict.PARKED,
    ShardActivity.FAILING.value: Verdict.FAILING,
}


def judge(lease: Lease, status: ShardStatus | None, lag_max_s: float, *, is_owner_dead: bool) -> Verdict:
    """Return the verdict on a shard with this fresh `status`; None: there is none."""
    if lease.is_complete:
        return Verdict.ENDED
    if lease.actual_owner is None or is_owner_dead:
        return Verdict.STOPPED
    if lease.paused is not None:
        return Verdict.PAUSED
    told = None if status is None else _TOLD.get(status.activity)
    if told is not None:
        return told
    if lease.failing_now is not None:
        return Verdict.FAILING
    if status is None or status.behind_ms is None:
        return Verdict.UNKNOWN
    if status.behind_ms <= lag_max_s * 1000:
        return Verdict.OK
    return Verdict.STALLED if status.activity == ShardActivity.STALLED.value else Verdict.LAGGING


def duration(seconds: float | None) -> str:
    """Return a time in words of one unit, ``340 ms``, ``12 s``, ``3 h``; ``unknown`` for None."""
    if seconds is None:
        return Verdict.UNKNOWN.value
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    for bound, unit, size in UNITS:
        if seconds < bound:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds / DAY_S:.1f} d"


def clocks_disagree(ahead_s: float) -> str:
    """Return what a time so far in the future means."""
    return f"clocks disagree: what was written last is {duration(ahead_s)} in the future"


class NoStreamError(MldError):
    """The stream that was asked about has no leases; the text says which have."""


@dataclass(frozen=True, slots=True)
class ViewRules:
    """The fleet's settings, as far as the view depends on them, and the operator's bound for lag."""

    lease_duration_s: float
    reports: ReportRules = REPORT_RULES
    lag_max_s: float = LAG_MAX_S
    is_throttled: bool = False
    """Whether the table refuses writes for want of capacity, as far as is known: nobody is dead for being silent."""

    @property
    def fresh_s(self) -> float:
        """How old a status may be."""
        return RENEWALS_UNTIL_UNKNOWN * self.lease_duration_s / RENEWALS_PER_LEASE


@dataclass(frozen=True, slots=True)
class ShardView:
    """One lease row. `status` is None if there is none that is fresh."""

    lease: Lease
    verdict: Verdict
    status: ShardStatus | None
    age_s: float | None
    """How old what the row tells is; None if it tells nothing."""
    is_probed: bool = False
    """Kinesis was asked how far behind it is (`probes.probed`)."""
    label: str | None = None
    """What people call its stream, among several."""
    why: str | None = None
    """Since when and why it is in trouble or unknown, in words; None if it is neither, or nobody says."""

    @property
    def state(self) -> str:
        """One word for the eye: what the consumer is about while all is well, else the verdict."""
        if self.verdict is not Verdict.OK or self.status is None:
            return self.verdict.value
        is_slow = self.status.activity == ShardActivity.STALLED.value  # and within the bound that the operator gave
        return ShardActivity.PROCESSING.value if is_slow else self.status.activity

    @property
    def key(self) -> str:
        return self.lease.key

    @property
    def name(self) -> str:
        """The shard for people: with its stream, among several."""
        return self.key if self.label is None else f"{self.label}:{self.lease.shard_id}"

    @property
    def owner(self) -> str | None:
        """Who works on it now."""
        return self.lease.actual_owner

    @property
    def behind_s(self) -> float | None:
        behind_ms = None if self.status is None else self.status.behind_ms
        return None if behind_ms is None else behind_ms / 1000

    @property
    def failing(self) -> Failing | None:
        return self.lease.failing_now

    @property
    def share(self) -> tuple[float, float] | None:
        """Where its hash range begins and ends, as shares of all keys."""
        keys = self.lease.hash_range
        return None if keys is None else share_of(keys)


@dataclass(frozen=True, slots=True)
class WorkerPlace:
    """Where a worker runs, as its report tells; None is what it does not tell."""

    host: str | None = None
    pid: str | None = None
    started_s: int | None = None
    meter: str | None = None
    """The machine or container, of which several workers measure the same CPU."""

    @classmethod
    def of(cls, report: WorkerReport) -> WorkerPlace:
        """Return the place that a report tells of."""
        told, started = report.mld, report.mld.get("started")
        return cls(told.get("host"), told.get("pid"), None if started is None else int(started), told.get("meter"))


@dataclass(frozen=True, slots=True)
class WorkerView:
    """A worker that reports or owns leases. `is_alive` None: it never reports, so that only its renewals could tell."""

    worker: str
    kind: str
    """``mld``, with its version if it reports; ``java``; or ``unknown``, if it neither reports nor tells of a lease."""
    leases: int
    share: float
    """Of all open leases."""
    is_alive: bool | None
    is_leader: bool
    heard_s: float | None
    """How long ago it wrote its report or the status of a lease, by its clock; None if it never did."""
    cpu_percent: float | None
    behind_s: float | None
    """Of its shard that is furthest behind; None if none of them tells."""
    drained: str | None = None
    """Who has drained it, when and why, in words; None if nobody has."""
    why: str | None = None
    """How it ended, or why nobody knows whether it lives."""
    place: WorkerPlace = WorkerPlace()
    application: str | None = None
    """What tells it from workers of other applications in the same table (`reports.application_of`)."""

    @property
    def where(self) -> str:
        """Its host and process, for people; empty if it does not tell."""
        pid = None if self.place.pid is None else f"pid {self.place.pid}"
        return " ".join(filter(None, (self.place.host, pid)))

    @property
    def is_ahead(self) -> bool:
        """Whether what it wrote last is in the future, so that its clock or ours is wrong."""
        return self.heard_s is not None and self.heard_s < -AHEAD_MAX_S


@dataclass(frozen=True, slots=True)
class FleetStatus:
    taken_s: float
    """Epoch seconds of whoever looked."""
    shards: tuple[ShardView, ...]
    """In the order of their streams and ids."""
    workers: tuple[WorkerView, ...]
    holes_of: Mapping[str | None, tuple[HashRange, ...]]
    """What no open lease covers, by the label of the stream; None is the only one. Streams without holes are absent."""
    corrupt: tuple[tuple[str, str], ...]
    """Rows that cannot be read, with the reason."""
    leader: str | None
    labels: Mapping[str, str] = field(default_factory=dict)
    """What people call each stream of a table with several, by identifier."""
    events: tuple[Event, ...] = ()
    """What happened, the oldest first."""
    alerts: frozenset[str] = frozenset()
    """Raised and not ended."""

    @property
    def times_told(self) -> list[float]:
        """When something happened that rows and events tell of, in epoch seconds."""
        told: list[float] = [event.at_s for event in self.events]
        told += [shard.lease.status.at_s for shard in self.shards if shard.lease.status is not None]
        return told + [self.taken_s - one.heard_s for one in self.workers if one.heard_s is not None]

    @property
    def holes(self) -> tuple[HashRange, ...]:
        """Those of all streams."""
        return tuple(hole for holes in self.holes_of.values() for hole in holes)

    @property
    def open_shards(self) -> tuple[ShardView, ...]:
        """All but those that were read to their end."""
        return tuple(shard for shard in self.shards if shard.verdict is not Verdict.ENDED)

    @property
    def behind_s(self) -> float | None:
        """How far the shard that is furthest behind is; None if none tells."""
        return furthest(self.open_shards)

    @property
    def applications(self) -> Mapping[str, tuple[str, ...]]:
        """The living workers of each application, if there are several: they take each other's leases."""
        found: dict[str, list[str]] = {}
        for worker in self.workers:
            if worker.application is not None and worker.is_alive:
                found.setdefault(worker.application, []).append(worker.worker)
        return {name: tuple(workers) for name, workers in sorted(found.items())} if len(found) > 1 else {}

    @property
    def uneven(self) -> tuple[tuple[WorkerView, ...], ...]:
        """The living workers of each machine whose leases differ by more than one, but for what an operator wants."""
        by_meter: dict[str, list[WorkerView]] = {}
        pinned = {one.owner for one in self.open_shards if (one.lease.pinned_until_s or 0) > self.taken_s}
        for worker in self.workers:
            if worker.place.meter and worker.is_alive and worker.drained is None and worker.worker not in pinned:
                by_meter.setdefault(worker.place.meter, []).append(worker)
        counts = {meter: [one.leases for one in ones] for meter, ones in by_meter.items()}
        return tuple(tuple(ones) for meter, ones in by_meter.items() if max(counts[meter]) - min(counts[meter]) > 1)

    def count(self, verdict: Verdict) -> int:
        return sum(shard.verdict is verdict for shard in self.shards)


def fleet_status_steps(
    leases: Iterable[Lease],
    reports: Iterable[WorkerReport],
    lock: SeenLock,
    now_s: float,
    rules: ViewRules,
    *,
    corrupt: Iterable[tuple[str, str]] = (),
    labels: Mapping[str, str] | None = None,
) -> Steps[FleetStatus]:
    """Return the fleet of these rows at `now_s`, in epoch seconds of whoever looks.

    `labels` are what people call streams, by identifier; a stream without one is called by its identifier.
    """
    newest = {report.worker: report for report in newest_of_each(reports)}
    known = labels or {}

    def label_of(lease: Lease) -> str | None:
        return None if lease.stream is None else known.get(lease.stream, lease.stream)

    rows = yield from in_order(leases, key=lambda lease: (label_of(lease) or "", id_order(lease.shard_id)))
    heard = {worker: report.updated_at_s for worker, report in newest.items()}
    for number, lease in enumerate(rows):
        if number % SLICE == 0:
            yield
        owner = lease.actual_owner
        if lease.status is not None and owner is not None:
            heard[owner] = max(heard.get(owner) or 0, lease.status.at_s)
    silent = frozenset(
        worker
        for worker, report in newest.items()
        if is_expired(replace(report, updated_at_s=heard[worker]), now_s, rules.reports)
    )
    ends = {end: (at_s, by.worker) for by in newest.values() for end, at_s in by.ends.items()}
    # Whoever takes a lease of a dead worker deletes its report; for the others perhaps nobody has room.
    unreported = ((worker, heard[worker]) for worker in ends if worker not in newest and worker in heard)
    found_dead = frozenset(worker for worker, at_s in unreported if at_s is not None and at_s <= ends[worker][0])
    dead = found_dead if rules.is_throttled else silent | found_dead
    shards = []
    for number, lease in enumerate(rows):
        if number % SLICE == 0:
            yield
        view = _view_shard(lease, dead, now_s, rules)
        shards.append(view if lease.stream is None else replace(view, label=label_of(lease)))
    workers = yield from _workers(shards, newest, heard, silent, ends, _leader(lock), now_s, rules)
    unreadable = tuple(corrupt)
    # An unreadable row covers keys that nobody knows.
    unsure = {known.get(stream, stream) if (stream := stream_of_key(key)) else None for key, _ in unreadable}
    holes: dict[str | None, tuple[HashRange, ...]] = {}
    for label, of_stream in groupby(shards, key=lambda shard: shard.label):
        found = () if label in unsure else (yield from _holes(tuple(of_stream)))
        if found:
            holes[label] = found
    return FleetStatus(
        taken_s=now_s,
        shards=tuple(shards),
        workers=workers,
        holes_of=holes,
        corrupt=unreadable,
        leader=_leader(lock),
        labels=known,
    )


fleet_status = at_once(fleet_status_steps)


def of_stream(status: FleetStatus, name: str) -> FleetStatus | None:
    """Return the status with the shards of one stream only, however named, and all workers; None if it has none."""
    labels = {shard.label for shard in status.shards}
    if name not in labels:
        ids = {shard.lease.stream: shard.label for shard in status.shards if shard.lease.stream is not None}
        labels = {label for stream, label in ids.items() if name in (stream, stream.split(":")[1])}
    else:
        labels = {name}
    shards = tuple(shard for shard in status.shards if shard.label in labels)
    if not shards or None in labels:
        return None
    holes = {label: found for label, found in status.holes_of.items() if label in labels}
    return replace(status, shards=shards, holes_of=holes)


def chosen(status: FleetStatus, name: str | None) -> FleetStatus:
    """Return the status of one stream, or all of it without a name. Raises NoStreamError."""
    if name is None:
        return status
    found = of_stream(status, name)
    if found is None:
        labels = sorted({shard.label for shard in status.shards if shard.label is not None})
        has = f"it has {names_of(labels) or 'the form of one stream'}"
        raise NoStreamError(f"the lease table has no stream {name}; {has}")
    return found


def _view_shard(lease: Lease, dead: Collection[str], now_s: float, rules: ViewRules) -> ShardView:
    reported = lease.status
    age_s = None if reported is None else now_s - reported.at_s
    fresh = reported if age_s is not None and -AHEAD_MAX_S <= age_s <= rules.fresh_s else None
    verdict = judge(lease, fresh, rules.lag_max_s, is_owner_dead=lease.actual_owner in dead)
    why = _why(lease, verdict, fresh, age_s, rules.is_throttled)
    return ShardView(lease, verdict, fresh, None if age_s is None else max(0.0, age_s), why=why)


def rejudged(view: ShardView, status: ShardStatus, lag_max_s: float, *, is_probed: bool = False) -> ShardView:
    """Return the view of a shard of a living worker, by what somebody knows better than its row."""
    verdict = judge(view.lease, status, lag_max_s, is_owner_dead=False)
    why = _why(view.lease, verdict, status)
    return replace(view, verdict=verdict, status=status, age_s=0.0, why=why, is_probed=is_probed)


def known_here(view: ShardView, own: ShardMetrics, wall_s: float, lag_max_s: float) -> ShardView:
    """Return the view of a shard of the worker that looks, by what it knows itself."""
    status = ShardStatus(own.activity_at(wall_s).value, int(wall_s), own.lag_ms(wall_s), why=own.why_at(wall_s))
    return rejudged(view, status, lag_max_s)


def own_view(own: ShardMetrics, worker: str, wall_s: float, lag_max_s: float) -> ShardView:
    """Return the view of a shard of the worker that looks, by what it knows without any row."""
    view = view_without_row(own, worker, wall_s)
    is_paused = own.activity_at(wall_s) is ShardActivity.PAUSED
    paused = replace(view, lease=replace(view.lease, paused="by an operator")) if is_paused else view
    return known_here(paused, own, wall_s, lag_max_s)


def view_without_row(own: ShardMetrics, worker: str, wall_s: float) -> ShardView:
    """Return the view of a shard of the worker that looks, while nothing is known of its row."""
    lease = Lease(own.key, TRIM_HORIZON, owner=worker)
    return ShardView(lease, Verdict.UNKNOWN, None, None, label=own.stream_label, why=own.why_at(wall_s))


def _why(
    lease: Lease, verdict: Verdict, status: ShardStatus | None, age_s: float | None = None, is_throttled: bool = False
) -> str | None:
    """Return why a shard is not well, or why nobody knows how it is."""
    match verdict:
        case Verdict.ENDED | Verdict.OK | Verdict.PAUSED:
            return None
        case Verdict.LAGGING:
            return None if status is None else status.why
        case Verdict.STOPPED:
            return None if lease.actual_owner is None else "its owner is dead"
        case Verdict.UNKNOWN if status is None and age_s is None:
            return "its worker does not tell"
        case Verdict.UNKNOWN if status is None and age_s is not None and age_s < -AHEAD_MAX_S:
            return clocks_disagree(-age_s)
        case Verdict.UNKNOWN if status is None:
            return f"silent for {duration(age_s)}" + (f": {THROTTLED}" if is_throttled else "")
        case Verdict.UNKNOWN:
            return "not read yet" if status is None or status.why is None else f"not read yet: {status.why}"
        case Verdict.FAILING if lease.failing_now is not None:
            words = f"failed {lease.failing_now.failures} times without a checkpoint"
            return words if status is None or status.why is None else f"{words}, {status.why}"
    return "the log of its worker says why" if status is None or status.why is None else status.why


def _workers(
    shards: Sequence[ShardView],
    reports: Mapping[str, WorkerReport],
    heard: Mapping[str, int | None],
    silent: Collection[str],
    ends: Mapping[str, tuple[int, str]],
    leader: str | None,
    now_s: float,
    rules: ViewRules,
) -> Steps[tuple[WorkerView, ...]]:
    owned: dict[str | None, list[ShardView]] = {worker: [] for worker in reports}
    open_count = 0
    for number, shard in enumerate(shards):
        if number % SLICE == 0:
            yield
        if not shard.lease.is_complete:
            open_count += 1
            owned.setdefault(shard.owner, []).append(shard)
    views = []
    for worker in sorted({*ends, *(name for name in owned if name is not None)}):
        yield
        report, own = reports.get(worker), owned.get(worker, [])
        heard_at_s, end = heard.get(worker), ends.get(worker)
        if own and (end is None or report is not None or heard_at_s is None or heard_at_s > end[0]):
            end = None  # it lives, as far as its rows say
        is_silent = worker in silent
        is_alive, why = _life(report, heard_at_s, end, now_s, is_silent=is_silent, is_throttled=rules.is_throttled)
        if is_alive is False and not own and now_s - max(heard_at_s or 0, end[0] if end else 0) > END_SHOWN_S:
            continue
        views.append(
            WorkerView(
                worker=worker,
                kind=_kind(report, tells=any(shard.age_s is not None for shard in own)),
                leases=len(own),
                share=len(own) / open_count if open_count else 0.0,
                is_alive=is_alive,
                is_leader=worker == leader,
                heard_s=None if heard_at_s is None else now_s - heard_at_s,
                cpu_percent=_cpu(report),
                behind_s=furthest(own),
                drained=None if report is None else report.mld.get("drain"),
                why=why,
                place=WorkerPlace() if report is None else WorkerPlace.of(report),
                application=None if report is None else application_of(report),
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
    """Return (whether a worker lives, how it ended or why nobody knows). `end`: when it was found dead, and by whom."""
    if heard_at_s is not None and heard_at_s - now_s > AHEAD_MAX_S:
        return None, clocks_disagree(heard_at_s - now_s)
    if is_silent and is_throttled:
        return None, f"silent: {THROTTLED}"
    if end is not None and (report is None or is_silent):
        return False, f"found dead {duration(now_s - end[0])} ago by {end[1]}, which took leases of it"
    if report is None:
        return None, NO_REPORT if heard_at_s is None else None
    return not is_silent, None


def _kind(report: WorkerReport | None, *, tells: bool) -> str:
    """Return the kind of a worker; `tells`: its leases' rows say how its shards are, as only mld's do."""
    if report is not None:
        return f"mld {report.mld['version']}" if "version" in report.mld else JAVA
    return "mld" if tells else UNREPORTED


def _cpu(report: WorkerReport | None) -> float | None:
    """Return what a leader judges the worker by, if it measures its CPU."""
    if report is None or is_default(report) or "C" not in report.samples:
        return None
    return average(report.samples["C"], REPORT_RULES.ema_alpha)


def _leader(lock: SeenLock) -> str | None:
    return lock.owner if isinstance(lock, LockRow) and not lock.is_released else None


def furthest(shards: Iterable[ShardView]) -> float | None:
    """Return how far behind the shard is that is furthest behind; None if none tells."""
    return max((shard.behind_s for shard in shards if shard.behind_s is not None), default=None)


def _holes(shards: Sequence[ShardView]) -> Steps[tuple[HashRange, ...]]:
    """Return what no open lease covers; nothing is known while an open row has no range."""
    known: list[HashRange] = []
    for number, shard in enumerate(shards):
        if number % SLICE == 0:
            yield
        if shard.lease.is_complete:
            continue
        if shard.lease.hash_range is None:
            return ()
        known.append(shard.lease.hash_range)
    if all(one == NO_HASH_KEYS for one in known):
        return ()
    return (yield from hole_steps(known))


def share_of(keys: HashRange) -> tuple[float, float]:
    """Begin and end of a hash range as shares of all keys, from 0 to 1."""
    return keys.start / (HASH_KEY_MAX + 1), (keys.end + 1) / (HASH_KEY_MAX + 1)
