"""`LockElection`: who leads a 3.x fleet. What it does about the lock is decided in `candidate`.

Rules: coordination#leadership-checks, coordination#lost-lock-replies, coordination#stepping-down. `is_leader` is cheap
both ways: True costs no request while the lock is held, False is believed for one heartbeat, or until the row that we
wait for may be taken. In between there is one check at a time; whoever asks meanwhile waits for it. A task renews the
lock while it is held.

`LockTable` carries out the requests of `lock`, one per call, no retries (coordination#leader-lock). What is not a
definite answer leaves as a `TableError`: the write may or may not have been applied.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any

from mld.aws.boundary import raises_only
from mld.aws.service import Service
from mld.aws.table_calls import REFUSED_CODE, RefusedError, TableCalls
from mld.core.clock import Clock
from mld.core.error_boundary import survived
from mld.core.errors import TableUnavailableError
from mld.fleet.leader import candidate, lock
from mld.fleet.leader.lock import LEASE_S, LOCK_KEY, Claim, LockRow, SeenLock, Versions
from mld.fleet.values import Place
from mld.leases.validity import may_be_applied

REQUEST_TIMEOUT_S = 3.0  # a tenth of a heartbeat: a hanging request leaves time for others before the lock expires


@raises_only(TableUnavailableError)
class LockTable:
    """The lock row of one table. Its writes return None when they were applied."""

    def __init__(self, service: Service, place: Place, *, request_timeout_s: float = REQUEST_TIMEOUT_S) -> None:
        self._calls = TableCalls(service, place.table, request_timeout_s)
        self._place = place

    @property
    def place(self) -> Place:
        return self._place

    async def read(self) -> SeenLock:
        """Return the lock as it is now. Raises TableError; a damaged row is a value."""
        answer = await self._calls.send("GetItem", lock.read(self._place))
        return lock.parse_lock(answer.get("Item"))

    async def claim(self, over: SeenLock, owner: str, version: str, *, lease_s: float) -> candidate.Refused | None:
        """Write a new lock over the one seen. Raises TableError."""
        return await self._write("PutItem", lock.claim(self._place, over, owner, version, lease_s=lease_s))

    async def heartbeat(
        self, owner: str, version: str, next_version: str, *, lease_s: float
    ) -> candidate.Refused | None:
        """Give the lock held under `version` its next version. Raises TableError."""
        request = lock.heartbeat(self._place, owner, version, next_version, lease_s=lease_s)
        return await self._write("UpdateItem", request)

    async def release(self, owner: str, version: str) -> candidate.Refused | None:
        """Delete the lock held under `version`. Raises TableError."""
        return await self._write("DeleteItem", lock.release(self._place, owner, version))

    async def _write(self, operation: str, params: Mapping[str, Any]) -> candidate.Refused | None:
        try:
            await self._calls.send(operation, params, refusals=(REFUSED_CODE,))
        except RefusedError as refused:
            return candidate.Refused(lock.parse_lock(refused.row) if refused.row else await self.read())
        return None


log = logging.getLogger(__name__)

HOOK_TIMEOUT_S = 30.0  # a check that hangs must not stop everybody who asks for the leader
CLOSE_TIMEOUT_S = 10.0  # a check under way, and a release; afterwards the row is left to expire

CheckHook = Callable[[bool], Awaitable[None]]

_DOING = {
    candidate.Reading.LOOK: "reading the leader lock",
    candidate.Reading.FIND: "releasing the leader lock",
    Claim: "claiming the leader lock",
    candidate.Renew: "renewing the leader lock",
    candidate.Release: "releasing the leader lock",
}
_FAILURES = {
    candidate.Reading.LOOK: ("cannot read the leader lock", "leader_read_failed"),
    Claim: ("cannot claim the leader lock", "leader_claim_failed"),
    candidate.Renew: ("the leader's heartbeat failed", "leader_heartbeat_failed"),
}


async def _nothing(_: bool) -> None:
    """Do nothing: the hook of an election that has none."""


@dataclass(eq=False)
class LockElection:
    """Leads while it holds the lock row.

    `table` names the table that holds the lock now. When it names another one, the lock in the old one is released and
    the next question is answered with False, without being remembered. `on_check` is called with the result of each
    question that was not answered from memory, except during a move; if it raises, or hangs, the lock is released and
    the answer is False. It must not ask this election. `on_change` is told when leadership was won or lost.
    """

    table: Callable[[], LockTable]
    clock: Clock
    _: KW_ONLY
    worker_id: str
    new_version: Callable[[], str]
    on_check: CheckHook = _nothing
    on_change: Callable[[bool], None] = lambda _: None

    def __post_init__(self) -> None:
        self._state = candidate.LeaderCandidate(Versions(self.worker_id))
        self._used: LockTable | None = None
        self._requests = asyncio.Lock()
        self._check: asyncio.Task[bool] | None = None
        self._heartbeats: asyncio.Task[None] | None = None
        self._failure: Exception | None = None

    @property
    def leads(self) -> bool:
        """See `LeaderDecider`."""
        return self._state.leads

    @property
    def leader(self) -> str | None:
        """Which other worker held the lock at the last look; None if that is not known."""
        seen = None if self._state.observation is None else self._state.observation.lock
        return seen.owner if isinstance(seen, LockRow) else None

    @property
    def holds_lock(self) -> bool:
        """Whether the lock is held at this moment, as far as this process can know. Asks nobody."""
        return not self._state.is_closed and self._state.holds(self.clock.monotonic()) and self._is_in_place()

    async def is_leader(self) -> bool:
        """See `LeaderDecider`. At most one read, one claim and, if the hook says so, one release; no pauses."""
        if self._state.is_closed or (self.clock.monotonic() < self._state.no_until and self._is_in_place()):
            return False
        if self._check is None or self._check.done():
            self._check = asyncio.create_task(self._check_once())
        check = self._check
        assert check is not asyncio.current_task(), "the hook of an election must not ask the election"
        await asyncio.wait({check})  # a caller that is cancelled leaves the check to the others
        return not check.cancelled() and check.result() and self.holds_lock

    def ended(self, worker: str, until: float) -> None:
        """Have the lock claimed of a worker that is known to have ended, and none of whose name runs before `until`."""
        self._step(candidate.Ended(worker, until))

    async def step_down(self, hold_off_s: float) -> None:
        """See `LeaderDecider`. To let another worker win, `hold_off_s` exceeds a heartbeat, their polling period."""
        self._step(candidate.StepDown(hold_off_s))
        async with self._requests:
            await self._converse(candidate.GiveUp(f"stepping down for {hold_off_s:.0f} s"))

    async def close(self) -> None:
        """See `LeaderDecider`. Deletes the row; takes at most `CLOSE_TIMEOUT_S`."""
        self._step(candidate.News.CLOSE)
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S), self._requests:
                await self._converse(candidate.GiveUp("closing"))
        except TimeoutError:
            log.warning("the leader lock could not be released in time", extra={"action": "leader_release_failed"})
        self._step(candidate.Drop("closing"))
        tasks = [task for task in (self._check, self._heartbeats) if task is not None and not task.done()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def abandon(self) -> None:
        """End without a request: the row stays until it expires, as after a crash."""
        self._step(candidate.News.CLOSE)
        self._step(candidate.Drop("abandoned"))
        if self._check is not None:
            self._check.cancel()

    # --- the check ----------------------------------------------------------------------------------------------------

    def _is_in_place(self) -> bool:
        return self._used is not None and self._used.place == self.table().place

    async def _check_once(self) -> bool:
        table = self.table()
        if self._used is None:
            self._used = table
        if self._used.place != table.place:
            await self._move(self._used, table)
            return False
        if not self._state.holds(self.clock.monotonic()):
            async with self._requests:
                await self._converse(candidate.News.ASK)
        try:
            async with asyncio.timeout(HOOK_TIMEOUT_S):
                await self.on_check(self.holds_lock)
        except Exception as error:
            await self._fail_check(error if isinstance(error, TimeoutError) else survived(error, "checking the leader"))
            return False
        if self.holds_lock:
            self._step(candidate.News.CHECK_PASSED)
        return self.holds_lock

    async def _fail_check(self, error: Exception) -> None:
        """Give the lock up, because the hook says that the result must not be used."""
        log.warning("not leading: %s", error or type(error).__name__, extra={"action": "leader_check_failed"})
        table = self.table()
        if self._used is not None and self._used.place != table.place:
            await self._move(self._used, table)
            return
        async with self._requests:
            await self._converse(candidate.GiveUp("a check failed"))
            self._step(candidate.News.CHECK_FAILED)

    async def _move(self, old: LockTable, new: LockTable) -> None:
        """Leave the table that the lock lived in."""
        async with self._requests:
            await self._converse(candidate.GiveUp(f"the lock moved from table {old.place.table} to {new.place.table}"))
            self._used = new
            self._step(candidate.News.MOVED)

    # --- carrying out -------------------------------------------------------------------------------------------------

    async def _keep(self) -> None:
        """Renew the lock until it is dropped."""
        while self._state.holding is not None:
            await self.clock.sleep(max(0.0, self._state.heartbeat_at - self.clock.monotonic()))
            async with self._requests:
                await self._converse(candidate.News.HEARTBEAT_DUE)

    async def _converse(self, event: candidate.Event) -> None:
        """Carry out what an event asks for, request after request. `_requests` is held."""
        request = self._step(event)
        while request is not None:
            request = self._step(await self._send(request))

    def _step(self, event: candidate.Event) -> candidate.Request | None:
        """Go on with an event; the request that it leads to."""
        self._state, actions = candidate.step(self._state, event, self.clock.monotonic())
        self._mind_heartbeats()
        for action in actions:
            match action:
                case candidate.Notice.WON:
                    log.info("%s leads now", self.worker_id, extra={"action": "leader_won"})
                    self.on_change(True)
                case candidate.Lost(reason):
                    fields = {"action": "leader_lost"}
                    log.info("%s does not lead any more: %s", self.worker_id, reason, extra=fields)
                    self.on_change(False)
                case candidate.ReportDamage(damaged, after_s):
                    log.error(
                        "the row %s of table %s is damaged (%s): no Java worker can lead; it is replaced after %.0f s"
                        " unless somebody writes it",
                        LOCK_KEY,
                        self.table().place.table,
                        damaged.reason,
                        after_s,
                        extra={"action": "leader_row_damaged"},
                    )
                case candidate.Notice.UNRELEASED:
                    fields = {"action": "leader_release_failed"}
                    log.warning("cannot release the leader lock: %s", self._failure, extra=fields)
                case _:
                    return action
        return None

    def _mind_heartbeats(self) -> None:
        """Have a task renew the lock exactly while it is held."""
        if self._state.holding is None:
            heartbeats, self._heartbeats = self._heartbeats, None
            if heartbeats is not None and heartbeats is not asyncio.current_task():
                heartbeats.cancel()
        elif self._heartbeats is None:
            self._heartbeats = asyncio.create_task(self._keep())

    async def _send(self, request: candidate.Request) -> candidate.Event:
        """Return the answer to one request."""
        version = ""
        if isinstance(request, Claim | candidate.Renew):
            version = self.new_version()
            self._step(candidate.Sending(version))
        try:
            return await self._answer(request, version)
        except Exception as error:
            kind = request if isinstance(request, candidate.Reading) else type(request)
            self._failure = survived(error, _DOING[kind])
            if kind in _FAILURES:
                what, action = _FAILURES[kind]
                log.warning("%s: %s", what, self._failure, extra={"action": action})
            return candidate.Failed(may_be_applied(self._failure))

    async def _answer(self, request: candidate.Request, version: str) -> candidate.Event:
        table = self._used
        assert table is not None
        refusal: candidate.Refused | None
        match request:
            case candidate.Reading():
                return candidate.Read(await table.read())
            case Claim(over):
                refusal = await table.claim(over, self.worker_id, version, lease_s=LEASE_S)
            case candidate.Renew(held):
                refusal = await table.heartbeat(self.worker_id, held, version, lease_s=LEASE_S)
            case candidate.Release(held):
                refusal = await table.release(self.worker_id, held)
        return refusal or candidate.News.APPLIED
