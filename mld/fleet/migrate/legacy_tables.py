"""The two tables of KCL 3.0 to 3.4, coordinator state and worker metrics: are they there, and create them if told to.

Rules: coordination#legacy-tables, coordination#table-layout. Newer workers never create them;
`mld.metadataLayout=legacy` does, for fleets that start together with workers of 3.0 to 3.4.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mld.aws.boundary import raises_only
from mld.aws.service import Service
from mld.aws.table_calls import MISSING_CODE, THROTTLING_CODES, table_error
from mld.core.clock import Clock
from mld.core.errors import AwsError, AwsUnreachableError, StartupError, TableError, TableUnavailableError

log = logging.getLogger(__name__)

REQUEST_TIMEOUT_S = 5.0  # creating a table takes longer than reading a row, and nothing waits at start
READY_TIMEOUT_S = 600.0  # Java's limit for a new table
FIRST_POLL_S = 0.2
POLL_S_MAX = 10.0
POLL_GROWTH = 1.6
EXISTS_CODE = "ResourceInUseException"
BACKUPS_NOT_YET_CODE = "ContinuousBackupsUnavailableException"
FORBIDDEN_CODES = frozenset({"AccessDeniedException", "AccessDenied", "UnauthorizedOperation"})


@dataclass(frozen=True, slots=True)
class LegacyTable:
    """A legacy table, as the properties describe it. `key` is its hash key; capacities count when provisioned."""

    name: str
    key: str
    billing_mode: str = "PAY_PER_REQUEST"
    read_capacity: int = 0
    write_capacity: int = 0
    point_in_time_recovery: bool = False
    deletion_protection: bool = False
    tags: Mapping[str, str] = field(default_factory=dict)


@raises_only(TableUnavailableError)
class LegacyTables:
    """Looks for the tables and creates them."""

    def __init__(self, service: Service, clock: Clock, *, request_timeout_s: float = REQUEST_TIMEOUT_S) -> None:
        self._service = service
        self._clock = clock
        self._request_timeout_s = request_timeout_s

    async def exists(self, name: str) -> bool:
        """Whether the table is there; one that is being created is waited for, one being deleted is gone.

        Raises StartupError if we may not ask, else TableError if there is no answer or the wait was in vain.
        """
        deadline = self._clock.monotonic() + READY_TIMEOUT_S
        poll_s = FIRST_POLL_S
        while (status := await self._status(name)) == "CREATING":
            poll_s = await self._pause(poll_s, deadline, f"table {name} is still being created")
        return status not in (None, "DELETING")

    async def ensure(self, table: LegacyTable) -> bool:
        """Create the table if it is missing, with its options, and wait until it can be used; True if it was missing.

        Raises as `exists` does.
        """
        if await self.exists(table.name):
            return False
        await self._create(table)
        deadline = self._clock.monotonic() + READY_TIMEOUT_S
        poll_s = FIRST_POLL_S
        while not await self.exists(table.name):  # a description may be older than the table
            poll_s = await self._pause(poll_s, deadline, f"table {table.name} is still missing")
        log.info("created table %s", table.name, extra={"action": "legacy_table_created"})
        if table.point_in_time_recovery:
            await self._enable_backups(table.name)
        return True

    async def _status(self, name: str) -> str | None:
        try:
            answer = await self._call("DescribeTable", {"TableName": name})
        except AwsError as error:
            if error.code == MISSING_CODE:
                return None
            raise self._refused(error, name) from error
        return str(answer["Table"].get("TableStatus", "ACTIVE"))

    async def _create(self, table: LegacyTable) -> None:
        params: dict[str, Any] = {
            "TableName": table.name,
            "AttributeDefinitions": [{"AttributeName": table.key, "AttributeType": "S"}],
            "KeySchema": [{"AttributeName": table.key, "KeyType": "HASH"}],
            "BillingMode": table.billing_mode,
            "DeletionProtectionEnabled": table.deletion_protection,
        }
        if table.billing_mode == "PROVISIONED":
            params["ProvisionedThroughput"] = {
                "ReadCapacityUnits": table.read_capacity,
                "WriteCapacityUnits": table.write_capacity,
            }
        if table.tags:
            params["Tags"] = [{"Key": key, "Value": value} for key, value in table.tags.items()]
        try:
            await self._call("CreateTable", params)
        except AwsError as error:
            if error.code != EXISTS_CODE:
                raise self._refused(error, table.name) from error

    async def _enable_backups(self, name: str) -> None:
        """Switch point-in-time recovery on; a table just created may need some time for that."""
        wanted = {"PointInTimeRecoverySpecification": {"PointInTimeRecoveryEnabled": True}}
        deadline = self._clock.monotonic() + READY_TIMEOUT_S
        poll_s = FIRST_POLL_S
        while True:
            try:
                await self._call("UpdateContinuousBackups", {"TableName": name, **wanted})
                return
            except AwsError as error:
                if error.code != BACKUPS_NOT_YET_CODE:
                    raise self._refused(error, name) from error
                poll_s = await self._pause(poll_s, deadline, str(error))

    async def _pause(self, poll_s: float, deadline: float, why: str) -> float:
        """Wait before the next look; returns the pause after it. Raises TableUnavailableError after the deadline."""
        if self._clock.monotonic() + poll_s > deadline:
            raise TableUnavailableError(f"{why} after {READY_TIMEOUT_S:.0f} s")
        await self._clock.sleep(poll_s)
        return min(POLL_S_MAX, poll_s * POLL_GROWTH)

    async def _call(self, operation: str, params: dict[str, Any]) -> dict[str, Any]:
        try:
            return await self._service.call(operation, params, timeout_s=self._request_timeout_s)
        except AwsUnreachableError as error:
            raise table_error(error, params["TableName"]) from error

    @staticmethod
    def _refused(error: AwsError, name: str) -> StartupError | TableError:
        if error.code in FORBIDDEN_CODES:
            return StartupError(
                f"{error.operation} of table {name} is forbidden: allow dynamodb:{error.operation} on it, even if it "
                f"does not exist, because the fleet's layout depends on it ({error})"
            )
        if error.code in THROTTLING_CODES or error.status >= 500:
            return table_error(error, name)
        return TableUnavailableError(
            f"cannot tell whether table {name} exists: {error}; the worker needs dynamodb:{error.operation} on it"
        )
