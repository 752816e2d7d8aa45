"""Rows of the two migrations, `Migration3.0` and `TableMigration3.5`: DynamoDB JSON to values and back, and their
writes.

Rules: coordination#migration-rows. A row is an immutable value: the next state is a new row, so
that a write that failed leaves nothing behind. Attributes we do not know are kept, in the row and in each history
entry.

Requests are pure, too. Rules: coordination#state-writes, coordination#moving-rows. Every write has a condition. Unlike
Java's, a delete asks for the state that was read, and a row is moved only as it was read: whoever changes it in between
wins, and the move is tried again.

`StatesTable` carries them out, one per call, no retries. False means refused by a condition: somebody else was faster.
What is no definite answer leaves as a `TableError`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Generic, TypeAlias, TypeVar

from mld.aws.service import ANSWER_S_MAX, Service, TableCalls, raises_only, table_error
from mld.core.errors import AwsError, AwsUnreachableError, MldError, TableUnavailableError
from mld.fleet.leader.lock import LOCK_KEY, OWNER
from mld.fleet.migrate import bare_table
from mld.fleet.migrate.bare_table import Outline
from mld.leases.rows import ENTITY_TYPE, LEASE_TABLE_KEY, EntityType, Place, Row

MODIFIED_BY = "mb"
MODIFIED_AT = "mts"
HISTORY = "h"
HISTORY_MAX = 10  # Java's limit; older entries are dropped
SHOWN_MAX = 100  # of a value in a message: an attribute may have 400 KB

Params: TypeAlias = dict[str, Any]

PAGES_MAX = 100  # of 1 MB each; a coordinator table has a handful of rows and one for each stream
CANCELLED_CODE = "TransactionCanceledException"
CONDITION_REASON = "ConditionalCheckFailed"


class ClientVersion(Enum):
    """`cv` of the row `Migration3.0`: in which mode the fleet assigns leases."""

    INIT = "CLIENT_VERSION_INIT"
    UPGRADE_FROM_2X = "CLIENT_VERSION_UPGRADE_FROM_2X"
    V2X = "CLIENT_VERSION_2X"
    V3X_WITH_ROLLBACK = "CLIENT_VERSION_3X_WITH_ROLLBACK"
    V3X = "CLIENT_VERSION_3X"


class TableStatus(Enum):
    """`tm` of the row `TableMigration3.5`: where the rows that are not leases live."""

    INIT = "TABLE_MIGRATION_STATUS_INIT"
    DEPLOYED = "TABLE_MIGRATION_STATUS_DEPLOYED"
    PENDING = "TABLE_MIGRATION_STATUS_PENDING"
    COMPLETE = "TABLE_MIGRATION_STATUS_COMPLETE"


StateT = TypeVar("StateT", ClientVersion, TableStatus)


class UnreadableStateError(MldError):
    """The row of a migration exists and cannot be read."""

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(f"the row {key} cannot be read: {reason}; correct it, or delete it if no worker runs")
        self.key = key


@dataclass(frozen=True, slots=True)
class Kind(Generic[StateT]):
    """One of the two rows: its key, the attribute that holds the state, and what the state may be."""

    key: str
    attribute: str
    entity: EntityType
    states: type[StateT]
    first: StateT


CLIENT_VERSION = Kind("Migration3.0", "cv", EntityType.CLIENT_VERSION_MIGRATION, ClientVersion, ClientVersion.INIT)
TABLE_MIGRATION = Kind("TableMigration3.5", "tm", EntityType.TABLE_MIGRATION, TableStatus, TableStatus.INIT)


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """What the row said before. `state` is the text in the row, because an entry may be newer than this program."""

    state: str | None
    by: str | None
    at_ms: int | None
    others: Row = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StateRow(Generic[StateT]):
    """The row of one migration. `by` is who wrote it, `at_ms` when (wall clock, epoch milliseconds)."""

    kind: Kind[StateT]
    state: StateT
    by: str | None
    at_ms: int | None
    history: tuple[HistoryEntry, ...] = ()
    """Newest first, at most `HISTORY_MAX`."""
    others: Row = field(default_factory=dict)
    """Attributes this program does not know."""


ClientVersionRow: TypeAlias = StateRow[ClientVersion]
TableRow: TypeAlias = StateRow[TableStatus]


def first_row(kind: Kind[StateT], state: StateT, by: str, at_ms: int) -> StateRow[StateT]:
    """Return the row to create: it says already that the fleet came from INIT."""
    return StateRow(kind, state, by, at_ms, (HistoryEntry(kind.first.value, by, at_ms),))


def advanced(row: StateRow[StateT], state: StateT, by: str, at_ms: int) -> StateRow[StateT]:
    """Return the row after `row`: what it said becomes the newest entry of its history."""
    past = HistoryEntry(row.state.value, row.by, row.at_ms)
    return StateRow(row.kind, state, by, at_ms, (past, *row.history)[:HISTORY_MAX], row.others)


def parse_state(kind: Kind[StateT], item: Row, place: Place) -> StateRow[StateT]:
    """Return the row as read from `place`. Raises UnreadableStateError if it does not say a state that we know.

    `mb`, `mts` and `h` inform and are not needed to go on, so a damaged one is taken for absent.
    """
    text = item.get(kind.attribute, {}).get("S")
    try:
        state = kind.states(text)
    except ValueError:
        raise UnreadableStateError(
            kind.key, f"{kind.attribute} is {str(text)[:SHOWN_MAX]!r}, which is no state"
        ) from None
    known = {place.key, ENTITY_TYPE, kind.attribute, MODIFIED_BY, MODIFIED_AT, HISTORY}
    entries = item.get(HISTORY, {}).get("L", ())
    return StateRow(
        kind,
        state,
        _text(item, MODIFIED_BY),
        _integer(item, MODIFIED_AT),
        tuple(_entry(kind, entry["M"]) for entry in entries if "M" in entry)[:HISTORY_MAX],
        {name: value for name, value in item.items() if name not in known},
    )


def item_of(row: StateRow[StateT], place: Place) -> dict[str, dict[str, Any]]:
    """Return the whole item, to be put into `place`."""
    identity = {place.key: {"S": row.kind.key}, ENTITY_TYPE: {"S": row.kind.entity.value}}
    return {**{name: dict(value) for name, value in row.others.items()}, **identity, **changes_of(row)}


def changes_of(row: StateRow[StateT]) -> dict[str, dict[str, Any]]:
    """Return the attributes that an update of the row sets; it leaves all others as they are."""
    changes = _written(row.kind, row.state.value, row.by, row.at_ms)
    if row.history:
        entries = [{**entry.others, **_written(row.kind, entry.state, entry.by, entry.at_ms)} for entry in row.history]
        changes[HISTORY] = {"L": [{"M": entry} for entry in entries]}
    return changes


def _written(kind: Kind[StateT], state: str | None, by: str | None, at_ms: int | None) -> dict[str, dict[str, Any]]:
    """Return the attributes of a state, now or in the history."""
    found: dict[str, dict[str, Any]] = {} if state is None else {kind.attribute: {"S": state}}
    if by is not None:
        found[MODIFIED_BY] = {"S": by}
    if at_ms is not None:
        found[MODIFIED_AT] = {"N": str(at_ms)}
    return found


def moved(item: Row, legacy: Place) -> dict[str, dict[str, Any]] | None:
    """Return a row of the legacy coordinator table as it is to stand in the lease table; None if it must not stand
    there.

    There every row that is not a lease needs an `entityType` that all readers know. Rows of workers before 3.5 have
    none; theirs follows from the key, or from what only a stream-info row has. Anything else would be a broken lease.
    """
    key = item[legacy.key]
    kind = item.get(ENTITY_TYPE, {}).get("S") or _implied_entity(item, legacy)
    if kind not in {entity.value for entity in EntityType} - {EntityType.LEASE.value}:
        return None
    rest = {name: dict(value) for name, value in item.items() if name not in (legacy.key, ENTITY_TYPE)}
    return {LEASE_TABLE_KEY: dict(key), ENTITY_TYPE: {"S": kind}, **rest}


def _implied_entity(item: Row, legacy: Place) -> str | None:
    if item[legacy.key].get("S") == CLIENT_VERSION.key:
        return CLIENT_VERSION.entity.value
    return EntityType.STREAM.value if "streamId" in item else None


def _entry(kind: Kind[StateT], item: Row) -> HistoryEntry:
    known = {kind.attribute, MODIFIED_BY, MODIFIED_AT}
    others = {name: value for name, value in item.items() if name not in known}
    return HistoryEntry(_text(item, kind.attribute), _text(item, MODIFIED_BY), _integer(item, MODIFIED_AT), others)


def _text(item: Row, name: str) -> str | None:
    value = item.get(name, {}).get("S")
    return value if isinstance(value, str) else None


def _integer(item: Row, name: str) -> int | None:
    text = str(item.get(name, {}).get("N", ""))
    return int(text) if text.removeprefix("-").isascii() and text.removeprefix("-").isdigit() else None


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
