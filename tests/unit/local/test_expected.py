"""The rewriting of DeleteItem's old `Expected` argument."""

from __future__ import annotations

from typing import Any

import pytest

from mld.local.expected import UnsupportedConditionError, rewrite_expected


def condition(rule: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    rewritten = rewrite_expected({"TableName": "t", "Expected": {"a": rule}})
    assert rewritten["ExpressionAttributeNames"] == {"#expected0": "a"}
    assert "Expected" not in rewritten
    return rewritten["ConditionExpression"], rewritten.get("ExpressionAttributeValues", {})


ONE, TWO = {"N": "1"}, {"N": "2"}


@pytest.mark.parametrize(
    ("rule", "expression", "values"),
    [
        ({"Value": ONE}, "#expected0 = :expected0_0", [ONE]),
        ({"Exists": True, "Value": ONE}, "#expected0 = :expected0_0", [ONE]),
        ({"Exists": False}, "attribute_not_exists(#expected0)", []),
        ({"ComparisonOperator": "NULL"}, "attribute_not_exists(#expected0)", []),
        ({"ComparisonOperator": "NOT_NULL"}, "attribute_exists(#expected0)", []),
        ({"ComparisonOperator": "NE", "AttributeValueList": [ONE]}, "#expected0 <> :expected0_0", [ONE]),
        ({"ComparisonOperator": "CONTAINS", "AttributeValueList": [ONE]}, "contains(#expected0, :expected0_0)", [ONE]),
        (
            {"ComparisonOperator": "BETWEEN", "AttributeValueList": [ONE, TWO]},
            "#expected0 BETWEEN :expected0_0 AND :expected0_1",
            [ONE, TWO],
        ),
        (
            {"ComparisonOperator": "IN", "AttributeValueList": [ONE, TWO]},
            "#expected0 IN (:expected0_0, :expected0_1)",
            [ONE, TWO],
        ),
    ],
)
def test_each_rule_becomes_its_expression(rule: dict[str, Any], expression: str, values: list[Any]) -> None:
    found, found_values = condition(rule)
    assert (found, list(found_values.values())) == (expression, values)


def test_rules_are_joined_by_the_conditional_operator() -> None:
    request = {"Expected": {"b": {"Value": TWO}, "a": {"Value": ONE}}, "ConditionalOperator": "OR"}
    rewritten = rewrite_expected(request)
    assert rewritten["ConditionExpression"] == "#expected0 = :expected0_0 OR #expected1 = :expected1_0"
    assert rewritten["ExpressionAttributeNames"] == {"#expected0": "a", "#expected1": "b"}
    assert "ConditionalOperator" not in rewritten


def test_a_request_without_expected_stays_as_it_is() -> None:
    request = {"TableName": "t", "ConditionExpression": "attribute_exists(a)"}
    assert rewrite_expected(request) is request


def test_an_unknown_comparison_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedConditionError, match="ROUGHLY"):
        rewrite_expected({"Expected": {"a": {"ComparisonOperator": "ROUGHLY"}}})
