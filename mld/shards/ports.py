"""`ShardRows`: what this room needs of the lease table, for one stream. A `LeaseTable` of one stream is one."""

from __future__ import annotations

from typing import Protocol

from mld.leases.lease import Lease
from mld.leases.table import TableScan
from mld.streams import HashRange


class ShardRows(Protocol):
    """The rows of one stream. Their keys are shard ids; each method is that of `leases.table.LeaseTable`."""

    async def scan(self) -> TableScan: ...

    async def get(self, key: str) -> Lease | None: ...

    async def create(self, lease: Lease) -> bool: ...

    async def record_children(self, key: str, children: frozenset[str]) -> bool: ...

    async def fill_hash_range(self, key: str, hash_range: HashRange) -> bool: ...

    async def delete_completed(self, key: str) -> bool: ...
