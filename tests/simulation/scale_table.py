"""`LeanLeaseTable`: the lease table as a dict of `Lease` values, for fleets too large for the DynamoDB twin.

It keeps no rows and evaluates no expressions: each condition of `mld.leases.writes` stands here as one line of Python.
That the two agree is proved by `test_scale`, with the contract suite and with random histories run on both. What a
refusal means is decided by the functions of `writes` themselves. Every request takes its time, is applied at the end of
it, never fails, and is put on the `Bill` as DynamoDB would charge it.

It must never accept a write that DynamoDB would refuse, nor charge less than DynamoDB would.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from random import Random
from typing import Any

from mld.leases.lease import Failing, Lease, ShardStatus
from mld.leases.rows import CorruptRowError
from mld.leases.table import IndexStatus, Refusal, TableScan
from mld.leases.writes import (
    is_owner_switch,
    judge_refused,
    judge_refused_assign,
    judge_refused_handoff,
    judge_refused_release,
    judge_refused_take,
)
from mld.positions import Position
from mld.streams import HashRange

ROW_BYTES = 400
"""A lease row with hash range, throughput and names of usual length."""
PAGE_BYTES = 2**20
PAGE_ROWS = PAGE_BYTES // ROW_BYTES
READ_UNIT_BYTES = 4096
EVENTUALLY_CONSISTENT = 0.5
WRITE_S_MIN, WRITE_S_MAX = 0.003, 0.009
PAGE_S_MIN, PAGE_S_MAX = 0.03, 0.06
INDEX_ROW_BYTES = 120
"""Key, owner and their names; other attributes are not in the index."""
RELEASE_WRITES_MAX = 2


@dataclass(slots=True)
class Bill:
    """Requests and units since the start. Refused conditional writes cost what accepted ones cost."""

    pages: int = 0
    gets: int = 0
    queries: int = 0
    renewals: int = 0
    takes: int = 0
    assignments: int = 0
    other_writes: int = 0
    refused: int = 0
    read_units: float = 0.0
    write_units: float = 0.0

    @property
    def requests(self) -> int:
        reads = self.pages + self.gets + self.queries
        return reads + self.renewals + self.takes + self.assignments + self.other_writes

    def since(self, before: Bill) -> Bill:
        return Bill(*(getattr(self, part.name) - getattr(before, part.name) for part in fields(Bill)))


@dataclass(slots=True)
class LeanLeaseTable:
    """The `LeaseTable` port. `moves` counts accepted changes of owner; the last one was at `moved_at`."""

    rng: Random
    leases: dict[str, Lease] = field(default_factory=dict)
    corrupt: dict[str, str] = field(default_factory=dict)
    others: dict[str, Mapping[str, Mapping[str, Any]]] = field(default_factory=dict)
    """Rows that are no leases."""
    bill: Bill = field(default_factory=Bill)
    moves: int = 0
    moved_at: float = 0.0
    index: IndexStatus = IndexStatus.MISSING
    peak_writes: int = 0
    """Most writes within one second. An on-demand table starts with 4,000 a second."""
    _second: int = 0
    _writes_in_second: int = 0

    # --- reads --------------------------------------------------------------------------------------------------------

    async def ensure(self) -> bool:
        return False

    async def scan(self) -> TableScan:
        """Page after page; each shows its rows as they are when it is read."""
        keys = list(self.leases)
        rows = len(keys) + len(self.others)
        found: list[Lease] = []
        for start in range(0, max(1, rows), PAGE_ROWS):
            await asyncio.sleep(self.rng.uniform(PAGE_S_MIN, PAGE_S_MAX))
            size = min(PAGE_ROWS, rows - start) * ROW_BYTES
            self.bill.pages += 1
            self.bill.read_units += EVENTUALLY_CONSISTENT * max(1, math.ceil(size / READ_UNIT_BYTES))
            found += [lease for lease in map(self.row, keys[start : start + PAGE_ROWS]) if lease is not None]
        return TableScan(tuple(found), tuple(self.corrupt.items()), tuple(self.others.values()))

    async def get(self, key: str, *, consistent: bool = True) -> Lease | None:
        await self._travel()
        self.bill.gets += 1
        self.bill.read_units += 1 if consistent else EVENTUALLY_CONSISTENT
        if key in self.corrupt:
            raise CorruptRowError(key, self.corrupt[key])
        return self.row(key)

    async def get_many(self, keys: Sequence[str]) -> dict[str, Lease]:
        await self._travel()
        self.bill.gets += 1
        self.bill.read_units += len(keys)
        return {key: lease for key in keys if (lease := self.row(key)) is not None}

    async def keys_owned_by(self, worker: str) -> tuple[str, ...]:
        await self._travel()
        keys = tuple(key for key, lease in self.leases.items() if lease.owner == worker)
        self.bill.queries += 1
        self.bill.read_units += EVENTUALLY_CONSISTENT * max(1, math.ceil(len(keys) * INDEX_ROW_BYTES / READ_UNIT_BYTES))
        return keys

    async def ensure_owner_index(self) -> IndexStatus:
        self.index = IndexStatus.ACTIVE
        return self.index

    async def owner_index_status(self) -> IndexStatus:
        return self.index

    def row(self, key: str) -> Lease | None:
        """A row as it is now."""
        return self.leases.get(key)

    # --- writes -------------------------------------------------------------------------------------------------------

    async def create(self, lease: Lease) -> bool:
        await self._write()
        if lease.key in self.leases or lease.key in self.corrupt:
            return False
        self.leases[lease.key] = lease
        return True

    async def renew(
        self,
        lease: Lease,
        *,
        resent: bool = False,
        heartbeat: str | None = None,
        failing: Failing | None = None,
        status: ShardStatus | None = None,
    ) -> Lease | Refusal:
        await self._travel()
        self.bill.renewals += 1
        self._charge_write()
        row = self.leases.get(lease.key)
        if row is None or not _is_held_by(row, lease):
            return self._refused(judge_refused(lease, row, resent=resent))
        kbps = row.throughput_kbps if lease.throughput_kbps is None else lease.throughput_kbps
        return self._put(
            replace(
                row,
                counter=row.counter + 1,
                throughput_kbps=kbps,
                heartbeat=heartbeat,
                failing=row.failing if failing is None else failing if failing.failures else None,
                status=status or row.status,
            )
        )

    async def take(self, lease: Lease, owner: str, *, resent: bool = False) -> Lease | Refusal:
        await self._travel()
        self.bill.takes += 1
        self._charge_write()
        row = self.leases.get(lease.key)
        if row is None or row.counter != lease.counter:
            return self._refused(judge_refused_take(lease, owner, row, resent=resent))
        switches = row.owner_switches + is_owner_switch(lease, owner)
        if row.owner != owner:
            self._note_move()
        return self._put(_given(row, owner, switches))

    async def begin_handoff(self, lease: Lease, next_owner: str, *, resent: bool = False) -> Lease | Refusal:
        await self._assignment()
        row = self.row(lease.key)
        if row is None or row.owner != lease.owner or row.checkpoint_owner is not None:
            return self._refused(judge_refused_handoff(lease, next_owner, row, resent=resent))
        self._note_move()
        return self._put(replace(row, owner=next_owner, checkpoint_owner=row.owner))

    async def assign(self, lease: Lease, owner: str, *, resent: bool = False) -> Lease | Refusal:
        return await self._assign(lease, owner, None, resent=resent)

    async def assign_expired(self, lease: Lease, owner: str, *, resent: bool = False) -> Lease | Refusal:
        return await self._assign(lease, owner, lease.counter, resent=resent)

    async def _assign(self, lease: Lease, owner: str, counter: int | None, *, resent: bool) -> Lease | Refusal:
        await self._assignment()
        row = self.row(lease.key)
        if row is None or not _has_owners_of(row, lease) or counter not in (None, row.counter):
            return self._refused(judge_refused_assign(lease, owner, row, resent=resent))
        if row.owner != owner:  # the end of a handoff is not another move
            self._note_move()
        return self._put(_given(row, owner, row.owner_switches + is_owner_switch(lease, owner)))

    async def checkpoint(
        self, lease: Lease, position: Position, *, resent: bool = False, throughput_kbps: float | None = None
    ) -> Lease | Refusal:
        await self._write()
        row = self.leases.get(lease.key)
        if row is None or not _is_held_by(row, lease) or (row.is_complete and not position.is_shard_end):
            return self._refused(judge_refused(lease, row, resent=resent, position=position))
        stored = Position(position.sequence) if position.is_sentinel else position
        kbps = row.throughput_kbps if throughput_kbps is None else throughput_kbps
        counter = row.counter + 1
        return self._put(
            replace(
                row,
                counter=counter,
                checkpoint=stored,
                owner_switches=0,
                pending=None,
                throughput_kbps=kbps,
                failing=None,
            )
        )

    async def release(self, lease: Lease) -> bool:
        current: Lease | None = lease
        for _ in range(RELEASE_WRITES_MAX):
            if current is None:
                return False
            await self._write()
            row = self.leases.get(lease.key)
            if row is not None and _has_owners_of(row, current):
                owner = None if current.checkpoint_owner is None else row.owner
                self._put(replace(row, counter=row.counter + 1, owner=owner, checkpoint_owner=None, heartbeat=None))
                self._note_move()
                return True
            self.bill.refused += 1
            current = judge_refused_release(current, row)
        return False

    async def record_children(self, key: str, children: frozenset[str]) -> bool:
        await self._write()
        row = self.leases.get(key)
        if row is not None:
            self.leases[key] = replace(row, children=children)
        return row is not None

    async def fill_hash_range(self, key: str, hash_range: HashRange) -> bool:
        await self._write()
        row = self.leases.get(key)
        if row is None or row.hash_range is not None:
            return False
        self.leases[key] = replace(row, hash_range=hash_range)
        return True

    async def delete_completed(self, key: str) -> bool:
        await self._write()
        row = self.leases.get(key)
        if row is None or not row.is_complete:
            return False
        del self.leases[key]
        return True

    # --- helpers ------------------------------------------------------------------------------------------------------

    async def _travel(self) -> None:
        await asyncio.sleep(self.rng.uniform(WRITE_S_MIN, WRITE_S_MAX))

    async def _write(self) -> None:
        await self._travel()
        self.bill.other_writes += 1
        self._charge_write()

    async def _assignment(self) -> None:
        await self._travel()
        self.bill.assignments += 1
        self._charge_write()

    def _charge_write(self) -> None:
        self.bill.write_units += 1
        second = int(asyncio.get_running_loop().time())
        if second != self._second:
            self._second, self._writes_in_second = second, 0
        self._writes_in_second += 1
        self.peak_writes = max(self.peak_writes, self._writes_in_second)

    def _put(self, row: Lease) -> Lease:
        self.leases[row.key] = row
        return row

    def _note_move(self) -> None:
        self.moves += 1
        self.moved_at = asyncio.get_running_loop().time()

    def _refused(self, judgement: Lease | Refusal) -> Lease | Refusal:
        self.bill.refused += 1
        return judgement


def _is_held_by(row: Lease, lease: Lease) -> bool:
    """The holder's guard of `mld.leases.writes`: its page explains the clauses."""
    if row.counter != lease.counter:
        return False
    me = lease.actual_owner
    return (row.owner == me and row.checkpoint_owner is None) or (row.checkpoint_owner == me and row.owner != me)


def _has_owners_of(row: Lease, lease: Lease) -> bool:
    return (row.owner, row.checkpoint_owner) == (lease.owner, lease.checkpoint_owner)


def _given(row: Lease, owner: str, switches: int) -> Lease:
    """The row after its owner was changed by a take or an assignment."""
    counter = row.counter + 1
    return replace(row, counter=counter, owner=owner, checkpoint_owner=None, owner_switches=switches, heartbeat=None)
