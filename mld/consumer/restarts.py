"""When a failed child is started again, and when the daemon gives up. Pure (protocol#restart-delays).

Only failures *without checkpoint progress in between* count: a child that fails once an hour but moves on is restarted
for ever. By default so is one that dies on the same record, with pauses that grow: its shard waits, and no other does.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

PAUSE_MAX_S = 300.0  # a processor that was repaired is noticed within it
JITTER_SHARE = 0.2  # spreads the restarts of many shards that fail for one common reason


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """`failures_max` None never gives up (`mld.childFailurePolicy=park`); 0 gives up at once (`exit`, as Java)."""

    failures_max: int | None
    backoff_s: float
    backoff_max_s: float = PAUSE_MAX_S

    def gives_up(self, failures: int) -> bool:
        """Whether this many failures in a row under this worker are too many."""
        return self.failures_max is not None and failures > self.failures_max

    def delay_s(self, failures: int, rng: Random) -> float:
        """Seconds to wait before the next start after `failures` failures in a row; 0 counts as 1."""
        exponential = self.backoff_s * 2.0 ** min(max(0, failures - 1), 30)
        return min(exponential, max(self.backoff_max_s, self.backoff_s)) * (1 + JITTER_SHARE * rng.random())
