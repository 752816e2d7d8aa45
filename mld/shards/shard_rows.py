"""`ShardRows`: the port to the rows of one stream in the lease table. A `LeaseTable` of one stream is one."""

from __future__ import annotations

from typing import Protocol

from mld.leases.lease import Lease
from mld.leases.table import AnswerT, LeaseWrite, TableScan


class ShardRows(Protocol):
    """The rows of one stream. Their keys are shard ids; each method is that of `leases.table.LeaseTable`."""

    async def scan(self) -> TableScan: ...

    async def get(self, key: str) -> Lease | None: ...

    async def apply(self, write: LeaseWrite[AnswerT]) -> AnswerT: ...
