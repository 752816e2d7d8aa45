"""`VisibleTable`: the lease table as the fleet sees it, without the leases of streams that nobody is to consume."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from mld.leases.lease import Failing, Lease, ShardStatus
from mld.leases.table import IndexStatus, LeaseTable, Refusal, TableScan
from mld.positions import Position
from mld.streams import HashRange

IsVisible = Callable[[str | None], bool]
"""Whether leases of the stream with this identifier are to be taken; None: the row names no stream."""


class ConsumedStreams:
    """Identifiers of the streams that this worker consumes now; whoever follows the list sets them."""

    def __init__(self) -> None:
        self.ids: frozenset[str] = frozenset()

    def has(self, stream: str | None) -> bool:
        """An `IsVisible`."""
        return stream in self.ids


def visible(scan: TableScan, is_visible: IsVisible) -> TableScan:
    """The scan without the leases of other streams."""
    return replace(scan, leases=tuple(lease for lease in scan.leases if is_visible(lease.stream)))


class VisibleTable:
    """A `LeaseTable` whose scans have only leases that `is_visible`. Rows can be read and written by key as ever."""

    def __init__(self, table: LeaseTable, is_visible: IsVisible) -> None:
        self._table = table
        self._is_visible = is_visible

    async def scan(self, part: tuple[int, int] | None = None, *, timeout_s: float | None = None) -> TableScan:
        return visible(await self._table.scan(part, timeout_s=timeout_s), self._is_visible)

    async def keys_owned_by(self, worker: str) -> tuple[str, ...]:
        """All of them: a lease may be assigned to a worker that has yet to read of its stream, or to give it back."""
        return await self._table.keys_owned_by(worker)

    # --- as they are --------------------------------------------------------------------------------------------------

    async def ensure(self) -> bool:
        return await self._table.ensure()

    @property
    def lost_since(self) -> float | None:
        return self._table.lost_since

    async def restore(self, worker: str) -> int:
        return await self._table.restore(worker)

    async def get(self, key: str, *, consistent: bool = True) -> Lease | None:
        return await self._table.get(key, consistent=consistent)

    async def get_many(self, keys: Sequence[str]) -> Mapping[str, Lease]:
        return await self._table.get_many(keys)

    async def create(self, lease: Lease) -> bool:
        return await self._table.create(lease)

    async def renew(
        self,
        lease: Lease,
        *,
        resent: bool = False,
        heartbeat: str | None = None,
        failing: Failing | None = None,
        status: ShardStatus | None = None,
    ) -> Lease | Refusal:
        return await self._table.renew(lease, resent=resent, heartbeat=heartbeat, failing=failing, status=status)

    async def take(self, lease: Lease, owner: str, *, resent: bool = False) -> Lease | Refusal:
        return await self._table.take(lease, owner, resent=resent)

    async def begin_handoff(self, lease: Lease, next_owner: str, *, resent: bool = False) -> Lease | Refusal:
        return await self._table.begin_handoff(lease, next_owner, resent=resent)

    async def assign(self, lease: Lease, owner: str, *, resent: bool = False) -> Lease | Refusal:
        return await self._table.assign(lease, owner, resent=resent)

    async def assign_expired(self, lease: Lease, owner: str, *, resent: bool = False) -> Lease | Refusal:
        return await self._table.assign_expired(lease, owner, resent=resent)

    async def release(self, lease: Lease) -> bool:
        return await self._table.release(lease)

    async def checkpoint(
        self, lease: Lease, position: Position, *, resent: bool = False, throughput_kbps: float | None = None
    ) -> Lease | Refusal:
        return await self._table.checkpoint(lease, position, resent=resent, throughput_kbps=throughput_kbps)

    async def record_children(self, key: str, children: frozenset[str]) -> bool:
        return await self._table.record_children(key, children)

    async def fill_hash_range(self, key: str, hash_range: HashRange) -> bool:
        return await self._table.fill_hash_range(key, hash_range)

    async def delete_completed(self, key: str) -> bool:
        return await self._table.delete_completed(key)

    async def delete_unchanged(self, lease: Lease) -> bool:
        return await self._table.delete_unchanged(lease)

    async def ensure_owner_index(self) -> IndexStatus:
        return await self._table.ensure_owner_index()

    async def owner_index_status(self) -> IndexStatus:
        return await self._table.owner_index_status()
