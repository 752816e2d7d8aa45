"""Requests counted by service, operation and result, and capacity as DynamoDB tells it."""

from __future__ import annotations

from typing import Any

import pytest

from mld.aws.counted_service import RESULTS_MAX, CountedService
from mld.core.errors import AwsError, AwsUnreachableError
from mld.metrics.worker import WorkerMetrics


class Scripted:
    """A service that answers what it is told."""

    def __init__(self) -> None:
        self.answers: list[dict[str, Any] | Exception] = []
        self.asked: list[dict[str, Any]] = []

    async def call(self, operation: str, params: dict[str, Any], *, timeout_s: float | None = None) -> dict[str, Any]:
        self.asked.append(params)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def fetch(self, operation: str, params: dict[str, Any], read: Any, *, timeout_s: float | None = None) -> Any:
        return read(await self.call(operation, params))


@pytest.fixture
def below() -> Scripted:
    return Scripted()


@pytest.fixture
def worker() -> WorkerMetrics:
    return WorkerMetrics()


@pytest.fixture
def service(below: Scripted, worker: WorkerMetrics) -> CountedService:
    return CountedService(below, "dynamodb", worker)  # type: ignore[arg-type]


async def test_an_answer_is_handed_on_and_its_capacity_counted(
    below: Scripted, service: CountedService, worker: WorkerMetrics
) -> None:
    below.answers = [{"Item": {}, "ConsumedCapacity": {"TableName": "app", "CapacityUnits": 0.5}}, {"Items": []}]
    params = {"TableName": "app"}
    assert (await service.call("GetItem", params))["Item"] == {}
    await service.call("Scan", params)
    assert params == {"TableName": "app"}, "the caller's own parameters stay as they are"
    assert below.asked[0] == {"TableName": "app", "ReturnConsumedCapacity": "TOTAL"}
    assert worker.requests.value() == {"dynamodb GetItem ok": 1, "dynamodb Scan ok": 1}
    assert worker.units.value() == {"read": 0.5}


async def test_capacity_of_several_tables_adds_up(
    below: Scripted, service: CountedService, worker: WorkerMetrics
) -> None:
    below.answers = [{"ConsumedCapacity": [{"CapacityUnits": 2.0}, {"CapacityUnits": 4.0}]}]
    await service.call("TransactWriteItems", {})
    assert worker.units.value() == {"write": 6.0}


async def test_other_operations_are_sent_as_they_are(below: Scripted, service: CountedService) -> None:
    below.answers = [{}, {}]
    await service.call("DescribeTable", {"TableName": "app"})
    assert await service.fetch("GetRecords", {"ShardIterator": "i"}, lambda answer: answer) == {}
    assert below.asked == [{"TableName": "app"}, {"ShardIterator": "i"}]


async def test_failures_are_counted_by_their_code_and_raised(
    below: Scripted, service: CountedService, worker: WorkerMetrics
) -> None:
    below.answers = [
        AwsError("UpdateItem", "ConditionalCheckFailedException", "refused"),
        AwsError("UpdateItem", "ThrottlingException", "slow down"),
        AwsUnreachableError("UpdateItem", "no answer"),
        AwsError("GetRecords", "ProvisionedThroughputExceededException", "slow down"),
    ]
    for _ in range(3):
        with pytest.raises((AwsError, AwsUnreachableError)):
            await service.call("UpdateItem", {})
    with pytest.raises(AwsError):
        await service.fetch("GetRecords", {}, bytes)
    assert worker.requests.value() == {
        "dynamodb UpdateItem ConditionalCheckFailedException": 1,
        "dynamodb UpdateItem ThrottlingException": 1,
        "dynamodb UpdateItem unreachable": 1,
        "dynamodb GetRecords ProvisionedThroughputExceededException": 1,
    }
    assert worker.units.value() == {"write": 1}, "a refused write is charged, what was not answered is unknown"


@pytest.mark.parametrize("code", ["", "two words", "<script>", "x" * 65, "Ünknown"])
async def test_a_code_that_is_none_makes_no_series_of_its_own(
    below: Scripted, service: CountedService, worker: WorkerMetrics, code: str
) -> None:
    below.answers = [AwsError("UpdateItem", code, "")]
    with pytest.raises(AwsError):
        await service.call("UpdateItem", {})
    assert worker.requests.value() == {"dynamodb UpdateItem other": 1}


async def test_codes_from_outside_make_a_bounded_number_of_series(
    below: Scripted, service: CountedService, worker: WorkerMetrics
) -> None:
    below.answers = [AwsError("UpdateItem", f"Code{number}", "") for number in range(2 * RESULTS_MAX)]
    for _ in range(2 * RESULTS_MAX):
        with pytest.raises(AwsError):
            await service.call("UpdateItem", {})
    assert len(worker.requests.value()) == RESULTS_MAX + 1


@pytest.mark.parametrize("consumed", [None, {}, [], [None], {"CapacityUnits": "1"}, {"CapacityUnits": -1}, "much"])
async def test_damage_in_an_answer_is_not_counted(
    below: Scripted, service: CountedService, worker: WorkerMetrics, consumed: object
) -> None:
    below.answers = [{"ConsumedCapacity": consumed}]
    await service.call("PutItem", {})
    assert worker.units.value() == {}
