"""Rewrites DeleteItem's old `Expected` argument as a ConditionExpression.

moto ignores `Expected` on DeleteItem and deletes the item; Java workers of a mixed fleet use it. Rules: the DynamoDB
API reference, legacy conditional parameters. Pure.
"""

from __future__ import annotations

from typing import Any

_COMPARATORS = {"EQ": "=", "NE": "<>", "LE": "<=", "LT": "<", "GE": ">=", "GT": ">"}
_FUNCTIONS = {"CONTAINS": "contains", "BEGINS_WITH": "begins_with"}


class UnsupportedConditionError(ValueError):
    """A comparison this rewrite does not know."""


def rewrite_expected(request: dict[str, Any]) -> dict[str, Any]:
    """The same request with a ConditionExpression in place of `Expected`; unchanged if there is none."""
    expected = request.get("Expected")
    if not expected or "ConditionExpression" in request:
        return request
    names: dict[str, str] = dict(request.get("ExpressionAttributeNames") or {})
    values: dict[str, Any] = dict(request.get("ExpressionAttributeValues") or {})
    terms = [_term(i, attribute, rule, names, values) for i, (attribute, rule) in enumerate(sorted(expected.items()))]
    joined = f" {request.get('ConditionalOperator', 'AND')} ".join(terms)
    kept = {k: v for k, v in request.items() if k not in ("Expected", "ConditionalOperator")}
    kept |= {"ConditionExpression": joined, "ExpressionAttributeNames": names}
    return kept | ({"ExpressionAttributeValues": values} if values else {})


def _term(index: int, attribute: str, rule: dict[str, Any], names: dict[str, str], values: dict[str, Any]) -> str:
    name = f"#expected{index}"
    names[name] = attribute

    def value(number: int, content: Any) -> str:
        values[f":expected{index}_{number}"] = content
        return f":expected{index}_{number}"

    operator = rule.get("ComparisonOperator")
    if operator is None:
        if rule.get("Exists") is False:
            return f"attribute_not_exists({name})"
        return f"{name} = {value(0, rule['Value'])}"
    operands = [value(i, v) for i, v in enumerate(rule.get("AttributeValueList") or [])]
    if operator in _COMPARATORS:
        return f"{name} {_COMPARATORS[operator]} {operands[0]}"
    if operator in _FUNCTIONS:
        return f"{_FUNCTIONS[operator]}({name}, {operands[0]})"
    match operator:
        case "NULL":
            return f"attribute_not_exists({name})"
        case "NOT_NULL":
            return f"attribute_exists({name})"
        case "NOT_CONTAINS":
            return f"NOT contains({name}, {operands[0]})"
        case "BETWEEN":
            return f"{name} BETWEEN {operands[0]} AND {operands[1]}"
        case "IN":
            return f"{name} IN ({', '.join(operands)})"
        case _:
            raise UnsupportedConditionError(f"Expected.{attribute}: unknown ComparisonOperator {operator}")
