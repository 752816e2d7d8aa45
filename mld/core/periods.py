"""How often a fleet reads and writes its tables: the loops go by it, and `mld.check.price` reckons with it. Pure."""

from __future__ import annotations

import math

RENEWALS_PER_LEASE = 3
"""Java's: within its duration a lease survives a renewal that failed and one that is late."""
EPSILON_S = 0.025
"""Java's epsilonMillis."""

LEADER_HEARTBEAT_S = 30.0
"""Java's; also how long a "no" is believed without looking again."""
AUDIT_PERIOD_S = 120.0
"""leasesRecoveryAuditorExecutionFrequencyMillis"""

DISCOVERY_PERIOD_S = 1.0
"""A Query of our own leases costs half a read unit; Java's 9.975 s are time without processing."""
QUERY_SPACING_S_MAX = 10.0
"""Java's period: whatever was seen of the table, the index is asked that often, and by a leader that has
seen nobody else no more often."""

LOOK_PERIOD_S = 1.5
"""With `fleet.assign.takeover.SECOND_CHANCE_S` and the writes this keeps a gap within the lease duration and 2 s."""
WATCHERS = 3
"""Two may die together with an owner."""
PART_LEASES = 500
"""Some 60 read units; a table of up to two parts is read in one."""
ALONE_SHARE = 0.5
"""How often a worker that has seen nobody else looks, as a share of the lease duration: nobody could fall silent."""
LONE_LEADER_LOOK_S = 30.0
"""How often it looks while it leads: its assigner reads the table anyway, and sees first whoever comes. So often that a
lease which lies free for want of room is noticed in a minute."""
SLOW_LEASES = 150
"""A worker that is no watcher reads so many leases once per lease duration, a larger table less often in proportion."""


def renew_interval_s(lease_duration_s: float) -> float:
    """Return the time from one renewal of a lease to the next."""
    return lease_duration_s / RENEWALS_PER_LEASE - EPSILON_S


def slow_period_s(leases: int, lease_duration_s: float) -> float:
    """Return how often a worker that is no watcher looks at a table of so many leases."""
    return max(LOOK_PERIOD_S, lease_duration_s * max(1.0, leases / SLOW_LEASES))


def part_count(leases: int) -> int:
    """Return parts of a table with so many leases, a power of two."""
    if leases <= 2 * PART_LEASES:
        return 1
    return 1 << math.ceil(math.log2(leases / PART_LEASES))
