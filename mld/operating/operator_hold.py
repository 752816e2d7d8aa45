"""`OperatorHold`: takes an application's leases for a command, renews them while it works, and gives them back.

A command takes leases only if no living worker holds them (`owner_life`), or by force. To a fleet, even one of Java, an
operator looks like a worker: it owns leases and renews them, under an id that begins with ``mld-operator-``. Taking a
lease ends the former owner's checkpoints at once, because each of them is conditional on the counter or the owner. If
the command dies, its leases expire like those of a dead worker, and the fleet goes on with the rows as they are then.

To take a lease by force, the operator uses the same write as a leader that assigns a lease (`assign` in
leases#conditional-writes). Its only condition is that the row still has the owner that was read. It adds one to the
counter, whatever the counter's value. A condition on the counter would protect nothing, because the owner is to lose
the lease whatever it has written meanwhile. Later writes of the former owner are refused: a worker of mld makes each
write conditional on being the owner, and Java on the counter that it wrote last.

A worker of a 2.x fleet may steal a lease even from an operator. Then a write of the operator is refused, and the
operator takes the lease again. Two operators never hold one table: an operator that finds leases of another one, which
is not known to be dead, gives up.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

from mld.core.clock import Clock
from mld.core.errors import TableError
from mld.core.periods import RENEWALS_PER_LEASE
from mld.core.turns import a_few_at_a_time
from mld.leases import writes
from mld.leases.lease import Lease
from mld.leases.table import LeaseTable, Refusal
from mld.operating.operator_id import is_operator
from mld.operating.plan import ActRefusedError, Change, Fate, Outcome
from mld.operating.table_access import write_change

TRIES_MAX = 6
"""Attempts to take a lease that keeps changing hands; also attempts to send a request that gets no answer."""
PAUSE_S = 0.2


class OperatorHold:
    """The leases of the operator `me`. `operator_hold` makes it, and explains `dead`."""

    def __init__(
        self,
        table: LeaseTable,
        clock: Clock,
        me: str,
        lease_duration_s: float,
        dead: frozenset[str] = frozenset(),
    ) -> None:
        self.me = me
        self._dead = dead
        self._table = table
        self._clock = clock
        self._duration_s = lease_duration_s
        self._held: dict[str, Lease] = {}
        self._noticed_at_s = clock.monotonic()
        """When all former owners of leases taken by force will have noticed the loss at the latest; see
        `until_noticed`."""

    @property
    def keys(self) -> frozenset[str]:
        """Keys of the leases that this operator holds now."""
        return frozenset(self._held)

    async def take(self, leases: Iterable[Lease], *, by_force: bool) -> None:
        """Take these leases, as they were read. Raises ActRefusedError if a row has changed since; TableError.

        With `by_force` a lease is taken even if its row has changed or it has another owner by now. Only another
        operator keeps its leases.
        """

        async def one(lease: Lease) -> None:
            await self._take(lease, by_force=by_force)

        await a_few_at_a_time(one, [lease for lease in leases if lease.key not in self._held])

    async def _take(self, lease: Lease, *, by_force: bool) -> None:
        """Take one lease. If the write is refused or its answer is lost, try again from the present row, until the row
        is ours or gone. Raises ActRefusedError if another operator has the lease, or, unless `by_force` is set, if
        anybody else has changed it; TableError.
        """
        # By force the owner is the only condition: a busy worker may change its row faster than a distant table
        # answers.
        make = writes.assign if by_force else writes.take
        row: Lease | None = lease
        last: TableError | None = None
        for _ in range(TRIES_MAX):
            if row is None:
                return  # its row is gone
            if row.actual_owner == self.me and row.checkpoint_owner is None:  # ours, and in no handoff
                self._note_taken(row, by_force=by_force)
                return
            self._require_no_other_operator(row)
            try:
                taken = await self._table.apply(make(row, self.me))
                if not isinstance(taken, Refusal):
                    self._note_taken(taken, by_force=by_force and row.actual_owner is not None)
                    return
                row = await self._table.get(lease.key)
            except TableError as error:
                last = error  # the take may be applied: then the next attempt is refused, and finds the row to be ours
                await self._clock.sleep(PAUSE_S)
                continue
            if row is not None and row.actual_owner != self.me and not by_force:
                raise ActRefusedError(_moved(row))
        if last is not None:
            raise last
        raise ActRefusedError(f"lease {lease.key} changes hands each time it is about to be taken; ask again")

    def _note_taken(self, lease: Lease, *, by_force: bool) -> None:
        """Note that the lease is ours. Its former owner may have renewed it until our write was applied, at the latest
        now.
        """
        self._held[lease.key] = lease
        if by_force:
            self._noticed_at_s = self._clock.monotonic() + self._duration_s

    def _require_no_other_operator(self, lease: Lease) -> None:
        """Raise ActRefusedError if another operator, which is not known to be dead, has the lease."""
        owner = lease.actual_owner
        if is_operator(owner) and owner != self.me and owner not in self._dead:
            raise ActRefusedError(_moved(lease))

    async def write(self, change: Change) -> Outcome:
        """Write a change whose result does not depend on the row's present values, so that it may be sent more than
        once.

        A lease that was stolen meanwhile is taken back first. If no try is known to have written the change, return an
        unknown outcome if any try had one, because that try may have written it; otherwise the last refusal. Raises
        ActRefusedError, TableError.
        """
        doubt: Outcome | None = None
        for _ in range(TRIES_MAX):
            outcome = await write_change(change, self._table, self._clock)
            if outcome.fate is Fate.UNKNOWN:
                doubt = outcome
                await self._clock.sleep(PAUSE_S)
            elif outcome.fate is Fate.REFUSED:
                outcome = await self._after_refusal(outcome, await self._row(change.key))
            if outcome.fate is Fate.DONE:
                self._note_written(change.key, outcome.row)
                return outcome
        return doubt or outcome

    def _note_written(self, key: str, row: Lease | None) -> None:
        """Note the row of a held lease after a write; None if the lease is not held any more."""
        if row is None:
            self._held.pop(key, None)
        else:
            self._held[key] = row

    async def _after_refusal(self, outcome: Outcome, row: Lease | None) -> Outcome:
        """Return the outcome of a refused write, given the present row.

        An earlier attempt whose answer was lost may have been applied; then this one is refused although the change is
        done. If another worker has the lease now, the lease is taken again.
        """
        write = outcome.change.write
        if row is None:
            return replace(outcome, fate=Fate.DONE, why="", row=None) if write.deletes else outcome
        if row.actual_owner != self.me:
            self._held.pop(row.key, None)
            await self._take(row, by_force=True)
            row = self._held.get(row.key)
        if write.item and row is not None:  # the row that was to be created exists, and is ours
            return replace(outcome, fate=Fate.DONE, why="", row=row)
        return outcome

    async def _row(self, key: str) -> Lease | None:
        """Return the present row; None if there is none. Raises TableError after some tries."""
        for _ in range(TRIES_MAX - 1):
            try:
                return await self._table.get(key)
            except TableError:
                await self._clock.sleep(PAUSE_S)
        return await self._table.get(key)

    async def keep(self) -> None:
        """Renew all leases, three times in a lease duration, until cancelled."""
        while True:
            await self._clock.sleep(self._duration_s / RENEWALS_PER_LEASE)
            await a_few_at_a_time(self._renew, sorted(self._held))

    async def _renew(self, key: str) -> None:
        """Renew one held lease. After a refusal the present row is kept, if it still is ours; after an error nothing
        changes.
        """
        lease = self._held.get(key)
        if lease is None:
            return
        with contextlib.suppress(TableError):
            renewed = await self._table.apply(writes.renew(lease))
            if isinstance(renewed, Refusal):
                row = await self._table.get(key)
                renewed = row if row is not None and row.actual_owner == self.me else renewed
            if isinstance(renewed, Lease) and key in self._held:
                self._held[key] = renewed

    async def until_noticed(self) -> None:
        """Wait until each former owner of a lease taken by force has noticed the loss, or must believe that it has
        expired.

        If a worker got a lease back before it noticed the loss, it would find that somebody else has changed the row,
        and would conclude that another process runs under its id.
        """
        await self._clock.sleep(max(0.0, self._noticed_at_s - self._clock.monotonic()))

    async def give_back(self) -> Sequence[str]:
        """Release every lease, so that any worker may take it. Return the keys of leases that could not be released,
        and expire instead.
        """
        left: list[str] = []

        async def release(key: str) -> None:
            """Release one lease. If that fails again and again, note that it is left."""
            for _ in range(TRIES_MAX):
                try:
                    await self._table.apply(writes.release(self._held[key]))
                except TableError:
                    await self._clock.sleep(PAUSE_S)
                else:
                    del self._held[key]
                    return
            left.append(key)

        await a_few_at_a_time(release, sorted(self._held))
        return left


def _moved(lease: Lease) -> str:
    """Return the message for a lease that changed after it was read."""
    owner = f"{lease.actual_owner} has it" if lease.actual_owner else "nobody has it"
    return (
        f"lease {lease.key} moved since it was looked at ({owner} now): somebody else is at work; ask again when they "
        "have finished"
    )


@asynccontextmanager
async def operator_hold(
    table: LeaseTable,
    clock: Clock,
    me: str,
    lease_duration_s: float,
    *,
    dead: frozenset[str] = frozenset(),
) -> AsyncIterator[OperatorHold]:
    """Open a hold of operator `me`, without leases at first. It renews the leases that it takes, and gives them back
    however the context ends.

    `dead` are operators whose commands are known to have ended without giving their leases back.
    """
    hold = OperatorHold(table, clock, me, lease_duration_s, dead)
    keeping = asyncio.create_task(hold.keep())
    try:
        yield hold
    finally:
        try:
            await hold.until_noticed()
        finally:
            keeping.cancel()
            await asyncio.wait({keeping})
            await hold.give_back()
