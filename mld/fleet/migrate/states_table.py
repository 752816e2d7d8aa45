"""The rows of both migrations in DynamoDB: carries out the requests of `states`, one per call, no retries.

Rules: coordination#state-writes. False means refused by a condition: somebody else was faster. What is no definite
answer leaves as a `TableError`.
"""

from __future__ import annotations

from typing import Any

from mld.aws.boundary import raises_only
from mld.aws.service import Service
from mld.aws.table_calls import REFUSED_CODE, table_error
from mld.core.errors import AwsError, AwsUnreachableError, TableUnavailableError
from mld.fleet.migrate import states as requests
from mld.fleet.migrate.states import Kind, Row, StateRow, StateT, parse_state
from mld.fleet.values import Place

REQUEST_TIMEOUT_S = 3.0  # a hanging request must not hold up a leader check: the lock expires after 120 s
PAGES_MAX = 100  # of 1 MB each; a coordinator table has a handful of rows and one for each stream
CANCELLED_CODE = "TransactionCanceledException"
CONDITION_REASON = "ConditionalCheckFailed"


@raises_only(TableUnavailableError)
class StatesTable:
    """Rows by kind and place. A place is a table with the name of its key."""

    def __init__(self, service: Service, *, request_timeout_s: float = REQUEST_TIMEOUT_S) -> None:
        self._service = service
        self._request_timeout_s = request_timeout_s

    async def get(self, kind: Kind[StateT], place: Place) -> StateRow[StateT] | None:
        """Return the row, strongly consistent. Raises TableError, and UnreadableStateError if it cannot be
        understood.
        """
        item = await self.get_item(kind.key, place)
        return None if item is None else parse_state(kind, item, place)

    async def get_item(self, key: str, place: Place) -> Row | None:
        """Return any row as it is. Raises TableError."""
        item: Row | None = (await self._call("GetItem", requests.get(place, key))).get("Item")
        return item

    async def items(self, place: Place) -> tuple[Row, ...]:
        """Return all rows, strongly consistent. Raises TableError, also if they are too many to be sure of all."""
        params: dict[str, Any] = {"TableName": place.table, "ConsistentRead": True}
        found: list[Row] = []
        for _ in range(PAGES_MAX):
            answer = await self._call("Scan", params)
            found.extend(answer.get("Items", ()))
            if not answer.get("LastEvaluatedKey"):
                return tuple(found)
            params = params | {"ExclusiveStartKey": answer["LastEvaluatedKey"]}
        raise TableUnavailableError(f"{place.table} has more than {PAGES_MAX} pages: not all of its rows are known")

    async def rows_without_type(self, place: Place) -> int:
        """Return how many rows of the table's first page have no `entityType`. Raises TableError."""
        params = {
            "TableName": place.table,
            "FilterExpression": "attribute_not_exists(#type)",
            "ExpressionAttributeNames": {"#type": "entityType"},
        }
        return len((await self._call("Scan", params)).get("Items", ()))

    async def create(self, row: StateRow[StateT], place: Place) -> bool:
        """Put the row if there is none. Raises TableError."""
        return await self._try("PutItem", requests.create(row, place), place)

    async def update(self, row: StateRow[StateT], previous: StateT, place: Place) -> bool:
        """Change the row if it still says `previous`. Raises TableError."""
        return await self._try("UpdateItem", requests.update(row, previous, place), place)

    async def delete(self, row: StateRow[StateT], place: Place) -> bool:
        """Delete the row if it still says what `row` says. Raises TableError."""
        return await self._try("DeleteItem", requests.delete(row, place), place)

    async def move(self, rows: list[tuple[Row, Row, Row | None]], legacy: Place, leases: Place, leader: str) -> bool:
        """See `states.move`: all or nothing. Raises TableError."""
        return await self._try("TransactWriteItems", requests.move(rows, legacy, leases, leader), legacy)

    async def finalise(
        self, row: StateRow[StateT], previous: StateT, legacy: Place, leases: Place, leader: str
    ) -> bool:
        """See `states.finalise`: all or nothing. Raises TableError."""
        copy_exists = await self.get_item(row.kind.key, leases) is not None
        params = requests.finalise(row, previous, legacy, leases, leader, copy_exists=copy_exists)
        return await self._try("TransactWriteItems", params, legacy)

    async def _try(self, operation: str, params: requests.Params, place: Place) -> bool:
        try:
            await self._service.call(operation, params, timeout_s=self._request_timeout_s)
        except AwsUnreachableError as error:
            raise table_error(error, place.table) from error
        except AwsError as error:
            if error.code == REFUSED_CODE or _is_cancelled_by_condition(error):
                return False
            raise table_error(error, place.table) from error
        return True

    async def _call(self, operation: str, params: requests.Params) -> dict[str, Any]:
        try:
            return await self._service.call(operation, params, timeout_s=self._request_timeout_s)
        except (AwsError, AwsUnreachableError) as error:
            raise table_error(error, params["TableName"]) from error


def _is_cancelled_by_condition(error: AwsError) -> bool:
    """Return whether a condition cancelled it: the reasons stand in the message; conflicts and throttling cancel
    too, and are no answer.
    """
    return error.code == CANCELLED_CODE and CONDITION_REASON in str(error)
