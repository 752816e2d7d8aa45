"""DeleteItem's old argument `Expected`, rewritten as a ConditionExpression. Pure.

moto ignores it and deletes the item; Java workers of a mixed fleet use it (DynamoDB API reference, legacy conditional
parameters).
"""

from __future__ import annotations

from typing import Any

# --- moto's applications ----------------------------------------------------------------------------------------------


class UnsupportedConditionError(ValueError):
    """A condition that this rewrite does not know."""


def rewrite_expected(request: dict[str, Any]) -> dict[str, Any]:
    """Return the same request with a ConditionExpression in place of `Expected`; unchanged if there is none."""
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
