"""What a starting worker does about the rows of the lease table. Pure.

Rules: shards#bootstrap-decision. Java lets every worker wait up to 30 s for rows to appear, has the leader
sync then, and lets the leader sleep for another 60 s. Here the leader syncs at once and nobody sleeps afterwards; who
is not the leader looks again every `WAIT_S`, because the leader's rows appear within moments or the leader dies.
"""

from __future__ import annotations

from enum import Enum

from mld.leases.table import TableScan

WAIT_S = 1.0
"""After that the table is read again and leadership asked for again; both are cheap while the table is empty."""


class SyncMode(Enum):
    """Who syncs at the start."""

    ANY_WORKER = "any worker"
    """2.x: there is no proof of leadership before leases have owners; creation is idempotent."""
    LEADER = "leader"
    """3.x: the holder of the leader lock."""


class BootstrapAction(Enum):
    """SYNC: call `ShardSync.bootstrap` now. WAIT: ask again after `WAIT_S`. NONE: go on without."""

    SYNC = "sync"
    WAIT = "wait"
    NONE = "none"


def bootstrap_action(mode: SyncMode, *, is_leader: bool, leases_exist: bool, skip_if_exist: bool) -> BootstrapAction:
    """Who syncs (shards#bootstrap-decision). `skip_if_exist` is skipShardSyncAtWorkerInitializationIfLeasesExist.

    Where leases exist, a worker that does not lead starts with them; what is missing, the leader's auditor finds.
    """
    if leases_exist and skip_if_exist:
        return BootstrapAction.NONE
    if mode is SyncMode.ANY_WORKER or is_leader:
        return BootstrapAction.SYNC
    return BootstrapAction.NONE if leases_exist else BootstrapAction.WAIT


def leases_exist(scan: TableScan) -> bool:
    """Whether the scan found any lease; an unreadable one is a lease too, a row of another entity is not."""
    return bool(scan.leases or scan.corrupt)
