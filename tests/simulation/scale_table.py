"""`LeanLeaseTable`: the lease table as a dict of `Lease` values, for fleets too large for the DynamoDB twin.

It makes no requests and evaluates no expressions: `lease_rows` carries out the writes themselves. That the two agree is
proved by `test_scale`, with the contract suite and with random histories run on both. Every request takes its time, is
applied at the end of it, never fails, and is put on the `Bill` as DynamoDB would charge it.

It must never accept a write that DynamoDB would refuse, nor charge less than DynamoDB would.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from random import Random
from typing import Any

from mld.leases.lease import Lease
from mld.leases.rows import CorruptRowError, parse_row
from mld.leases.table import AnswerT, IndexStatus, LeaseWrite, TableScan
from tests.twins.lease_rows import NotWrittenError, carry_out

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
COUNTED_AS = {"renew": "renewals", "take": "takes"} | dict.fromkeys(
    ("begin_handoff", "assign", "assign_expired"), "assignments"
)


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
    index: LeanIndex = field(init=False)
    peak_writes: int = 0
    """Most writes within one second. An on-demand table starts with 4,000 a second."""
    _second: int = 0
    _writes_in_second: int = 0

    def __post_init__(self) -> None:
        self.index = LeanIndex(self)

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
        await self.travel()
        self.bill.gets += 1
        self.bill.read_units += 1 if consistent else EVENTUALLY_CONSISTENT
        if key in self.corrupt:
            raise CorruptRowError(key, self.corrupt[key])
        return self.row(key)

    async def get_many(self, keys: Sequence[str]) -> dict[str, Lease]:
        await self.travel()
        self.bill.gets += 1
        self.bill.read_units += len(keys)
        return {key: lease for key in keys if (lease := self.row(key)) is not None}

    def row(self, key: str) -> Lease | None:
        """A row as it is now."""
        return self.leases.get(key)

    # --- writes -------------------------------------------------------------------------------------------------------

    async def apply(self, write: LeaseWrite[AnswerT]) -> AnswerT:
        await self.travel()
        self._charge_write(write.verb)
        row = self.row(write.key)
        try:
            if write.key in self.corrupt:
                raise NotWrittenError
            item = carry_out(write, row)
        except NotWrittenError:
            self.bill.refused += 1
            judged = write.refused(row)
            return await self.apply(judged) if isinstance(judged, LeaseWrite) else judged
        lease = parse_row(item) if item else None
        if row is not None and lease is not None and lease.owner != row.owner:
            self.moves += 1
            self.moved_at = asyncio.get_running_loop().time()
        if lease is None:
            del self.leases[write.key]
        else:
            self.put(lease)
        return write.accepted(item)

    # --- helpers ------------------------------------------------------------------------------------------------------

    async def _travel(self) -> None:
        await asyncio.sleep(self.rng.uniform(WRITE_S_MIN, WRITE_S_MAX))

    async def travel(self) -> None:
        """The time of a request."""
        await asyncio.sleep(self.rng.uniform(WRITE_S_MIN, WRITE_S_MAX))

    def _charge_write(self, verb: str) -> None:
        counted = COUNTED_AS.get(verb, "other_writes")
        setattr(self.bill, counted, getattr(self.bill, counted) + 1)
        self.bill.write_units += 1
        second = int(asyncio.get_running_loop().time())
        if second != self._second:
            self._second, self._writes_in_second = second, 0
        self._writes_in_second += 1
        self.peak_writes = max(self.peak_writes, self._writes_in_second)

    def put(self, row: Lease) -> None:
        """Store a row."""
        self.leases[row.key] = row


class LeanIndex:
    """The `LeaseIndex` port."""

    def __init__(self, table: LeanLeaseTable) -> None:
        self._table = table
        self._status = IndexStatus.MISSING

    async def ensure(self) -> IndexStatus:
        self._status = IndexStatus.ACTIVE
        return self._status

    async def status(self) -> IndexStatus:
        return self._status

    async def keys_owned_by(self, worker: str) -> tuple[str, ...]:
        await self._table.travel()
        keys = tuple(key for key, lease in self._table.leases.items() if lease.owner == worker)
        self._table.bill.queries += 1
        units = max(1, math.ceil(len(keys) * INDEX_ROW_BYTES / READ_UNIT_BYTES))
        self._table.bill.read_units += EVENTUALLY_CONSISTENT * units
        return keys
