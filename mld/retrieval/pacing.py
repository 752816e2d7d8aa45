"""When the next GetRecords may go out. Pure: state and `now` in, seconds out.

Rules: retrieval#pacing-of-reads. At the tip of the shard the idle interval applies; a reader that lags asks again after
the catch-up interval; failures back off exponentially with jitter, where Java waits for the idle interval. Times are
monotonic seconds; all intervals count from the end of the previous call.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

CALL_INTERVAL_MIN_S = 0.2
"""Kinesis allows 5 GetRecords a second and shard, for all consumers together."""
ERROR_BACKOFF_S = 0.5
"""First wait after an error: short, as most are single; doubled with every further one."""
THROTTLE_BACKOFF_S = 1.0
"""First wait after throttling: the limits are per second, and up to 5 s after a full 10 MB answer."""
BACKOFF_MAX_S = 10.0
"""Longest wait: how late a reader may notice the end of an outage. Far below the 5 minutes of an iterator's life."""
BEAT_MAX_S = 0.1
"""The beat of readers with the default interval of 1.5 s."""
BACKOFF_DOUBLINGS_MAX = 10
"""The longest wait is reached long before; this only keeps the power small."""


@dataclass(frozen=True, slots=True)
class Pacing:
    """The configured intervals. `reduced_tps_threshold_s`: closer to the tip than this, wait at least this long.
    The catch-up interval is for readers further behind than `catch_up_from_s`.

    With `beat_s` a wait at the tip is extended to its next multiple, the same for all readers: one wake-up of the
    process then serves several shards, which saves a third of the cost of an idle shard.
    """

    idle_interval_s: float
    catch_up_interval_s: float = CALL_INTERVAL_MIN_S
    reduced_tps_threshold_s: float = 0.0
    beat_s: float = 0.0
    catch_up_from_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Pace:
    """What the previous call was like. `failures` counts those in a row, and `first_backoff_s` is the first wait after
    one like the last; `ended_s` None: there was no call yet.
    """

    ended_s: float | None = None
    millis_behind_latest: int | None = None
    failures: int = 0
    first_backoff_s: float = ERROR_BACKOFF_S


def failed(pace: Pace, ended_s: float, first_backoff_s: float) -> Pace:
    return replace(pace, ended_s=ended_s, failures=pace.failures + 1, first_backoff_s=first_backoff_s)


def delay_s(pacing: Pacing, pace: Pace, now_s: float, jitter: float) -> float:
    """Return seconds to wait before the next call, 0 for at once. `jitter` is a fresh random number in [0, 1)."""
    if pace.ended_s is None:
        return 0.0
    interval_s = (
        backoff_s(pace.first_backoff_s, pace.failures, jitter)
        if pace.failures
        else _interval_s(pacing, pace.millis_behind_latest)
    )
    wait_s = max(0.0, max(interval_s, CALL_INTERVAL_MIN_S) - (now_s - pace.ended_s))
    if pacing.beat_s <= 0 or pace.failures or pace.millis_behind_latest or wait_s == 0:
        return wait_s
    return max(wait_s, math.ceil((now_s + wait_s) / pacing.beat_s) * pacing.beat_s - now_s)


def beat_of(idle_interval_s: float) -> float:
    """Return the beat for an interval: it extends a wait by a fifteenth at most, by half of that on average."""
    return min(BEAT_MAX_S, idle_interval_s / 15)


def _interval_s(pacing: Pacing, millis_behind_latest: int | None) -> float:
    if millis_behind_latest is None:
        return pacing.idle_interval_s
    behind_s = millis_behind_latest / 1000
    behind = behind_s > pacing.catch_up_from_s
    usual_s = min(pacing.catch_up_interval_s, pacing.idle_interval_s) if behind else pacing.idle_interval_s
    return max(usual_s, pacing.reduced_tps_threshold_s) if behind_s < pacing.reduced_tps_threshold_s else usual_s


def backoff_s(first_s: float, failures: int, jitter: float) -> float:
    """Return a wait of which half is fixed and half is random, so that readers throttled together do not come back
    together.
    """
    doublings = min(failures - 1, BACKOFF_DOUBLINGS_MAX)
    longest_s = min(BACKOFF_MAX_S, first_s * 2.0**doublings)
    return longest_s * (1 + jitter) / 2
