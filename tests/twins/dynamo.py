"""`MemoryDynamo`: DynamoDB in memory, behind the `Service` port, without threads and without a wall clock.

Each operation is applied atomically at one moment. `client("w1")` gives a worker its own door, so that faults and the
history of accepted writes know the sender. A client's time-out does not stop a request: it may be applied later, as in
real life.
"""

from __future__ import annotations

import asyncio
import copy
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from mld.clock import Clock
from mld.errors import AwsError, AwsUnreachableError
from tests.twins.dynamo_expressions import Expressions, Item, ValidationError, normal

PAGE_ROWS_MAX = 1000
Row = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens to one request: it travels, may fail unapplied, is applied, may lose its answer, travels back."""

    delay_before_s: float = 0.0
    fail_before: Exception | None = None
    fail_after: Exception | None = None
    delay_after_s: float = 0.0


FaultChooser = Callable[[str, str, Mapping[str, Any]], Fault | None]
"""(sender, operation, params) -> the fault of this request, if any."""


@dataclass(frozen=True, slots=True)
class Applied:
    """An accepted write: the item before and after ({} for none)."""

    at: float
    sender: str
    operation: str
    table: str
    before: Item
    after: Item


@dataclass(slots=True)
class _Table:
    key: str
    description: dict[str, Any]
    active_at: float
    items: dict[str, Item] = field(default_factory=dict)
    recovery: bool = False


def lost_request(operation: str = "any") -> Fault:
    return Fault(fail_before=AwsUnreachableError(operation, "connection reset"))


def lost_reply(operation: str = "any") -> Fault:
    return Fault(fail_after=AwsUnreachableError(operation, "connection reset"))


def throttled(operation: str = "any") -> Fault:
    return Fault(fail_before=AwsError(operation, "ProvisionedThroughputExceededException", "slow down"))


def server_error(operation: str = "any") -> Fault:
    return Fault(fail_after=AwsError(operation, "InternalServerError", "sorry", status=500))


class MemoryDynamo:
    """The service. `faults` decides the fate of each request; `history` has every accepted write of an item."""

    def __init__(
        self,
        clock: Clock,
        *,
        faults: FaultChooser | None = None,
        page_rows_max: int = PAGE_ROWS_MAX,
        creation_s: float = 0.0,
    ) -> None:
        self.clock = clock
        self.faults = faults
        self.page_rows_max = page_rows_max
        self.creation_s = creation_s
        self.history: list[Applied] = []
        self.calls: list[tuple[str, str]] = []
        self._tables: dict[str, _Table] = {}
        self._requests: set[asyncio.Task[dict[str, Any]]] = set()

    def client(self, sender: str) -> DynamoClient:
        """A `Service` whose requests are known as `sender`'s."""
        return DynamoClient(self, sender)

    async def call(self, operation: str, params: dict[str, Any], *, timeout_s: float | None = None) -> dict[str, Any]:
        return await self.request("", operation, params, timeout_s)

    def row(self, table: str, key: str) -> Item | None:
        """An item as it is now, for tests."""
        return copy.deepcopy(self._tables[table].items.get(key))

    def rows(self, table: str) -> dict[str, Item]:
        """All items, for tests; not to be changed."""
        return dict(self._tables[table].items)

    def has_table(self, table: str) -> bool:
        return table in self._tables

    def put_row(self, table: str, row: Row) -> None:
        """Plant an item without condition, history or checks, for tests."""
        target = self._tables[table]
        target.items[row[target.key]["S"]] = {name: dict(value) for name, value in row.items()}

    def delete_row(self, table: str, key: str) -> None:
        self._tables[table].items.pop(key, None)

    async def request(
        self, sender: str, operation: str, params: dict[str, Any], timeout_s: float | None
    ) -> dict[str, Any]:
        self.calls.append((sender, operation))
        fault = (self.faults(sender, operation, params) if self.faults else None) or Fault()
        task = asyncio.ensure_future(self._serve(sender, operation, copy.deepcopy(params), fault))
        self._requests.add(task)
        task.add_done_callback(self._requests.discard)
        done, _ = await asyncio.wait({task}, timeout=timeout_s)
        if not done:
            task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
            raise AwsUnreachableError(operation, f"no answer within {timeout_s} s")
        return task.result()

    async def _serve(self, sender: str, operation: str, params: dict[str, Any], fault: Fault) -> dict[str, Any]:
        if fault.delay_before_s:
            await self.clock.sleep(fault.delay_before_s)
        if fault.fail_before is not None:
            raise fault.fail_before
        answer: dict[str, Any] | AwsError
        try:
            answer = copy.deepcopy(self._apply(sender, operation, params))
        except ValidationError as error:
            answer = AwsError(operation, "ValidationException", str(error))
        except AwsError as error:
            answer = error
        if fault.delay_after_s:
            await self.clock.sleep(fault.delay_after_s)
        if fault.fail_after is not None:
            raise fault.fail_after
        if isinstance(answer, AwsError):
            raise answer
        return answer

    # --- operations: synchronous, hence atomic ------------------------------------------------------------------------

    def _apply(self, sender: str, operation: str, params: dict[str, Any]) -> dict[str, Any]:
        name = params["TableName"]
        if operation == "CreateTable":
            return self._create_table(name, params)
        table = self._tables.get(name)
        if table is None:
            raise AwsError(operation, "ResourceNotFoundException", f"Requested resource not found: Table: {name}")
        match operation:
            case "DescribeTable":
                return {"Table": self._description(table)}
            case "DescribeContinuousBackups" | "UpdateContinuousBackups":
                return self._backups(operation, table, params)
        if self.clock.monotonic() < table.active_at:
            raise AwsError(operation, "ResourceNotFoundException", f"Table {name} is being created")
        match operation:
            case "GetItem":
                item = table.items.get(params["Key"][table.key]["S"])
                return {"Item": item} if item is not None else {}
            case "Scan":
                return self._scan(table, params)
            case "PutItem" | "UpdateItem" | "DeleteItem":
                return self._write(sender, operation, table, params)
        raise AwsError(operation, "UnknownOperationException")

    def _create_table(self, name: str, params: dict[str, Any]) -> dict[str, Any]:
        if name in self._tables:
            raise AwsError("CreateTable", "ResourceInUseException", f"Table already exists: {name}")
        now = self.clock.monotonic()
        description = {k: v for k, v in params.items() if k != "Tags"} | {"TableSizeBytes": 0}
        table = _Table(params["KeySchema"][0]["AttributeName"], description, now + self.creation_s)
        self._tables[name] = table
        return {"TableDescription": self._description(table)}

    def _description(self, table: _Table) -> dict[str, Any]:
        is_active = self.clock.monotonic() >= table.active_at
        return table.description | {"TableStatus": "ACTIVE" if is_active else "CREATING"}

    def set_table_bytes(self, table: str, size: int) -> None:
        """What DescribeTable reports as the table's size."""
        self._tables[table].description["TableSizeBytes"] = size

    def _backups(self, operation: str, table: _Table, params: dict[str, Any]) -> dict[str, Any]:
        if self.clock.monotonic() < table.active_at:
            raise AwsError(operation, "ContinuousBackupsUnavailableException")
        if operation == "UpdateContinuousBackups":
            table.recovery = params["PointInTimeRecoverySpecification"]["PointInTimeRecoveryEnabled"]
        status = "ENABLED" if table.recovery else "DISABLED"
        recovery = {"PointInTimeRecoveryStatus": status}
        return {"ContinuousBackupsDescription": {"PointInTimeRecoveryDescription": recovery}}

    def _scan(self, table: _Table, params: dict[str, Any]) -> dict[str, Any]:
        total = params.get("TotalSegments", 1)
        keys = sorted(k for k in table.items if zlib.crc32(k.encode()) % total == params.get("Segment", 0))
        if start := params.get("ExclusiveStartKey"):
            keys = [key for key in keys if key > start[table.key]["S"]]
        limit = min(params.get("Limit", self.page_rows_max), self.page_rows_max)
        page, rest = keys[:limit], keys[limit:]
        expressions = _expressions(params)
        wanted = params.get("FilterExpression")
        items = [table.items[key] for key in page if not wanted or expressions.holds(wanted, table.items[key])]
        answer: dict[str, Any] = {"Items": items, "Count": len(items), "ScannedCount": len(page)}
        if rest:
            answer["LastEvaluatedKey"] = {table.key: {"S": page[-1]}}
        return answer

    def _write(self, sender: str, operation: str, table: _Table, params: dict[str, Any]) -> dict[str, Any]:
        key = (params["Item"] if operation == "PutItem" else params["Key"])[table.key]["S"]
        if not key:
            raise ValidationError("empty key")
        before: Item = table.items.get(key, {})
        expressions = _expressions(params)
        condition = params.get("ConditionExpression")
        accepted = condition is None or expressions.holds(condition, before)
        after = self._after(operation, table, params, expressions, before, key)
        expressions.finish()
        if not accepted:
            wants_old = params.get("ReturnValuesOnConditionCheckFailure") == "ALL_OLD"
            old = copy.deepcopy(before) if wants_old and before else None
            raise AwsError(operation, "ConditionalCheckFailedException", "The conditional request failed", item=old)
        if after:
            table.items[key] = after
        else:
            table.items.pop(key, None)
        self._record(Applied(self.clock.monotonic(), sender, operation, params["TableName"], before, after))
        match params.get("ReturnValues", "NONE"):
            case "ALL_NEW":
                return {"Attributes": after}
            case "ALL_OLD" if before:
                return {"Attributes": before}
        return {}

    def _record(self, applied: Applied) -> None:
        self.history.append(replace(applied, before=copy.deepcopy(applied.before), after=copy.deepcopy(applied.after)))

    def _after(
        self,
        operation: str,
        table: _Table,
        params: dict[str, Any],
        expressions: Expressions,
        before: Item,
        key: str,
    ) -> Item:
        match operation:
            case "PutItem":
                return {name: normal(value) for name, value in params["Item"].items()}
            case "DeleteItem":
                return {}
        return expressions.updated(params["UpdateExpression"], before or {table.key: {"S": key}})


class DynamoClient:
    """One sender's door to a `MemoryDynamo`."""

    def __init__(self, dynamo: MemoryDynamo, sender: str) -> None:
        self._dynamo = dynamo
        self._sender = sender

    async def call(self, operation: str, params: dict[str, Any], *, timeout_s: float | None = None) -> dict[str, Any]:
        return await self._dynamo.request(self._sender, operation, params, timeout_s)


def _expressions(params: Mapping[str, Any]) -> Expressions:
    return Expressions(params.get("ExpressionAttributeNames"), params.get("ExpressionAttributeValues"))
