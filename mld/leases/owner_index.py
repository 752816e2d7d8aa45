"""`OwnerIndex`: creates and reads the lease table's index by owner.

Rule: leases#owner-index. While the index is missing, is still being filled, or may not be read by us, the table is
scanned instead. A scan reads the whole table, so at most one begins in `SCAN_SPACING_S`. Its result has the keys of all
owners.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

from mld.aws.boundary import raises_only
from mld.aws.table_calls import RefusedError, TableCalls
from mld.core.clock import Clock
from mld.core.errors import TableError, TableUnavailableError
from mld.leases import rows
from mld.leases.table import IndexStatus

log = logging.getLogger(__name__)

FORBIDDEN_CODES = ("AccessDeniedException", "AccessDenied")
INDEX_NAME = "LeaseOwnerToLeaseKeyIndex"
SCAN_SPACING_S = 10.0  # Java's discovery period; so a fleet without the index reads no more than a fleet in 2.x mode
KEYS_PER_SLICE = 256  # keys processed before other tasks run; this takes well below 2 ms
BUSY_CODES = (
    "ResourceInUseException",
    "ValidationException",
    "LimitExceededException",
)  # answers to a request to create the index if another worker was faster
UNUSABLE_CODES = ("ValidationException", *FORBIDDEN_CODES)
"""Answers to a query of the index if it does not exist, is still being filled, or may not be read by us."""
_QUERY = {
    "IndexName": INDEX_NAME,
    "KeyConditionExpression": "#leaseOwner = :owner",
    "ExpressionAttributeNames": {"#leaseOwner": rows.OWNER},
}
_OWNED_KEYS = {
    "FilterExpression": "attribute_exists(#leaseOwner)",
    "ProjectionExpression": "#leaseKey, #leaseOwner",
    "ExpressionAttributeNames": {"#leaseKey": rows.KEY, "#leaseOwner": rows.OWNER},
}


@raises_only(TableUnavailableError)
class OwnerIndex:
    """Implements the `LeaseIndex` port by a DynamoDB table."""

    def __init__(self, calls: TableCalls, clock: Clock) -> None:
        self._calls = calls
        self._clock = clock
        self._scanned: dict[str, tuple[str, ...]] | None = None  # the keys by owner in the last scan; None if it failed
        self._scan_due_at = clock.monotonic()
        self._scanning = asyncio.Lock()
        self._logged_code: str | None = None  # the code of the refusal that was logged last

    async def ensure(self) -> IndexStatus:
        """Create the index, unless there is one in any state; return its status. Raises TableError."""
        try:
            table = await self._describe()
            if _find(table) is not None:
                return status_in(table)
            return await self._create(table)
        except RefusedError as refused:
            log.warning("cannot create %s: %s", INDEX_NAME, refused, extra={"action": "index_forbidden"})
            return IndexStatus.FORBIDDEN

    async def _create(self, table: Mapping[str, Any]) -> IndexStatus:
        """Create the index. If the call fails, look at the index: another worker may have created it first, or the
        reply may be lost.
        """
        try:
            await self._calls.send("UpdateTable", creation(table), refusals=BUSY_CODES + FORBIDDEN_CODES)
        except (RefusedError, TableError) as error:
            if isinstance(error, RefusedError) and error.code in FORBIDDEN_CODES:
                raise
            status = await self.status()
            if status is IndexStatus.MISSING and isinstance(error, TableError):
                raise
            log.debug("%s not created: %s", INDEX_NAME, error, extra={"action": "index_not_created"})
            return status
        log.info("creating %s", INDEX_NAME, extra={"action": "index_created"})
        return IndexStatus.CREATING

    async def status(self) -> IndexStatus:
        """Return the state of the index. Raises TableError."""
        try:
            return status_in(await self._describe())
        except RefusedError:
            return IndexStatus.FORBIDDEN

    async def keys_owned_by(self, worker: str) -> tuple[str, ...]:
        """Return the keys of a worker's leases, from the index. If the index cannot be used, log why, once for each
        reason, and return them from a scan, which is at most `SCAN_SPACING_S` old. Raises TableError.
        """
        try:
            keys = await self._query(worker)
        except RefusedError as refused:
            self._log_refusal(refused)
            return (await self._scan_if_due()).get(worker, ())
        self._logged_code = None
        return keys

    def _log_refusal(self, refused: RefusedError) -> None:
        """Warn that the index cannot be used; log the same refusal again only at level DEBUG."""
        level = logging.DEBUG if self._logged_code == refused.code else logging.WARNING
        self._logged_code = refused.code
        log.log(
            level,
            "the table is scanned instead of its index %s: %s",
            INDEX_NAME,
            refused,
            extra={"action": "index_unusable"},
        )

    async def _describe(self) -> dict[str, Any]:
        """Return the table as DescribeTable shows it. Raises RefusedError if that is forbidden, and TableError."""
        answer = await self._calls.send("DescribeTable", {}, refusals=FORBIDDEN_CODES)
        table: dict[str, Any] = answer["Table"]
        return table

    async def _query(self, worker: str) -> tuple[str, ...]:
        """Return the keys of a worker's leases from the index. Raises RefusedError if it cannot be used; TableError."""
        params = _QUERY | {"ExpressionAttributeValues": {":owner": {"S": worker}}}
        pages = self._calls.pages("Query", params, refusals=UNUSABLE_CODES)
        return tuple([row[rows.KEY]["S"] async for page in pages for row in page])

    async def _scan_if_due(self) -> Mapping[str, tuple[str, ...]]:
        """Return the keys of leases by owner, from the last scan of the table, or from a new one if that is due. Raises
        TableError.
        """
        async with self._scanning:
            now = self._clock.monotonic()
            if now >= self._scan_due_at:
                self._scan_due_at = now + SCAN_SPACING_S
                self._scanned = None
                self._scanned = await self._scan()
            if self._scanned is None:
                raise TableUnavailableError(
                    f"{INDEX_NAME} cannot be used, and the scan in its place failed; "
                    f"the next one is made in {self._scan_due_at - now:.0f} s"
                )
            return self._scanned

    async def _scan(self) -> dict[str, tuple[str, ...]]:
        """Read the whole table; return the keys of leases by owner."""
        found: dict[str, list[str]] = {}
        async for page in self._calls.pages("Scan", _OWNED_KEYS):
            for number, row in enumerate(page, start=1):
                found.setdefault(row[rows.OWNER].get("S", ""), []).append(row[rows.KEY]["S"])
                if number % KEYS_PER_SLICE == 0:
                    await asyncio.sleep(0)
        return {owner: tuple(keys) for owner, keys in found.items()}


