"""`LockTable`: the leader lock in DynamoDB. It sends the requests of `lock`, one per call, without retries.

Rule: coordination#leader-lock. A `TableError` means that the outcome of a write is unknown: it may have been applied or
not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mld.aws.boundary import raises_only
from mld.aws.service import Service
from mld.aws.table_calls import ANSWER_S_MAX, REFUSED_CODE, RefusedError, TableCalls
from mld.core.errors import TableUnavailableError
from mld.fleet.leader import lock
from mld.fleet.leader.lock import SeenLock
from mld.leases.rows import Place

WRITE_S_MAX = 10.0
"""Longest wait for the answer to a write. Then the write is given up, and the version in the row will show whether it
was applied. If we waited longer for a lost request, the lock would expire.
"""


@dataclass(frozen=True, slots=True)
class Refused:
    """The write was refused because its condition did not hold; `lock` is the present row."""

    lock: SeenLock


@raises_only(TableUnavailableError)
class LockTable:
    """The lock row in one table. A write returns None if it was applied."""

    def __init__(self, service: Service, place: Place, *, request_timeout_s: float = ANSWER_S_MAX) -> None:
        self._calls = TableCalls(service, place.table, request_timeout_s)
        self._place = place

    @property
    def place(self) -> Place:
        return self._place

    async def read(self) -> SeenLock:
        """Return the present lock. Raises TableError, but not for a damaged row, which is returned."""
        return lock.parse_lock(await self._calls.get(lock.key_in(self._place)))

    async def claim(self, over: SeenLock, owner: str, version: str) -> Refused | None:
        """Replace the lock `over`, as it was read, by a new one of `owner`. Return None if it was written, else the
        refusal with the present row. Raises TableError.
        """
        return await self._write("PutItem", lock.claim(self._place, over, owner, version))

    async def heartbeat(self, owner: str, version: str, next_version: str) -> Refused | None:
        """Write the next version of the lock that is held under `version`. Return None if it was written, else the
        refusal with the present row. Raises TableError.
        """
        request = lock.heartbeat(self._place, owner, version, next_version)
        return await self._write("UpdateItem", request)

    async def release(self, owner: str, version: str) -> Refused | None:
        """Delete the lock that is held under `version`. Return None if it was deleted, else the refusal with the
        present row. Raises TableError.
        """
        return await self._write("DeleteItem", lock.release(self._place, owner, version))

    async def _write(self, operation: str, params: Mapping[str, Any]) -> Refused | None:
        """Send a write; return None if it was applied, else the refusal with the present row. Raises TableError."""
        try:
            await self._calls.send(operation, params, refusals=(REFUSED_CODE,), timeout_s=WRITE_S_MAX)
        except RefusedError as refused:
            return Refused(lock.parse_lock(refused.row) if refused.row else await self.read())
        return None
