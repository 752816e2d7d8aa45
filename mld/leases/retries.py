"""When to try a lease write again, and what its failure leaves open. Pure.

Rules: leases#retries-inside-the-lease, leases#lost-replies. Back-off is exponential, jittered, and stays inside the
lease's remaining life. The SDK's own retries are off, so that a re-send is always known to be one.
"""

from __future__ import annotations

import random

from mld.core.errors import MldError, TableMissingError, TableThrottledError

FIRST_DELAY_S = 0.05  # most throttling and network trouble is over by then
DELAY_S_MAX = 2.0  # well below any sensible lease duration, so that several attempts fit into one
DOUBLINGS_MAX = 10  # keeps the power of two small
RENEWAL_TRIES_PER_LEASE = 5  # a renewal begins with two thirds of the lease left: three tries, two of them in vain
RENEWAL_TIMEOUT_S_MIN = 1.0  # a shorter one would take a slow answer for none


def retry_delay_s(attempt: int, remaining_s: float, rng: random.Random) -> float | None:
    """Seconds to wait after failed attempt number `attempt` (from 1), at most half of what remains.

    None if hardly anything remains.
    """
    assert attempt >= 1
    if remaining_s < FIRST_DELAY_S:
        return None
    ceiling_s = min(DELAY_S_MAX, FIRST_DELAY_S * 2 ** min(attempt - 1, DOUBLINGS_MAX))
    return min(rng.uniform(ceiling_s / 2, ceiling_s), remaining_s / 2)


def renewal_timeout_s(lease_duration_s: float) -> float:
    """How long one write that keeps a lease may wait for its answer.

    A connection may lead nowhere without anybody knowing; the next try, on a new one, must fit into the lease.
    """
    return max(RENEWAL_TIMEOUT_S_MIN, lease_duration_s / RENEWAL_TRIES_PER_LEASE)


def may_be_applied(error: MldError) -> bool:
    """Whether a failed write may be in the row all the same. Throttling and a missing table are plain answers."""
    return not isinstance(error, TableThrottledError | TableMissingError)