def creation(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return UpdateTable's parameters that create the index, with the same capacity as the table.

    `table` is the table as DescribeTable shows it.
    """
    index: dict[str, Any] = {
        "IndexName": INDEX_NAME,
        "KeySchema": [
            {"AttributeName": rows.OWNER, "KeyType": "HASH"},
            {"AttributeName": rows.KEY, "KeyType": "RANGE"},
        ],
        "Projection": {"ProjectionType": "KEYS_ONLY"},
    }
    capacity = table.get("ProvisionedThroughput", {})
    on_demand = table.get("BillingModeSummary", {}).get("BillingMode") == "PAY_PER_REQUEST"
    if not on_demand and capacity.get("ReadCapacityUnits"):
        index["ProvisionedThroughput"] = {
            name: int(capacity[name]) for name in ("ReadCapacityUnits", "WriteCapacityUnits")
        }
    return {
        "AttributeDefinitions": [{"AttributeName": name, "AttributeType": "S"} for name in (rows.OWNER, rows.KEY)],
        "GlobalSecondaryIndexUpdates": [{"Create": index}],
    }


def status_in(table: Mapping[str, Any]) -> IndexStatus:
    """Return the status of the index in a DescribeTable answer. An index that is being updated can be read."""
    index = _find(table)
    match None if index is None else index.get("IndexStatus", "ACTIVE"):
        case None | "DELETING":
            return IndexStatus.MISSING
        case "CREATING":
            return IndexStatus.CREATING
        case _:
            return IndexStatus.ACTIVE


def _find(table: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the index in a DescribeTable answer; None if the table has no such index."""
    indexes: list[Mapping[str, Any]] = table.get("GlobalSecondaryIndexes") or []
    return next((index for index in indexes if index["IndexName"] == INDEX_NAME), None)
