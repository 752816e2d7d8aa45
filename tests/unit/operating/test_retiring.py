"""What belongs to an application, and what must not be deleted."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mld.core.errors import AwsError, StreamNotFoundError
from mld.core.positions import TRIM_HORIZON
from mld.leases.lease import Lease
from mld.leases.rows import new_row
from mld.operating.application import application_with
from mld.operating.options import Asked
from mld.operating.plan import ActRefusedError, raw_table
from mld.operating.retiring import possessions, require_lease_rows, require_unprotected, take_down, tear_down
from mld.properties.settings import Settings
from tests.support.fleet import TABLE, settings_of
from tests.twins.dynamo import MemoryDynamo
from tests.twins.streams import ARN, MemoryStreams
from tests.virtual_time import virtual

LEASE = new_row(Lease("shardId-000000000000", TRIM_HORIZON))


class Consumers:
    """The calls about consumers, of a stream that has those in `names`."""

    def __init__(self, *names: str) -> None:
        self.names = set(names)

    async def call(self, operation: str, params: dict[str, Any], *, timeout_s: float | None = None) -> dict[str, Any]:
        del timeout_s
        name = params.get("ConsumerName") or params["ConsumerARN"].rpartition("/")[2]
        if name not in self.names:
            raise AwsError(operation, "ResourceNotFoundException", "no such consumer")
        if operation == "DeregisterStreamConsumer":
            self.names.remove(name)
        return {"ConsumerDescription": {"ConsumerARN": f"{ARN}/consumer/{name}"}}


class Owned:
    """An application with a lease table of one row."""

    def __init__(self, *consumers: str, **keys: str) -> None:
        self.settings: Settings = settings_of(**keys)
        self.streams = MemoryStreams()
        self.dynamo = MemoryDynamo(self.streams.clock)
        self.kinesis = Consumers(*consumers)
        app = application_with(self.settings, self.dynamo, self.streams, self.streams.clock)
        self.app = replace(app, kinesis=self.kinesis)

    async def create(self, name: str, key: str, **more: Any) -> None:
        params = {
            "TableName": name,
            "AttributeDefinitions": [{"AttributeName": key, "AttributeType": "S"}],
            "KeySchema": [{"AttributeName": key, "KeyType": "HASH"}],
            "BillingMode": "PAY_PER_REQUEST",
        }
        await self.dynamo.call("CreateTable", params | more)

    async def found(self) -> Any:
        return await possessions(self.app)


@virtual
async def test_tables_of_both_layouts_and_the_own_consumer_are_found_and_deleted() -> None:
    owned = Owned(TABLE, "somebody-else")
    await owned.create(TABLE, "leaseKey")
    await owned.create(f"{TABLE}-CoordinatorState", "key")
    await owned.create(f"{TABLE}-WorkerMetricStats", "wid")
    owned.dynamo.put_row(TABLE, LEASE)

    found = await owned.found()
    assert [(table.name, len(table.rows)) for table in found.tables] == [
        (TABLE, 1),
        (f"{TABLE}-CoordinatorState", 0),
        (f"{TABLE}-WorkerMetricStats", 0),
    ]
    outcomes = {name: what async for name, what in take_down(found, owned.app)}

    assert set(outcomes.values()) == {"deleted", "deregistered"}
    assert not owned.dynamo.has_table(TABLE)
    assert owned.kinesis.names == {"somebody-else"}
    again = await owned.found()
    assert (again.tables, again.consumers) == ((), ())


@virtual
async def test_a_configured_consumer_is_somebody_elses() -> None:
    owned = Owned(TABLE, fanoutConfig__consumerArn=f"{ARN}/consumer/{TABLE}:1")
    assert (await owned.found()).consumers == ()


@virtual
async def test_a_stream_that_is_gone_has_no_consumer() -> None:
    owned = Owned(TABLE)
    owned.streams.fail("DescribeStreamSummary", StreamNotFoundError("gone"))
    assert (await owned.found()).consumers == ()


@virtual
async def test_a_table_with_another_key_is_refused() -> None:
    owned = Owned()
    await owned.create(TABLE, "id")
    with pytest.raises(ActRefusedError, match="is no table of KCL: its key is id HASH, not leaseKey HASH"):
        await owned.found()


@virtual
async def test_deletion_protection_is_named_with_its_remedy() -> None:
    owned = Owned()
    await owned.create(TABLE, "leaseKey", DeletionProtectionEnabled=True)
    found = await owned.found()
    with pytest.raises(ActRefusedError, match=f"update-table --table-name {TABLE} --no-deletion-protection-enabled"):
        require_unprotected(found)


@virtual
async def test_a_failure_is_said_and_does_not_stop_the_rest() -> None:
    owned = Owned(TABLE)
    await owned.create(TABLE, "leaseKey")
    found = await owned.found()
    owned.dynamo.forbidden.add("DeleteTable")
    outcomes = {name: what async for name, what in take_down(found, owned.app)}
    assert outcomes[TABLE].startswith("failed: ")
    assert outcomes[found.arns[0]] == "deregistered"


@virtual
async def test_what_is_saved_and_deleted_is_said_before_an_end_in_the_middle(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    owned = Owned(TABLE)
    await owned.create(TABLE, "leaseKey")

    def ended(_: str, operation: str, __: Any) -> None:
        if operation == "DeleteTable":
            raise asyncio.CancelledError

    owned.dynamo.faults = ended
    with pytest.raises(asyncio.CancelledError):
        await tear_down(owned.app, Asked("f", execute=True, output="json", backup_file=str(tmp_path / "rows")))
    value = json.loads(capsys.readouterr().out)
    assert value["saved"] == [str(tmp_path / "rows")]
    assert list(value["outcomes"].values()) == ["deregistered"]


@pytest.mark.parametrize(
    "row",
    [
        {"leaseKey": {"S": "customer-1"}, "name": {"S": "x"}},
        {"leaseKey": {"S": "x"}, "entityType": {"S": "ORDER"}},
    ],
)
def test_a_table_that_serves_something_else_too_is_refused(row: Any) -> None:
    require_lease_rows("app", raw_table([LEASE, {"leaseKey": {"S": "Leader"}, "entityType": {"S": "LEADER"}}]))
    with pytest.raises(ActRefusedError, match="holds a row that no lease table has"):
        require_lease_rows("app", raw_table([LEASE, row]))
