"""The row of `stream_list` in the lease table: read and written under a condition, one request a call, no retries."""

from __future__ import annotations

from mld.aws.boundary import raises_only
from mld.aws.service import Service
from mld.aws.table_calls import REFUSED_CODE, RefusedError, TableCalls
from mld.errors import TableUnavailableError
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
        """The list as it is now; version 0 if there is none yet. Raises TableError, also for a damaged row."""
        key = {rows.KEY: {"S": stream_list.KEY}}
        answer = await self._calls.send("GetItem", {"Key": key, "ConsistentRead": True})
        row = answer.get("Item")
        if not row:
            return TrackedList()
        try:
            return stream_list.parse(row)
        except ValueError as error:
            raise TableUnavailableError(str(error)) from error

    async def write(self, streams: TrackedList) -> bool:
        """Put the list, if the row still is the version before; False if it is not.

        Raises TableError, also for a list that is too long for a row.
        """
        try:
            values = stream_list.values_of(streams)
        except ValueError as error:
            raise TableUnavailableError(str(error)) from error
        condition = "attribute_not_exists(#leaseKey)"
        params = {
            "Item": {rows.KEY: {"S": stream_list.KEY}, **values},
            "ConditionExpression": condition,
            "ExpressionAttributeNames": {"#leaseKey": rows.KEY},
        }
        if streams.version > 1:
            params["ConditionExpression"] = "#version = :before"
            params["ExpressionAttributeNames"] = {"#version": "version"}
            params["ExpressionAttributeValues"] = {":before": {"N": str(streams.version - 1)}}
        try:
            await self._calls.send("PutItem", params, refusals=(REFUSED_CODE,))
        except RefusedError:
            return False
        return True
