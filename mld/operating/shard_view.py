"""`ShardView`: one shard as operators see it: a verdict in one word, and the reason for it. Pure.

Each renewal also writes lag and activity into the lease row (`leases.lease.ShardStatus`), so one scan of the table is
enough. A status that is older than two renewals counts as unknown, never as zero. So does the status of shards whose
workers write none, such as Java's.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING

from mld.core.periods import RENEWALS_PER_LEASE
from mld.core.positions import TRIM_HORIZON
from mld.core.streams import HASH_KEY_MAX, HashRange
from mld.fleet.report.reports import (
    ReportRules,
)
from mld.leases.lease import Failing, Lease, ShardStatus
from mld.metrics.activity import ShardActivity
from mld.operating.durations import duration

if TYPE_CHECKING:
    from mld.metrics.shard import ShardMetrics

RENEWALS_UNTIL_UNKNOWN = 2
"""A status in a row that is older than this many renewals counts as unknown."""
LAG_MAX_S = 60.0
"""A shard that is further behind than this is lagging, unless the operator gives another limit."""
THROTTLED = "the lease table is throttled"
AHEAD_MAX_S = 60.0
"""How far in the future a stored time may be. If it is further, one of the two clocks is wrong, and the time is
ignored.
"""
REPORT_RULES = ReportRules()


class Verdict(Enum):
    """The state of a shard, the worst first. Except for OK and ENDED, an operator should look at the shard."""

    STOPPED = "stopped"  # it has no live owner
    UNREADABLE = "unreadable"  # all reads of it fail
    PARKED = "parked"  # it waits for an operator
    FAILING = "failing"  # its record processor fails again and again
    STALLED = "stalled"  # it is behind, and its record processor stands still
    UNKNOWN = "unknown"  # it has an owner, but its lag is unknown
    LAGGING = "lagging"  # it is behind, but makes progress
    PAUSED = "paused"  # an operator has paused it
    OK = "ok"
    ENDED = "ended"  # it is closed, and was read to its end


RANKS: Mapping[str, int] = {verdict.value: rank for rank, verdict in enumerate(Verdict)}
"""Rank of each verdict, by its word; 0 is the worst."""
TROUBLE = frozenset(Verdict) - {Verdict.OK, Verdict.ENDED}
"""Verdicts on shards that an operator should look at."""
_BY_ACTIVITY: Mapping[str, Verdict] = {
    ShardActivity.UNREADABLE.value: Verdict.UNREADABLE,
    ShardActivity.PARKED.value: Verdict.PARKED,
    ShardActivity.FAILING.value: Verdict.FAILING,
}
"""Verdicts that follow from the activity in a status alone."""


def judge(lease: Lease, status: ShardStatus | None, lag_max_s: float, *, is_owner_dead: bool) -> Verdict:
    """Return the verdict on a shard. `status` is its status if that is fresh, else None.

    If several verdicts apply, the one that explains the others counts: a shard that has no owner, or is paused, or
    fails, lags for that reason.
    """
    if lease.is_complete:
        return Verdict.ENDED
    if lease.actual_owner is None or is_owner_dead:
        return Verdict.STOPPED
    if lease.paused is not None:
        return Verdict.PAUSED
    by_activity = None if status is None else _BY_ACTIVITY.get(status.activity)
    if by_activity is not None:
        return by_activity
    if lease.failing_now is not None:
        return Verdict.FAILING
    if status is None or status.behind_ms is None:
        return Verdict.UNKNOWN
    if status.behind_ms <= lag_max_s * 1000:
        return Verdict.OK
    return Verdict.STALLED if status.activity == ShardActivity.STALLED.value else Verdict.LAGGING


def clocks_disagree(ahead_s: float) -> str:
    """Return words on a stored time that is `ahead_s` seconds in the future."""
    return f"clocks disagree: what was written last is {duration(ahead_s)} in the future"


@dataclass(frozen=True, slots=True)
class ViewRules:
    """The settings of the fleet on which views depend, and the operator's limit for the lag."""

    lease_duration_s: float
    reports: ReportRules = REPORT_RULES
    lag_max_s: float = LAG_MAX_S
    is_throttled: bool = False
    """Whether the table is known to refuse writes for lack of capacity. Then a worker that writes nothing may be
    alive.
    """
    application: str | None = None
    """What identifies the application whose fleet is viewed (`reports.application_on`); None if that is not known."""

    @property
    def fresh_s(self) -> float:
        """Age in seconds up to which a status counts as fresh."""
        return RENEWALS_UNTIL_UNKNOWN * self.lease_duration_s / RENEWALS_PER_LEASE


