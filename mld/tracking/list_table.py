"""`ListTable`: reads the list of streams in the lease table, and writes it under a condition, without retries.

Rule: shards#list-of-streams. The row's contents are decided in `stream_list`.
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
        """Return the list as it is now; version 0 if there is none yet, or a damaged one. Raises TableError."""
        return stream_list.parse(await self._calls.get({rows.KEY: {"S": stream_list.KEY}}) or {})

    async def write(self, streams: TrackedList) -> TrackedList | None:
        """Put the list, if the row still is as it was read; None if it is not.

        Raises TableError, also for a list that is too long for a row.
        """
        try:
            values = stream_list.values_of(streams)
        except ValueError as error:
            raise TableUnavailableError(str(error)) from error
        params = {"Item": {rows.KEY: {"S": stream_list.KEY}, **values}, **stream_list.unchanged(streams.seen)}
        return replace(streams, seen=values) if await self._calls.accepts("PutItem", params) else None
