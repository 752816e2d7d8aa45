"""`MemoryDynamo`: DynamoDB in memory, behind the `Service` port, without threads and without a wall clock.

Each operation is applied atomically at one moment. `client("w1")` gives a worker its own door, so that faults and the
history of accepted writes know the sender. A client's time-out does not stop a request: it may be applied later, as in
real life. Expressions: `dynamo_expressions`; tables and indexes: `dynamo_tables`.

Operations: CreateTable, DescribeTable, UpdateTable (one index created or deleted), DeleteTable, continuous backups,
tags; GetItem, BatchGetItem, PutItem, UpdateItem, DeleteItem, Scan, Query, TransactWriteItems. What DynamoDB has and
this has not is refused by an error, never ignored, as far as a caller could rely on it.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from mld.core.clock import Clock
from mld.core.errors import AwsError, AwsUnreachableError
from tests.twins import dynamo_prices
from tests.twins.dynamo_expressions import Expressions, Item, ValidationError, copied, normal
from tests.twins.dynamo_tables import ARN, Index, Table, add_index, new_table

PAGE_ROWS_MAX = 1000
TRANSACTION_ITEMS_MAX = 100
BATCH_KEYS_MAX = 100
TOKEN_VALID_S = 600.0
REFUSED = "ConditionalCheckFailedException"
REFUSED_TEXT = "The conditional request failed"
MISSING = "ResourceNotFoundException"
ONE_ONLINE_INDEX = "Subscriber limit exceeded: Only 1 online index can be created or deleted simultaneously per table"
LEGACY = frozenset(("Expected", "AttributeUpdates", "QueryFilter", "ScanFilter", "KeyConditions", "AttributesToGet"))
Row = Mapping[str, Mapping[str, Any]]
Params = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens to one request: it travels, may fail unapplied, is applied, may lose its answer, travels back."""

    delay_before_s: float = 0.0
    fail_before: Exception | None = None
    fail_after: Exception | None = None
    delay_after_s: float = 0.0


NO_FAULT = Fault()
FaultChooser = Callable[[str, str, Mapping[str, Any]], Fault | None]
"""(sender, operation, params) -> the fault of this request, if any."""


@dataclass(frozen=True, slots=True)
class Applied:
    """An accepted write: the item before and after ({} for none). Items are never changed in place."""

    at: float
    sender: str
    operation: str
    table: str
    before: Item
    after: Item


@dataclass(slots=True)
class Usage:
    """What was asked of the service: requests sent, items read (before filters) and items written.

    Units are counted if the service was made with `priced`. Those of indexes are counted as those of their tables.
    """

    requests: int = 0
    items_read: int = 0
    items_written: int = 0
    read_units: float = 0.0
    write_units: float = 0.0


class TransactionCanceledError(AwsError):
    """`reasons` as in CancellationReasons; the message names them as AWS does."""

    def __init__(self, operation: str, reasons: list[dict[str, Any]]) -> None:
        codes = ", ".join(reason["Code"] for reason in reasons)
        text = f"Transaction cancelled, please refer cancellation reasons for specific reasons [{codes}]"
        super().__init__(operation, "TransactionCanceledException", text)
        self.reasons = reasons


def lost_request(operation: str = "any") -> Fault:
    return Fault(fail_before=AwsUnreachableError(operation, "connection reset"))


def lost_reply(operation: str = "any") -> Fault:
    return Fault(fail_after=AwsUnreachableError(operation, "connection reset"))


def throttled(operation: str = "any") -> Fault:
    return Fault(fail_before=AwsError(operation, "ProvisionedThroughputExceededException", "slow down"))


def server_error(operation: str = "any") -> Fault:
    return Fault(fail_after=AwsError(operation, "InternalServerError", "sorry", status=500))


