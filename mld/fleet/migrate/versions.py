"""The client version machine, 2.x to 3.x: which mode this worker is in, what runs in it, when the fleet goes on. Pure.

Rules: coordination#client-versions, coordination#initial-version, coordination#following-the-version,
coordination#readiness-for-3x-mode. The row `Migration3.0` rules. A worker decides from configuration and row when it
starts; afterwards it follows the row, whatever it says, until it says 3X, which is final.

A worker of phase 1 runs as 2.x and writes nothing, so it may share the table with real 2.x workers. Java's does not
look at the row at all and goes on stealing when the fleet has left 2.x mode, although the leader of 3.x places leases
now. Ours polls the row, stops taking while it says 3X_WITH_ROLLBACK or 3X, and takes again after a rollback. It keeps
what it holds and goes no further: to report and to be given leases takes a restart, as in Java.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from mld.fleet.values import ClientVersion
from mld.properties.values import ClientVersionConfig as Configured

STABLE_S = 600.0  # Java's: the fleet must have been ready that long without a break
UNASSIGNED_S_MAX = 120.0  # six rounds of the 2.x taker at its defaults: who finds a lease for that long cannot take it


@dataclass(frozen=True, slots=True, kw_only=True)
class Components:
    """What runs in a state."""

    taker: bool = False
    assigner: bool = False
    """The leader, who holds the lock, assigns leases, which their owners discover; else a shuffle names the leader."""
    sampler: bool = False
    reporter: bool = False
    index: bool = False
    """The index of leases by owner is created if it is missing. Nothing waits for it, where Java does up to an hour."""
    readiness_monitor: bool = False
    """The leader looks whether the fleet may go on to 3X_WITH_ROLLBACK."""
    version_monitor: bool = False
    """The row is polled."""


_COMPONENTS = {
    ClientVersion.INIT: Components(taker=True, version_monitor=True),  # Java does not poll: see above
    ClientVersion.UPGRADE_FROM_2X: Components(
        taker=True, sampler=True, reporter=True, index=True, readiness_monitor=True, version_monitor=True
    ),
    ClientVersion.V2X: Components(taker=True, sampler=True, version_monitor=True),
    # Java assumes that the index exists and is stuck if somebody deleted it.
    ClientVersion.V3X_WITH_ROLLBACK: Components(
        assigner=True, sampler=True, reporter=True, index=True, version_monitor=True
    ),
    ClientVersion.V3X: Components(assigner=True, sampler=True, reporter=True, index=True),
}
_LEFT_2X = frozenset({ClientVersion.V3X_WITH_ROLLBACK, ClientVersion.V3X})


def components(version: ClientVersion, stored: ClientVersion | None = None) -> Components:
    """Return what runs in `version`. For a worker of phase 1, `stored` is what it last saw in the row."""
    running = _COMPONENTS[version]
    if version is ClientVersion.INIT and stored in _LEFT_2X:
        return replace(running, taker=False)
    return running


# --- start and transitions -------------------------------------------------------------------------------------------

_WHEN_NONE_STORED = {
    Configured.COMPATIBLE_WITH_2X_PHASE1: ClientVersion.INIT,
    Configured.COMPATIBLE_WITH_2X: ClientVersion.UPGRADE_FROM_2X,
    Configured.VERSION_3X: ClientVersion.V3X,
}


def initial_version(configured: Configured, stored: ClientVersion | None) -> ClientVersion:
    """Return the state a worker starts in."""
    if stored is None or stored is ClientVersion.INIT:
        return _WHEN_NONE_STORED[configured]
    if stored is ClientVersion.V3X_WITH_ROLLBACK and configured is Configured.VERSION_3X:
        return ClientVersion.V3X
    return stored


def must_write(entered: ClientVersion, stored: ClientVersion | None) -> bool:
    """Return whether a worker that starts in `entered` has to say so in the row, which holds `stored` (None: no
    row).
    """
    return entered is not ClientVersion.INIT and entered is not stored


def followed(current: ClientVersion, stored: ClientVersion | None) -> ClientVersion:
    """Return the state of a running worker after it has read the row.

    Any stored state is followed, not only the neighbours: a worker that missed a poll must not be left behind. A row
    that is gone, or that says INIT, says nothing. Phase 1 and 3X are left only by a restart.
    """
    if current in (ClientVersion.INIT, ClientVersion.V3X) or stored is None or stored is ClientVersion.INIT:
        return current
    return stored


def warning_about_peers(version: ClientVersion, rows_without_type: int, in_lease_table: bool) -> str | None:
    """Return what to tell the operator before a first row that is not a lease goes into the lease table.

    Rule: coordination#older-peers. `rows_without_type` counts lease rows without `entityType`: a worker older than 3.5
    created them, and may still run.
    """
    if version is ClientVersion.INIT or not in_lease_table or not rows_without_type:
        return None
    return (
        f"workers older than KCL 3.5 created rows of the lease table ({rows_without_type} without entityType). If such "
        "workers still run, they stop working once other rows than leases stand in that table: stop them first, or "
        "bring them to 3.5 with clientVersionConfig=CLIENT_VERSION_CONFIG_COMPATIBLE_WITH_2X_PHASE1; beside workers "
        "of 3.0 to 3.4 set mld.metadataLayout=legacy"
    )


# --- readiness -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Readiness:
    """What the leader of a fleet in UPGRADE_FROM_2X has seen so far. Times are monotonic seconds."""

    ready_since: float | None = None
    unassigned_since: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FleetView:
    """What the leader sees at one moment: the owner of every lease, and the workers with a report of the last 60 s."""

    index_active: bool
    owners: Mapping[str, str | None]
    reporting: frozenset[str]

    @property
    def all_report(self) -> bool:
        """Whether every owner does, also of expired leases."""
        return {owner for owner in self.owners.values() if owner is not None} <= self.reporting


def observe_readiness(seen: Readiness, view: FleetView, now: float) -> Readiness:
    """Return `seen` after one more look. Who stops leading begins anew with `Readiness()`.

    Every owner must report. A lease without an owner is no obstacle (Java's is), unless it
    stays without one: then the fleet is not in order.
    """
    unassigned = {key: seen.unassigned_since.get(key, now) for key, owner in view.owners.items() if owner is None}
    ready = (
        view.index_active and view.all_report and all(now - since < UNASSIGNED_S_MAX for since in unassigned.values())
    )
    if not ready:
        return Readiness(None, unassigned)
    return Readiness(now if seen.ready_since is None else seen.ready_since, unassigned)


def may_flip(seen: Readiness, now: float) -> bool:
    """Return whether the leader writes 3X_WITH_ROLLBACK now."""
    return seen.ready_since is not None and now - seen.ready_since >= STABLE_S
