"""The fault plan."""

from __future__ import annotations

import pytest

from mld.local.faults import ControlError, FaultPlan, parse_fault


def hits(
    plan: FaultPlan, calls: int, service: str = "kinesis", operation: str = "GetRecords", body: bytes = b""
) -> list[int]:
    return [i for i in range(calls) if plan.take(service, operation, body) is not None]


def test_a_count_is_used_up() -> None:
    plan = FaultPlan()
    plan.add([parse_fault({"operation": "GetRecords", "count": 2, "skip": 1, "code": "X"})])
    assert hits(plan, 6) == [1, 2]
    assert len(plan) == 0


def test_other_calls_do_not_meet_the_fault() -> None:
    plan = FaultPlan()
    plan.add([parse_fault({"service": "dynamodb", "operation": "UpdateItem", "contains": "lease-7", "drop": True})])
    assert hits(plan, 1, "kinesis", "UpdateItem", b"lease-7") == []
    assert hits(plan, 1, "dynamodb", "PutItem", b"lease-7") == []
    assert hits(plan, 1, "dynamodb", "UpdateItem", b"lease-8") == []
    assert hits(plan, 1, "dynamodb", "UpdateItem", b'{"S":"lease-7"}') == [0]


def test_a_rate_is_reproducible_from_its_seed() -> None:
    def drawn(seed: int) -> list[int]:
        plan = FaultPlan()
        plan.add([parse_fault({"rate": 0.3, "seed": seed, "code": "X"})])
        return hits(plan, 200)

    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2)
    assert 30 < len(drawn(1)) < 90


@pytest.mark.parametrize("bad", [{"nonsense": 1}, {"count": "two"}, {"drop": 1}, {"status": True}])
def test_a_fault_that_cannot_be_understood_is_refused(bad: dict[str, object]) -> None:
    with pytest.raises(ControlError, match=next(iter(bad))):
        parse_fault(bad)
