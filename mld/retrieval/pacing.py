"""`delay_s`: decides when the next GetRecords may be sent. Pure.

Rules: retrieval#pacing-of-reads. At the tip of the shard a reader waits for the idle interval. If it lags, it waits for
the catch-up interval only. After failures it waits longer and longer (exponential backoff with jitter), where Java
waits for the idle interval. Times are monotonic seconds; all intervals count from the end of the previous call.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

CALL_INTERVAL_MIN_S = 0.2
"""Kinesis allows 5 GetRecords a second for each shard, for all applications together."""
ERROR_BACKOFF_S = 0.5
"""First wait after an error; it doubles with each further error. It is short, because most errors do not repeat."""
THROTTLE_BACKOFF_S = 1.0
"""First wait after throttling. Limits are per second, and a full answer of 10 MB may block a shard for 5 s."""
BACKOFF_MAX_S = 10.0
"""Longest wait after errors, and so the longest delay before a reader notices the end of an outage. An iterator lives
far longer (5 minutes)."""
BEAT_MAX_S = 0.1
"""Longest beat (see `Pacing`): that of readers with the default idle interval of 1.5 s."""
BACKOFF_DOUBLINGS_MAX = 10
"""Most doublings of the first wait, so that the power of two stays small. BACKOFF_MAX_S is reached long before."""


@dataclass(frozen=True, slots=True)
class Pacing:
    """The configured intervals.

    A reader that is further behind than `catch_up_from_s` waits for the catch-up interval. A reader that is less than
    `reduced_tps_threshold_s` behind waits at least for `reduced_tps_threshold_s`.

    With `beat_s` above 0, a wait at the tip is extended until the clock shows a multiple of `beat_s`. So several
    readers wake at the same moment, which saves a third of the cost of an idle shard.
    """

    idle_interval_s: float
    catch_up_interval_s: float = CALL_INTERVAL_MIN_S
    reduced_tps_threshold_s: float = 0.0
    beat_s: float = 0.0
    catch_up_from_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Pace:
    """How the previous call went.

    `ended_s` is the time of its end; None if there was no call yet. `failures` counts the errors in a row, and
    `first_backoff_s` is the first wait for errors of the same kind as the last one.
    """

    ended_s: float | None = None
    millis_behind_latest: int | None = None
    failures: int = 0
    first_backoff_s: float = ERROR_BACKOFF_S


def failed(pace: Pace, ended_s: float, first_backoff_s: float) -> Pace:
    """Return the pace after one more error."""
    return replace(pace, ended_s=ended_s, failures=pace.failures + 1, first_backoff_s=first_backoff_s)


def delay_s(pacing: Pacing, pace: Pace, now_s: float, jitter: float) -> float:
    """Return how many seconds to wait before the next call: the interval for the present lag, or after failures the
    backoff, without the time that has passed since the last call. At the tip, add the wait for the next beat
    (`Pacing`). `jitter` is a fresh random number in [0, 1).
    """
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
    """Return the `beat_s` for an idle interval. It makes a wait at most a fifteenth longer, on average half as much."""
    return min(BEAT_MAX_S, idle_interval_s / 15)


def _interval_s(pacing: Pacing, millis_behind_latest: int | None) -> float:
    """Return the interval for a reader that lags by `millis_behind_latest`; None if the lag is unknown."""
    if millis_behind_latest is None:
        return pacing.idle_interval_s
    behind_s = millis_behind_latest / 1000
    is_behind = behind_s > pacing.catch_up_from_s
    usual_s = min(pacing.catch_up_interval_s, pacing.idle_interval_s) if is_behind else pacing.idle_interval_s
    return max(usual_s, pacing.reduced_tps_threshold_s) if behind_s < pacing.reduced_tps_threshold_s else usual_s


def backoff_s(first_s: float, failures: int, jitter: float) -> float:
    """Return the wait after `failures` failures in a row. One half of it is random, so that readers that were throttled
    at the same time do not all return at the same time.
    """
    doublings = min(failures - 1, BACKOFF_DOUBLINGS_MAX)
    longest_s = min(BACKOFF_MAX_S, first_s * 2.0**doublings)
    return longest_s * (1 + jitter) / 2
