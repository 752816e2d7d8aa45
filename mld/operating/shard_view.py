"""One shard as operators see it: a verdict in one word, and why. Pure.

A renewal also writes lag and activity into the lease row (`leases.lease.ShardStatus`), so one scan of the table is
enough. A status that is older than two renewals counts as unknown, never as zero. The same holds for shards whose
workers write no status, such as Java's."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum

from mld.core.periods import RENEWALS_PER_LEASE
from mld.core.positions import TRIM_HORIZON
from mld.core.streams import HASH_KEY_MAX, HashRange
from mld.fleet.report.reports import (
    ReportRules,
)
from mld.leases.lease import Failing, Lease, ShardStatus
from mld.metrics.shard import ShardActivity, ShardMetrics
from mld.operating.durations import duration

RENEWALS_UNTIL_UNKNOWN = 2
LAG_MAX_S = 60.0
"""A shard that is further behind than this is lagging, unless the operator names another bound."""
THROTTLED = "the lease table is throttled"
AHEAD_MAX_S = 60.0
"""How far in the future a stored time may be; beyond, one of the two clocks is wrong, and it tells nothing."""
REPORT_RULES = ReportRules()


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


def clocks_disagree(ahead_s: float) -> str:
    """Return what a time so far in the future means."""
    return f"clocks disagree: what was written last is {duration(ahead_s)} in the future"


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


def view_shard(lease: Lease, dead: Collection[str], now_s: float, rules: ViewRules) -> ShardView:
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
        case Verdict.ENDED | Verdict.OK | Verdict.LAGGING | Verdict.PAUSED:
            return None
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


def furthest(shards: Iterable[ShardView]) -> float | None:
    """Return how far behind the shard is that is furthest behind; None if none tells."""
    return max((shard.behind_s for shard in shards if shard.behind_s is not None), default=None)


def share_of(keys: HashRange) -> tuple[float, float]:
    """Begin and end of a hash range as shares of all keys, from 0 to 1."""
    return keys.start / (HASH_KEY_MAX + 1), (keys.end + 1) / (HASH_KEY_MAX + 1)
