"""How often a fleet reads and writes its tables. The loops use these periods, and `mld.check.price` computes the price
from them. Pure.
"""

from __future__ import annotations

import math

RENEWALS_PER_LEASE = 3
"""As in Java: a lease does not expire if one renewal fails and the next is late."""
EPSILON_S = 0.025
"""Java's epsilonMillis: renewals are this much closer together than a share of the lease duration."""

LEADER_HEARTBEAT_S = 30.0
"""As in Java. A worker that does not lead looks at the lock again after this time."""
AUDIT_PERIOD_S = 120.0
"""leasesRecoveryAuditorExecutionFrequencyMillis"""

DISCOVERY_PERIOD_S = 1.0
"""Time between two Queries of our own leases, each of half a read unit. In Java 9.975 s pass before a lease is
found."""
QUERY_SPACING_S_MAX = 10.0
"""Java's period. The index is queried at least this often, whatever a scan of the table has shown. A leader that has
seen no other worker queries it no more often."""

LOOK_PERIOD_S = 1.5
"""How often a failover watcher looks at its part of the table. With `fleet.assign.takeover.SECOND_CHANCE_S` and the
writes, the leases of a dead worker are taken over within the lease duration plus 2 s."""
WATCHERS = 3
"""Failover watchers per part of the table: two may die together with the owner of a lease, and one is left."""
PART_LEASES = 500
"""Leases in one part of the table; reading a part takes about 60 read units. A table of up to twice this size has only
one part."""
ALONE_SHARE = 0.5
"""The share of the lease duration between two looks of a worker that has seen no other worker, and so has none to
watch."""
LONE_LEADER_LOOK_S = 30.0
"""Time between two looks of a worker that has seen no other worker, while it leads. Its assigner reads the table
anyway, and sees a new worker first. The looks only have to show, within a minute, that a lease stays free because no
worker has room.
"""
SLOW_LEASES = 150
"""A worker that is not a failover watcher reads a table of up to this many leases once per lease duration, and a larger
one less often, in proportion."""


def renew_interval_s(lease_duration_s: float) -> float:
    """Return the seconds between two renewals of a lease."""
    return lease_duration_s / RENEWALS_PER_LEASE - EPSILON_S


def slow_period_s(leases: int, lease_duration_s: float) -> float:
    """Return the seconds after which a worker that is not a failover watcher reads a table of `leases` rows again."""
    return max(LOOK_PERIOD_S, lease_duration_s * max(1.0, leases / SLOW_LEASES))


def part_count(leases: int) -> int:
    """Return into how many parts the failover watchers divide a table with `leases` rows; a power of two."""
    if leases <= 2 * PART_LEASES:
        return 1
    return 1 << math.ceil(math.log2(leases / PART_LEASES))
