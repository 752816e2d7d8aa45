"""The watcher: one read a second for each watched worker, and a dead worker's leases given to living ones at once.

Rules: `watching`. Works with and without a leader: whoever watches re-assigns by himself, fenced by owner and counter,
so two watchers of one worker cannot both win a lease, and a leader's assignment beats or loses to either.

*Whom.* An mld leader tells each mld worker. Until it does (the worker is new, the leader is dead, or a Java worker) the
worker chooses by itself, by the ring that a leader would have published; and after each burial again, because the
dead one may have been a leader or a watcher. So a fleet of which one worker is left is taken over within seconds, not
after the two minutes for which a dead leader's lock is valid.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from mld.clock import Clock
from mld.errors import TableError
from mld.fleet.heartbeats import HeartbeatRow, beating, beats_among
from mld.fleet.watching import Look, Verdict, Watched, glance, is_proof, life_signs, look, orphans, parse_watch
from mld.leases.lease import Lease
from mld.leases.table import FleetScan, LeaseTable, Refusal

log = logging.getLogger(__name__)

LOOK_INTERVAL_S = 1.0  # with the lease duration this bounds the gap after kill -9; a read costs half a read unit
LOOKS_CONCURRENT_MAX = 8
ASSIGNS_CONCURRENT_MAX = 20
DEADLINE_MARGIN_S = 0.01
CHOOSE_AGAIN_S = 300.0
"""Without a leader that tells us whom to watch we choose that often: a scan, as Java's leader makes every 20 s."""
CHOOSE_AGAIN_IDLE_S = 30.0  # the same while there is nobody to watch; an mld leader needs no longer to tell us

_UNREAD = "unread"
"""Stands for what a leader published while our own row was not read yet."""

Spread = Callable[[FleetScan, Iterable[Lease], frozenset[str]], Awaitable[Mapping[str, str]]]
"""(what the table says, orphaned leases, dead workers) -> new owner by lease key; leases without an heir are absent."""
Choose = Callable[[FleetScan, frozenset[str]], Awaitable[Iterable[Watched]]]
"""(what the table says, dead workers) -> whom we should watch as long as nobody tells us."""
Report = Callable[[str, Sequence[Lease]], Awaitable[int]]
"""Tells the assigner of this process; how many leases it has moved itself, 0 if it does not lead."""


class Heartbeats(Protocol):
    """What watching needs of `heartbeat_table.HeartbeatTable`."""

    async def read(self, worker: str) -> HeartbeatRow | None: ...

    async def fence(self, worker: str, seen: str | None, marks: Collection[str]) -> bool: ...


@dataclass(slots=True)
class _State:
    look: Look = field(default_factory=Look)
    baseline: Mapping[str, Lease] | None = None
    baseline_at: float = 0.0
    baseline_beats: Mapping[str, str] = field(default_factory=dict)
    dealt_with: bool = False


async def _keep_report(_worker: str, _scan: FleetScan) -> None:
    return None


