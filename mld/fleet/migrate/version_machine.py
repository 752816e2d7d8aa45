"""Whether a worker works by the rules of KCL 2.x or 3.x (its mode): `initial_version` decides that at its start,
`followed` while it runs, `components` says which of its parts run then, `may_flip` when a fleet may leave 2.x mode, and
`VersionMachine` carries all of this out.

Rules: coordination#initial-version, coordination#following-the-version, coordination#client-versions,
coordination#readiness-for-3x-mode. When a worker starts, it decides its mode from its configuration and the row
`Migration3.0`. Afterwards it follows any state that is written into the row, until the state is 3X, which is final. A
new state counts only once the worker has entered it. If another worker writes the row first, the decision is made
again.

A worker of phase 1 (`COMPATIBLE_WITH_2X_PHASE1`) works by the rules of 2.x, and writes nothing but leases, so it may
share the table with workers of KCL 2.x. When the fleet has left 2.x mode, the leader of 3.x assigns leases. A Java
worker of phase 1 goes on stealing leases then, because it does not read the row at all. A worker of mld polls the row:
it stops taking leases while the state is 3X_WITH_ROLLBACK or 3X, and takes leases again after a rollback. Meanwhile it
keeps its leases, but as in Java, it does not report, and so gets no other leases, until it is restarted with another
configuration.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import TypeAlias

from mld.core.clock import Clock
from mld.core.error_boundary import survived
from mld.core.errors import StartupError, TableForeignError
from mld.fleet.migrate.bare_table import movers, refusal
from mld.fleet.migrate.states import CLIENT_VERSION, ClientVersion, ClientVersionRow, advanced, first_row
from mld.fleet.migrate.states_table import StatesTable
from mld.fleet.migrate.table_migration import TableMigration
from mld.leases.rows import Place
from mld.metrics.registry import Metrics
from mld.properties.values import ClientVersionConfig as Configured

log = logging.getLogger(__name__)

STABLE_S = 600.0  # Java's: how long the fleet must have been ready without a break
UNASSIGNED_S_MAX = 120.0
"""A lease without an owner is no obstacle for so long. By then the takers of 2.x have made six passes, with default
settings, so something must prevent them from taking it.
"""
_LEFT_2X = frozenset({ClientVersion.V3X_WITH_ROLLBACK, ClientVersion.V3X})

# The state in which a worker starts if the row has none, or INIT.
_WHEN_NONE_STORED = {
    Configured.COMPATIBLE_WITH_2X_PHASE1: ClientVersion.INIT,
    Configured.COMPATIBLE_WITH_2X: ClientVersion.UPGRADE_FROM_2X,
    Configured.VERSION_3X: ClientVersion.V3X,
}

MONITOR_S = 60.0  # Java's
MONITOR_JITTER_S = 30.0  # Java's, before the first look
RETRY_S = 1.0  # Java's: the pause after a transition that failed
START_ATTEMPTS_MAX = 20  # Java's


@dataclass(frozen=True, slots=True, kw_only=True)
class Components:
    """Which parts of a worker run in a state, and what is done in it."""

    taker: bool = False
    assigner: bool = False
    """The leader is elected by the lock, and assigns leases, which their owners discover. If this is False, a shuffle
    elects the leader.
    """
    sampler: bool = False
    """The load is measured, even if it is not reported."""
    reporter: bool = False
    index: bool = False
    """The index of leases by owner is created if it is missing. Nothing waits for it; Java waits for up to an hour."""
    readiness_monitor: bool = False
    """The leader checks whether the fleet may go on to 3X_WITH_ROLLBACK."""
    version_monitor: bool = False
    """The row `Migration3.0` is polled."""


_COMPONENTS = {
    ClientVersion.INIT: Components(taker=True, version_monitor=True),  # Java does not poll: see above
    ClientVersion.UPGRADE_FROM_2X: Components(
        taker=True, sampler=True, reporter=True, index=True, readiness_monitor=True, version_monitor=True
    ),
    ClientVersion.V2X: Components(taker=True, sampler=True, version_monitor=True),
    # Java assumes that the index exists, and cannot go on if somebody has deleted it.
    ClientVersion.V3X_WITH_ROLLBACK: Components(
        assigner=True, sampler=True, reporter=True, index=True, version_monitor=True
    ),
    ClientVersion.V3X: Components(assigner=True, sampler=True, reporter=True, index=True),
}


def components(version: ClientVersion, stored: ClientVersion | None = None) -> Components:
    """Return the parts that run in the state `version`. `stored` is the state in the row; it matters only for a worker
    of phase 1, which stays in INIT but must take no leases once the fleet has left 2.x mode.
    """
    running = _COMPONENTS[version]
    if version is ClientVersion.INIT and stored in _LEFT_2X:
        return replace(running, taker=False)
    return running


# --- start and transitions -------------------------------------------------------------------------------------------


def initial_version(
    configured: Configured | None, stored: ClientVersion | None, *, is_of_2x: bool = False
) -> ClientVersion:
    """Return the state in which a worker starts, from its configuration and the state in the row (`stored`).

    If `configured` is None and the row has no state, the table decides: `is_of_2x` means that it is a table of 2.x.
    """
    if stored is None or stored is ClientVersion.INIT:
        if configured is None:
            return ClientVersion.INIT if is_of_2x else ClientVersion.V3X
        return _WHEN_NONE_STORED[configured]
    if stored is ClientVersion.V3X_WITH_ROLLBACK and configured in (Configured.VERSION_3X, None):
        return ClientVersion.V3X
    return stored


def followed(
    current: ClientVersion, stored: ClientVersion | None, configured: Configured | None = Configured.VERSION_3X
) -> ClientVersion:
    """Return the state of a running worker after it has read the row.

    The worker enters any stored state, even if it has missed states in between. If the row is gone, or is INIT, it
    stays in its state. Only a restart ends 3X, and phase 1 if that was configured.
    """
    is_final = current is ClientVersion.V3X or (current is ClientVersion.INIT and configured is not None)
    if is_final or stored is None or stored is ClientVersion.INIT:
        return current
    return stored


# --- readiness -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Readiness:
    """What a leader has observed while its fleet is in UPGRADE_FROM_2X: since when the fleet has been ready, and since
    when each lease has had no owner. Times are monotonic seconds.
    """

    ready_since: float | None = None
    unassigned_since: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FleetView:
    """What the leader sees at one moment: the owner of every lease, and the workers that have reported within the last
    two report periods.
    """

    index_active: bool
    owners: Mapping[str, str | None]
    reporting: frozenset[str]

    @property
    def all_report(self) -> bool:
        """Whether every owner of a lease reports, even if the lease is expired."""
        return {owner for owner in self.owners.values() if owner is not None} <= self.reporting


def observe_readiness(seen: Readiness, view: FleetView, now: float) -> Readiness:
    """Return what the leader knows after one more view; `seen` is what it knew before. A worker that stops leading
    begins again with `Readiness()`.

    The fleet is ready if the index is active, every owner of a lease reports, and no lease has been without an owner
    for `UNASSIGNED_S_MAX`. In Java any lease without an owner makes the fleet unready.
    """
    unassigned = {key: seen.unassigned_since.get(key, now) for key, owner in view.owners.items() if owner is None}
    ready = (
        view.index_active and view.all_report and all(now - since < UNASSIGNED_S_MAX for since in unassigned.values())
    )
    if not ready:
        return Readiness(None, unassigned)
    return Readiness(now if seen.ready_since is None else seen.ready_since, unassigned)


def may_flip(seen: Readiness, now: float) -> bool:
    """Return whether the fleet has been ready for so long that its leader may write 3X_WITH_ROLLBACK now."""
    return seen.ready_since is not None and now - seen.ready_since >= STABLE_S


OnState: TypeAlias = Callable[[ClientVersion, Components], Awaitable[None]]
"""A function that makes the parts of a state run. If it raises, it is called again; it may be called twice with the
same state.
"""


@dataclass(eq=False)
class VersionMachine:
    """Decides the mode of this worker (`start`) and then follows the row (`run`). Both get `on_state`, which makes the
    parts of a state run.

    `is_leader` and `view` are called only in UPGRADE_FROM_2X, once a minute.
    """

    states: StatesTable
    migration: TableMigration
    clock: Clock
    rng: random.Random
    _: KW_ONLY
    worker_id: str
    configured: Configured | None
    lease_duration_s: float
    is_leader: Callable[[], Awaitable[bool]]
    view: Callable[[], Awaitable[FleetView]]
    metrics: Metrics = field(default_factory=Metrics)

    def __post_init__(self) -> None:
        self._counts = self.metrics.worker.operations.version_migration
        self._version = ClientVersion.INIT
        self._entered: tuple[ClientVersion, Components] | None = None
        """The state that was entered last, and its parts; None if the last attempt to enter a state failed."""
        self._readiness = Readiness()

    @property
    def version(self) -> ClientVersion:
        """The state entered last."""
        return self._version

    async def start(self, on_state: OnState) -> ClientVersion:
        """Read the row, decide on a state, and enter it. Only then write the state, if the row has another one. If the
        write is refused, begin again. Return the state.

        Raises StartupError after `START_ATTEMPTS_MAX` failed attempts.
        """
        problem: Exception | str = "other workers kept changing the row"
        for _ in range(START_ATTEMPTS_MAX):
            try:
                if await self._start_once(on_state):
                    return self._version
            except StartupError:
                raise
            except TableForeignError as error:
                raise StartupError(str(error)) from error
            except Exception as error:
                self._counts.fault.note(1)
                problem = survived(error, "entering a client version")
                log.warning("client version not entered: %s", problem, extra={"action": "client_version_failed"})
                await self.clock.sleep(self.rng.uniform(RETRY_S, 1.1 * RETRY_S))
        raise StartupError(f"the client version could not be entered in {START_ATTEMPTS_MAX} attempts: {problem}")

    async def _start_once(self, on_state: OnState) -> bool:
        """Try once to decide on a state, enter it and write it. Return False if another worker wrote the row first."""
        row, place = await self._read()
        is_of_2x = row is None and await self._is_of_2x()
        if is_of_2x:
            row, place = await self._read()  # read again: a worker of 3.x writes the row before it creates leases
        stored = None if row is None else row.state
        version = initial_version(self.configured, stored, is_of_2x=is_of_2x)
        await self._enter(version, stored, on_state)
        # INIT is never written: a worker in INIT writes only leases.
        return version in (ClientVersion.INIT, stored) or await self._write(row, place, version)

    async def _is_of_2x(self) -> bool:
        """Return whether the fleet works by the rules of 2.x, so that a worker without a configured mode has to join it
        by these rules. Called if the table has no row `Migration3.0` (coordination#bare-tables).

        If the worker is configured as compatible with 2.x, the configuration decides, so return False. Otherwise return
        False if the table is not bare; True if it is certainly of 2.x and no mode is configured; else watch for a lease
        duration whether workers of 2.x renew leases, and return whether they do.

        Raises StartupError if 2.x has begun to use the table since this worker has chosen its tables, or if workers of
        2.x live and this worker is configured for 3X; TableError.
        """
        leases = self.migration.routes.leases
        if self.configured is Configured.COMPATIBLE_WITH_2X_PHASE1:
            return False
        before = await self.states.outline(leases)
        if self.configured is Configured.COMPATIBLE_WITH_2X:
            if before.is_of_2x and self.migration.routes.write_place == leases:
                raise StartupError("KCL 2.x has begun to use the lease table just now: start this worker again")
            return False
        if not before.is_bare or (self.configured is None and before.is_of_2x):
            return before.is_of_2x
        await self.clock.sleep(self.lease_duration_s)
        living = movers(before, await self.states.outline(leases))
        if living and self.configured is not None and (await self._read())[0] is None:
            raise StartupError(refusal(self.configured, living))
        return bool(living)

    async def run(self, on_state: OnState) -> None:
        """Follow the row until it is 3X. If this worker leads a fleet that is ready, write 3X_WITH_ROLLBACK."""
        delay_s = MONITOR_S + self.rng.uniform(0.0, MONITOR_JITTER_S)
        while components(self._version).version_monitor:
            await self.clock.sleep(delay_s)
            delay_s = MONITOR_S if await self._look(on_state) else RETRY_S

    async def _look(self, on_state: OnState) -> bool:
        """Read the row once, and enter the state that follows from it. If this worker leads and the fleet is ready, it
        then writes and enters 3X_WITH_ROLLBACK.

        Return False if a state could not be entered. If the row cannot be read, that is logged, and nothing changes.
        """
        match self._version:
            case ClientVersion.V3X_WITH_ROLLBACK:
                self._counts.in_3x.note(1)
            case ClientVersion.V2X | ClientVersion.UPGRADE_FROM_2X:
                self._counts.in_2x.note(1)
        try:
            row, place = await self._read()
        except Exception as error:
            failure = survived(error, "reading the client version")
            log.warning("client version of the fleet unknown: %s", failure, extra={"action": "client_version_unread"})
            return True
        if row is None and self._version is not ClientVersion.INIT:
            log.error("row %s has been deleted", CLIENT_VERSION.key, extra={"action": "client_version_row_missing"})
        if not await self._follow(None if row is None else row.state, on_state):
            return False
        if row is None or not components(self._version).readiness_monitor:
            self._readiness = Readiness()
            return True
        if not await self._flip(row, place):
            return True
        return await self._follow(ClientVersion.V3X_WITH_ROLLBACK, on_state)

    async def _follow(self, stored: ClientVersion | None, on_state: OnState) -> bool:
        """Enter the state that follows from `stored`, the state in the row. Return False if that fails."""
        version = followed(self._version, stored, self.configured)
        try:
            await self._enter(version, stored, on_state)
        except Exception as error:
            self._counts.fault.note(1)
            failure = survived(error, "entering a client version")
            log.error("cannot enter %s: %s", version.value, failure, extra={"action": "client_version_failed"})
            return False
        return True

    async def _enter(self, version: ClientVersion, stored: ClientVersion | None, on_state: OnState) -> None:
        """Enter a state and log it, unless the state that was entered last is the same, with the same parts. `stored`
        is the state in the row. In the state INIT a worker works by the rules of 2.x.

        Warn if this worker works by the rules of 2.x although its settings do not say so, or takes no leases because
        the fleet has left 2.x mode.
        """
        wanted = (version, components(version, stored))
        if wanted == self._entered:
            return
        self._entered = None  # so that the state is entered again if `on_state` fails
        await on_state(*wanted)
        self._entered = wanted
        self._version = version
        log.info("client version %s", version.value, extra={"action": "client_version"})
        if version is ClientVersion.INIT and self.configured is None:
            log.warning(
                "the lease table is one of KCL 2.x: this worker takes leases by the rules of 2.x, and writes only "
                "leases, so that 2.x can run beside it and after it. To leave 2.x, see docs/use/fleets.md",
                extra={"action": "works_as_2x"},
            )
        is_behind = version is ClientVersion.INIT and not wanted[1].taker
        self.metrics.worker.left_behind = stored.value if is_behind and stored is not None else None
        if is_behind:
            log.warning(
                "the fleet has left 2.x mode (%s): this worker takes no leases until it is restarted with another "
                "clientVersionConfig",
                stored.value if stored is not None else None,
                extra={"action": "client_version_behind"},
            )

    async def _flip(self, row: ClientVersionRow, place: Place) -> bool:
        """Write 3X_WITH_ROLLBACK if this worker leads and the fleet has been ready for long enough. Return whether it
        was written.
        """
        try:
            if not await self.is_leader():
                self._readiness = Readiness()
                return False
            view = await self.view()
            self._counts.index_ready.note(view.index_active)
            self._counts.reports_ready.note(view.all_report)
            now = self.clock.monotonic()
            self._readiness = observe_readiness(self._readiness, view, now)
            if not may_flip(self._readiness, now):
                return False
            return await self._write(row, place, ClientVersion.V3X_WITH_ROLLBACK)
        except Exception as error:
            self._counts.fault.note(1)
            failure = survived(error, "looking at the fleet's readiness")
            log.warning("readiness of the fleet unknown: %s", failure, extra={"action": "readiness_unknown"})
            return False

    # --- the row ------------------------------------------------------------------------------------------------------

    async def _read(self) -> tuple[ClientVersionRow | None, Place]:
        """Return the row, and the place in which it was found. If there is none, return None and the place in which
        it would be created.
        """
        for place in self.migration.routes.read_places:
            row = await self.states.get(CLIENT_VERSION, place)
            if row is not None:
                return row, place
        return None, self.migration.routes.write_place

    async def _write(self, row: ClientVersionRow | None, place: Place, version: ClientVersion) -> bool:
        """Write the row where it was read; if there was none, create it in `place`. Return False if another worker has
        written it meanwhile. (Java updates it only in the place where Java itself would create it, and otherwise
        changes nothing.)
        """
        now_ms = int(self.clock.wall() * 1000)
        if row is None:
            return await self.states.create(first_row(CLIENT_VERSION, version, self.worker_id, now_ms), place)
        return await self.states.update(advanced(row, version, self.worker_id, now_ms), row.state, place)
