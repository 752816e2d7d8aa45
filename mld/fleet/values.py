"""Values that the parts of the fleet share: worker reports, states of both migrations, who leads.

Rules: coordination#rows-and-tables. Plain data; the rules about them live in the modules that use them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from mld.leases.lease import Lease

CPU = "C"
"""Short name of the CPU metric in a report."""

SUPPORT_CODE = 1
"""`sup` of every report: this worker can live with a single table."""

LEASES_MAX = 2**31 - 1
"""What maxLeasesForWorker is unless somebody sets it."""


class EntityType(Enum):
    """`entityType` of a row of the lease table."""

    LEASE = "LEASE"
    LEADER = "LEADER"
    CLIENT_VERSION_MIGRATION = "CLIENT_VERSION_MIGRATION"
    TABLE_MIGRATION = "TABLE_MIGRATION"
    STREAM = "STREAM"
    WORKER_METRIC_STATS = "WORKER_METRIC_STATS"


class ClientVersion(Enum):
    """`cv` of the row `Migration3.0`: in which mode the fleet assigns leases."""

    INIT = "CLIENT_VERSION_INIT"
    UPGRADE_FROM_2X = "CLIENT_VERSION_UPGRADE_FROM_2X"
    V2X = "CLIENT_VERSION_2X"
    V3X_WITH_ROLLBACK = "CLIENT_VERSION_3X_WITH_ROLLBACK"
    V3X = "CLIENT_VERSION_3X"


class TableStatus(Enum):
    """`tm` of the row `TableMigration3.5`: where the rows that are not leases live."""

    INIT = "TABLE_MIGRATION_STATUS_INIT"
    DEPLOYED = "TABLE_MIGRATION_STATUS_DEPLOYED"
    PENDING = "TABLE_MIGRATION_STATUS_PENDING"
    COMPLETE = "TABLE_MIGRATION_STATUS_COMPLETE"


@dataclass(frozen=True, slots=True)
class Place:
    """A table that holds rows of the fleet, and the name of its hash key."""

    table: str
    key: str


LEASE_TABLE_KEY = "leaseKey"
COORDINATOR_TABLE_KEY = "key"
REPORTS_TABLE_KEY = "wid"


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """A worker-metrics row as read: what a worker last said of itself."""

    worker: str
    updated_at_s: int | None
    """Wall clock, epoch seconds; None if the row lacks it."""
    samples: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """Averages by metric, oldest first; -1 where the metric failed."""
    ranges: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Operating ranges by metric; only index 0 counts, the highest percentage."""
    support_code: int | None = None
    support_at_s: int | None = None
    legacy: bool = False
    """Read from the legacy worker-metrics table."""
    mld: Mapping[str, str] = field(default_factory=dict)
    """What an mld worker adds about itself; empty for a Java worker."""
    ends: Mapping[str, int] = field(default_factory=dict)
    """The workers that it has found dead lately, and when, in epoch seconds."""
    shards: bytes | None = None
    """What it tells of the leases that its heartbeat covers (`leases.lease.pack`)."""


@dataclass(frozen=True, slots=True)
class FleetSnapshot:
    """What one run of the assigner has read. `reports` are all of them, duplicates and expired ones too."""

    leases: tuple[Lease, ...]
    reports: tuple[WorkerReport, ...]
    expired: frozenset[str]
    """Keys of leases that are nobody's or whose owner does not renew them."""


class LeaderDecider(Protocol):
    """Who leads. Never sleeps, never raises for an unreachable table: "not known" is False."""

    @property
    def leads(self) -> bool:
        """What was announced last, without asking anybody."""
        ...

    async def is_leader(self) -> bool:
        """Return whether this worker may act as leader now; may read and write the lock row."""
        ...

    async def step_down(self, hold_off_s: float) -> None:
        """Give leadership up and do not ask for it again for `hold_off_s`."""
        ...

    async def close(self) -> None:
        """Give leadership up for good; `is_leader` is False from now on."""
        ...
