"""`StatesTable`: reads and writes the rows of the two migrations in DynamoDB, one request per call, without retries.

Rules: coordination#state-writes, coordination#moving-rows. Every write has a condition. Unlike Java's, a delete asks
for the state that was read, and a row is moved only as it was read: a change in between wins, and the move is tried
again. False means that a condition refused the write: another worker was faster. An answer that is not definite leaves
as a `TableError`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias, TypeVar

from mld.aws.boundary import raises_only
from mld.aws.service import Service
from mld.aws.table_calls import ANSWER_S_MAX, TableCalls, table_error
from mld.core.errors import AwsError, AwsUnreachableError, TableUnavailableError
from mld.fleet.leader.lock import LOCK_KEY, OWNER
from mld.fleet.migrate import bare_table
from mld.fleet.migrate.bare_table import Outline
from mld.fleet.migrate.states import ClientVersion, Kind, StateRow, TableStatus, changes_of, item_of, parse_state
from mld.leases.own_attribute import Row
from mld.leases.rows import Place

StateT = TypeVar("StateT", ClientVersion, TableStatus)

Params: TypeAlias = dict[str, Any]

PAGES_MAX = 100  # of 1 MB each; a coordinator table has a handful of rows and one for each stream
CANCELLED_CODE = "TransactionCanceledException"
CONDITION_REASON = "ConditionalCheckFailed"


def _creation(row: StateRow[StateT], place: Place) -> Params:
    return {"TableName": place.table, "Item": item_of(row, place), **_absent(place)}


def _key(place: Place, key: str) -> Params:
    return {place.key: {"S": key}}


def _absent(place: Place) -> Params:
    return {"ConditionExpression": "attribute_not_exists(#pk)", "ExpressionAttributeNames": {"#pk": place.key}}


def _in_state(kind: Kind[StateT], state: StateT) -> Params:
    return {
        "ConditionExpression": "#state = :state",
        "ExpressionAttributeNames": {"#state": kind.attribute},
        "ExpressionAttributeValues": {":state": {"S": state.value}},
    }


def _unchanged(item: Row) -> Params:
    """Return the condition that every attribute is as it was read. One that was added since goes unnoticed: nobody
    adds any to such rows.
    """
    numbered = list(enumerate(item.items()))
    return {
        "ConditionExpression": " AND ".join(f"#a{number} = :a{number}" for number, _ in numbered),
        "ExpressionAttributeNames": {f"#a{number}": name for number, (name, _) in numbered},
        "ExpressionAttributeValues": {f":a{number}": dict(value) for number, (_, value) in numbered},
    }


def _fence(legacy: Place, leader: str) -> Params:
    return {
        "ConditionCheck": {
            "TableName": legacy.table,
            "Key": _key(legacy, LOCK_KEY),
            "ConditionExpression": "#owner = :me",
            "ExpressionAttributeNames": {"#owner": OWNER},
            "ExpressionAttributeValues": {":me": {"S": leader}},
        }
    }


@raises_only(TableUnavailableError)
class StatesTable:
    """Rows by kind and place. A place is a table with the name of its key."""

    def __init__(self, service: Service, *, request_timeout_s: float = ANSWER_S_MAX) -> None:
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
        return await self._calls(place).get(_key(place, key))

    async def items(self, place: Place) -> tuple[Row, ...]:
        """Return all rows, strongly consistent. Raises TableError, also if they are too many to be sure of all."""
        found: list[Sequence[Row]] = []
        async for page in self._calls(place).pages("Scan", {"ConsistentRead": True}):
            if len(found) == PAGES_MAX:
                raise TableUnavailableError(
                    f"{place.table} has more than {PAGES_MAX} pages: not all of its rows are known"
                )
            found.append(page)
        return tuple(row for page in found for row in page)

    async def outline(self, place: Place) -> Outline:
        """Return what the lease table consists of, strongly consistent. Raises TableError."""
        params = {
            "ConsistentRead": True,
            "ProjectionExpression": ", ".join(f"#{name}" for name in bare_table.ATTRIBUTES),
            "ExpressionAttributeNames": {f"#{name}": name for name in bare_table.ATTRIBUTES},
        }
        return bare_table.outline([row async for page in self._calls(place).pages("Scan", params) for row in page])

    async def create(self, row: StateRow[StateT], place: Place) -> bool:
        """Put the row if there is none. Raises TableError."""
        return await self._calls(place).accepts("PutItem", _creation(row, place))

    async def update(self, row: StateRow[StateT], previous: StateT, place: Place) -> bool:
        """Change the row if it still says `previous`: the state, who and when, and the history. Raises TableError."""
        changes = changes_of(row)
        condition = _in_state(row.kind, previous)
        params = {
            "Key": _key(place, row.kind.key),
            "UpdateExpression": "SET " + ", ".join(f"#{name} = :{name}" for name in changes),
            **condition,
            "ExpressionAttributeNames": {f"#{name}": name for name in changes} | condition["ExpressionAttributeNames"],
            "ExpressionAttributeValues": {f":{name}": value for name, value in changes.items()}
            | condition["ExpressionAttributeValues"],
        }
        return await self._calls(place).accepts("UpdateItem", params)

    async def delete(self, row: StateRow[StateT], place: Place) -> bool:
        """Delete the row if it still says what `row` says. Raises TableError."""
        params = {"Key": _key(place, row.kind.key), **_in_state(row.kind, row.state)}
        return await self._calls(place).accepts("DeleteItem", params)

    async def move(self, rows: list[tuple[Row, Row, Row | None]], legacy: Place, leases: Place, leader: str) -> bool:
        """Move rows to the lease table, all or none, while `leader` holds the lock in the legacy table.

        Each is (row as read in the legacy table, row to put, row with its key as read in the lease table or None).
        Raises TableError.
        """
        actions: list[Params] = [_fence(legacy, leader)]
        for read, wanted, replaced in rows:
            condition = _absent(leases) if replaced is None else _unchanged(replaced)
            actions.append({"Put": {"TableName": leases.table, "Item": dict(wanted), **condition}})
            key = {legacy.key: read[legacy.key]}
            actions.append({"Delete": {"TableName": legacy.table, "Key": key, **_unchanged(read)}})
        return await self._transact(actions, legacy)

    async def finalise(
        self, row: StateRow[StateT], previous: StateT, legacy: Place, leases: Place, leader: str
    ) -> bool:
        """Write `row` over `previous` in the legacy table and leave a copy in the lease table, or neither, while
        `leader` leads. Raises TableError.
        """
        actions: list[Params] = [_fence(legacy, leader)]
        if await self.get_item(row.kind.key, leases) is None:
            actions.append({"Put": _creation(row, leases)})
        condition = _in_state(row.kind, previous)
        actions.append({"Put": {"TableName": legacy.table, "Item": item_of(row, legacy), **condition}})
        return await self._transact(actions, legacy)

    def _calls(self, place: Place) -> TableCalls:
        return TableCalls(self._service, place.table, self._request_timeout_s)

    async def _transact(self, actions: list[Params], place: Place) -> bool:
        params = {"TransactItems": actions}
        try:
            await self._service.call("TransactWriteItems", params, timeout_s=self._request_timeout_s)
        except (AwsError, AwsUnreachableError) as error:
            # Whether a condition cancelled it stands in the message; conflicts and throttling cancel too, and are no
            # answer.
            if isinstance(error, AwsError) and error.code == CANCELLED_CODE and CONDITION_REASON in str(error):
                return False
            raise table_error(error, place.table) from error
        return True
