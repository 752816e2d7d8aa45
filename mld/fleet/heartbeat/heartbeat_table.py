"""Worker heartbeats in DynamoDB: carries out the requests of `beats`, one per call, no retries.

What is not a definite answer leaves as a `TableError`: the write may or may not have been applied.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from mld.aws.boundary import raises_only
from mld.aws.service import Service
from mld.aws.table_calls import REFUSED_CODE, RefusedError, TableCalls
from mld.core.errors import TableUnavailableError
from mld.fleet.heartbeat import beats
from mld.fleet.heartbeat.beats import HeartbeatRow

REQUEST_TIMEOUT_S_MAX = 3.0  # a hanging request must leave time for another one


@dataclass(frozen=True, slots=True)
class BeatRefusal:
    """A condition did not hold; `seen` is the row that stood in the way, None if there is none."""

    seen: HeartbeatRow | None


@raises_only(TableUnavailableError)
class HeartbeatTable:
    """The heartbeats in the lease table `table_name`; `worker_id` is ours, for the fences."""

    def __init__(self, service: Service, table_name: str, worker_id: str, *, request_timeout_s: float) -> None:
        self._calls = TableCalls(service, table_name, request_timeout_s)
        self._worker_id = worker_id

    async def read(self, worker: str) -> HeartbeatRow | None:
        """A worker's report as it is now; None if it has none. Raises TableError."""
        answer = await self._calls.send("GetItem", beats.read(worker))
        row = answer.get("Item")
        return beats.parse(row) if row else None

    async def claim(self, worker: str, seen: str | None, value: str) -> HeartbeatRow | BeatRefusal:
        """Begin an epoch. Raises TableError."""
        return await self._write(worker, beats.claim(worker, seen, value))

    async def beat(self, worker: str, last: str, value: str, shards: bytes | None = None) -> HeartbeatRow | BeatRefusal:
        """One heartbeat, with what it tells of its shards; the row as it is then. Raises TableError."""
        return await self._write(worker, beats.beat(worker, last, value, shards))

    async def clear(self, worker: str, last: str) -> bool:
        """End our epoch ourselves. Raises TableError."""
        return isinstance(await self._write(worker, beats.clear(worker, last)), HeartbeatRow)

    async def tell(self, worker: str, java_peer: str) -> bool:
        """Say that a worker of another kind is there. Raises TableError."""
        return isinstance(await self._write(worker, beats.tell(worker, java_peer)), HeartbeatRow)

    async def fence(self, worker: str, seen: str | None, marks: Collection[str]) -> bool:
        """Whether leases of `worker` with these marks may be given to others now.

        `seen` is its heartbeat, known to have stood still for more than a lease duration. If it stands for any of the
        leases, its epoch is ended first. Raises TableError.
        """
        if seen is not None and not beats.may_assign(seen, marks):
            answer = await self._write(worker, beats.fence(worker, seen, self._worker_id))
            if isinstance(answer, HeartbeatRow):
                return True
            return answer.seen is not None and beats.is_fenced(answer.seen.value)
        row = await self.read(worker)
        return beats.may_assign(None if row is None else row.value, marks)

    async def _write(self, worker: str, params: Mapping[str, Any]) -> HeartbeatRow | BeatRefusal:
        try:
            answer = await self._calls.send("UpdateItem", params, refusals=(REFUSED_CODE,))
        except RefusedError as refused:
            return BeatRefusal(beats.parse(refused.row) if refused.row else await self.read(worker))
        return beats.parse(answer["Attributes"])
