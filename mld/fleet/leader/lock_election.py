"""`LockElection`: elects the leader of a 3.x fleet by the lock. The decisions are in `lock`.

Rules: coordination#leadership-checks, coordination#lost-lock-replies, coordination#stepping-down. `is_leader` usually
sends no request. While this worker holds the lock, it returns True. After a check that found another leader, it returns
False for the time between two heartbeats, or until the lock may be taken over, if that is sooner. In all other cases
the lock is checked now: one check runs at a time, and all callers wait for it. While the lock is held, a task renews
it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import KW_ONLY, dataclass

from mld.core.clock import Clock
from mld.core.error_boundary import survived
from mld.core.periods import LEADER_HEARTBEAT_S
from mld.core.stillness import Stillness
from mld.fleet.leader import lock
from mld.fleet.leader.decider import LeaderDecider
from mld.fleet.leader.lock import LEASE_S, LOCK_KEY, DamagedLock, HeldLock, LockRow, SeenLock, Versions, WatchedLock
from mld.fleet.leader.lock_table import LockTable
from mld.leases.validity import may_be_applied

log = logging.getLogger(__name__)

UNKNOWN_RECHECK_S = 2.0  # time to the next check after a claim without an answer; short, because nobody may be leading
HEARTBEAT_RETRY_S = 5.0  # allows more than a dozen attempts after a failed heartbeat, before the lock expires
RELEASE_ATTEMPTS_MAX = 3  # each takes at most a request's time-out
HOOK_TIMEOUT_S = 30.0  # so that a hook that hangs does not block all callers of `is_leader`
CLOSE_TIMEOUT_S = 8.0  # for a check under way and a release, within the 10 s of a stop; after it the row just expires

CheckHook = Callable[[bool], Awaitable[None]]
LONG_AGO = float("-inf")


async def _nothing(_: bool) -> None:
    """Do nothing. This is the hook of an election that has none."""


@dataclass(eq=False)
class LockElection(LeaderDecider):
    """Leads while it holds the lock row.

    `table` returns the table that has the lock now. When that changes, the lock in the old table is released, and the
    next `is_leader` returns False. `on_check` is called with the result of each check, except when the table has
    changed. If it raises, or hangs, the lock is released, and the result is False. It must not call this election.
    `on_change` is called when leadership was won or lost.

    If a write is not answered, it may have been applied, or may be applied later. This worker remembers the version
    that it sent, and does not lead by it until a read shows that version in the row. Requests are sent one at a time,
    so that a release always knows the last version.
    """

    table: Callable[[], LockTable]
    clock: Clock
    _: KW_ONLY
    worker_id: str
    new_version: Callable[[], str]
    on_check: CheckHook = _nothing
    on_change: Callable[[bool], None] = lambda _: None

    def __post_init__(self) -> None:
        self._leads = False
        self._ours = Versions(self.worker_id)
        """The versions of the row that this process has written, or may have written."""
        self._holding: HeldLock | None = None
        """The lock as this worker holds it, even if its time is over; None if it is not held."""
        self._watched: WatchedLock = Stillness()
        self._is_claim_unknown = False
        """Whether a claim was sent that has no answer, so that the row may be ours."""
        self._no_until = LONG_AGO
        """Until this time `is_leader` returns False without a check."""
        self._resting_until = LONG_AGO
        """Until this time the worker does not try to lead, because it has stepped down."""
        self._retry_at = LONG_AGO
        """No heartbeat is sent before this time."""
        self._ended: dict[str, float] = {}
        """Workers whose processes have ended. Until the time given for each, its lock may be claimed at once."""
        self._is_closed = False
        self._used: LockTable | None = None
        """The table that the last check used."""
        self._requests = asyncio.Lock()
        """Held while a request is sent, so that there is one at a time."""
        self._check: asyncio.Task[bool] | None = None  # the check that runs, or the last one
        self._heartbeats: asyncio.Task[None] | None = None  # renews the lock while it is held

    @property
    def leads(self) -> bool:
        """Whether this worker leads, as last announced; sends no request."""
        return self._leads

    @property
    def leader(self) -> str | None:
        """The other worker that held the lock when it was last read; None if there was none, or if it is not known."""
        seen = self._watched.value(LOCK_KEY)
        return seen.owner if isinstance(seen, LockRow) else None

    @property
    def holds_lock(self) -> bool:
        """Whether the lock is held in the present table and its time is not over; sends no request."""
        return not self._is_closed and self._holds() and self._is_in_place()

    async def is_leader(self) -> bool:
        """Return whether this worker may act as leader now; check the lock if the last answer is too old (see the
        module). A check sends at most one read, one claim and, if the hook fails, a release; without pauses.
        """
        if self._is_closed or (self.clock.monotonic() < self._no_until and self._is_in_place()):
            return False
        if self._check is None or self._check.done():
            self._check = asyncio.create_task(self._check_once())
        check = self._check
        assert check is not asyncio.current_task(), "the hook of an election must not ask the election"
        await asyncio.wait({check})  # if this caller is cancelled, the check goes on for the others
        return not check.cancelled() and check.result() and self.holds_lock

    def ended(self, worker: str, until: float) -> None:
        """Note that the process of `worker` has ended, and that none is started under its id before `until`
        (monotonic). The next `is_leader` checks the lock, and may claim that worker's lock at once.
        """
        now = self.clock.monotonic()
        self._ended = {other: end for other, end in self._ended.items() if end >= now} | {worker: until}
        self._no_until = LONG_AGO

    async def step_down(self, hold_off_s: float) -> None:
        """Release the lock, and do not claim it for `hold_off_s`. To let another worker win, this time must be longer
        than `LEADER_HEARTBEAT_S`, the time between two checks of the lock by the other workers.
        """
        self._resting_until = max(self._resting_until, self.clock.monotonic() + hold_off_s)
        async with self._requests:
            await self._give_up(f"stepping down for {hold_off_s:.0f} s")

    async def close(self) -> None:
        """Release the lock for good, by deleting the row; takes at most `CLOSE_TIMEOUT_S`. `is_leader` is False from
        now on.
        """
        self._is_closed = True
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S), self._requests:
                await self._give_up("closing")
        except TimeoutError:
            log.warning("the leader lock could not be released in time", extra={"action": "leader_release_failed"})
        self._drop("closing")
        tasks = [task for task in (self._check, self._heartbeats) if task is not None and not task.done()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def abandon(self) -> None:
        """End without a request: the row stays until it expires, as after a crash."""
        self._is_closed = True
        self._drop("abandoned")
        if self._check is not None:
            self._check.cancel()

    # --- the lock as held ---------------------------------------------------------------------------------------------

    def _holds(self) -> bool:
        """Return whether the lock is held and its time is not over."""
        return self._holding is not None and self._holding.is_valid(self.clock.monotonic())

    def _hold(self, holding: HeldLock) -> None:
        """Note that the lock is held from now on, and start the task that renews it."""
        assert self._holding is None, "a lock is held once"
        self._holding = holding
        self._watched.forget_all()
        self._no_until = self._retry_at = LONG_AGO
        if self._heartbeats is None:
            self._heartbeats = asyncio.create_task(self._keep())

    def _drop(self, reason: str) -> None:
        """Forget the lock, whatever the row shows; announce the end of leadership if its beginning was announced."""
        self._holding = None
        heartbeats, self._heartbeats = self._heartbeats, None
        if heartbeats is not None and heartbeats is not asyncio.current_task():
            heartbeats.cancel()
        if self._leads:
            self._leads = False
            log.info("%s does not lead any more: %s", self.worker_id, reason, extra={"action": "leader_lost"})
            self.on_change(False)

    def _answer_no_for(self, seconds: float) -> None:
        """Have `is_leader` return False without a check for this time."""
        self._no_until = self.clock.monotonic() + seconds

    # --- the check ----------------------------------------------------------------------------------------------------

    def _is_in_place(self) -> bool:
        """Return whether the lock still belongs in the table that this election uses. It belongs in another one after
        the fleet has moved its rows into a single table.
        """
        return self._used is not None and self._used.place == self.table().place

    async def _check_once(self) -> bool:
        """Check the lock once: get it if it is free, and call the hook (`on_check`). If the lock belongs in another
        table by now, only switch to that table. Return whether this worker leads.
        """
        table = self.table()
        if self._used is None:
            self._used = table
        if self._used.place != table.place:
            await self._move(self._used, table)
            return False
        if not self._holds():
            async with self._requests:
                await self._read_and_act(self._used)
        try:
            async with asyncio.timeout(HOOK_TIMEOUT_S):
                await self.on_check(self.holds_lock)
        except Exception as error:
            await self._fail_check(error if isinstance(error, TimeoutError) else survived(error, "checking the leader"))
            return False
        if self.holds_lock and not self._leads:
            self._leads = True
            log.info("%s leads now", self.worker_id, extra={"action": "leader_won"})
            self.on_change(True)
        return self.holds_lock

    async def _fail_check(self, error: Exception) -> None:
        """Give up the lock because the hook has failed: without it, the result of the check must not be used."""
        log.warning("not leading: %s", error or type(error).__name__, extra={"action": "leader_check_failed"})
        table = self.table()
        if self._used is not None and self._used.place != table.place:
            await self._move(self._used, table)
            return
        async with self._requests:
            await self._give_up("a check failed")
            self._answer_no_for(LEADER_HEARTBEAT_S)

    async def _move(self, old: LockTable, new: LockTable) -> None:
        """Give up the lock in the old table, and forget the lock that was seen there."""
        async with self._requests:
            await self._give_up(f"the lock moved from table {old.place.table} to {new.place.table}")
            self._used, self._ours = new, Versions(self.worker_id)
            self._watched.forget_all()
            self._is_claim_unknown, self._no_until = False, LONG_AGO

    # --- requests, one after the other: `_requests` is held -----------------------------------------------------------

    async def _read_and_act(self, table: LockTable) -> None:
        """Read the row, and hold, claim or watch the lock accordingly. Do nothing if the lock is held already, or while
        this worker does not want to lead because it has stepped down.
        """
        if self._is_closed or self._holds():
            return
        self._drop("it expired without a heartbeat")
        resting_s = self._resting_until - self.clock.monotonic()
        if resting_s > 0:
            self._answer_no_for(min(resting_s, LEADER_HEARTBEAT_S))
            return
        try:
            seen = await table.read()
        except Exception as error:
            failure = survived(error, "reading the leader lock")
            log.warning("cannot read the leader lock: %s", failure, extra={"action": "leader_read_failed"})
            self._answer_no_for(LEADER_HEARTBEAT_S)
            return
        await self._act_on(seen, table)

    async def _act_on(self, seen: SeenLock, table: LockTable, *, may_claim: bool = True) -> None:
        """Act on the lock as it was just read. If it is ours, hold it. If it is free, or its owner has ended, claim it.
        Otherwise another worker may lead: do not check again until that worker's next heartbeat is due, or its time
        ends. `may_claim` is False after a refused claim, because each check makes one claim at most.
        """
        now = self.clock.monotonic()
        before = self._watched.value(LOCK_KEY)
        verdict = lock.judge(seen, self._watched, self._ours, now)
        if isinstance(verdict, HeldLock):
            self._hold(verdict)
        elif verdict is None or self._has_owner_ended(seen):
            if may_claim:
                await self._claim(seen, table)
            else:
                self._answer_no_for(UNKNOWN_RECHECK_S)  # the lock is free already, but this check has made its claim
        else:
            if isinstance(seen, DamagedLock) and seen != before:
                log.error(
                    "the row %s of table %s is damaged (%s): no Java worker can lead; it is replaced after %.0f s"
                    " unless somebody writes it",
                    LOCK_KEY,
                    table.place.table,
                    seen.reason,
                    LEASE_S,
                    extra={"action": "leader_row_damaged"},
                )
            self._no_until = now + min(LEADER_HEARTBEAT_S, verdict - now)

    def _has_owner_ended(self, seen: SeenLock) -> bool:
        """Return whether the process of the lock's owner is known to have ended."""
        return isinstance(seen, LockRow) and self._ended.get(seen.owner, LONG_AGO) >= self.clock.monotonic()

    async def _claim(self, over: SeenLock, table: LockTable) -> None:
        """Replace the lock `over` by our own. If another worker was faster, act on its row."""
        sent = self._sending()
        self._is_claim_unknown = True
        try:
            refused = await table.claim(over, self.worker_id, sent.version)
        except Exception as error:
            self._note_failure(
                error, sent, "claiming the leader lock", "cannot claim the leader lock", "leader_claim_failed"
            )
            self._answer_no_for(UNKNOWN_RECHECK_S)
            return
        self._is_claim_unknown = False
        if refused is None:
            self._hold(sent)
            return
        self._ours = self._ours.without(sent.version)
        await self._act_on(refused.lock, table, may_claim=False)

    async def _keep(self) -> None:
        """Renew the lock LEADER_HEARTBEAT_S after each heartbeat, until it is lost. Drop it when it has expired,
        because no heartbeat has succeeded.
        """
        while self._holding is not None:
            due_at = max(self._holding.sent_at + LEADER_HEARTBEAT_S, self._retry_at)
            await self.clock.sleep(max(0.0, min(due_at, self._holding.valid_until) - self.clock.monotonic()))
            async with self._requests:
                if self._holding is not None and self._holds():
                    await self._renew(self._holding)
                else:
                    self._drop("it expired without a heartbeat")

    async def _renew(self, held: HeldLock) -> None:
        """Send a heartbeat. If the row refuses it, the lock is lost, unless an earlier heartbeat was applied
        after all.
        """
        assert self._used is not None, "the lock is held there"
        sent = self._sending()
        try:
            refused = await self._used.heartbeat(self.worker_id, held.version, sent.version)
        except Exception as error:
            self._note_failure(
                error, sent, "renewing the leader lock", "the leader's heartbeat failed", "leader_heartbeat_failed"
            )
            self._retry_at = self.clock.monotonic() + HEARTBEAT_RETRY_S
            return
        self._retry_at = LONG_AGO
        if refused is None:
            self._holding = sent
            return
        self._ours = self._ours.without(sent.version)
        self._holding = lock.judge_refused_heartbeat(refused.lock, self._ours)
        if self._holding is None:
            self._drop(f"{_who(refused.lock)} in the row")

    async def _give_up(self, reason: str) -> None:
        """Stop leading, and delete the row if it is ours. If the last claim had no answer, first read whether the row
        is ours. If that fails a few times, leave the row: it expires by itself.
        """
        version = None if self._holding is None else self._holding.version
        self._drop(reason)
        if self._used is None or (version is None and not self._is_claim_unknown):
            return
        failure: Exception | None = None
        attempts_left = RELEASE_ATTEMPTS_MAX
        while attempts_left:
            try:
                if version is None:  # a claim had no answer: read whether it was applied
                    seen = await self._used.read()
                else:
                    self._ours = self._ours.giving_up(version)
                    attempts_left -= 1
                    if (refused := await self._used.release(self.worker_id, version)) is None:
                        self._is_claim_unknown = False
                        return
                    seen = refused.lock
            except Exception as error:
                failure = survived(error, "releasing the leader lock")
                attempts_left -= version is None  # counts a failed read; a release was counted before it was sent
            else:
                if (found := self._ours.find(seen)) is None:
                    return  # the row is not ours
                version = found.version  # an unanswered write of ours was applied: delete the row by its version
        log.warning("cannot release the leader lock: %s", failure, extra={"action": "leader_release_failed"})

    def _sending(self) -> HeldLock:
        """Make a new version for a claim or heartbeat that is sent now, and remember it. Return the lock that we hold
        if that write is applied.
        """
        held = HeldLock(self.new_version(), self.clock.monotonic(), LEASE_S)
        self._ours = self._ours.sending(held.version, held.sent_at)
        return held

    def _note_failure(self, error: Exception, sent: HeldLock, doing: str, words: str, action: str) -> None:
        """Log that the write of `sent` failed. If it was certainly not applied, forget its version; otherwise keep it,
        because a later read may show it in the row.
        """
        failure = survived(error, doing)
        log.warning("%s: %s", words, failure, extra={"action": action})
        if not may_be_applied(failure):
            self._ours = self._ours.without(sent.version)


def _who(seen: SeenLock) -> str:
    """Return the beginning of a sentence that says who is in the lock row, for the log."""
    if seen is None:
        return "nobody is"
    return "something unreadable is" if isinstance(seen, DamagedLock) else f"{seen.owner} is"
