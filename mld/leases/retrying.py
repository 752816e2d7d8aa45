"""When to try a lease write again, and what its failure leaves open. Pure.

Back-off is exponential, jittered, and stays inside the lease's remaining life. The SDK's own retries are
off, so that a re-send is always known to be one (leases spec, 15.2 and 15.5).
"""

from __future__ import annotations

import random

from mld.errors import MldError, TableMissingError, TableThrottledError

FIRST_DELAY_S = 0.05  # most throttling and network trouble is over by then
DELAY_S_MAX = 2.0  # well below any sensible lease duration, so that several attempts fit into one
DOUBLINGS_MAX = 10  # keeps the power of two small


def retry_delay_s(attempt: int, remaining_s: float, rng: random.Random) -> float | None:
    """Seconds to wait after failed attempt number `attempt` (from 1), at most half of what remains.

    None if hardly anything remains.
    """
    assert attempt >= 1
    if remaining_s < FIRST_DELAY_S:
        return None
    ceiling_s = min(DELAY_S_MAX, FIRST_DELAY_S * 2 ** min(attempt - 1, DOUBLINGS_MAX))
    return min(rng.uniform(ceiling_s / 2, ceiling_s), remaining_s / 2)


def may_be_applied(error: MldError) -> bool:
    """Whether a failed write may be in the row all the same. Throttling and a missing table are plain answers."""
    return not isinstance(error, TableThrottledError | TableMissingError)
