"""`LockElection`: who leads a 3.x fleet.

Rules: coordination#leadership-checks, coordination#lost-lock-replies, coordination#stepping-down. What a look at the
lock allows is decided in `lock`.

Theory. `is_leader` is cheap both ways: True costs no request while the lock is held, False is believed for
one heartbeat, or until the row that we wait for may be taken. In between, one check at a time reads the row and claims
it if that is allowed; whoever asks meanwhile waits for the same check. A task renews the lock while it is held. All
requests of one election go one after the other, so that a release always knows the last version that was sent.

A write without an answer may have been applied, now or later. Until the row tells, this worker does not lead; the
version that was sent stays known, and a look at the row recognizes it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from mld.clock import Clock
from mld.errors import MldError
from mld.fleet.leader import lock
from mld.fleet.leader.lock import HEARTBEAT_S, LEASE_S, Claim, DamagedLock, Hold, Holding, Observation, SeenLock, Wait
from mld.fleet.leader.lock_table import LockTable
from mld.leases.retries import may_be_applied
from mld.surviving import survived

log = logging.getLogger(__name__)

UNKNOWN_RECHECK_S = 2.0  # a claim without an answer: until we know, the fleet may be waiting for us
HEARTBEAT_RETRY_S = 5.0  # a failed heartbeat gets more than a dozen further attempts before the lock expires
RELEASE_ATTEMPTS_MAX = 3  # without pauses; each takes at most a request's time-out. Else the row expires by itself
HOOK_TIMEOUT_S = 30.0  # a check that hangs must not stop everybody who asks for the leader
CLOSE_TIMEOUT_S = 10.0  # a check under way, and a release; afterwards the row is left to expire
LONG_AGO = float("-inf")

CheckHook = Callable[[bool], Awaitable[None]]


async def _nothing(_: bool) -> None:
    """The hook of an election that has none."""


def _ignore(_: bool) -> None:
    """The `on_change` of an election that has none."""


class LockElection:
    """Leads while it holds the lock row.

    `table` names the table that holds the lock now. When it names another one, the lock in the old one is released and
    the next question is answered with False, without being remembered. `on_check` is called with the result of each
    question that was not answered from memory, except during a move; if it raises, or hangs, the lock is released and
    the answer is False. It must not ask this election. `on_change` is told when leadership was won or lost.
    """

    def __init__(
        self,
        table: Callable[[], LockTable],
        clock: Clock,
        *,
        worker_id: str,
        new_version: Callable[[], str],
        on_check: CheckHook = _nothing,
        on_change: Callable[[bool], None] = _ignore,
        lease_s: float = LEASE_S,
        heartbeat_s: float = HEARTBEAT_S,
    ) -> None:
        assert lease_s >= 2 * heartbeat_s, "one failed heartbeat must not cost the lock"
        self._table = table
        self._clock = clock
        self._worker_id = worker_id
        self._new_version = new_version
        self._on_check = on_check
        self._on_change = on_change
        self._lease_s = lease_s
        self._heartbeat_s = heartbeat_s
        self._used: LockTable | None = None
        self._requests = asyncio.Lock()
        self._ours = lock.Versions(worker_id)
        self._is_claim_unknown = False
        self._holding: Holding | None = None
        self._observation: Observation | None = None
        self._check: asyncio.Task[bool] | None = None
        self._heartbeats: asyncio.Task[None] | None = None
        self._no_until = LONG_AGO
        self._resting_until = LONG_AGO
        self._leads = False
        self._closed = False

    @property
    def leads(self) -> bool:
        """See `LeaderDecider`."""
        return self._leads

    @property
    def holds_lock(self) -> bool:
        """Whether the lock is held at this moment, as far as this process can know. Asks nobody."""
        return not self._closed and self._is_holding() and self._is_in_place()

    async def is_leader(self) -> bool:
        """See `LeaderDecider`. At most one read, one claim and, if the hook says so, one release; no pauses."""
        if self._closed or self._remembers_no():
            return False
        if self._check is None or self._check.done():
            self._check = asyncio.create_task(self._check_once())
        check = self._check
        assert check is not asyncio.current_task(), "the hook of an election must not ask the election"
        await asyncio.wait({check})  # a caller that is cancelled leaves the check to the others
        return not check.cancelled() and check.result() and self.holds_lock

    async def step_down(self, hold_off_s: float) -> None:
        """See `LeaderDecider`. To let another worker win, `hold_off_s` exceeds a heartbeat, their polling period."""
        self._resting_until = max(self._resting_until, self._clock.monotonic() + hold_off_s)
        async with self._requests:
            await self._release(f"stepping down for {hold_off_s:.0f} s")

    async def close(self) -> None:
        """See `LeaderDecider`. Deletes the row; takes at most `CLOSE_TIMEOUT_S`."""
        self._closed = True
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S), self._requests:
                await self._release("closing")
        except TimeoutError:
            log.warning("the leader lock could not be released in time", extra={"action": "leader_release_failed"})
        self._drop("closing")
        tasks = [task for task in (self._check, self._heartbeats) if task is not None and not task.done()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def abandon(self) -> None:
        """End without a request: the row stays until it expires, as after a crash."""
        self._closed = True
        self._drop("abandoned")
        for task in (self._check, self._heartbeats):
            if task is not None:
                task.cancel()

    # --- the check ----------------------------------------------------------------------------------------------------

    def _remembers_no(self) -> bool:
        return self._clock.monotonic() < self._no_until and self._is_in_place()

    def _is_in_place(self) -> bool:
        return self._used is not None and self._used.place == self._table().place

    def _is_holding(self) -> bool:
        return self._holding is not None and self._holding.is_valid(self._clock.monotonic())

    async def _check_once(self) -> bool:
        table = self._table()
        if self._used is None:
            self._used = table
        if self._used.place != table.place:
            await self._move(self._used, table)
            return False
        if not self._is_holding():
            await self._compete(table)
        try:
            async with asyncio.timeout(HOOK_TIMEOUT_S):
                await self._on_check(self.holds_lock)
        except Exception as error:
            await self._abandon(error if isinstance(error, TimeoutError) else survived(error, "checking the leader"))
            return False
        if self.holds_lock:
            self._announce()
        return self.holds_lock

    async def _move(self, old: LockTable, new: LockTable) -> None:
        """Leave the table that the lock lived in."""
        async with self._requests:
            await self._release(f"the lock moved from table {old.place.table} to {new.place.table}")
            self._used = new
            self._ours = lock.Versions(self._worker_id)
            self._is_claim_unknown = False
            self._observation = None
            self._no_until = LONG_AGO

    async def _abandon(self, error: Exception) -> None:
        """The hook says that the result must not be used."""
        log.warning("not leading: %s", error or type(error).__name__, extra={"action": "leader_check_failed"})
        table = self._table()
        if self._used is not None and self._used.place != table.place:
            await self._move(self._used, table)
            return
        async with self._requests:
            await self._release("a check failed")
            self._say_no_for(self._heartbeat_s)

    async def _compete(self, table: LockTable) -> None:
        """Look at the row, and claim it if that is allowed."""
        async with self._requests:
            if self._closed or self._is_holding():
                return
            if self._holding is not None:
                self._drop("it expired without a heartbeat")
            resting_s = self._resting_until - self._clock.monotonic()
            if resting_s > 0:
                self._say_no_for(min(resting_s, self._heartbeat_s))
                return
            try:
                seen = await table.read()
            except Exception as error:
                failure = survived(error, "reading the leader lock")
                log.warning("cannot read the leader lock: %s", failure, extra={"action": "leader_read_failed"})
                self._say_no_for(self._heartbeat_s)
                return
            if (claim := self._heed(table, seen)) is not None:
                await self._claim(table, claim.over)

    def _heed(self, table: LockTable, seen: SeenLock) -> Claim | None:
        """Hold or wait, as the row says; a claim is left to the caller."""
        now = self._clock.monotonic()
        match lock.judge(seen, self._observation, self._ours, now, lease_s=self._lease_s):
            case Hold(holding):
                self._hold(table, holding)
            case Wait(observation):
                self._wait_for(observation, now)
            case Claim() as claim:
                return claim
        return None

    def _wait_for(self, observation: Observation, now: float) -> None:
        if isinstance(observation.lock, DamagedLock) and observation != self._observation:
            log.error(
                "the row %s of table %s is damaged (%s): no Java worker can lead; it is replaced after %.0f s unless"
                " somebody writes it",
                lock.LOCK_KEY,
                self._table().place.table,
                observation.lock.reason,
                observation.duration_s,
                extra={"action": "leader_row_damaged"},
            )
        self._observation = observation
        self._say_no_for(min(self._heartbeat_s, observation.stale_at - now))

    async def _claim(self, table: LockTable, over: SeenLock) -> None:
        version, sent_at = self._new_version(), self._clock.monotonic()
        self._ours.add(version, sent_at)
        self._is_claim_unknown = True
        try:
            refusal = await table.claim(over, self._worker_id, version, lease_s=self._lease_s)
        except Exception as error:
            failure = survived(error, "claiming the leader lock")
            log.warning("cannot claim the leader lock: %s", failure, extra={"action": "leader_claim_failed"})
            if not may_be_applied(failure):
                self._ours.remove(version)
            self._say_no_for(UNKNOWN_RECHECK_S)
            return
        self._is_claim_unknown = False
        if refusal is None:
            self._hold(table, Holding(version, sent_at, self._lease_s))
            return
        self._ours.remove(version)
        if self._heed(table, refusal.seen) is not None:
            self._say_no_for(UNKNOWN_RECHECK_S)  # whoever was first has gone again: one claim a check is enough

    def _say_no_for(self, seconds: float) -> None:
        self._no_until = self._clock.monotonic() + seconds

    # --- while the lock is held ---------------------------------------------------------------------------------------

    def _hold(self, table: LockTable, holding: Holding) -> None:
        assert self._heartbeats is None, "a lock is held once"
        self._holding = holding
        self._observation = None
        self._no_until = LONG_AGO
        self._heartbeats = asyncio.create_task(self._keep(table))

    async def _keep(self, table: LockTable) -> None:
        """Renew the lock until it is dropped."""
        retry_at = LONG_AGO
        while (holding := self._holding) is not None:
            wake_at = min(max(holding.sent_at + self._heartbeat_s, retry_at), holding.valid_until)
            await self._clock.sleep(max(0.0, wake_at - self._clock.monotonic()))
            async with self._requests:
                if self._is_holding():
                    retry_at = await self._heartbeat(table, holding)
                else:
                    self._drop("it expired without a heartbeat")

    async def _heartbeat(self, table: LockTable, holding: Holding) -> float:
        """One heartbeat; returns the earliest time of the next one."""
        version, sent_at = self._new_version(), self._clock.monotonic()
        self._ours.add(version, sent_at)
        try:
            refusal = await table.heartbeat(self._worker_id, holding.version, version, lease_s=self._lease_s)
        except Exception as error:
            failure = survived(error, "renewing the leader lock")
            log.warning("the leader's heartbeat failed: %s", failure, extra={"action": "leader_heartbeat_failed"})
            if not may_be_applied(failure):
                self._ours.remove(version)
            return self._clock.monotonic() + HEARTBEAT_RETRY_S
        if refusal is None:
            self._holding = Holding(version, sent_at, self._lease_s)
            return LONG_AGO
        self._ours.remove(version)
        still_held = lock.judge_refused_heartbeat(refusal.seen, self._ours)
        if still_held is None:
            self._drop(f"{_who(refusal.seen)} in the row")
        else:
            self._holding = still_held
        return LONG_AGO

    # --- ends ---------------------------------------------------------------------------------------------------------

    async def _release(self, reason: str) -> None:
        """Stop leading and delete the row if it is ours; afterwards the row may at worst expire by itself."""
        table, holding = self._used, self._holding
        self._drop(reason)
        if table is None or (holding is None and not self._is_claim_unknown):
            return
        failure: MldError | None = None
        for _ in range(RELEASE_ATTEMPTS_MAX):
            try:
                if holding is None:
                    holding = self._ours.find(await table.read())
                if holding is None:
                    return
                self._ours.give_up(holding.version)
                refusal = await table.release(self._worker_id, holding.version)
            except Exception as error:
                failure = survived(error, "releasing the leader lock")
                continue
            if refusal is None:
                self._is_claim_unknown = False
                return
            holding = self._ours.find(refusal.seen)
            if holding is None:
                return
        log.warning("cannot release the leader lock: %s", failure, extra={"action": "leader_release_failed"})

    def _announce(self) -> None:
        if not self._leads:
            self._leads = True
            log.info("%s leads now", self._worker_id, extra={"action": "leader_won"})
            self._on_change(True)

    def _drop(self, reason: str) -> None:
        """Forget the lock, whatever the row says."""
        self._holding = None
        heartbeats, self._heartbeats = self._heartbeats, None
        if heartbeats is not None and heartbeats is not asyncio.current_task():
            heartbeats.cancel()
        if self._leads:
            self._leads = False
            log.info("%s does not lead any more: %s", self._worker_id, reason, extra={"action": "leader_lost"})
            self._on_change(False)


def _who(seen: SeenLock) -> str:
    match seen:
        case None:
            return "nobody is"
        case DamagedLock():
            return "something unreadable is"
        case _:
            return f"{seen.owner} is"
