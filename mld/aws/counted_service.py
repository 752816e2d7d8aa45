"""`CountedService`: counts the requests to a service for the metrics of a worker, and notes whether its table answers.

Each request asks DynamoDB to return the capacity that the request has consumed, which costs nothing. If no answer
comes, the consumption is unknown, and nothing is counted. A conditional write that was refused is counted as one unit,
because lease rows have less than 1 KB.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from mld.aws.service import FrameSource
from mld.aws.service_factory import AwsService
from mld.aws.table_calls import REFUSED_CODE, THROTTLING_CODES
from mld.aws.wire.client import WireService
from mld.core.errors import AwsError, MldError
from mld.metrics.reach import TableReach
from mld.metrics.worker import WorkerMetrics

T = TypeVar("T")

OK, UNREACHABLE, OTHER = "ok", "unreachable", "other"
RESULTS_MAX = 500
"""At most this many pairs of an operation and an error are counted separately per service. Each pair becomes a time
series that is never removed, and error codes come from outside.
"""
CODE_LENGTH_MAX = 64  # a longer text is not counted under its own name
READ, WRITE = "read", "write"
KINDS: Mapping[str, str] = {
    "GetItem": READ,
    "BatchGetItem": READ,
    "Query": READ,
    "Scan": READ,
    "TransactGetItems": READ,
    "PutItem": WRITE,
    "UpdateItem": WRITE,
    "DeleteItem": WRITE,
    "BatchWriteItem": WRITE,
    "TransactWriteItems": WRITE,
}
"""DynamoDB's operations on items. No other service has operations with these names."""


class CountedService:
    """Wraps `service`, and counts its requests in `worker` under `name`. `reach` gets the outcomes for its table."""

    def __init__(
        self,
        service: AwsService,
        name: str,
        worker: WorkerMetrics,
        reach: TableReach | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Make the wrapper of `service`. Its requests are counted in `worker` under `name`. If `reach` is given, it
        learns whether requests to its table are answered; `monotonic` is its clock.
        """
        self._service = service
        self._reach = reach
        self._monotonic = monotonic
        self._name = name
        self._worker = worker
        self._keys: dict[tuple[str, str], str] = {}
        """The name of the counter for each pair of an operation and a result other than OK."""
        self._ok_keys: dict[str, str] = {}
        """The name of the counter of each operation's successful requests."""

    @property
    def can_stream(self) -> bool:
        """Whether `open_stream` and `in_thread` may be called: the service is a `WireService` that uses its wire
        client.
        """
        return isinstance(self._service, WireService) and self._service.can_stream

    async def open(self) -> None:
        await self._service.open()

    async def close(self) -> None:
        await self._service.close()

    async def call(self, operation: str, params: dict[str, Any], *, timeout_s: float | None = None) -> dict[str, Any]:
        """Call an operation once, as `Service.call` describes, and count the request and the capacity that it consumed.
        If the request goes to the table of the `TableReach`, its outcome is reported there, too.
        """
        kind = KINDS.get(operation)
        asked = params if kind is None else {**params, "ReturnConsumedCapacity": "TOTAL"}
        request = self._counted(operation, self._service.call(operation, asked, timeout_s=timeout_s))
        reach = self._reach
        is_of_table = reach is not None and params.get("TableName") == reach.table
        answer = await (self._reaching(reach, request) if reach is not None and is_of_table else request)
        if kind is not None:
            self._charge(kind, answer.get("ConsumedCapacity"))
        return answer

    async def fetch(
        self, operation: str, params: dict[str, Any], read: Callable[[bytes], T], *, timeout_s: float | None = None
    ) -> T:
        """Call an operation once, count the request, and return what `read` makes of the body; see
        `RawService.fetch`.
        """
        return await self._counted(operation, self._service.fetch(operation, params, read, timeout_s=timeout_s))

    async def open_stream(
        self, operation: str, params: dict[str, Any], *, timeout_s: float | None = None
    ) -> FrameSource:
        """Open the event stream that answers an operation, and count the request; see `StreamService.open_stream`. Only
        if `can_stream`.
        """
        assert isinstance(self._service, WireService), "it was asked whether it can"
        return await self._counted(operation, self._service.open_stream(operation, params, timeout_s=timeout_s))

    async def in_thread(self, operation: str, work: Callable[[], T]) -> T:
        """Return what `work` returns in a thread (`StreamService.in_thread`). Only if `can_stream`. Nothing is counted,
        because no request is sent.
        """
        assert isinstance(self._service, WireService), "it was asked whether it can stream"
        return await self._service.in_thread(operation, work)

    async def _reaching(self, reach: TableReach, request: Awaitable[T]) -> T:
        """Await a request to the table of `reach`, and report to `reach` whether the table has answered it.

        If a write is refused because its condition does not hold, that counts as an answer.
        """
        sent_at = self._monotonic()
        reach.asked(sent_at)
        try:
            answer = await request
        except MldError as error:
            code = error.code if isinstance(error, AwsError) else ""
            if code == REFUSED_CODE:
                reach.answered(sent_at)
            else:
                reach.failed(str(error), self._monotonic(), is_throttled=code in THROTTLING_CODES)
            raise
        reach.answered(sent_at)
        return answer

    # --- counting -----------------------------------------------------------------------------------------------------

    async def _counted(self, operation: str, request: Awaitable[T]) -> T:
        """Return the answer to `request`, and count the request under its result."""
        try:
            answer = await request
        except MldError as error:
            self._failed(operation, error)
            raise
        self._worker.requests.add(self._ok_keys.get(operation) or self._ok_key(operation))
        return answer

    def _failed(self, operation: str, error: MldError) -> None:
        """Count a failed request, and the unit of a conditional write that was refused."""
        self._note(operation, error.code if isinstance(error, AwsError) else UNREACHABLE)
        if KINDS.get(operation) == WRITE and isinstance(error, AwsError) and error.code == REFUSED_CODE:
            self._worker.units.add(WRITE, 1)

    def _note(self, operation: str, result: str) -> None:
        """Count a request with another result than OK."""
        key = self._keys.get((operation, result))
        if key is None:
            key = self._new_key(operation, result)
        self._worker.requests.add(key)

    def _ok_key(self, operation: str) -> str:
        """Return the name of the counter for successful requests of this operation, and remember it."""
        key = self._ok_keys[operation] = f"{self._name} {operation} {OK}"
        return key

    def _new_key(self, operation: str, result: str) -> str:
        """Return the name of the counter for a new pair of operation and result. OTHER stands in place of the result if
        the result is not a plain code, or if there are RESULTS_MAX counters already.
        """
        is_plain = result.isascii() and result.isalnum() and len(result) <= CODE_LENGTH_MAX
        if not is_plain or len(self._keys) >= RESULTS_MAX:
            return f"{self._name} {operation} {OTHER}"
        key = self._keys[operation, result] = f"{self._name} {operation} {result}"
        return key

    def _charge(self, kind: str, consumed: Any) -> None:
        """Count the capacity units that a request has consumed. `consumed` is the member ConsumedCapacity of the
        answer: one object, for a batch a list of objects. Anything else is ignored.
        """
        for capacity in consumed if isinstance(consumed, list) else (consumed,):
            units = capacity.get("CapacityUnits") if isinstance(capacity, dict) else None
            if isinstance(units, int | float) and units >= 0:
                self._worker.units.add(kind, units)
