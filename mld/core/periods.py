"""How often a fleet reads and writes its tables: for the loops, and for the price that `mld.check.price` computes.
Pure.
"""

from __future__ import annotations

import math

RENEWALS_PER_LEASE = 3
"""As in Java: within its duration a lease survives one renewal that fails and one that is late."""
EPSILON_S = 0.025
"""Java's epsilonMillis."""

LEADER_HEARTBEAT_S = 30.0
"""As in Java. It is also how long a worker believes that it does not lead, without looking again."""
AUDIT_PERIOD_S = 120.0
"""leasesRecoveryAuditorExecutionFrequencyMillis"""

DISCOVERY_PERIOD_S = 1.0
"""Time between two Queries of our own leases, each of half a read unit. In Java 9.975 s pass before a lease is
found."""
QUERY_SPACING_S_MAX = 10.0
"""Java's period. The index is queried at least so often whatever a scan of the table has shown, and not more often by a
leader that has seen no other worker."""

LOOK_PERIOD_S = 1.5
"""Together with `fleet.assign.takeover.SECOND_CHANCE_S` and the writes, this keeps a gap below the lease duration plus
2 s."""
WATCHERS = 3
"""Two watchers may die together with an owner, and one is left."""
PART_LEASES = 500
"""Leases in a part of the table, about 60 read units. A table of up to two parts is read as one."""
ALONE_SHARE = 0.5
"""How often a worker that has seen no others looks, as a share of the lease duration. Nobody else can fall silent."""
LONE_LEADER_LOOK_S = 30.0
"""How often such a worker looks while it leads. Its assigner reads the table anyway, and sees a new worker first. It is
often enough to notice within a minute that a lease stays free for lack of room."""
SLOW_LEASES = 150
"""A worker that is not a watcher reads a table of so many leases once per lease duration; a larger one less often, in
proportion."""


def renew_interval_s(lease_duration_s: float) -> float:
    """Return the seconds between two renewals of a lease."""
    return lease_duration_s / RENEWALS_PER_LEASE - EPSILON_S


def slow_period_s(leases: int, lease_duration_s: float) -> float:
    """Return the seconds between two looks of a worker that is not a watcher, at a table of so many leases."""
    return max(LOOK_PERIOD_S, lease_duration_s * max(1.0, leases / SLOW_LEASES))


def part_count(leases: int) -> int:
    """Return the number of parts of a table with so many leases; a power of two."""
    if leases <= 2 * PART_LEASES:
        return 1
    return 1 << math.ceil(math.log2(leases / PART_LEASES))
