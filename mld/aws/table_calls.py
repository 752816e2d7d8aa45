"""`TableCalls`: sends requests to a DynamoDB table, and turns failures into `TableError`s. Rule: leases#table-errors.

If a read has no answer after a while, it is sent a second time while the first one is still waited for. A caller may
allow the same for a write. Nothing else is retried here. Everything but a definite answer becomes a `TableError`,
whether the failure was on our side or at the service.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, TypeAlias

from mld.aws.service import Service
from mld.core.errors import (
    AwsError,
    AwsUnreachableError,
    TableError,
    TableForeignError,
    TableMissingError,
    TableThrottledError,
    TableUnavailableError,
)
from mld.core.hedging import first_answer

THROTTLING_CODES = frozenset(
    ("ProvisionedThroughputExceededException", "ProvisionedThroughputExceeded", "LimitExceededException")
    + ("ThrottlingException", "Throttling", "ThrottledException", "KMSThrottlingException")
    + ("RequestLimitExceeded", "RequestThrottled", "RequestThrottledException")
    + ("TooManyRequestsException", "SlowDown")
)
"""Codes with which services refuse calls that come too fast."""
ANSWER_S_MAX = 60.0
"""How long to wait for an answer of DynamoDB, as Java does, because a late answer is still useful. A call that may be
repeated is sent again meanwhile (READ_AGAIN_S).
"""
READ_AGAIN_S = 3.0
"""Whenever a read has waited this long for an answer, it is sent once more, because its connection may be dead."""
READS_MAX = 20
"""Most attempts of one read: enough that one is still under way when the network recovers."""
READ_OPERATIONS = frozenset({"GetItem", "BatchGetItem", "Query", "Scan", "DescribeTable"})
REFUSED_CODE = "ConditionalCheckFailedException"
MISSING_CODE = "ResourceNotFoundException"
THROTTLING_STATUS = 429
INVALID_CODE = "ValidationException"
ANOTHER_KEY = ("key element does not match the schema", "Missing the key", "Type mismatch for key")
"""Words with which DynamoDB refuses the key of a row, in a read, an update, a put and a delete."""
Row: TypeAlias = Mapping[str, Mapping[str, Any]]
"""A row as DynamoDB sends it: attribute values such as ``{"S": "text"}`` by name."""


def table_error(error: AwsError | AwsUnreachableError, table: str) -> TableError:
    """Return the `TableError` to raise from `error`."""
    if isinstance(error, AwsUnreachableError):
        return TableUnavailableError(str(error))
    if error.code in THROTTLING_CODES or error.status == THROTTLING_STATUS:
        return TableThrottledError(str(error))
    if error.code == MISSING_CODE:
        return TableMissingError(f"table {table}: {error}")
    if error.code == INVALID_CODE and any(words in str(error) for words in ANOTHER_KEY):
        remedy = "set another applicationName, or tableName"
        return TableForeignError(f"{table} is no table of KCL, because it has another key: {remedy} ({error})")
    return TableUnavailableError(str(error))


class RefusedError(Exception):
    """DynamoDB refused a request with a code that the caller expects (`code`). `row` is the old row, if it was sent."""

    def __init__(self, error: AwsError) -> None:
        super().__init__(str(error))
        self.code = error.code
        self.row: Row | None = error.item


class TableCalls:
    """Sends requests to one table. `on_missing` is called for each answer that says that the table does not exist."""

    def __init__(
        self,
        service: Service,
        table_name: str,
        timeout_s: float = ANSWER_S_MAX,
        on_missing: Callable[[], None] = lambda: None,
    ) -> None:
        self.table_name = table_name
        self._on_missing = on_missing
        self._service = service
        self._timeout_s = timeout_s

    async def get(self, key: Mapping[str, Any], *, consistent: bool = True) -> Row | None:
        """Return the row with this key; None if the table has no such row. Raises TableError."""
        answer = await self.send("GetItem", {"Key": key, "ConsistentRead": consistent})
        row: Row | None = answer.get("Item") or None
        return row

    async def pages(
        self,
        operation: str,
        params: Mapping[str, Any],
        *,
        refusals: tuple[str, ...] = (),
        timeout_s: float | None = None,
    ) -> AsyncIterator[Sequence[Row]]:
        """Yield the rows of a Scan or Query, page by page. Raises RefusedError for the codes in `refusals`, else
        TableError.
        """
        while True:
            answer = await self.send(operation, params, refusals=refusals, timeout_s=timeout_s)
            yield answer.get("Items", ())
            if not answer.get("LastEvaluatedKey"):
                return
            params = {**params, "ExclusiveStartKey": answer["LastEvaluatedKey"]}

    async def accepts(self, operation: str, params: Mapping[str, Any]) -> bool:
        """Send one conditional write. Return whether its condition held, so that it was done. Raises TableError."""
        try:
            await self.send(operation, params, refusals=(REFUSED_CODE,))
        except RefusedError:
            return False
        return True

    async def send(
        self,
        operation: str,
        params: Mapping[str, Any],
        *,
        refusals: tuple[str, ...] = (),
        timeout_s: float | None = None,
        one_table: bool = True,
        repeatable: bool = False,
    ) -> dict[str, Any]:
        """Send one request, and return the answer.

        While a read, or a write that is `repeatable`, has no answer, it is sent again every READ_AGAIN_S. The first
        answer counts. `one_table` says that the operation has the parameter TableName. Raises RefusedError for the
        codes in `refusals`, and for other failures the TableError of leases#table-errors.
        """
        named = {"TableName": self.table_name, **params} if one_table else dict(params)
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        try:
            if not repeatable and operation not in READ_OPERATIONS:
                return await self._service.call(operation, named, timeout_s=limit_s)
            return await first_answer(
                lambda left_s: self._service.call(operation, dict(named), timeout_s=left_s),
                limit_s=limit_s,
                again_s=READ_AGAIN_S,
                asks_max=READS_MAX,
            )
        except AwsUnreachableError as error:
            raise table_error(error, self.table_name) from error
        except AwsError as error:
            if error.code in refusals:
                raise RefusedError(error) from error
            if error.code == MISSING_CODE:
                self._on_missing()
            raise table_error(error, self.table_name) from error
