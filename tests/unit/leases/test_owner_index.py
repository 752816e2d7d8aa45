"""The owner index: its creation, its states, and the scan that answers in its place (leases#owner-index)."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from mld.core.clock import LoopClock
from mld.core.errors import AwsError, TableMissingError, TableThrottledError, TableUnavailableError
from mld.leases.dynamodb import DynamoLeaseTable
from mld.leases.owner_index import INDEX_NAME, SCAN_SPACING_S, creation, status_in
from mld.leases.table import IndexStatus
from tests.virtual_time import virtual

NO_INDEX = AwsError("Query", "ValidationException", f"The table does not have the specified index: {INDEX_NAME}")
FILLING = AwsError("Query", "ValidationException", f"Cannot read from backfilling global secondary index: {INDEX_NAME}")
DENIED = AwsError("any", "AccessDeniedException", "is not authorized to perform")
ON_DEMAND = {
    "BillingModeSummary": {"BillingMode": "PAY_PER_REQUEST"},
    "ProvisionedThroughput": {"ReadCapacityUnits": 0, "WriteCapacityUnits": 0},
}


def with_index(status: str | None) -> dict[str, Any]:
    index = {"IndexName": INDEX_NAME} | ({} if status is None else {"IndexStatus": status})
    return ON_DEMAND | {"GlobalSecondaryIndexes": [{"IndexName": "another", "IndexStatus": "ACTIVE"}, index]}


def owned(key: str, owner: str) -> dict[str, dict[str, str]]:
    return {"leaseKey": {"S": key}, "leaseOwner": {"S": owner}}


class Script:
    """A `Service` with an answer for each operation: a dict, an error, or a list of them for the calls to come."""

    def __init__(self, **answers: Any) -> None:
        self.answers = answers
        self.calls: list[tuple[str, dict[str, Any]]] = []

    async def call(self, operation: str, params: dict[str, Any], *, timeout_s: float | None = None) -> dict[str, Any]:
        self.calls.append((operation, params))
        answer = self.answers[operation]
        if isinstance(answer, list):
            answer = answer.pop(0)
        if isinstance(answer, Exception):
            raise answer
        result: dict[str, Any] = answer
        return result

    def count(self, operation: str) -> int:
        return sum(name == operation for name, _ in self.calls)


def table_over(script: Script) -> DynamoLeaseTable:
    return DynamoLeaseTable(script, LoopClock(), table_name="app")


# --- creation and states


def test_the_index_gets_the_tables_present_capacity_where_it_is_provisioned() -> None:
    present = {"ReadCapacityUnits": 25, "WriteCapacityUnits": 40}
    table = {"ProvisionedThroughput": present | {"NumberOfDecreasesToday": 2}}
    index, on_demand = (creation(t)["GlobalSecondaryIndexUpdates"][0]["Create"] for t in (table, ON_DEMAND))
    assert index == on_demand | {"ProvisionedThroughput": present}
    assert on_demand["Projection"] == {"ProjectionType": "KEYS_ONLY"}


@pytest.mark.parametrize(
    ("table", "status"),
    [
        (ON_DEMAND, IndexStatus.MISSING),
        (with_index("CREATING"), IndexStatus.CREATING),
        (with_index("ACTIVE"), IndexStatus.ACTIVE),
        (with_index("UPDATING"), IndexStatus.ACTIVE),
        (with_index("DELETING"), IndexStatus.MISSING),
        (with_index(None), IndexStatus.ACTIVE),
    ],
)
def test_the_status_is_that_of_the_index_in_the_tables_description(table: dict[str, Any], status: IndexStatus) -> None:
    assert status_in(table) is status


@pytest.mark.parametrize("present", ["CREATING", "ACTIVE", "UPDATING", "DELETING"])
@virtual
async def test_an_index_of_that_name_in_any_state_is_left_alone(present: str) -> None:
    script = Script(DescribeTable={"Table": with_index(present)})
    assert await table_over(script).index.ensure() is status_in(with_index(present))


@pytest.mark.parametrize(
    "code", ["ResourceInUseException", "ValidationException", "LimitExceededException", "InternalServerError"]
)
@virtual
async def test_somebody_elses_creation_at_the_same_time_is_no_error(code: str) -> None:
    script = Script(
        DescribeTable=[{"Table": ON_DEMAND}, {"Table": with_index("CREATING")}],
        UpdateTable=AwsError("UpdateTable", code, "already being created"),
    )
    assert await table_over(script).index.ensure() is IndexStatus.CREATING


@virtual
async def test_a_table_that_is_busy_with_something_else_lacks_the_index_for_now() -> None:
    script = Script(DescribeTable={"Table": ON_DEMAND}, UpdateTable=AwsError("UpdateTable", "ResourceInUseException"))
    assert await table_over(script).index.ensure() is IndexStatus.MISSING


@virtual
async def test_a_creation_that_fails_for_another_reason_is_an_error() -> None:
    script = Script(DescribeTable={"Table": ON_DEMAND}, UpdateTable=AwsError("UpdateTable", "InternalServerError"))
    with pytest.raises(TableUnavailableError):
        await table_over(script).index.ensure()


@pytest.mark.parametrize("answers", [{"UpdateTable": DENIED}, {"DescribeTable": DENIED}])
@virtual
async def test_a_missing_permission_is_a_status_and_no_error(answers: dict[str, Any]) -> None:
    script = Script(**({"DescribeTable": {"Table": ON_DEMAND}} | answers))
    assert await table_over(script).index.ensure() is IndexStatus.FORBIDDEN


@virtual
async def test_a_table_that_is_missing_or_unreachable_is_an_error() -> None:
    missing = Script(DescribeTable=AwsError("DescribeTable", "ResourceNotFoundException"))
    with pytest.raises(TableMissingError):
        await table_over(missing).index.ensure()
    broken = Script(DescribeTable=AwsError("DescribeTable", "InternalServerError", status=500))
    with pytest.raises(TableUnavailableError):
        await table_over(broken).index.status()


# --- reading


@virtual
async def test_the_index_is_queried_page_by_page() -> None:
    start = {"leaseKey": {"S": "a"}, "leaseOwner": {"S": "me"}}
    script = Script(Query=[{"Items": [owned("a", "me")], "LastEvaluatedKey": start}, {"Items": [owned("b", "me")]}])
    assert await table_over(script).index.keys_owned_by("me") == ("a", "b")
    (_, first), (_, second) = script.calls
    assert first["ExpressionAttributeValues"] == {":owner": {"S": "me"}}
    assert "ExclusiveStartKey" not in first
    assert second["ExclusiveStartKey"] == start


@pytest.mark.parametrize("why", [NO_INDEX, FILLING, DENIED])
@virtual
async def test_without_the_index_a_scan_answers_at_most_once_in_ten_seconds_and_for_every_worker(
    why: AwsError, caplog: pytest.LogCaptureFixture
) -> None:
    page = {"Items": [owned("a", "me"), owned("b", "other")], "LastEvaluatedKey": {"leaseKey": {"S": "b"}}}
    script = Script(Query=why, Scan=[page, {"Items": [owned("c", "me")]}, {"Items": [owned("d", "me")]}])
    table = table_over(script)
    for _ in range(int(SCAN_SPACING_S)):
        assert await table.index.keys_owned_by("me") == ("a", "c")
        assert await table.index.keys_owned_by("other") == ("b",)
        assert await table.index.keys_owned_by("third") == ()
        await asyncio.sleep(1)
    assert script.count("Scan") == 2
    assert await table.index.keys_owned_by("me") == ("d",)
    assert [getattr(r, "action", "") for r in caplog.records if r.levelno == logging.WARNING] == ["index_unusable"]


@virtual
async def test_callers_at_the_same_time_share_one_scan() -> None:
    script = Script(Query=NO_INDEX, Scan=[{"Items": [owned("a", "me")]}])
    table = table_over(script)
    answers = await asyncio.gather(*(table.index.keys_owned_by("me") for _ in range(5)))
    assert answers == [("a",)] * 5


@virtual
async def test_the_index_is_used_as_soon_as_it_can_be() -> None:
    script = Script(Query=[FILLING, {"Items": [owned("b", "me")]}], Scan=[{"Items": [owned("a", "me")]}])
    table = table_over(script)
    assert await table.index.keys_owned_by("me") == ("a",)
    assert await table.index.keys_owned_by("me") == ("b",)


@virtual
async def test_a_failed_scan_is_an_error_and_not_an_empty_answer_until_the_next_one() -> None:
    throttled = AwsError("Scan", "ProvisionedThroughputExceededException", "slow down")
    script = Script(Query=NO_INDEX, Scan=[throttled, {"Items": [owned("a", "me")]}])
    table = table_over(script)
    with pytest.raises(TableThrottledError):
        await table.index.keys_owned_by("me")
    await asyncio.sleep(1)
    with pytest.raises(TableUnavailableError, match="next one is made in 9 s"):
        await table.index.keys_owned_by("me")
    await asyncio.sleep(SCAN_SPACING_S)
    assert await table.index.keys_owned_by("me") == ("a",)


@pytest.mark.parametrize("code", ["ProvisionedThroughputExceededException", "InternalServerError"])
@virtual
async def test_a_query_that_fails_otherwise_is_an_error_and_no_reason_for_a_scan(code: str) -> None:
    script = Script(Query=AwsError("Query", code, status=500), Scan=[])
    with pytest.raises((TableUnavailableError, TableThrottledError)):
        await table_over(script).index.keys_owned_by("me")