@dataclass(frozen=True, slots=True)
class ShardView:
    """A lease row and the verdict on its shard."""

    lease: Lease
    verdict: Verdict
    status: ShardStatus | None
    """The status in the row, if it is fresh; else None."""
    age_s: float | None
    """Age in seconds of the status in the row, fresh or not; None if the row has none."""
    is_probed: bool = False
    """Whether the lag comes from Kinesis (`probes.probed`), not from the row."""
    label: str | None = None
    """Label of its stream, if the application reads several."""
    why: str | None = None
    """Reason for the verdict in words; None if the shard is well, or no reason is known."""

    @property
    def state(self) -> str:
        """One word: the activity of its consumer if the verdict is OK, else the verdict."""
        if self.verdict is not Verdict.OK or self.status is None:
            return self.verdict.value
        is_slow = self.status.activity == ShardActivity.STALLED.value  # but its lag is within the operator's limit
        return ShardActivity.PROCESSING.value if is_slow else self.status.activity

    @property
    def key(self) -> str:
        return self.lease.key

    @property
    def name(self) -> str:
        """Name of the shard for people, with the stream if there are several."""
        return self.key if self.label is None else f"{self.label}:{self.lease.shard_id}"

    @property
    def owner(self) -> str | None:
        """The worker that has the shard now; None: nobody."""
        return self.lease.actual_owner

    @property
    def behind_s(self) -> float | None:
        """Lag of the shard in seconds; None if its status is not fresh, or has no lag."""
        behind_ms = None if self.status is None else self.status.behind_ms
        return None if behind_ms is None else behind_ms / 1000

    @property
    def failing(self) -> Failing | None:
        """The note in the row about failures of the record processor at the present checkpoint; None if none is."""
        return self.lease.failing_now

    @property
    def share(self) -> tuple[float, float] | None:
        """Start and end of its hash range, as fractions of all hash keys, from 0 to 1; None if the row has no hash
        range.
        """
        keys = self.lease.hash_range
        return None if keys is None else share_of(keys)


def view_shard(lease: Lease, dead: Collection[str], now_s: float, rules: ViewRules) -> ShardView:
    """Return the view of a shard, made from its lease row. `dead` are the workers that count as dead."""
    reported = lease.status
    age_s = None if reported is None else now_s - reported.at_s
    fresh = reported if age_s is not None and -AHEAD_MAX_S <= age_s <= rules.fresh_s else None
    verdict = judge(lease, fresh, rules.lag_max_s, is_owner_dead=lease.actual_owner in dead)
    why = _why(lease, verdict, fresh, age_s, rules.is_throttled)
    return ShardView(lease, verdict, fresh, None if age_s is None else max(0.0, age_s), why=why)


def rejudged(view: ShardView, status: ShardStatus, lag_max_s: float, *, is_probed: bool = False) -> ShardView:
    """Return the view of a living worker's shard, judged again by a status that is newer than the row's."""
    verdict = judge(view.lease, status, lag_max_s, is_owner_dead=False)
    why = _why(view.lease, verdict, status)
    return replace(view, verdict=verdict, status=status, age_s=0.0, why=why, is_probed=is_probed)


def known_here(view: ShardView, own: ShardMetrics, wall_s: float, lag_max_s: float) -> ShardView:
    """Return the view of a shard whose lease this worker holds itself, judged by its own metrics."""
    status = ShardStatus(own.activity_at(wall_s).value, int(wall_s), own.lag_ms(wall_s), why=own.why_at(wall_s))
    return rejudged(view, status, lag_max_s)


def own_view(own: ShardMetrics, worker: str, wall_s: float, lag_max_s: float) -> ShardView:
    """Return the view of a shard whose lease this worker holds itself, made from its own metrics without the row."""
    view = view_without_row(own, worker, wall_s)
    is_paused = own.activity_at(wall_s) is ShardActivity.PAUSED
    # The row has the reason for the pause, but the verdict needs only that there is one.
    paused = replace(view, lease=replace(view.lease, paused="by an operator")) if is_paused else view
    return known_here(paused, own, wall_s, lag_max_s)


def view_without_row(own: ShardMetrics, worker: str, wall_s: float) -> ShardView:
    """Return the view, without status and verdict, of a shard whose lease this worker holds but whose row it has not
    read.
    """
    lease = Lease(own.key, TRIM_HORIZON, owner=worker)
    return ShardView(lease, Verdict.UNKNOWN, None, None, label=own.stream_label, why=own.why_at(wall_s))


def _why(
    lease: Lease, verdict: Verdict, status: ShardStatus | None, age_s: float | None = None, is_throttled: bool = False
) -> str | None:
    """Return the reason for a verdict in words; None if the verdict needs none, or no reason is known."""
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
    # The verdicts that are left: unreadable, parked, stalled, and failing without a note in the row.
    return "the log of its worker says why" if status is None or status.why is None else status.why


def furthest(shards: Iterable[ShardView]) -> float | None:
    """Return the largest lag of the shards, in seconds; None if no lag is known."""
    return max((shard.behind_s for shard in shards if shard.behind_s is not None), default=None)


def share_of(keys: HashRange) -> tuple[float, float]:
    """Return start and end of a hash range as fractions of all hash keys, from 0 to 1."""
    return keys.start / (HASH_KEY_MAX + 1), (keys.end + 1) / (HASH_KEY_MAX + 1)
