"""`VisibleTable`: the lease table as the fleet sees it, without the leases of streams that nobody is to consume."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from mld.leases.table import LeaseTable, TableScan

IsVisible = Callable[[str | None], bool]
"""Whether leases of the stream with this identifier are to be taken; None: the row names no stream."""


class ConsumedStreams:
    """Identifiers of the streams that this worker consumes now; whoever follows the list sets them."""

    def __init__(self) -> None:
        self.ids: frozenset[str] = frozenset()

    def has(self, stream: str | None) -> bool:
        """An `IsVisible`."""
        return stream in self.ids


def visible(scan: TableScan, is_visible: IsVisible) -> TableScan:
    """The scan without the leases of other streams."""
    return replace(scan, leases=tuple(lease for lease in scan.leases if is_visible(lease.stream)))


class VisibleTable:
    """A `LeaseTable` whose scans have only leases that `is_visible`. Rows can be read and written by key as ever."""

    def __init__(self, table: LeaseTable, is_visible: IsVisible) -> None:
        self._table = table
        self._is_visible = is_visible
        self.ensure, self.get, self.get_many, self.apply = table.ensure, table.get, table.get_many, table.apply

    async def scan(self, part: tuple[int, int] | None = None, *, timeout_s: float | None = None) -> TableScan:
        return visible(await self._table.scan(part, timeout_s=timeout_s), self._is_visible)
