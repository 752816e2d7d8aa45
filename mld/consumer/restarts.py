"""When a failed child is started again, and when the daemon gives up. Pure (protocol#restart-delays).

Only failures *without checkpoint progress in between* count: a child that fails once an hour but moves on is restarted
for ever. By default so is one that dies on the same record, with pauses that grow: its shard waits, and no other does.
"""

from __future__ import annotations

from random import Random

from mld.properties.settings import ChildSettings

JITTER_SHARE = 0.2  # spreads the restarts of many shards that fail for one common reason


def gives_up(child: ChildSettings, failures: int) -> bool:
    """Return whether this many failures in a row under this worker are too many."""
    return child.failures_max is not None and failures > child.failures_max


def delay_s(child: ChildSettings, failures: int, rng: Random) -> float:
    """Return the seconds to wait before the next start after `failures` failures in a row; 0 counts as 1."""
    exponential = child.restart_backoff_s * 2.0 ** min(max(0, failures - 1), 30)
    longest_s = max(child.restart_pause_max_s, child.restart_backoff_s)
    return min(exponential, longest_s) * (1 + JITTER_SHARE * rng.random())