class MemoryDynamo:
    """The service. `faults` decides the fate of each request; `history` has every accepted write of an item.

    `index_lag` is asked at every write how far the indexes stay behind. An index is ready `index_creation_s` after its
    creation; `forbidden` are operations, or (operation, table) pairs, that are denied.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        faults: FaultChooser | None = None,
        page_rows_max: int = PAGE_ROWS_MAX,
        creation_s: float = 0.0,
        index_creation_s: float = 0.0,
        index_lag: Callable[[], float] = lambda: 0.0,
        priced: bool = False,
    ) -> None:
        self.clock = clock
        self.priced = priced
        self.faults = faults
        self.page_rows_max = page_rows_max
        self.creation_s = creation_s
        self.index_creation_s = index_creation_s
        self.index_lag = index_lag
        self.batch_rows_max: int | None = None
        """So many items of a BatchGetItem are served; the rest is left unprocessed."""
        self.forbidden: set[str | tuple[str, str]] = set()
        self.history: list[Applied] = []
        self.calls: list[tuple[str, str]] = []
        self._usage: dict[tuple[str, str, str], Usage] = {}
        self._tables: dict[str, Table] = {}
        self._tokens: dict[str, tuple[float, Any]] = {}
        self._requests: set[asyncio.Task[dict[str, Any]]] = set()

    def client(self, sender: str) -> DynamoClient:
        """A `Service` whose requests are known as `sender`'s."""
        return DynamoClient(self, sender)

    async def call(self, operation: str, params: Params, *, timeout_s: float | None = None) -> dict[str, Any]:
        return await self.request("", operation, params, timeout_s)

    # --- for tests ----------------------------------------------------------------------------------------------------

    def row(self, table: str, key: str) -> Item | None:
        """An item as it is now."""
        item: Item | None = copied(self._tables[table].items.get(key))
        return item

    def rows(self, table: str) -> dict[str, Item]:
        """All items; not to be changed."""
        return dict(self._tables[table].items)

    def has_table(self, table: str) -> bool:
        return table in self._tables

    def put_row(self, table: str, row: Row) -> None:
        """Plant an item without condition, history or checks."""
        target = self._tables[table]
        item = {name: dict(value) for name, value in row.items()}
        target.change(row[target.key]["S"], item, self.clock.monotonic(), self.index_lag())

    def delete_row(self, table: str, key: str) -> None:
        self._tables[table].change(key, {}, self.clock.monotonic(), self.index_lag())

    def set_table_bytes(self, table: str, size: int) -> None:
        """What DescribeTable reports as the table's size."""
        self._tables[table].description["TableSizeBytes"] = size

    def finish_indexes(self, table: str) -> None:
        """Let the index that is being created or deleted be ready or gone now, whatever its delay was."""
        now = self.clock.monotonic()
        for index in self._tables[table].indexes.values():
            index.ready_at = min(index.ready_at, now)
            index.gone_at = None if index.gone_at is None else min(index.gone_at, now)

    def tags(self, table: str) -> dict[str, str]:
        return dict(self._tables[table].tags)

    def usage(self, *, operation: str | None = None, table: str | None = None, sender: str | None = None) -> Usage:
        """The sum over everything that fits. A transaction counts as one request of each of its tables."""
        total = Usage()
        for (by, what, where), usage in self._usage.items():
            if sender in (None, by) and operation in (None, what) and table in (None, where):
                total.requests += usage.requests
                total.items_read += usage.items_read
                total.items_written += usage.items_written
                total.read_units += usage.read_units
                total.write_units += usage.write_units
        return total

    def forget_usage(self) -> None:
        self._usage.clear()

    # --- a request ----------------------------------------------------------------------------------------------------

    async def request(self, sender: str, operation: str, params: Params, timeout_s: float | None) -> dict[str, Any]:
        self.calls.append((sender, operation))
        fault = (self.faults(sender, operation, params) if self.faults else None) or NO_FAULT
        task = asyncio.ensure_future(self._serve(sender, operation, copied(params), fault))
        self._requests.add(task)
        task.add_done_callback(self._requests.discard)
        done, _ = await asyncio.wait({task}, timeout=timeout_s)
        if not done:
            task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
            raise AwsUnreachableError(operation, f"no answer within {timeout_s} s")
        return task.result()

    async def _serve(self, sender: str, operation: str, params: Params, fault: Fault) -> dict[str, Any]:
        self._count(sender, operation, params)
        if fault.delay_before_s:
            await self.clock.sleep(fault.delay_before_s)
        if fault.fail_before is not None:
            raise fault.fail_before
        answer: dict[str, Any] | AwsError
        try:
            used = self._units(sender, operation)
            answer = copied(self._apply(sender, operation, params))
            if self.priced and "ReturnConsumedCapacity" in params:
                told = {"CapacityUnits": self._units(sender, operation) - used}
                answer["ConsumedCapacity"] = told if "TableName" in params else [told]
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

    def _units(self, sender: str, operation: str) -> float:
        usage = self.usage(sender=sender, operation=operation)
        return usage.read_units + usage.write_units

    def _count(self, sender: str, operation: str, params: Params) -> None:
        for table in (params["TableName"],) if "TableName" in params else _tables_of(params):
            self._usage_of(sender, operation, table).requests += 1

    def _usage_of(self, sender: str, operation: str, table: str) -> Usage:
        usage = self._usage.get((sender, operation, table))
        if usage is None:
            usage = self._usage[sender, operation, table] = Usage()
        return usage

    # --- operations: synchronous, hence atomic ------------------------------------------------------------------------

    def _apply(self, sender: str, operation: str, params: Params) -> dict[str, Any]:
        if self.forbidden:
            self._check_allowed(sender, operation, params)
        if not LEGACY.isdisjoint(params):
            raise ValidationError("the twin knows expressions only")
        match operation:
            case "UpdateItem" | "PutItem" | "DeleteItem":
                return self._write(sender, operation, self._active(operation, params), params)
            case "GetItem":
                return self._get(sender, self._active(operation, params), params)
            case "BatchGetItem":
                return self._batch_get(sender, operation, params)
            case "Scan":
                return self._scan(sender, self._active(operation, params), params)
            case "Query":
                return self._query(sender, self._active(operation, params), params)
            case "TransactWriteItems":
                return self._transact(sender, params)
            case "CreateTable":
                return self._create_table(params)
            case "DescribeTable":
                return {"Table": self._found(operation, params["TableName"]).described(self.clock.monotonic())}
            case "UpdateTable":
                return self._update_table(self._found(operation, params["TableName"]), params)
            case "DeleteTable":
                return self._delete_table(self._found(operation, params["TableName"]))
            case "DescribeContinuousBackups" | "UpdateContinuousBackups":
                return self._backups(operation, self._found(operation, params["TableName"]), params)
            case "TagResource" | "ListTagsOfResource":
                return self._tag(self._found(operation, params["ResourceArn"].removeprefix(ARN)), params)
        raise AwsError(operation, "UnknownOperationException")

    def _check_allowed(self, sender: str, operation: str, params: Params) -> None:
        for table in _tables_of(params):
            if operation in self.forbidden or (operation, table) in self.forbidden:
                text = f"User: {sender} is not authorized to perform: dynamodb:{operation} on resource: {ARN}{table}"
                raise AwsError(operation, "AccessDeniedException", text)

    def _found(self, operation: str, name: str) -> Table:
        table = self._tables.get(name)
        if table is None:
            raise AwsError(operation, MISSING, f"Requested resource not found: Table: {name} not found")
        return table

    def _active(self, operation: str, params: Mapping[str, Any]) -> Table:
        table = self._found(operation, params["TableName"])
        if not table.is_active(self.clock.monotonic()):
            raise AwsError(operation, MISSING, f"Requested resource not found: Table {table.name} is being created")
        return table

    # --- tables

    def _create_table(self, params: Params) -> dict[str, Any]:
        name = params["TableName"]
        if name in self._tables:
            raise AwsError("CreateTable", "ResourceInUseException", f"Table already exists: {name}")
        now = self.clock.monotonic()
        self._tables[name] = table = new_table(params, now + self.creation_s)
        table.description["CreationDateTime"] = self.clock.wall()
        return {"TableDescription": table.described(now)}

    def _delete_table(self, table: Table) -> dict[str, Any]:
        now = self.clock.monotonic()
        if table.description.get("DeletionProtectionEnabled"):
            raise ValidationError("Resource cannot be deleted as it is currently protected against deletion.")
        if table.described(now)["TableStatus"] != "ACTIVE":
            raise AwsError("DeleteTable", "ResourceInUseException", f"Table is being changed: {table.name}")
        del self._tables[table.name]
        return {"TableDescription": table.described(now) | {"TableStatus": "DELETING"}}

    def _update_table(self, table: Table, params: Params) -> dict[str, Any]:
        """One index is created or deleted; nothing else of a table can be changed here."""
        now = self.clock.monotonic()
        updates = params.get("GlobalSecondaryIndexUpdates", ())
        if len(updates) != 1:
            raise ValidationError("the twin changes one index in an UpdateTable, and nothing else")
        if table.described(now)["TableStatus"] != "ACTIVE":
            text = f"Attempt to change a resource which is still in use: Table is being updated: {table.name}"
            raise AwsError("UpdateTable", "ResourceInUseException", text)
        ((what, wanted),) = updates[0].items()
        index = table.find_index(wanted["IndexName"], now)
        if what == "Create" and index is not None:
            raise ValidationError("Attempting to create an index which already exists")
        if what == "Delete" and index is None:
            raise AwsError("UpdateTable", MISSING, f"Requested resource not found: Index {wanted['IndexName']}")
        if any(other.status(now) != "ACTIVE" for other in table.live_indexes(now) if other is not index):
            raise AwsError("UpdateTable", "LimitExceededException", ONE_ONLINE_INDEX)
        match what:
            case "Create":
                add_index(table, wanted, params.get("AttributeDefinitions", []), now, now + self.index_creation_s)
            case "Delete":
                assert index is not None
                index.gone_at = now + self.index_creation_s
            case _:
                raise ValidationError("the twin cannot change the throughput of an index")
        return {"TableDescription": table.described(now)}

    def _backups(self, operation: str, table: Table, params: Params) -> dict[str, Any]:
        if not table.is_active(self.clock.monotonic()):
            raise AwsError(operation, "ContinuousBackupsUnavailableException")
        if operation == "UpdateContinuousBackups":
            table.recovery = params["PointInTimeRecoverySpecification"]["PointInTimeRecoveryEnabled"]
        status = "ENABLED" if table.recovery else "DISABLED"
        recovery = {"PointInTimeRecoveryStatus": status}
        return {"ContinuousBackupsDescription": {"PointInTimeRecoveryDescription": recovery}}

    def _tag(self, table: Table, params: Params) -> dict[str, Any]:
        if "Tags" not in params:
            return {"Tags": [{"Key": key, "Value": value} for key, value in table.tags.items()]}
        table.tags |= {tag["Key"]: tag["Value"] for tag in params["Tags"]}
        return {}

    # --- reads

    def _get(self, sender: str, table: Table, params: Params) -> dict[str, Any]:
        expressions = _expressions(params)
        item = self._items_seen(table, params).get(table.key_of(params["Key"]))
        self._usage_of(sender, "GetItem", table.name).items_read += item is not None
        self._charge_read(sender, "GetItem", table, params, [] if item is None else [item])
        if "ProjectionExpression" in params:
            item = expressions.projected(params["ProjectionExpression"], item or {}) or None
        expressions.finish()
        return {} if item is None else {"Item": item}

    def _batch_get(self, sender: str, operation: str, params: Params) -> dict[str, Any]:
        """All keys are served, unless a test says otherwise by `batch_rows_max`."""
        responses: dict[str, Any] = {}
        left: dict[str, Any] = {}
        if sum(len(wanted["Keys"]) for wanted in params["RequestItems"].values()) > BATCH_KEYS_MAX:
            raise ValidationError("Too many items requested for the BatchGetItem call")
        for name, wanted in params["RequestItems"].items():
            table = self._active(operation, {"TableName": name})
            if set(wanted) - {"Keys", "ConsistentRead"}:
                raise ValidationError("the twin knows batches of whole items only")
            keys = [table.key_of(key) for key in wanted["Keys"]]
            if len(set(keys)) < len(keys):
                raise ValidationError("Provided list of item keys contains duplicates")
            seen = self._items_seen(table, {"ConsistentRead": wanted.get("ConsistentRead", False)})
            served = keys if self.batch_rows_max is None else keys[: self.batch_rows_max]
            found = [seen[key] for key in served if key in seen]
            self._usage_of(sender, operation, name).items_read += len(found)
            for key in served:
                self._charge_read(sender, operation, table, wanted, [seen[key]] if key in seen else [])
            responses[name] = found
            if len(served) < len(keys):
                left[name] = {**wanted, "Keys": [{table.key: {"S": key}} for key in keys[len(served) :]]}
        return {"Responses": responses, "UnprocessedKeys": left}

    def _items_seen(self, table: Table, params: Params) -> Mapping[str, Item]:
        """The items that a read of the table sees; eventually consistent reads may be shown the past."""
        return table.items

    def _scan(self, sender: str, table: Table, params: Params) -> dict[str, Any]:
        items: Mapping[str, Item] = self._items_seen(table, params)
        shown: Callable[[Item], Item] | None = None
        sorts: tuple[str, ...] = (table.key,)
        if name := params.get("IndexName"):
            index = self._readable(table, name, params)
            items, sorts = index.items(self.clock.monotonic()), (table.key, *index.keys)
            shown = lambda item: index.projected(item, table.key)  # noqa: E731
        keys = sorted(items)
        total = params.get("TotalSegments", 1)
        if ("Segment" in params) is not ("TotalSegments" in params) or not 0 <= params.get("Segment", 0) < total:
            raise ValidationError("Segment and TotalSegments do not belong together")
        if total > 1:
            keys = [key for key in keys if zlib.crc32(key.encode()) % total == params["Segment"]]
        if start := params.get("ExclusiveStartKey"):
            after = start[table.key]["S"]
            keys = [key for key in keys if key > after]
        found = [items[key] for key in keys]
        return self._page(sender, "Scan", table, params, found, sorts, shown, _expressions(params))

    def _query(self, sender: str, table: Table, params: Params) -> dict[str, Any]:
        """Of an index (or of the table, where a hash key has one item)."""
        items: Mapping[str, Item] = self._items_seen(table, params)
        shown: Callable[[Item], Item] | None = None
        hash_name, range_name = table.key, None
        sorts: tuple[str, ...] = (table.key,)
        if name := params.get("IndexName"):
            index = self._readable(table, name, params)
            items, sorts = index.items(self.clock.monotonic()), (*index.keys, table.key)
            shown = lambda item: index.projected(item, table.key)  # noqa: E731
            hash_name, range_name = index.keys[0], (*index.keys, None)[1]
        expressions = _expressions(params)
        asked, value, rest = expressions.key_condition(params["KeyConditionExpression"])
        if asked != hash_name:
            raise ValidationError(f"Query condition missed key schema element: {hash_name}")
        if rest is not None and expressions.names_in(rest) != {range_name}:
            raise ValidationError("Query key condition not supported")
        wanted = params.get("FilterExpression")
        if wanted and expressions.names_in(wanted) & {hash_name, range_name}:
            raise ValidationError("Filter Expression can only contain non-primary key attributes")
        found = [item for item in items.values() if item.get(hash_name) == value]
        if rest is not None:
            found = [item for item in found if expressions.holds(rest, item)]
        order = (range_name or table.key, table.key)
        backwards = not params.get("ScanIndexForward", True)
        found.sort(key=lambda item: _sort_key(item, order), reverse=backwards)
        if start := params.get("ExclusiveStartKey"):
            after = _sort_key(start, order)
            found = [item for item in found if (_sort_key(item, order) > after) is not backwards]
            found = [item for item in found if _sort_key(item, order) != after]
        return self._page(sender, "Query", table, params, found, sorts, shown, expressions)

    def _readable(self, table: Table, name: str, params: Params) -> Index:
        now = self.clock.monotonic()
        index = table.find_index(name, now)
        if index is None or index.gone_at is not None:
            raise ValidationError(f"The table does not have the specified index: {name}")
        if now < index.ready_at:
            raise ValidationError(f"Cannot read from backfilling global secondary index: {name}")
        if params.get("ConsistentRead"):
            raise ValidationError("Consistent reads are not supported on global secondary indexes")
        return index

    def _page(
        self,
        sender: str,
        operation: str,
        table: Table,
        params: Params,
        found: list[Item],
        key_names: tuple[str, ...],
        shown: Callable[[Item], Item] | None,
        expressions: Expressions,
    ) -> dict[str, Any]:
        limit = min(params.get("Limit", self.page_rows_max), self.page_rows_max)
        if limit < 1:
            raise ValidationError("Limit must be at least 1")
        page = found[:limit]
        self._usage_of(sender, operation, table.name).items_read += len(page)
        items = page if shown is None else [shown(item) for item in page]
        self._charge_read(sender, operation, table, params, items)
        if wanted := params.get("FilterExpression"):
            expressions.holds(wanted, {})
            items = [item for item in items if expressions.holds(wanted, item)]
        answer: dict[str, Any] = {"Count": len(items), "ScannedCount": len(page)}
        if projection := params.get("ProjectionExpression"):
            expressions.projected(projection, {})
            items = [expressions.projected(projection, item) for item in items]
        expressions.finish()
        if params.get("Select") != "COUNT":
            answer["Items"] = items
        if len(found) > limit:
            answer["LastEvaluatedKey"] = {name: page[-1][name] for name in key_names}
        return answer

    # --- writes

    def _write(self, sender: str, operation: str, table: Table, params: Params) -> dict[str, Any]:
        key, before, after, accepted = self._judge(operation, table, params)
        wants = params.get("ReturnValues", "NONE")
        if wants not in (("NONE", "ALL_OLD", "ALL_NEW") if operation == "UpdateItem" else ("NONE", "ALL_OLD")):
            raise ValidationError(f"Return values set to invalid value {wants}")
        self._charge_write(sender, operation, table, before, after if accepted else before)
        if not accepted:
            wants_old = params.get("ReturnValuesOnConditionCheckFailure") == "ALL_OLD"
            old = copied(before) if wants_old and before else None
            raise AwsError(operation, REFUSED, REFUSED_TEXT, item=old)
        self._put(sender, operation, table, key, before, after)
        match wants:
            case "ALL_NEW":
                return {"Attributes": after}
            case "ALL_OLD" if before:
                return {"Attributes": before}
        return {}

    def _judge(self, operation: str, table: Table, params: Params) -> tuple[str, Item, Item, bool]:
        """(key, item before, item after, whether the condition holds) of a write, without applying it."""
        key = table.key_in(params["Item"]) if operation == "PutItem" else table.key_of(params["Key"])
        before: Item = table.items.get(key, {})
        expressions = _expressions(params)
        condition = params.get("ConditionExpression")
        accepted = condition is None or expressions.holds(condition, before)
        after = before
        match operation:
            case "PutItem":
                after = {name: normal(value) for name, value in params["Item"].items()}
            case "DeleteItem":
                after = {}
            case "UpdateItem":
                after = before or {table.key: {"S": key}}
                if update := params.get("UpdateExpression"):
                    after = expressions.updated(update, after)
        expressions.finish()
        if accepted:
            if after and after.get(table.key) != {"S": key}:
                raise ValidationError(f"Cannot update attribute {table.key}. This attribute is part of the key")
            table.check_index_keys(after)
        return key, before, after, accepted

    def _put(self, sender: str, operation: str, table: Table, key: str, before: Item, after: Item) -> None:
        now = self.clock.monotonic()
        table.change(key, after, now, self.index_lag() if table.indexes else 0.0)
        self._usage_of(sender, operation, table.name).items_written += 1
        self._record(Applied(now, sender, operation, table.name, before, after))

    def _record(self, applied: Applied) -> None:
        self.history.append(applied)

    def _charge_read(self, sender: str, operation: str, table: Table, params: Params, items: list[Item]) -> None:
        if self.priced:
            units = dynamo_prices.read_units(items, consistent=bool(params.get("ConsistentRead")))
            self._usage_of(sender, operation, table.name).read_units += units

    def _charge_write(
        self, sender: str, operation: str, table: Table, before: Item, after: Item, factor: float = 1.0
    ) -> None:
        if not self.priced:
            return
        units = factor * dynamo_prices.write_units(before, after)
        for index in table.indexes.values():
            old, new = index.entry(before, table.key), index.entry(after, table.key)
            if old != new:
                units += dynamo_prices.index_write_units(old, new)
        self._usage_of(sender, operation, table.name).write_units += units

    def _transact(self, sender: str, params: Params) -> dict[str, Any]:
        """All or nothing. A repeated token within ten minutes is answered without doing it again."""
        actions = [_action_of(action) for action in params["TransactItems"]]
        if not 1 <= len(actions) <= TRANSACTION_ITEMS_MAX:
            raise ValidationError(f"a transaction has 1 to {TRANSACTION_ITEMS_MAX} items")
        if self._is_repeated(params):
            return {}
        judged = []
        for operation, part in actions:
            table = self._active("TransactWriteItems", part)
            judged.append((operation, table, part, *self._judge(operation, table, part)))
        if len({(table.name, key) for _, table, _, key, *_ in judged}) < len(judged):
            raise ValidationError("Transaction request cannot include multiple operations on one item")
        is_done = all(accepted for *_, accepted in judged)
        for _, table, _, _, before, after, _ in judged:
            target = after if is_done else before
            self._charge_write(sender, "TransactWriteItems", table, before, target, dynamo_prices.TRANSACTION)
        if not is_done:
            raise TransactionCanceledError(
                "TransactWriteItems", [_reason(part, before, accepted) for _, _, part, _, before, _, accepted in judged]
            )
        for operation, table, _, key, before, after, _ in judged:
            if operation != "ConditionCheck":
                self._put(sender, "TransactWriteItems", table, key, before, after)
        if token := params.get("ClientRequestToken"):
            self._tokens[token] = (self.clock.monotonic(), params["TransactItems"])
        return {}

    def _is_repeated(self, params: Params) -> bool:
        done = self._tokens.get(params.get("ClientRequestToken", ""))
        if done is None or self.clock.monotonic() - done[0] > TOKEN_VALID_S:
            return False
        if done[1] != params["TransactItems"]:
            raise AwsError("TransactWriteItems", "IdempotentParameterMismatchException")
        return True


