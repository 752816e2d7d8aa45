"""What a starting worker does about the rows of the lease table. Pure.

Rules: shards#bootstrap-decision. Java lets every worker wait up to 30 s for rows to appear, has the leader
sync then, and lets the leader sleep for another 60 s. Here the leader syncs at once and nobody sleeps: a worker that
does not lead goes on without leases, and finds the rows once the leader has created them.
"""

from __future__ import annotations

from enum import Enum

from mld.leases.table import TableScan


class SyncMode(Enum):
    """Who syncs at the start."""

    ANY_WORKER = "any worker"
    """2.x: there is no proof of leadership before leases have owners; creation is idempotent."""
    LEADER = "leader"
    """3.x: the holder of the leader lock."""


def syncs_at_start(mode: SyncMode, *, is_leader: bool, leases_exist: bool, skip_if_exist: bool) -> bool:
    """Whether this worker syncs now. `skip_if_exist` is skipShardSyncAtWorkerInitializationIfLeasesExist.

    What a worker that does not sync finds missing, the leader's auditor finds, too.
    """
    if leases_exist and skip_if_exist:
        return False
    return mode is SyncMode.ANY_WORKER or is_leader


def leases_exist(scan: TableScan) -> bool:
    """Whether the scan found any lease; an unreadable one is a lease too, a row of another entity is not."""
    return bool(scan.leases or scan.corrupt)
