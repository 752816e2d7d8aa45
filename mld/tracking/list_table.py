"""The row of `stream_list` in the lease table: read and written under a condition, one request a call, no retries."""

from __future__ import annotations

from dataclasses import replace

from mld.aws.boundary import raises_only
from mld.aws.service import Service
from mld.aws.table_calls import REFUSED_CODE, RefusedError, TableCalls
from mld.core.errors import TableUnavailableError
from mld.leases import rows
from mld.tracking import stream_list
from mld.tracking.stream_list import TrackedList

REQUEST_TIMEOUT_S = 10.0


@raises_only(TableUnavailableError)
class ListTable:
    """The list of streams in the lease table `table_name`."""

    def __init__(self, service: Service, table_name: str) -> None:
        self._calls = TableCalls(service, table_name, REQUEST_TIMEOUT_S)

    async def read(self) -> TrackedList:
        """The list as it is now; version 0 if there is none yet, or a damaged one. Raises TableError."""
        key = {rows.KEY: {"S": stream_list.KEY}}
        answer = await self._calls.send("GetItem", {"Key": key, "ConsistentRead": True})
        return stream_list.parse(answer.get("Item") or {})

    async def write(self, streams: TrackedList) -> TrackedList | None:
        """Put the list, if the row still is as it was read; None if it is not.

        Raises TableError, also for a list that is too long for a row.
        """
        try:
            values = stream_list.values_of(streams)
        except ValueError as error:
            raise TableUnavailableError(str(error)) from error
        params = {"Item": {rows.KEY: {"S": stream_list.KEY}, **values}, **stream_list.unchanged(streams.seen)}
        try:
            await self._calls.send("PutItem", params, refusals=(REFUSED_CODE,))
        except RefusedError:
            return None
        return replace(streams, seen=values)