class DynamoClient:
    """One sender's door to a `MemoryDynamo`."""

    def __init__(self, dynamo: MemoryDynamo, sender: str) -> None:
        self._dynamo = dynamo
        self._sender = sender

    async def call(self, operation: str, params: dict[str, Any], *, timeout_s: float | None = None) -> dict[str, Any]:
        return await self._dynamo.request(self._sender, operation, params, timeout_s)


def _expressions(params: Mapping[str, Any]) -> Expressions:
    return Expressions(params.get("ExpressionAttributeNames"), params.get("ExpressionAttributeValues"))


def _tables_of(params: Mapping[str, Any]) -> list[str]:
    if "TableName" in params:
        return [params["TableName"]]
    if "RequestItems" in params:
        return sorted(params["RequestItems"])
    if "ResourceArn" in params:
        return [params["ResourceArn"].removeprefix(ARN)]
    parts = [part for action in params.get("TransactItems", ()) for part in action.values()]
    return sorted({part["TableName"] for part in parts})


def _action_of(action: Mapping[str, Any]) -> tuple[str, Params]:
    """One element of TransactItems, as (operation, its params)."""
    ((name, params),) = action.items()
    if name == "ConditionCheck":
        if "ConditionExpression" not in params:
            raise ValidationError("a ConditionCheck needs a condition")
        return name, params
    if name not in ("Put", "Update", "Delete"):
        raise ValidationError(f"no transaction knows {name}")
    return f"{name}Item", params


def _reason(params: Params, before: Item, accepted: bool) -> dict[str, Any]:
    if accepted:
        return {"Code": "None"}
    reason: dict[str, Any] = {"Code": "ConditionalCheckFailed", "Message": REFUSED_TEXT}
    if before and params.get("ReturnValuesOnConditionCheckFailure") == "ALL_OLD":
        reason["Item"] = copied(before)
    return reason


def _sort_key(item: Mapping[str, Any], names: tuple[str, ...]) -> tuple[Any, ...]:
    """By value, for keys of type S and N."""
    return tuple(Decimal(item[name]["N"]) if "N" in item[name] else item[name]["S"] for name in names)
