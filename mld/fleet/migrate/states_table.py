"""`StatesTable`: reads and writes the rows of the two migrations in DynamoDB, one request per call, without retries.

Rule: coordination#state-writes. Every write has a condition, and returns False if the condition was not met, because
another worker was faster. A `TableError` means that the outcome of a write is unknown.
"""

from __future__ import annotations

from typing import Any, TypeAlias, TypeVar

from mld.aws.boundary import raises_only
from mld.aws.service import Service
from mld.aws.table_calls import ANSWER_S_MAX, TableCalls
from mld.core.errors import TableUnavailableError
from mld.fleet.migrate import bare_table
from mld.fleet.migrate.bare_table import Outline
from mld.fleet.migrate.states import ClientVersion, Kind, StateRow, TableStatus, changes_of, item_of, parse_state
from mld.leases.own_attribute import Row
from mld.leases.rows import Place

StateT = TypeVar("StateT", ClientVersion, TableStatus)

Params: TypeAlias = dict[str, Any]


def _key(place: Place, key: str) -> Params:
    return {place.key: {"S": key}}


@raises_only(TableUnavailableError)
class StatesTable:
    """The rows of the migrations, by kind and place. A place is a table and the name of its key."""

    def __init__(self, service: Service, *, request_timeout_s: float = ANSWER_S_MAX) -> None:
        self._service = service
        self._request_timeout_s = request_timeout_s

    async def get(self, kind: Kind[StateT], place: Place) -> StateRow[StateT] | None:
        """Return the row, by a strongly consistent read; None if there is none. Raises TableError, or
        UnreadableStateError if the row cannot be understood.
        """
        item = await self.get_item(kind.key, place)
        return None if item is None else parse_state(kind, item, place)

    async def get_item(self, key: str, place: Place) -> Row | None:
        """Return any row as it is; None if there is none. Raises TableError."""
        return await self._calls(place).get(_key(place, key))

    async def outline(self, place: Place) -> Outline:
        """Return the outline of the lease table, by a strongly consistent scan. Raises TableError."""
        params = {
            "ConsistentRead": True,
            "ProjectionExpression": ", ".join(f"#{name}" for name in bare_table.ATTRIBUTES),
            "ExpressionAttributeNames": {f"#{name}": name for name in bare_table.ATTRIBUTES},
        }
        return bare_table.outline([row async for page in self._calls(place).pages("Scan", params) for row in page])

    async def create(self, row: StateRow[StateT], place: Place) -> bool:
        """Create the row, and return True; False if there is one already. Raises TableError."""
        params = {
            "Item": item_of(row, place),
            "ConditionExpression": "attribute_not_exists(#pk)",
            "ExpressionAttributeNames": {"#pk": place.key},
        }
        return await self._calls(place).accepts("PutItem", params)

    async def update(self, row: StateRow[StateT], previous: StateT, place: Place) -> bool:
        """Write state, writer, time and history of `row`, on condition that the stored state is `previous`. Return
        whether the row was written. Raises TableError.
        """
        changes = changes_of(row)
        params = {
            "Key": _key(place, row.kind.key),
            "UpdateExpression": "SET " + ", ".join(f"#{name} = :{name}" for name in changes),
            "ConditionExpression": "#state = :state",
            "ExpressionAttributeNames": {f"#{name}": name for name in changes} | {"#state": row.kind.attribute},
            "ExpressionAttributeValues": {f":{name}": value for name, value in changes.items()}
            | {":state": {"S": previous.value}},
        }
        return await self._calls(place).accepts("UpdateItem", params)

    def _calls(self, place: Place) -> TableCalls:
        return TableCalls(self._service, place.table, self._request_timeout_s)
