"""`TableMaker`: creates a DynamoDB table as the properties describe it, and waits until it can be used.

Rules: leases#lease-table, coordination#legacy-tables. A `TableError` means that the table could not be made ready, or
that the outcome of a call is unknown.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from mld.aws.boundary import raises_only
from mld.aws.service import Service
from mld.aws.table_calls import ANSWER_S_MAX, RefusedError, TableCalls
from mld.core.clock import Clock
from mld.core.errors import StartupError, TableMissingError, TableThrottledError, TableUnavailableError
from mld.properties.settings import TableSettings
from mld.properties.values import BillingMode

log = logging.getLogger(__name__)

READY_TIMEOUT_S = 600.0  # Java's limit for a new table
FIRST_POLL_S = 0.2
POLL_S_MAX = 10.0
POLL_GROWTH = 1.6
EXISTS_CODE = "ResourceInUseException"
BACKUPS_NOT_YET_CODE = "ContinuousBackupsUnavailableException"
FORBIDDEN_CODES = ("AccessDeniedException", "AccessDenied", "UnauthorizedOperation")
READY_STATES = frozenset({"ACTIVE", "UPDATING"})


def on_demand(name: str) -> TableSettings:
    """Return settings for a table with on-demand capacity, for callers that have no settings."""
    return TableSettings(
        name=name,
        billing_mode=BillingMode.PAY_PER_REQUEST,
        read_capacity=0,
        write_capacity=0,
        point_in_time_recovery=False,
        deletion_protection=False,
        tags=(),
    )


@raises_only(TableUnavailableError)
class TableMaker:
    """Creates one table with the hash key `key`. `on_missing` is called whenever an answer shows that the table is
    missing.
    """

    what, action = "lease table", "lease_table_created"
    """What messages call the table, and the `action` of the log line about its creation."""
    is_patient = True
    """Whether to try again while DynamoDB refuses to create another table for this account now."""

    def __init__(
        self,
        service: Service,
        clock: Clock,
        settings: TableSettings,
        key: str,
        *,
        request_timeout_s: float = ANSWER_S_MAX,
        on_missing: Callable[[], None] = lambda: None,
    ) -> None:
        self.name = settings.name
        self._calls = TableCalls(service, settings.name, request_timeout_s, on_missing)
        self._clock = clock
        self._settings = settings
        self._key = key

    async def ensure(self) -> bool:
        """Create the table if it is missing, and wait until it can be used. Return whether this call created it.

        Waits at most 600 s. Raises TableError.
        """
        deadline = self._clock.monotonic() + READY_TIMEOUT_S
        poll_s = FIRST_POLL_S
        created, throttled = False, ""
        while (status := await self._status()) not in READY_STATES:
            try:
                if status is None and await self._create() and not created:
                    created = True
                    log.info("created %s %s", self.what, self.name, extra={"action": self.action})
                    continue  # the table may be ready at once
            except TableThrottledError as error:
                if not self.is_patient:
                    raise
                throttled = f": {error}"
            why = f"{self.what} {self.name} is {status or 'missing'} after {READY_TIMEOUT_S:.0f} s{throttled}"
            poll_s = await self._pause(poll_s, deadline, why)
        if self._settings.point_in_time_recovery:
            await self._enable_backups(deadline)
        return created

    async def _status(self) -> str | None:
        """Return the table's status, None if it does not exist."""
        try:
            answer = await self._send("DescribeTable", {})
        except TableMissingError:
            return None
        return str(answer["Table"].get("TableStatus", "ACTIVE"))

    async def _create(self) -> bool:
        """Create the table. Return False if it exists already, or is being created by another process."""
        settings = self._settings
        params: dict[str, Any] = {
            "AttributeDefinitions": [{"AttributeName": self._key, "AttributeType": "S"}],
            "KeySchema": [{"AttributeName": self._key, "KeyType": "HASH"}],
            "BillingMode": settings.billing_mode.value,
            "DeletionProtectionEnabled": settings.deletion_protection,
        }
        if settings.billing_mode is BillingMode.PROVISIONED:
            params["ProvisionedThroughput"] = {
                "ReadCapacityUnits": settings.read_capacity,
                "WriteCapacityUnits": settings.write_capacity,
            }
        if settings.tags:
            params["Tags"] = [{"Key": key, "Value": value} for key, value in settings.tags]
        try:
            await self._send("CreateTable", params, EXISTS_CODE)
        except RefusedError:
            return False
        return True

    async def _enable_backups(self, deadline: float) -> None:
        """Switch on point-in-time recovery unless it is on. DynamoDB may refuse that for some time after the table was
        created.
        """
        poll_s = FIRST_POLL_S
        while True:
            try:
                answer = await self._send("DescribeContinuousBackups", {}, BACKUPS_NOT_YET_CODE)
                recovery = answer["ContinuousBackupsDescription"].get("PointInTimeRecoveryDescription", {})
                if recovery.get("PointInTimeRecoveryStatus") != "ENABLED":
                    wanted = {"PointInTimeRecoverySpecification": {"PointInTimeRecoveryEnabled": True}}
                    await self._send("UpdateContinuousBackups", wanted, BACKUPS_NOT_YET_CODE)
                return
            except RefusedError as error:
                poll_s = await self._pause(poll_s, deadline, str(error))

    async def _pause(self, poll_s: float, deadline: float, what: str) -> float:
        """Sleep for `poll_s`, and return the next pause. Raises TableUnavailableError, with the reason `what`, if the
        pause would end after `deadline`.
        """
        if self._clock.monotonic() + poll_s > deadline:
            raise TableUnavailableError(what)
        await self._clock.sleep(poll_s)
        return min(POLL_S_MAX, poll_s * POLL_GROWTH)

    async def _send(self, operation: str, params: Mapping[str, Any], *refusals: str) -> dict[str, Any]:
        """Send a request, and return the answer. Raises RefusedError for the error codes in `refusals`, TableError for
        others.
        """
        return await self._calls.send(operation, params, refusals=refusals)


