"""`rewrite_expected`: turns DeleteItem's legacy parameter `Expected` into a ConditionExpression. Pure.

Java workers use `Expected` (DynamoDB API reference, legacy conditional parameters), but moto ignores it and deletes the
item in any case.
"""

from __future__ import annotations

from typing import Any


class UnsupportedConditionError(ValueError):
    """A condition in `Expected` is not supported here."""


def rewrite_expected(request: dict[str, Any]) -> dict[str, Any]:
    """Return the request with a ConditionExpression instead of `Expected`; unchanged if it has no `Expected`."""
    expected = request.get("Expected")
    if not expected or "ConditionExpression" in request:
        return request
    terms, names, values = [], {}, {}
    for number, (attribute, rule) in enumerate(sorted(expected.items())):
        if "ComparisonOperator" in rule or "ConditionalOperator" in request:
            raise UnsupportedConditionError(f"Expected.{attribute}: the embedded AWS knows Value and Exists only")
        name, value = f"#expected{number}", f":expected{number}"
        names[name] = attribute
        if rule.get("Exists") is False:
            terms.append(f"attribute_not_exists({name})")
        else:
            values[value] = rule["Value"]
            terms.append(f"{name} = {value}")
    kept = {k: v for k, v in request.items() if k != "Expected"}
    kept |= {"ConditionExpression": " AND ".join(terms), "ExpressionAttributeNames": names}
    return kept | ({"ExpressionAttributeValues": values} if values else {})
