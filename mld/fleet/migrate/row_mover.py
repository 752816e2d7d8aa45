"""`RowMover`: moves the rows of the legacy coordinator table into the lease table (coordination#moving-rows).

Each transaction is fenced by the lock in the legacy table, and moves a row only as it was read. A row that may not
stand in the lease table stays where it is and is named in the log: it holds up the migration until somebody deletes it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from mld.fleet.migrate.single_table import chunks, rows_to_move
from mld.fleet.migrate.states import ENTITY_TYPE, Row, moved
from mld.fleet.migrate.states_table import StatesTable
from mld.fleet.values import EntityType, Place

log = logging.getLogger(__name__)


class RowMover:
    """`on_moved` is told of each transaction that moved rows."""

    def __init__(self, states: StatesTable, *, worker_id: str, on_moved: Callable[[], None] = lambda: None) -> None:
        self._on_moved = on_moved
        self._states = states
        self._worker_id = worker_id
        self._named: set[str] = set()

    async def move(self, legacy: Place, leases: Place) -> bool:
        """Move what can be moved; False if a transaction was refused: the lock is lost, or a row has changed.

        Raises TableError; what was moved before stays moved.
        """
        by_key = {str(item[legacy.key].get("S")): item for item in await self._states.items(legacy)}
        items = [by_key[key] for key in rows_to_move(by_key)]
        for chunk in chunks(items):
            plans = [plan for item in chunk if (plan := await self._plan(item, legacy, leases)) is not None]
            if plans and not await self._states.move(plans, legacy, leases, self._worker_id):
                log.info("rows not moved: the lock is lost, or a row has changed", extra={"action": "move_refused"})
                return False
            self._report(plans)
        return True

    async def _plan(self, item: Row, legacy: Place, leases: Place) -> tuple[Row, Row, Row | None] | None:
        """What the transaction needs. A copy in the lease table is replaced: everybody reads the legacy row first."""
        key = str(item[legacy.key].get("S"))
        wanted = moved(item, legacy)
        if wanted is None:
            self._name(key, legacy, "readers of the lease table would not know what it is")
            return None
        existing = await self._states.get_item(key, leases)
        if existing is not None and existing.get(ENTITY_TYPE, {}).get("S", "LEASE") == EntityType.LEASE.value:
            self._name(key, legacy, f"the lease table {leases.table} has a lease of that name")
            return None
        return item, wanted, existing

    def _name(self, key: str, legacy: Place, why: str) -> None:
        """Log a row once."""
        if key not in self._named:
            self._named.add(key)
            log.error(
                "row %s of table %s cannot be moved: %s. Delete it, or the migration to a single table cannot go on",
                key,
                legacy.table,
                why,
                extra={"action": "row_not_movable"},
            )

    def _report(self, plans: Sequence[tuple[Row, Row, Row | None]]) -> None:
        if plans:
            self._on_moved()
            log.info("%d rows moved to the lease table", len(plans), extra={"action": "rows_moved"})