class Watch:
    """Looks at the workers it is told to watch. `on_assigned` hears of the leases that came to ourselves."""

    def __init__(
        self,
        table: LeaseTable,
        clock: Clock,
        *,
        worker_id: str,
        lease_duration_s: float,
        spread: Spread,
        choose: Choose,
        report: Report,
        heartbeats: Heartbeats,
        on_assigned: Callable[[tuple[str, ...]], None],
        on_buried: Callable[[str, FleetScan], Awaitable[None]] = _keep_report,
        interval_s: float = LOOK_INTERVAL_S,
    ) -> None:
        self._table = table
        self._clock = clock
        self._worker_id = worker_id
        self._lease_duration_s = lease_duration_s
        self._spread = spread
        self._choose = choose
        self._report = report
        self._heartbeats = heartbeats
        self._on_assigned = on_assigned
        self._on_buried = on_buried
        self._interval_s = min(interval_s, lease_duration_s / 5)
        self._watched: dict[str, Watched] = {}
        self._is_told = False
        self._published: str | None = _UNREAD
        self._choose_at = float("-inf")
        self._dead: frozenset[str] = frozenset()
        self._states: dict[str, _State] = {}
        self._slots = asyncio.Semaphore(LOOKS_CONCURRENT_MAX)
        self._assign_slots = asyncio.Semaphore(ASSIGNS_CONCURRENT_MAX)

    def watch(self, watched: Iterable[Watched]) -> None:
        """A leader says so: watch these from now on, instead of those before.

        What is known of the same leases is kept.
        """
        self._is_told = True
        self._dead = frozenset()
        wanted = {one.worker: one for one in watched if one.worker != self._worker_id}
        for worker in list(self._states):
            if wanted.get(worker) != self._watched.get(worker) and not self._is_suspect(worker):
                del self._states[worker]
        suspects = {worker: self._watched[worker] for worker in self._states if self._is_suspect(worker)}
        self._watched = {**wanted, **suspects}

    def hear(self, published: str | None) -> None:
        """Our report came back with `published` on it: what a leader has told us, if it was one of ours."""
        before, self._published = self._published, published
        if published is None:
            return
        if before is not _UNREAD and published != before:
            self.watch(parse_watch(published))
        else:  # perhaps the word of a leader that is dead by now: it must not undo what we have chosen since
            self.watch_also(parse_watch(published))

    def watch_also(self, watched: Iterable[Watched]) -> None:
        """Watch these workers besides those before."""
        for one in watched:
            if one.worker != self._worker_id:
                self._watched.setdefault(one.worker, one)

    def watching(self) -> frozenset[Watched]:
        return frozenset(self._watched.values())

    def _is_suspect(self, worker: str) -> bool:
        state = self._states.get(worker)
        return state is not None and state.baseline is not None and not state.dealt_with

    async def run(self) -> None:
        """Watch until cancelled. A read that fails says nothing about anybody."""
        while True:
            await self._choose_if_untold()
            await asyncio.gather(*(self._look_at(one) for one in list(self._watched.values())))
            await self._clock.sleep(self._pause_s())

    def _pause_s(self) -> float:
        """The interval, or less if a silent heartbeat makes its worker dead before: one look then saves a second."""
        now = self._clock.monotonic()
        silent = [state.look.since for state in self._states.values() if state.look.beat is not None]
        ends = [since + self._lease_duration_s - now for since in silent]
        return min([self._interval_s, *(end + DEADLINE_MARGIN_S for end in ends if end > 0)])

    async def _choose_if_untold(self) -> None:
        if self._is_told or self._clock.monotonic() < self._choose_at:
            return
        try:
            self.watch_also(await self._choose(await self._table.fleet_scan(), self._dead))
        except TableError as error:
            log.debug("cannot choose whom to watch: %s", error, extra={"action": "watch_failed"})
        again_s = CHOOSE_AGAIN_S if self._watched else CHOOSE_AGAIN_IDLE_S
        self._choose_at = self._clock.monotonic() + again_s

    async def _look_at(self, watched: Watched) -> None:
        state = self._states.setdefault(watched.worker, _State())
        try:
            async with self._slots:
                state.look = await self._next_look(watched, state.look)
            now = self._clock.monotonic()
            match state.look.verdict:
                case Verdict.ALIVE:
                    state.baseline, state.dealt_with = None, False
                case Verdict.LATE | Verdict.SILENT if state.baseline is None:
                    self._set_baseline(state, await self._table.fleet_scan())
                case Verdict.SILENT if not state.dealt_with and self._proves(state, now):
                    await self._bury(watched.worker, state)
                case Verdict.GONE:
                    await self._choose_another(watched)
                case _:
                    pass
        except TableError as error:
            log.debug("cannot look at %s: %s", watched.worker, error, extra={"action": "watch_failed"})

    async def _next_look(self, watched: Watched, before: Look) -> Look:
        beat = await self._beat_of(watched.worker) if before.beat is not None else None
        glanced = glance(before, beat, self._clock.monotonic(), self._lease_duration_s)
        if glanced is not None:
            return glanced
        row = await self._table.get(watched.key, consistent=False)  # an old counter only makes the look milder
        if beat is None and row is not None and row.heartbeat is not None:
            beat = await self._beat_of(watched.worker)
        return look(before, watched, row, self._clock.monotonic(), self._lease_duration_s, beat)

    async def _beat_of(self, worker: str) -> str | None:
        row = await self._heartbeats.read(worker)
        return None if row is None else row.value

    def _set_baseline(self, state: _State, scan: FleetScan) -> None:
        """What moved during the scan does not count as moved, so its age counts from its end."""
        state.baseline = {lease.key: lease for lease in scan.leases}
        state.baseline_at = self._clock.monotonic()
        state.baseline_beats = beats_among(scan.others)

    def _proves(self, state: _State, now: float) -> bool:
        return is_proof(now - state.baseline_at, self._lease_duration_s)

    async def _choose_another(self, watched: Watched) -> None:
        """The representative went elsewhere, by a hand-over or because another watcher was quicker."""
        keys = await self._table.keys_owned_by(watched.worker)
        if self._watched.get(watched.worker) != watched:
            return  # told otherwise meanwhile
        key = min((key for key in keys if key != watched.key), default=None)
        self._states.pop(watched.worker, None)
        if key is None:
            self._watched.pop(watched.worker, None)
        else:
            self._watched[watched.worker] = Watched(watched.worker, key)

    async def _bury(self, worker: str, state: _State) -> None:
        """Give a silent worker's leases to others."""
        assert state.baseline is not None
        silent = state.look
        if silent.mark is not None and not await self._heartbeats.fence(worker, silent.beat, {silent.mark}):
            return  # it moves after all, as the next look will show
        scan = await self._table.fleet_scan()
        orphaned = orphans(worker, state.baseline, scan.leases, silent)
        if not orphaned:  # it came back in this moment, or the base line was older than it should have been
            self._set_baseline(state, scan)
            return
        still, moving = life_signs(state.baseline, scan.leases, beating(state.baseline_beats, beats_among(scan.others)))
        self._dead = (self._dead - moving | still) - {self._worker_id} | {worker}
        self.watch_also(await self._choose(scan, self._dead))
        by_leader = await self._report(worker, orphaned)
        state.dealt_with = by_leader == len(orphaned) or await self._share_out(worker, scan, orphaned)
        if silent.mark is None:  # a heartbeat and its fence live in the report
            await self._on_buried(worker, scan)

    async def _share_out(self, worker: str, scan: FleetScan, orphaned: Sequence[Lease]) -> bool:
        """Re-assign what the leader in this process has not; True if each lease has got an heir."""
        heirs = await self._spread(scan, orphaned, self._dead | {worker})
        if not heirs:
            return False
        log.warning(
            "worker %s is silent for %.0f s; %d of its leases go to %d others",
            worker,
            self._lease_duration_s,
            len(heirs),
            len(set(heirs.values())),
            extra={"action": "worker_silent", "worker": worker, "leases": len(heirs)},
        )
        moved = await asyncio.gather(
            *(self._assign(lease, heirs[lease.key]) for lease in orphaned if lease.key in heirs)
        )
        mine = tuple(lease.key for lease in moved if lease is not None and lease.owner == self._worker_id)
        if mine:
            self._on_assigned(mine)
        return len(heirs) == len(orphaned)

    async def _assign(self, lease: Lease, heir: str) -> Lease | None:
        try:
            async with self._assign_slots:
                answer = await self._table.assign_expired(lease, heir)
        except TableError as error:
            log.info("%s not re-assigned: %s", lease.key, error, extra={"action": "assign_failed", "shard": lease.key})
            return None
        return None if isinstance(answer, Refusal) else answer
