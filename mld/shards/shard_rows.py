"""`ShardRows`: the port through which `mld.shards` reads and writes the lease rows of one stream. `mld.tracking`
implements it.
"""

from __future__ import annotations

from typing import Protocol

from mld.leases.lease import Lease
from mld.leases.table import AnswerT, LeaseWrite, TableScan


class ShardRows(Protocol):
    """The lease rows of one stream. Keys are shard ids; the methods are those of `leases.table.LeaseTable`."""

    async def scan(self) -> TableScan: ...

    async def get(self, key: str) -> Lease | None: ...

    async def apply(self, write: LeaseWrite[AnswerT]) -> AnswerT: ...
