"""`GivingAway`: gives a held lease to another worker, or releases it, on behalf of the keeper.

Rules: leases#handoff-on-the-owner-side, leases#handoff-deadline, leases#release-on-stop.

A lease goes to the next owner of its pending handoff. If this worker is leaving, each lease goes to a living worker. If
no worker can receive the lease, it is released: then it belongs to nobody. These writes are conditional on the owners
and not on the counter, so that they also work right after a renewal whose reply was lost. If such a write is refused,
another worker has changed the row's owners.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from random import Random
from typing import TypeVar

from mld.core.clock import Clock
from mld.core.error_boundary import survived
from mld.core.log_fields import about
from mld.leases import writes
from mld.leases.lease import Lease
from mld.leases.table import LeaseTable, LeaseWrite, Refusal
from mld.leases.validity import Holding, may_be_applied, retry_delay_s
from mld.metrics.events import NOBODY, EventKind
from mld.metrics.registry import Metrics
from mld.metrics.worker import LeaseMove

log = logging.getLogger(__name__)
T = TypeVar("T")

RELEASE_ATTEMPTS_MAX = 4  # few: a stop must not wait long, and an unreleased lease is only taken a little later
HAND_OVER_ATTEMPTS_MAX = 2  # then a worker that leaves releases the lease; others find a released lease almost as fast

ReceiverOf = Callable[[Lease], Awaitable[str | None]]
"""Returns the worker that gets a lease of a leaving worker; None if there is none."""


@dataclass(eq=False)
class GivingAway:
    """Gives away leases that `worker_id` holds."""

    table: LeaseTable
    clock: Clock
    rng: Random
    worker_id: str
    metrics: Metrics

    def __post_init__(self) -> None:
        self._receiver_of: ReceiverOf | None = None  # set once this worker leaves

    def leave_to(self, receiver_of: ReceiverOf) -> None:
        """Note that this worker leaves. From now on each lease goes to the worker that `receiver_of` returns for it; if
        that is None, the lease is released.
        """
        self._receiver_of = receiver_of

    async def give(self, holding: Holding) -> bool:
        """Give the lease of `holding` away, or release it. Return True if the row is known to belong to another worker,
        or to nobody.

        A handoff is tried until it is answered or the lease expires, because no other worker can complete it sooner. A
        worker that leaves makes only a few attempts. If its write is refused because a handoff has begun or ended, it
        tries once more with the owners that the row has now.
        """
        receiver_of = self._receiver_of
        for _ in range(writes.RELEASE_WRITES_MAX):
            lease = holding.lease
            to = lease.handoff_to if receiver_of is None else await receiver_of(lease)
            if to is None:
                break
            answer = await self._assign(holding, to, None if receiver_of is None else HAND_OVER_ATTEMPTS_MAX)
            if isinstance(answer, Lease) or receiver_of is None:
                return isinstance(answer, Lease)
            row = None if answer is None else writes.judge_refused_release(lease, answer.row)
            if row is None:
                break
            holding.lease = row
        return await self._release(holding)

    async def _release(self, holding: Holding) -> bool:
        """Release the lease, so that it belongs to nobody. Return whether the release was certainly applied."""
        release = writes.release(holding.lease)
        released = await self._send_until_answered(holding, lambda _: release, RELEASE_ATTEMPTS_MAX) is True
        if released:
            self.metrics.worker.lease_moves.add(LeaseMove.RELEASED.value)
            self._note_move(holding, NOBODY, f"given back by {self.worker_id}")
        return released

    async def _assign(self, holding: Holding, to: str, attempts_max: int | None) -> Lease | Refusal | None:
        """Give the lease to the worker `to`. Return the row, the refusal, or None if the outcome stays unknown."""
        lease = holding.lease
        answer = await self._send_until_answered(
            holding, lambda resent: writes.assign(lease, to, resent=resent), attempts_max
        )
        if isinstance(answer, Refusal):
            refused = "lease %s not given to %s: %s"
            log.info(refused, lease.key, to, answer.why, extra=about("assign_refused", lease.key))
        elif answer is not None:
            self.metrics.worker.lease_moves.add(LeaseMove.HANDED_OFF.value)
            self._note_move(holding, to, f"from {self.worker_id}")
        return answer

    def _note_move(self, holding: Holding, to: str, words: str) -> None:
        """Add an event: the lease has gone to the worker `to`; `words` are the details."""
        self.metrics.events.note(EventKind.MOVED, words, shard=holding.lease.key, worker=to)

    async def _send_until_answered(
        self, holding: Holding, make: Callable[[bool], LeaseWrite[T]], attempts_max: int | None
    ) -> T | None:
        """Send a write, repeatedly after errors, until it is answered. Return the answer, or None if the outcome stays
        unknown.

        `make` makes the write; its argument is whether an earlier attempt may have been applied.
        """
        key, valid_until = holding.lease.key, holding.until
        attempt, resent = 0, False
        while True:
            attempt += 1
            try:
                return await self.table.apply(make(resent))
            except Exception as error:
                failure = survived(error, "giving a lease away", key)
                resent = resent or may_be_applied(failure)
                delay_s = retry_delay_s(attempt, valid_until - self.clock.monotonic(), self.rng)
                if delay_s is None or attempt == attempts_max:
                    log.warning("cannot give %s away: %s", key, failure, extra=about("release_failed", key))
                    return None
            await self.clock.sleep(delay_s)
