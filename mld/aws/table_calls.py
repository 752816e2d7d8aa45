"""`TableCalls`: one request to a DynamoDB table, and what its failure means. Rule: leases#table-errors.

A read that has no answer yet is sent again, beside the first; nothing else is retried here. Everything but a definite
answer becomes a `TableError`, whether the failure was on our side or at the service.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, TypeAlias

from mld.aws.service import Service
from mld.core.errors import (
    AwsError,
    AwsUnreachableError,
    TableError,
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
"""What services answer to calls that come too fast."""
ANSWER_S_MAX = 60.0
"""How long to wait for an answer of DynamoDB, as Java does: a late answer still counts. A call that cannot wait so long
for a lost answer is sent again meanwhile.
"""
READ_AGAIN_S = 3.0
"""A read without an answer for this long is sent again beside the first: its connection may lead nowhere."""
READS_MAX = 20
"""Attempts of one read: enough that one is under way when the network recovers."""
READ_OPERATIONS = frozenset({"GetItem", "BatchGetItem", "Query", "Scan", "DescribeTable"})
REFUSED_CODE = "ConditionalCheckFailedException"
MISSING_CODE = "ResourceNotFoundException"
THROTTLING_STATUS = 429
Row: TypeAlias = Mapping[str, Mapping[str, Any]]


def table_error(error: AwsError | AwsUnreachableError, table: str) -> TableError:
    """Return the `TableError` to raise from `error`."""
    if isinstance(error, AwsUnreachableError):
        return TableUnavailableError(str(error))
    if error.code in THROTTLING_CODES or error.status == THROTTLING_STATUS:
        return TableThrottledError(str(error))
    if error.code == MISSING_CODE:
        return TableMissingError(f"table {table}: {error}")
    return TableUnavailableError(str(error))


class RefusedError(Exception):
    """An expected refusal: `code` is the service's, `row` the old row if the service sent it."""

    def __init__(self, error: AwsError) -> None:
        super().__init__(str(error))
        self.code = error.code
        self.row: Row | None = error.item


class TableCalls:
    """Sends requests to one table. `on_missing` is called for each answer that says that there is no such table."""

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
        """Return the row with this key; None if there is none. Raises TableError."""
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
        """Yield the rows of a Scan or Query, page by page. Raises as `send` does."""
        while True:
            answer = await self.send(operation, params, refusals=refusals, timeout_s=timeout_s)
            yield answer.get("Items", ())
            if not answer.get("LastEvaluatedKey"):
                return
            params = {**params, "ExclusiveStartKey": answer["LastEvaluatedKey"]}

    async def accepts(self, operation: str, params: Mapping[str, Any]) -> bool:
        """Send one conditional write; False if its condition did not hold. Raises TableError."""
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
        """Send one request; again, beside the first, while a read or a `repeatable` write has no answer.

        Raises RefusedError for the codes in `refusals`, else the TableError of leases#table-errors.
        `one_table`: the operation has the parameter TableName.
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
