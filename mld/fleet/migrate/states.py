"""Converts the rows of the two migrations, `Migration3.0` and `TableMigration3.5`, from and to DynamoDB JSON. Pure.

Rule: coordination#migration-rows. A row is an immutable value. To change the state, a new value is made and written, so
a failed write changes nothing in memory. Unknown attributes are preserved, both in the row and in each history entry.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Generic, TypeAlias, TypeVar

from mld.core.errors import MldError
from mld.leases.own_attribute import Row
from mld.leases.rows import ENTITY_TYPE, EntityType, Place

MODIFIED_BY = "mb"
MODIFIED_AT = "mts"
HISTORY = "h"
HISTORY_MAX = 10  # Java's limit; older entries are dropped
SHOWN_MAX = 100  # characters of a value that a message shows: an attribute may have 400 KB


class ClientVersion(Enum):
    """`cv` of the row `Migration3.0`: the mode in which the fleet assigns leases."""

    INIT = "CLIENT_VERSION_INIT"
    UPGRADE_FROM_2X = "CLIENT_VERSION_UPGRADE_FROM_2X"
    V2X = "CLIENT_VERSION_2X"
    V3X_WITH_ROLLBACK = "CLIENT_VERSION_3X_WITH_ROLLBACK"
    V3X = "CLIENT_VERSION_3X"


class TableStatus(Enum):
    """`tm` of the row `TableMigration3.5`: how far the move of all rows into the lease table has got."""

    INIT = "TABLE_MIGRATION_STATUS_INIT"
    DEPLOYED = "TABLE_MIGRATION_STATUS_DEPLOYED"
    PENDING = "TABLE_MIGRATION_STATUS_PENDING"
    COMPLETE = "TABLE_MIGRATION_STATUS_COMPLETE"


StateT = TypeVar("StateT", ClientVersion, TableStatus)


class UnreadableStateError(MldError):
    """Raised if the row of a migration exists but cannot be read."""

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(f"the row {key} cannot be read: {reason}; correct it, or delete it if no worker runs")
        self.key = key


@dataclass(frozen=True, slots=True)
class Kind(Generic[StateT]):
    """Describes one of the two rows: its key, the attribute that has the state, and the possible states. `first` is the
    state with which the history of a new row begins.
    """

    key: str
    attribute: str
    entity: EntityType
    states: type[StateT]
    first: StateT


CLIENT_VERSION = Kind("Migration3.0", "cv", EntityType.CLIENT_VERSION_MIGRATION, ClientVersion, ClientVersion.INIT)
TABLE_MIGRATION = Kind("TableMigration3.5", "tm", EntityType.TABLE_MIGRATION, TableStatus, TableStatus.INIT)


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """An earlier state of the row, written by the worker `by` at `at_ms`. `state` is a text, because a newer program
    may have written a state that this program does not know. `others` are attributes that it does not know.
    """

    state: str | None
    by: str | None
    at_ms: int | None
    others: Row = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StateRow(Generic[StateT]):
    """The row of one migration. `by` is the worker that wrote it, `at_ms` the time (wall clock, epoch milliseconds)."""

    kind: Kind[StateT]
    state: StateT
    by: str | None
    at_ms: int | None
    history: tuple[HistoryEntry, ...] = ()
    """The newest entry first; at most `HISTORY_MAX` entries."""
    others: Row = field(default_factory=dict)
    """Attributes that this program does not know."""


ClientVersionRow: TypeAlias = StateRow[ClientVersion]


def first_row(kind: Kind[StateT], state: StateT, by: str, at_ms: int) -> StateRow[StateT]:
    """Return the row to create. Its history already has the state INIT."""
    return StateRow(kind, state, by, at_ms, (HistoryEntry(kind.first.value, by, at_ms),))


def advanced(row: StateRow[StateT], state: StateT, by: str, at_ms: int) -> StateRow[StateT]:
    """Return the row that follows `row`. The state of `row` becomes the newest entry of the history."""
    past = HistoryEntry(row.state.value, row.by, row.at_ms)
    return StateRow(row.kind, state, by, at_ms, (past, *row.history)[:HISTORY_MAX], row.others)


def parse_state(kind: Kind[StateT], item: Row, place: Place) -> StateRow[StateT]:
    """Return the row as read from `place`. Raises UnreadableStateError if it does not have a known state.

    Writer, time and history (`mb`, `mts` and `h`) are only information, so if one is damaged, it counts as absent.
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
    """Return the whole item to create in `place`."""
    identity = {place.key: {"S": row.kind.key}, ENTITY_TYPE: {"S": row.kind.entity.value}}
    return {**{name: dict(value) for name, value in row.others.items()}, **identity, **changes_of(row)}


def changes_of(row: StateRow[StateT]) -> dict[str, dict[str, Any]]:
    """Return the attributes that an update of the row sets. All its other attributes stay as they are."""
    changes = _written(row.kind, row.state.value, row.by, row.at_ms)
    if row.history:
        entries = [{**entry.others, **_written(row.kind, entry.state, entry.by, entry.at_ms)} for entry in row.history]
        changes[HISTORY] = {"L": [{"M": entry} for entry in entries]}
    return changes


def _written(kind: Kind[StateT], state: str | None, by: str | None, at_ms: int | None) -> dict[str, dict[str, Any]]:
    """Return the attributes for a state that `by` wrote at `at_ms`, for the row itself or for an entry of its history.
    A value that is None gets no attribute.
    """
    found: dict[str, dict[str, Any]] = {} if state is None else {kind.attribute: {"S": state}}
    if by is not None:
        found[MODIFIED_BY] = {"S": by}
    if at_ms is not None:
        found[MODIFIED_AT] = {"N": str(at_ms)}
    return found


def _entry(kind: Kind[StateT], item: Row) -> HistoryEntry:
    """Return the history entry in `item`, one item of the list in the row."""
    known = {kind.attribute, MODIFIED_BY, MODIFIED_AT}
    others = {name: value for name, value in item.items() if name not in known}
    return HistoryEntry(_text(item, kind.attribute), _text(item, MODIFIED_BY), _integer(item, MODIFIED_AT), others)


def _text(item: Row, name: str) -> str | None:
    """Return an attribute that is a string; None if it is absent or damaged."""
    value = item.get(name, {}).get("S")
    return value if isinstance(value, str) else None


def _integer(item: Row, name: str) -> int | None:
    """Return an attribute that is a whole number; None if it is absent or damaged."""
    text = str(item.get(name, {}).get("N", ""))
    return int(text) if text.removeprefix("-").isascii() and text.removeprefix("-").isdigit() else None