@raises_only(TableUnavailableError)
class LegacyTable(TableMaker):
    """Checks whether one of the separate tables of KCL 3.0 to 3.4 exists (coordinator state, or worker metrics), and
    creates it on request.

    Workers of KCL 3.5 and later never create these tables. A worker of mld does with `mld.metadataLayout=legacy`, for a
    fleet that starts together with workers of 3.0 to 3.4. All methods raise StartupError if IAM denies the call,
    because the fleet's layout depends on the answer.
    """

    what, action = "table", "legacy_table_created"
    is_patient = False
    """False: the fleet is waiting for this table, so the caller decides at once how to go on without it."""

    async def exists(self) -> bool:
        """Return whether the table exists. While it is being created, wait. A table that is being deleted counts as
        missing.
        """
        deadline = self._clock.monotonic() + READY_TIMEOUT_S
        poll_s = FIRST_POLL_S
        while (status := await self._status()) == "CREATING":
            why = f"table {self.name} is still being created after {READY_TIMEOUT_S:.0f} s"
            poll_s = await self._pause(poll_s, deadline, why)
        return status not in (None, "DELETING")

    async def ensure(self) -> bool:
        """Create the table as `TableMaker.ensure` does, but do not change the options of a table that exists."""
        return not await self.exists() and await super().ensure()

    async def _send(self, operation: str, params: Mapping[str, Any], *refusals: str) -> dict[str, Any]:
        """Send a request as `TableMaker._send` does, but raise StartupError if IAM denies it."""
        try:
            return await super()._send(operation, params, *refusals, *FORBIDDEN_CODES)
        except RefusedError as error:
            if error.code not in FORBIDDEN_CODES:
                raise
            raise StartupError(
                f"{operation} of table {self.name} is forbidden: allow dynamodb:{operation} on it, even if it does not "
                f"exist, because the fleet's layout depends on it ({error})"
            ) from error
