"""`IndexKeeper`: sees to it that the lease table has its index of leases by owner (leases#owner-index)."""

from __future__ import annotations

import logging

from mld.core.clock import Clock
from mld.core.errors import TableError
from mld.leases.table import IndexStatus, LeaseIndex

log = logging.getLogger(__name__)

RETRY_S = 60.0
"""An index that is missing (a migration tool deletes it) or forbidden is asked for again after that."""


class IndexKeeper:
    """Asks for the index once, and again while it is missing."""

    def __init__(self, index: LeaseIndex, clock: Clock) -> None:
        self._index = index
        self._clock = clock

    async def ensure(self) -> None:
        """Raises TableError."""
        if await self._index.ensure() is IndexStatus.FORBIDDEN:
            log.warning(
                "the index of leases by owner cannot be created: allow dynamodb:UpdateTable and dynamodb:DescribeTable "
                "on the lease table. Until then leases are found by scans",
                extra={"action": "index_forbidden"},
            )

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await self._clock.sleep(RETRY_S)
            try:
                if await self._index.status() is IndexStatus.MISSING:
                    await self.ensure()
            except TableError as error:
                log.warning("owner index unknown: %s", error, extra={"action": "index_unknown"})
