"""When the next GetRecords may be sent. Pure: state and `now` in, seconds out.

Rules: retrieval#pacing-of-reads. At the tip of the shard the idle interval applies. A reader that lags asks again after
the catch-up interval. After failures it backs off exponentially with jitter, where Java waits for the idle interval.
Times are monotonic seconds; all intervals count from the end of the previous call.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

CALL_INTERVAL_MIN_S = 0.2
"""Kinesis allows 5 GetRecords a second for each shard, for all applications together."""
ERROR_BACKOFF_S = 0.5
"""First wait after an error, doubled with each further one. It is short, as most errors do not repeat."""
THROTTLE_BACKOFF_S = 1.0
"""First wait after throttling. Limits are per second, and a full answer of 10 MB may block a shard for 5 s."""
BACKOFF_MAX_S = 10.0
"""Longest wait, thus how late a reader may notice the end of an outage. It is far below the 5 minutes that an iterator
lives."""
BEAT_MAX_S = 0.1
"""Beat of readers with the default interval of 1.5 s."""
BACKOFF_DOUBLINGS_MAX = 10
"""Keeps the power of two small; the longest wait is reached long before."""


@dataclass(frozen=True, slots=True)
class Pacing:
    """The configured intervals.

    A reader that is further behind than `catch_up_from_s` waits for the catch-up interval. One that is closer to the
    tip than `reduced_tps_threshold_s` waits at least for that threshold.

    With `beat_s` above 0 a wait at the tip is extended to the next multiple of it, which is the same for all readers.
    Then one wake-up of the process serves several shards, which saves a third of the cost of an idle shard.
    """

    idle_interval_s: float
    catch_up_interval_s: float = CALL_INTERVAL_MIN_S
    reduced_tps_threshold_s: float = 0.0
    beat_s: float = 0.0
    catch_up_from_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Pace:
    """How the previous call went.

    `ended_s` None: there was no call yet. `failures` counts the errors in a row, and `first_backoff_s` is the first
    wait that belongs to the kind of the last one.
    """

    ended_s: float | None = None
    millis_behind_latest: int | None = None
    failures: int = 0
    first_backoff_s: float = ERROR_BACKOFF_S


def failed(pace: Pace, ended_s: float, first_backoff_s: float) -> Pace:
    """Return the pace after one more error."""
    return replace(pace, ended_s=ended_s, failures=pace.failures + 1, first_backoff_s=first_backoff_s)


def delay_s(pacing: Pacing, pace: Pace, now_s: float, jitter: float) -> float:
    """Return the seconds to wait before the next call, 0 for none. `jitter` is a fresh random number in [0, 1)."""
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
    """Return the beat for an idle interval. It extends a wait by at most a fifteenth, on average by half of that."""
    return min(BEAT_MAX_S, idle_interval_s / 15)


def _interval_s(pacing: Pacing, millis_behind_latest: int | None) -> float:
    if millis_behind_latest is None:
        return pacing.idle_interval_s
    behind_s = millis_behind_latest / 1000
    behind = behind_s > pacing.catch_up_from_s
    usual_s = min(pacing.catch_up_interval_s, pacing.idle_interval_s) if behind else pacing.idle_interval_s
    return max(usual_s, pacing.reduced_tps_threshold_s) if behind_s < pacing.reduced_tps_threshold_s else usual_s


def backoff_s(first_s: float, failures: int, jitter: float) -> float:
    """Return the wait after so many failures: one half fixed, one half random. So readers that were throttled together
    do not return together.
    """
    doublings = min(failures - 1, BACKOFF_DOUBLINGS_MAX)
    longest_s = min(BACKOFF_MAX_S, first_s * 2.0**doublings)
    return longest_s * (1 + jitter) / 2
