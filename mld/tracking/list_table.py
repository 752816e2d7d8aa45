"""`ListTable`: reads and conditionally writes the row of the lease table that has the list of streams, without retries.

Rule: shards#list-of-streams. The contents of the row are defined in `stream_list`.
"""

from __future__ import annotations

from dataclasses import replace

from mld.aws.boundary import raises_only
from mld.aws.service import Service
from mld.aws.table_calls import TableCalls
from mld.core.errors import TableUnavailableError
from mld.leases import rows
from mld.tracking import stream_list
from mld.tracking.stream_list import (
    TrackedList,
)


@raises_only(TableUnavailableError)
class ListTable:
    """The list of streams in the lease table `table_name`."""

    def __init__(self, service: Service, table_name: str) -> None:
        self._calls = TableCalls(service, table_name)

    async def read(self) -> TrackedList:
        """Return the present list; its version is 0 if there is none yet, or if it is damaged. Raises TableError."""
        return stream_list.parse(await self._calls.get({rows.KEY: {"S": stream_list.KEY}}) or {})

    async def write(self, streams: TrackedList) -> TrackedList | None:
        """Write the list. Return it as it was written, or None if the row has changed since the list was read.

        Raises TableError; also if the list is too long for a row.
        """
        try:
            values = stream_list.values_of(streams)
        except ValueError as error:
            raise TableUnavailableError(str(error)) from error
        params = {"Item": {rows.KEY: {"S": stream_list.KEY}, **values}, **stream_list.unchanged(streams.seen)}
        return replace(streams, seen=values) if await self._calls.accepts("PutItem", params) else None
