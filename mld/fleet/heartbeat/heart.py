"""`Heartbeat`: one conditional write every third of the lease duration, for all leases of this worker.

Rules: `leases.carried` says why it is safe, `beats` what is written. What follows what:

    our report is written -> an epoch is claimed on it -> heartbeats; the keeper marks its leases as it renews them
    a heartbeat is refused -> everything carried is dropped at once, a new epoch is claimed
    a Java worker is seen -> every lease is renewed by itself, the heartbeats go on until no lease rests on them, and
    end for good

Each heartbeat also tells people how the carried shards are, as far as that fits (`leases.packed_status`).

A heartbeat that somebody else left under our id is a predecessor's, or a twin's: it is taken over only when it has
stood still for a lease duration. Until then, and whenever there is no epoch, leases are renewed one by one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from random import Random

from mld.core.clock import Clock
from mld.core.errors import StartupError
from mld.core.periods import LOOKS_PER_DURATION
from mld.core.steps import SLICE
from mld.core.surviving import survived
from mld.core.turns import in_turns
from mld.fleet.heartbeat import beats
from mld.fleet.heartbeat.heartbeat_table import REQUEST_TIMEOUT_S_MAX, BeatRefusal, HeartbeatTable
from mld.fleet.heartbeat.java_peers import JavaPeers
from mld.fleet.values import LEASE_TABLE_KEY, ClientVersion, Place
from mld.leases.carried import Beat
from mld.leases.keeper import LeaseKeeper
from mld.leases.lease import ShardStatus
from mld.leases.packed_status import pack
from mld.leases.retries import may_be_applied, retry_delay_s
from mld.leases.validity import HeartbeatValidity
from mld.metrics.registry import Metrics

log = logging.getLogger(__name__)

UNREPORTED_SHARE = 0.45
"""How long a leader may go without a report, as young mld workers do, as a share of the lease duration. A leader that
is still without one at the next look is a Java worker."""
CLAIM_POLL_SHARE = 0.2
HEARTBEATS = "heartbeats"


class Heartbeat:
    """`run` it in a task from when the leases may be carried. `leader` reads who holds the lock now, None for nobody.

    `validity` is the keeper's, and None if the settings ask for no heartbeats: then nothing here does anything.
    `status_of` gives what a heartbeat tells people of a shard.
    """

    def __init__(
        self,
        table: HeartbeatTable,
        keeper: LeaseKeeper,
        validity: HeartbeatValidity | None,
        clock: Clock,
        rng: Random,
        *,
        worker_id: str,
        lease_duration_s: float,
        interval_s: float,
        leader: Callable[[], Awaitable[str | None]],
        java_peers: JavaPeers,
        status_of: Callable[[str], ShardStatus | None] = lambda _key: None,
        metrics: Metrics | None = None,
    ) -> None:
        self._table = table
        self._keeper = keeper
        self._validity_if_wanted = validity
        self._clock = clock
        self._rng = rng
        self._worker_id = worker_id
        self._lease_duration_s = lease_duration_s
        self._interval_s = interval_s
        self._leader = leader
        self._java_peers = java_peers
        self._status_of = status_of
        self._metrics = Metrics() if metrics is None else metrics
        self._room = 0
        self._reported = asyncio.Event()
        self._java_peer: str | None = None
        self._known_leader: str | None = None
        self._unreported: tuple[str, float] | None = None
        self._claims: dict[str, float] = {}

    @property
    def is_wanted(self) -> bool:
        """Whether the settings ask for heartbeats."""
        return self._validity_if_wanted is not None

    @property
    def _validity(self) -> HeartbeatValidity:
        assert self._validity_if_wanted is not None, "no heartbeat is sent unless the settings ask for it"
        return self._validity_if_wanted

    @property
    def java_peer(self) -> str | None:
        """The worker of another kind that has ended the heartbeats."""
        return self._java_peer

    async def admit(self, place: Place | None) -> None:
        """Raises StartupError if heartbeats cannot stand for renewals here, TableError if it cannot be known now.

        `place` is where our report goes.
        """
        if not self.is_wanted:
            return
        if place is None or place.key != LEASE_TABLE_KEY:
            raise StartupError(
                "mld.heartbeat=worker needs the worker reports beside the leases, but this fleet keeps them in tables "
                "of KCL 3.0 to 3.4. Finish the migration (migrateAllEntitiesToLeaseTable), or set mld.heartbeat=lease"
            )
        await self._java_peers.refuse()

    def check_mode(self, version: ClientVersion) -> None:
        """Raises StartupError if the fleet is not in 3.x mode for good."""
        if self.is_wanted and version is not ClientVersion.V3X:
            raise StartupError(
                f"mld.heartbeat=worker, but the fleet is in state {version.value}: finish its migration to KCL 3.x, or "
                "set mld.heartbeat=lease"
            )

    def on_own_report(self) -> None:
        """Our report is in the table."""
        self._reported.set()

    def leave(self, java_peer: str) -> None:
        """A worker that is not mld is there: renew each lease again, for as long as this process runs."""
        if self._java_peer is not None:
            return
        self._java_peer = java_peer
        log.warning(
            "%s is no mld worker: mld.heartbeat=worker ends here, each lease is renewed by itself again. When only mld "
            "workers are left, restart this one to return to worker heartbeats",
            java_peer,
            extra={"action": "heartbeat_left", "worker": java_peer},
        )
        self._validity.stop_marking()
        self._keeper.renew_each()

    async def run(self) -> None:
        """Claim epochs and send heartbeats until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            looking = tasks.create_task(self._look_at_leaders())
            while self._java_peer is None:
                value, sent_at = await self._claim()
                await self._beat_on(value, sent_at)
            self._metrics.progress.rest(HEARTBEATS)
            looking.cancel()
            await asyncio.Event().wait()

    # --- epochs -------------------------------------------------------------------------------------------------------

    async def _claim(self) -> tuple[str, float]:
        """Begin an epoch: its first value, and when that was sent."""
        self._claims.clear()
        observed: tuple[str, float] | None = None
        while True:
            self._metrics.progress.rest(HEARTBEATS)
            await self._reported.wait()
            self._goes_on()
            try:
                row = await self._table.read(self._worker_id)
                if row is None or not row.is_mld:
                    self._reported.clear()  # it was deleted; the next report brings it back
                    continue
                self._room = row.room
                now = self._clock.monotonic()
                if row.value is not None and row.value in self._claims:
                    return row.value, self._claims[row.value]
                if beats.epoch_of(row.value) is None:
                    observed = None
                elif row.value is not None and (observed is None or observed[0] != row.value):
                    observed = (row.value, now)
                if observed is None or now - observed[1] > self._lease_duration_s:
                    claimed = await self._try_claim(row.value)
                    if claimed is not None:
                        return claimed  # else wait before the next try: what refuses the claim may stay there for ever
            except Exception as error:
                failure = survived(error, "claiming a heartbeat")
                log.info("no heartbeat yet: %s", failure, extra={"action": "heartbeat_claim_failed"})
            await self._clock.sleep(CLAIM_POLL_SHARE * self._lease_duration_s)

    async def _try_claim(self, seen: str | None) -> tuple[str, float] | None:
        """One attempt, remembered: if its reply is lost, a later look at the row tells."""
        value = beats.value_of(f"{self._rng.getrandbits(beats.EPOCH_BITS):016x}", 1)
        sent_at = self._claims[value] = self._clock.monotonic()
        answer = await self._table.claim(self._worker_id, seen, value)
        if isinstance(answer, BeatRefusal):
            del self._claims[value]
            return None
        log.info("worker heartbeats begin", extra={"action": "heartbeat_begun"})
        return value, sent_at

    async def _beat_on(self, value: str, sent_at: float) -> None:
        """Heartbeats of one epoch, until it is fenced, or until nothing rests on it after a Java peer was seen."""
        epoch = beats.epoch_of(value)
        assert epoch is not None
        number = int(value.rpartition(".")[2])
        while True:
            self._goes_on()
            self._validity.carry(Beat(epoch, sent_at))
            if self._java_peer is not None and not self._keeper.carried():
                await self._end(value)
                return
            await self._clock.sleep(max(0.0, sent_at + self._interval_s - self._clock.monotonic()))
            number += 1
            following = beats.value_of(epoch, number)
            accepted_at = await self._beat(value, following, sent_at)
            if accepted_at is None:
                self._drop()
                return
            value, sent_at = following, accepted_at

    async def _beat(self, last: str, value: str, last_sent_at: float) -> float | None:
        """One heartbeat, sent until there is an answer: since when it is valid, None if it was refused."""
        attempt, first_sent_at = 0, None
        while True:
            attempt += 1
            self._goes_on()
            shards = await self._told()
            sent_at = self._clock.monotonic()
            try:
                answer = await self._table.beat(self._worker_id, last, value, shards)
            except Exception as error:
                self._note(False, sent_at)
                failure = survived(error, "sending a heartbeat")
                if first_sent_at is None and may_be_applied(failure):
                    first_sent_at = sent_at
                level = logging.WARNING if attempt == 1 else logging.DEBUG
                log.log(level, "heartbeat failed: %s", failure, extra={"action": "heartbeat_failed"})
                remaining_s = last_sent_at + self._lease_duration_s - self._clock.monotonic()
                delay_s = retry_delay_s(attempt, remaining_s, self._rng)
                await self._clock.sleep(self._interval_s if delay_s is None else delay_s)
                continue
            if isinstance(answer, BeatRefusal):
                if first_sent_at is not None and answer.seen is not None and answer.seen.value == value:
                    return first_sent_at
                return None
            self._room = answer.room
            self._note(True, sent_at)
            if answer.java_peer is not None:
                self.leave(answer.java_peer)
            return sent_at

    def _note(self, ok: bool, sent_at: float) -> None:
        """A heartbeat was answered, or failed: it stands for the renewals of the carried leases."""
        now = self._clock.monotonic()
        self._metrics.worker.operations.renewals.lease.note(ok, now - sent_at)
        for key in self._keeper.carried() if ok else ():
            if key in self._metrics.shards:
                self._metrics.shards[key].renewed_at = now

    async def _told(self) -> bytes | None:
        """As `_shards`; no heartbeat is lost to what goes wrong with that."""
        try:
            return await self._shards()
        except Exception as error:
            survived(error, "telling of the shards")
            return None

    async def _shards(self) -> bytes | None:
        """What the next heartbeat tells of the carried shards; None if that would cost a write unit."""
        told: dict[str, ShardStatus | None] = {}
        for number, key in enumerate(self._keeper.carried(), start=1):
            told[key] = self._status_of(key)
            if number % SLICE == 0:
                await asyncio.sleep(0)
        return await in_turns(pack(told, int(self._clock.wall()), self._room))

    def _goes_on(self) -> None:
        """There is a wait and a request before this is said again; for the probe of liveness."""
        self._metrics.progress.step(HEARTBEATS, self._clock.monotonic(), self._interval_s + REQUEST_TIMEOUT_S_MAX)

    def _drop(self) -> None:
        self._validity.end_epoch()
        keys = self._keeper.drop_carried()
        log.warning(
            "the worker heartbeat was refused: others hold this worker for dead, or its report was deleted. %d leases "
            "are dropped; what is still ours is found again",
            len(keys),
            extra={"action": "heartbeat_fenced", "leases": len(keys)},
        )

    async def _end(self, value: str) -> None:
        """Every lease is renewed by itself. That the attribute stays, if this fails, harms nobody."""
        self._validity.end_epoch()
        self._keeper.drop_carried()
        try:
            await self._table.clear(self._worker_id, value)
        except Exception as error:
            failure = survived(error, "clearing the heartbeat")
            log.info("heartbeat not cleared: %s", failure, extra={"action": "heartbeat_not_cleared"})

    # --- Java peers ---------------------------------------------------------------------------------------------------

    async def _look_at_leaders(self) -> None:
        while self._java_peer is None:
            await self._clock.sleep(self._lease_duration_s / LOOKS_PER_DURATION)
            try:
                java_peer = await self._java_peer_who_leads()
            except Exception as error:
                failure = survived(error, "looking at the leader")
                log.debug("leader unknown: %s", failure, extra={"action": "leader_unknown"})
                continue
            if java_peer is not None:
                self.leave(java_peer)

    async def _java_peer_who_leads(self) -> str | None:
        leader = await self._leader()
        if leader is None or leader == self._worker_id or leader == self._known_leader:
            self._unreported = None
            return None
        row = await self._table.read(leader)
        if row is not None:
            if row.is_mld:
                self._known_leader = leader
            return None if row.is_mld else leader
        now = self._clock.monotonic()
        if self._unreported is None or self._unreported[0] != leader:
            self._unreported = (leader, now)
        is_late = now - self._unreported[1] >= UNREPORTED_SHARE * self._lease_duration_s
        return leader if is_late else None
