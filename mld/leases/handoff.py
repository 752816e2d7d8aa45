"""How a holder gives its row away: it completes a pending handoff, hands the lease over by name, or releases it.

Rules: leases#handoff-on-the-owner-side, leases#handoff-deadline, leases#release-on-stop. These writes are conditional
on the owners, not on the counter, so that they also work right after a renewal whose reply was lost. Whose turn it is,
and that nothing else is written meanwhile, is the keeper's business. A refusal means that somebody else has moved the
row: then there is nothing left to give.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from typing import TypeVar

from mld.clock import Clock
from mld.leases import writes
from mld.leases.lease import Lease
from mld.leases.retries import may_be_applied, retry_delay_s
from mld.leases.table import LeaseTable, LeaseWrite, Refusal
from mld.surviving import survived

log = logging.getLogger(__name__)

RELEASE_ATTEMPTS_MAX = 4  # a release only saves others time; shutdown must not wait for it
HAND_OVER_ATTEMPTS_MAX = 2  # a release may follow, and the next owner finds a released lease almost as fast

T = TypeVar("T")


class Parting:
    """Each method is True if the row is known to be in other hands, or free. `valid_until` ends all attempts."""

    def __init__(self, table: LeaseTable, clock: Clock, rng: random.Random) -> None:
        self._table = table
        self._clock = clock
        self._rng = rng

    async def transfer(self, lease: Lease, valid_until: float) -> bool:
        """Complete the handoff that the row asks for. Tried until the lease expires: nobody else can do it sooner."""
        if lease.handoff_to is None:
            return await self.release(lease, valid_until)
        return await self._assign(lease, lease.handoff_to, valid_until, None)

    async def hand_over(self, lease: Lease, to: str, valid_until: float) -> bool:
        """Make `to` the owner, or release the lease if that does not work. A pending handoff has its own next owner."""
        may_choose = lease.checkpoint_owner is None and to != lease.owner
        if may_choose and await self._assign(lease, to, valid_until, HAND_OVER_ATTEMPTS_MAX):
            return True
        return await self.release(lease, valid_until)

    async def release(self, lease: Lease, valid_until: float) -> bool:
        """Remove the owner, so that others may take the lease at once; a pending handoff is completed by that."""
        answer = await self._try(lambda _: writes.release(lease), lease, valid_until, RELEASE_ATTEMPTS_MAX)
        return answer is True

    async def _assign(self, lease: Lease, to: str, valid_until: float, attempts_max: int | None) -> bool:
        answer = await self._try(
            lambda resent: writes.assign(lease, to, resent=resent), lease, valid_until, attempts_max
        )
        if isinstance(answer, Refusal):
            log.info("lease %s not given to %s: %s", lease.key, to, answer.why, extra=_about(lease, "assign_refused"))
        return isinstance(answer, Lease)

    async def _try(
        self, make: Callable[[bool], LeaseWrite[T]], lease: Lease, valid_until: float, attempts_max: int | None
    ) -> T | None:
        """The write's answer, None if it stays unknown. `make` gets whether an earlier attempt may have worked."""
        attempt, resent = 0, False
        while True:
            attempt += 1
            try:
                return await self._table.apply(make(resent))
            except Exception as error:
                failure = survived(error, "giving a lease away", lease.key)
                resent = resent or may_be_applied(failure)
                delay_s = retry_delay_s(attempt, valid_until - self._clock.monotonic(), self._rng)
                if delay_s is None or attempt == attempts_max:
                    key = lease.key
                    log.warning("cannot give %s away: %s", key, failure, extra=_about(lease, "release_failed"))
                    return None
            await self._clock.sleep(delay_s)


def _about(lease: Lease, action: str) -> dict[str, str]:
    return {"action": action, "shard": lease.key}
