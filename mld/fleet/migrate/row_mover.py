"""`RowMover`: moves the rows of the legacy coordinator table into the lease table.

Rule: coordination#moving-rows. Each transaction is fenced by the lock in the legacy table, and moves a row only as it
was read. A row that must not stand in the lease table stays where it is and is named in the log: it holds up the
migration until somebody deletes it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass

from mld.fleet.migrate.single_table import chunks, rows_to_move
from mld.fleet.migrate.states import (
    moved,
)
from mld.fleet.migrate.states_table import StatesTable
from mld.leases.own_attribute import Row
from mld.leases.rows import ENTITY_TYPE, EntityType, Place

log = logging.getLogger(__name__)


@dataclass(eq=False)
class RowMover:
    """`on_moved` is told of each transaction that moved rows."""

    states: StatesTable
    _: KW_ONLY
    worker_id: str
    on_moved: Callable[[], None] = lambda: None

    def __post_init__(self) -> None:
        self._named: set[str] = set()

    async def move(self, legacy: Place, leases: Place) -> bool:
        """Move what can be moved; False if a transaction was refused: the lock is lost, or a row has changed.

        Raises TableError; what was moved before stays moved.
        """
        by_key = {str(item[legacy.key].get("S")): item for item in await self.states.items(legacy)}
        items = [by_key[key] for key in rows_to_move(by_key)]
        for chunk in chunks(items):
            plans = [plan for item in chunk if (plan := await self._plan(item, legacy, leases)) is not None]
            if plans and not await self.states.move(plans, legacy, leases, self.worker_id):
                log.info("rows not moved: the lock is lost, or a row has changed", extra={"action": "move_refused"})
                return False
            if plans:
                self.on_moved()
                log.info("%d rows moved to the lease table", len(plans), extra={"action": "rows_moved"})
        return True

    async def _plan(self, item: Row, legacy: Place, leases: Place) -> tuple[Row, Row, Row | None] | None:
        """Return what the transaction needs. A copy in the lease table is replaced: everybody reads the legacy row
        first.
        """
        key = str(item[legacy.key].get("S"))
        wanted = moved(item, legacy)
        if wanted is None:
            self._name(key, legacy, "readers of the lease table would not know what it is")
            return None
        existing = await self.states.get_item(key, leases)
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
