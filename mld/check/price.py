"""`units`: computes from the settings how many read and write units a fleet at rest takes in DynamoDB. Pure.

The fleet is in 3.x mode, its shards are idle, and its leases are spread evenly over the workers.
`tests/benchmarks/bill.py` counts the requests of whole workers in virtual time, and a test ensures that the formula
gives the same number. The periods of the loops are in `mld.core.periods`; the row sizes are those of an ordinary table.
Each checkpoint costs one more write unit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from mld.core.periods import (
    ALONE_SHARE,
    AUDIT_PERIOD_S,
    DISCOVERY_PERIOD_S,
    EPSILON_S,
    LEADER_HEARTBEAT_S,
    LONE_LEADER_LOOK_S,
    LOOK_PERIOD_S,
    QUERY_SPACING_S_MAX,
    RENEWALS_PER_LEASE,
    WATCHERS,
    part_count,
    slow_period_s,
)
from mld.properties.settings import Settings

LIST_PRICE = "on-demand list prices of us-east-1, as of November 2024"
WRITE_DOLLARS_PER_MILLION, READ_DOLLARS_PER_MILLION = 0.625, 0.125
"""The prices of `LIST_PRICE`. Other regions, provisioned capacity and discounts have other prices."""
HOURS_PER_MONTH = 730.0
HOUR_S = 3600.0

READ_UNIT_BYTES = 4096
CONSISTENT, EVENTUALLY_CONSISTENT = 1.0, 0.5
"""Read units for each `READ_UNIT_BYTES`."""
LEASE_ROW_BYTES = 350
REPORT_ROW_BYTES = 400
INDEX_ROW_BYTES = 75
"""Size of a row in the owner index, which has only the keys: a shard id, and a worker id of 36 characters."""


@dataclass(frozen=True, slots=True)
class Units:
    """Read and write units per hour."""

    read: float
    write: float

    @property
    def dollars_per_month(self) -> float:
        millions = HOURS_PER_MONTH / 1e6
        return millions * (self.write * WRITE_DOLLARS_PER_MILLION + self.read * READ_DOLLARS_PER_MILLION)


@dataclass(frozen=True, slots=True)
class Rates:
    """The settings that decide how often a fleet reads and writes."""

    lease_duration_s: float
    assignment_interval_s: float
    report_period_s: float

    @classmethod
    def of(cls, settings: Settings) -> Rates:
        return cls(
            lease_duration_s=settings.leases.duration_s,
            assignment_interval_s=settings.fleet.assignment_interval_s,
            report_period_s=settings.fleet.report_period_s,
        )

    def with_lease_duration(self, duration_s: float) -> Rates:
        """Return the rates for another lease duration; the assignment interval changes in proportion, as by default."""
        assignment_interval_s = self.assignment_interval_s * duration_s / self.lease_duration_s
        return replace(self, lease_duration_s=duration_s, assignment_interval_s=assignment_interval_s)


def units(leases: int, workers: int, rates: Rates) -> Units:
    """Return the units that a fleet at rest takes in an hour. There must be at least one lease and one worker.

    Written are: renewals of all leases, reports of all workers, and heartbeats of the leader's lock. Read are: the
    owner index, in which workers find their leases; the whole table; and the lock, by the workers that do not lead.
    A consistent read, such as that of the lock, takes a whole unit for each 4 KB; the other reads take half a unit.
    """
    holders = min(leases, workers)
    renewals = leases * _per_hour(rates.lease_duration_s / RENEWALS_PER_LEASE - EPSILON_S)
    reports = workers * _per_hour(rates.report_period_s)
    lock_heartbeats = _per_hour(LEADER_HEARTBEAT_S)

    # Workers list their leases in the owner index. Those without leases read an empty page.
    listing_of_holder = _pages(math.ceil(leases / holders) * INDEX_ROW_BYTES)
    listing_of_all = holders * listing_of_holder + (workers - holders) * _pages(0)
    average_listing = listing_of_all / workers
    discovery = average_listing * _listings_per_hour(leases, workers, rates)
    scan_of_table = _pages(leases * LEASE_ROW_BYTES + workers * REPORT_ROW_BYTES)
    scanning = _looks_per_hour(leases, workers, rates) * scan_of_table
    lock_looks = (workers - 1) * _per_hour(LEADER_HEARTBEAT_S) * CONSISTENT
    return Units(discovery + scanning + lock_looks, renewals + reports + lock_heartbeats)


def _looks_per_hour(leases: int, workers: int, rates: Rates) -> float:
    """Return how many times an hour the table is read as a whole, by all workers together. Reading each part of a large
    table once counts as one time.

    The table is read for three purposes. Workers look for leases that nobody renews: the failover watchers `often`, the
    others `slowly` (`mld.fleet.assign.takeover`). The leader assigns leases (`runs`), and it audits the rows
    (`audits`). Runs use what the failover watcher of the same worker has read. The watcher uses what runs and audits
    have read. A lone worker reads the table at each run, and between two runs once in `look_s`.
    """
    runs, audits = _per_hour(rates.assignment_interval_s), _per_hour(AUDIT_PERIOD_S)
    if workers == 1:
        look_s = max(LONE_LEADER_LOOK_S, ALONE_SHARE * rates.lease_duration_s)
        return audits + runs * math.ceil(rates.assignment_interval_s / look_s)
    often = min(WATCHERS, workers) * _per_hour(LOOK_PERIOD_S)
    slowly = _per_hour(slow_period_s(leases, rates.lease_duration_s))
    if part_count(leases) == 1:
        return often + (workers - min(WATCHERS, workers)) * slowly + audits
    return often + workers * slowly + runs + audits


def _listings_per_hour(leases: int, workers: int, rates: Rates) -> float:
    """Return how many times an hour all workers together query the index for their own leases.

    A scan of the whole table shows a worker its leases, too, and puts its next query off. So a failover watcher of a
    table with only one part queries once in a `LOOK_PERIOD_S`; every other worker once in a `DISCOVERY_PERIOD_S`. A
    lone worker queries only once in a `QUERY_SPACING_S_MAX`.
    """
    if workers == 1:
        return _per_hour(QUERY_SPACING_S_MAX)
    watchers = min(WATCHERS, workers) if part_count(leases) == 1 else 0
    return watchers * _per_hour(LOOK_PERIOD_S) + (workers - watchers) * _per_hour(DISCOVERY_PERIOD_S)


def checkpoint_dollars() -> float:
    """Return the price of one checkpoint a second for a month."""
    return Units(0.0, HOUR_S).dollars_per_month


def _per_hour(period_s: float) -> float:
    """Return how often an hour something happens that has this period."""
    return HOUR_S / period_s


def _pages(size_bytes: int) -> float:
    """Return the read units of an eventually consistent read of `size_bytes`."""
    return EVENTUALLY_CONSISTENT * max(1, math.ceil(size_bytes / READ_UNIT_BYTES))
