"""The leader lock in DynamoDB: carries out the requests of `lock`, one per call, no retries (coordination#leader-lock).

What is not a definite answer leaves as a `TableError`: the write may or may not have been applied.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mld.aws.boundary import raises_only
from mld.aws.service import Service
from mld.aws.table_calls import REFUSED_CODE, RefusedError, TableCalls
from mld.core.errors import TableUnavailableError
from mld.fleet.leader import lock
from mld.fleet.leader.lock import SeenLock
from mld.fleet.values import Place

REQUEST_TIMEOUT_S = 3.0  # a tenth of a heartbeat: a hanging request leaves time for others before the lock expires


@dataclass(frozen=True, slots=True)
class LockRefusal:
    """A condition did not hold; `seen` is the lock that stood in the way."""

    seen: SeenLock


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
        """The lock as it is now. Raises TableError; a damaged row is a value."""
        answer = await self._calls.send("GetItem", lock.read(self._place))
        return lock.parse_lock(answer.get("Item"))

    async def claim(self, over: SeenLock, owner: str, version: str, *, lease_s: float) -> LockRefusal | None:
        """Write a new lock over the one seen. Raises TableError."""
        return await self._write("PutItem", lock.claim(self._place, over, owner, version, lease_s=lease_s))

    async def heartbeat(self, owner: str, version: str, next_version: str, *, lease_s: float) -> LockRefusal | None:
        """Give the lock held under `version` its next version. Raises TableError."""
        request = lock.heartbeat(self._place, owner, version, next_version, lease_s=lease_s)
        return await self._write("UpdateItem", request)

    async def release(self, owner: str, version: str) -> LockRefusal | None:
        """Delete the lock held under `version`. Raises TableError."""
        return await self._write("DeleteItem", lock.release(self._place, owner, version))

    async def _write(self, operation: str, params: Mapping[str, Any]) -> LockRefusal | None:
        try:
            await self._calls.send(operation, params, refusals=(REFUSED_CODE,))
        except RefusedError as refused:
            return LockRefusal(lock.parse_lock(refused.row) if refused.row else await self.read())
        return None
