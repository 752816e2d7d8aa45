"""How a shard is, in one word, and why: the one table from which pages, commands and probes take it. Pure.

Also here: what to do about an error of AWS that ends a command, in a sentence.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from mld.core.errors import AwsUnreachableError, TableMissingError, TableThrottledError, TableUnavailableError
from mld.leases.lease import Lease, ShardStatus
from mld.metrics.shard import ShardActivity

FORBIDDEN = ("AccessDenied", "not authorized")
WRONG_NAMES = "check applicationName, tableName, regionName and dynamoDBEndpoint"


def with_remedy(error: Exception) -> str:
    """Return the error's own sentence, and what its reader can do, if that is known."""
    text = str(error)
    if any(sign in text for sign in FORBIDDEN):
        return f"{text}; `mld iam-policy` with the same file prints the permissions that are needed"
    match error:
        case TableMissingError():
            return f"{text}; the first worker of an application makes its table: {WRONG_NAMES}"
        case TableThrottledError():
            return f"{text}; the table has too little capacity: give it more, or ask again"
        case TableUnavailableError() | AwsUnreachableError():
            return f"{text}; `mld doctor` with the same file looks for the reason"
    if "is no lease table" in text:
        return f"{text}; {WRONG_NAMES}"
    return text


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
NO_READER = frozenset({ShardActivity.UNREADABLE, ShardActivity.PARKED})
"""What a consumer is about that gets no records from Kinesis."""
UNITS = ((2.0, "s", 1.0), (120.0, "s", 1.0), (7_200.0, "min", 60.0), (172_800.0, "h", 3_600.0))
DAY_S = 86_400.0
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


def state_of(verdict: Verdict, status: ShardStatus | None) -> str:
    """Return one word for the eye: what the consumer is about while all is well, else the verdict."""
    if verdict is not Verdict.OK or status is None:
        return verdict.value
    is_slow = status.activity == ShardActivity.STALLED.value  # and within the bound that the operator gave
    return ShardActivity.PROCESSING.value if is_slow else status.activity


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
