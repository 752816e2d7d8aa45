"""When a failed child is started again, and when the daemon gives up. Pure (protocol spec, 12 and 19).

Only failures *without checkpoint progress in between* count: a child that fails once an hour but moves on is restarted
for ever, one that dies on the same record is not.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

JITTER_SHARE = 0.2  # spreads the restarts of many shards that fail for one common reason


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """`failures_max` 0 gives up at the first failure (Java's behaviour, `mld.childFailurePolicy=exit`)."""

    failures_max: int
    backoff_s: float
    backoff_max_s: float

    def delay_s(self, failures: int, rng: Random) -> float | None:
        """Seconds to wait before the next start after `failures` (>= 1) failures in a row; None to give up."""
        if failures > self.failures_max:
            return None
        exponential = self.backoff_s * 2.0 ** min(failures - 1, 30)
        return min(exponential, self.backoff_max_s) * (1 + JITTER_SHARE * rng.random())
