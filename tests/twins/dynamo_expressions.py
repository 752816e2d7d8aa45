"""DynamoDB's condition and update expressions, evaluated on items in DynamoDB JSON: the part of the grammar we send.

Conditions: = <> < <= > >=, AND, OR, NOT, parentheses, attribute_exists, attribute_not_exists. Updates: SET a = :x,
REMOVE a, ADD a :n. Attribute names must be placeholders, every placeholder must be defined, every definition used.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from functools import lru_cache
from typing import Any

Item = dict[str, dict[str, Any]]

_TOKEN = re.compile(r"\s*(<>|<=|>=|[=<>(),]|[#:]?\w+)")
_FUNCTIONS = ("attribute_exists", "attribute_not_exists")
_CLAUSES = ("SET", "REMOVE", "ADD")


class ValidationError(Exception):
    """What DynamoDB reports as ValidationException."""


@lru_cache(maxsize=1000)
def _tokens_of(text: str) -> tuple[str, ...]:
    tokens = tuple(_TOKEN.findall(text))
    if "".join(tokens) != re.sub(r"\s", "", text):
        raise ValidationError(f"syntax error in {text!r}")
    return tokens


class Expressions:
    """The expressions of one request. `finish` complains about placeholders that were defined and not used."""

    def __init__(self, names: Mapping[str, str] | None, values: Mapping[str, Any] | None) -> None:
        self._names = dict(names or {})
        self._values = dict(values or {})
        self._used: set[str] = set()
        self._tokens: tuple[str, ...] = ()
        self._at = 0

    def holds(self, condition: str, item: Mapping[str, Any]) -> bool:
        """Whether `item` ({} for a missing one) satisfies `condition`."""
        self._start(condition)
        result = self._either(item)
        self._expect_end()
        return result

    def updated(self, update: str, item: Mapping[str, Any]) -> Item:
        """`item` after `update`."""
        self._start(update)
        result: Item = {name: dict(value) for name, value in item.items()}
        paths: list[str] = []
        while self._at < len(self._tokens):
            clause = self._next()
            if clause not in _CLAUSES:
                raise ValidationError(f"unknown update clause {clause}")
            while True:
                paths.append(name := self._name(self._next()))
                self._apply(clause, name, result)
                if self._peek() != ",":
                    break
                self._next()
        if len(set(paths)) != len(paths):
            raise ValidationError("two document paths overlap with each other")
        return result

    def finish(self) -> None:
        if unused := (set(self._names) | set(self._values)) - self._used:
            raise ValidationError(f"unused in expressions: {sorted(unused)}")

    # --- conditions

    def _either(self, item: Mapping[str, Any]) -> bool:
        result = self._both(item)
        while self._peek() == "OR":
            self._next()
            right = self._both(item)
            result = result or right
        return result

    def _both(self, item: Mapping[str, Any]) -> bool:
        result = self._negated(item)
        while self._peek() == "AND":
            self._next()
            right = self._negated(item)
            result = result and right
        return result

    def _negated(self, item: Mapping[str, Any]) -> bool:
        if self._peek() == "NOT":
            self._next()
            return not self._negated(item)
        return self._simple(item)

    def _simple(self, item: Mapping[str, Any]) -> bool:
        token = self._next()
        if token == "(":
            result = self._either(item)
            self._expect(")")
            return result
        if token in _FUNCTIONS:
            self._expect("(")
            exists = self._name(self._next()) in item
            self._expect(")")
            return exists is (token == "attribute_exists")
        left = self._operand(token, item)
        comparator = self._next()
        return _compare(comparator, left, self._operand(self._next(), item))

    def _operand(self, token: str, item: Mapping[str, Any]) -> dict[str, Any] | None:
        return self._value(token) if token.startswith(":") else item.get(self._name(token))

    # --- updates

    def _apply(self, clause: str, name: str, item: Item) -> None:
        match clause:
            case "SET":
                self._expect("=")
                item[name] = normal(self._value(self._next()))
            case "REMOVE":
                item.pop(name, None)
            case _:
                added = self._value(self._next())
                if "N" not in added or "N" not in item.get(name, {"N": "0"}):
                    raise ValidationError("ADD of something that is not a number")
                total = Decimal(item.get(name, {"N": "0"})["N"]) + Decimal(added["N"])
                item[name] = normal({"N": str(total)})

    # --- tokens

    def _start(self, text: str) -> None:
        self._tokens = _tokens_of(text)
        self._at = 0

    def _peek(self) -> str | None:
        return self._tokens[self._at] if self._at < len(self._tokens) else None

    def _next(self) -> str:
        token = self._peek()
        if token is None:
            raise ValidationError("unexpected end of expression")
        self._at += 1
        return token

    def _expect(self, wanted: str) -> None:
        if (token := self._next()) != wanted:
            raise ValidationError(f"{token!r} instead of {wanted!r}")

    def _expect_end(self) -> None:
        if self._peek() is not None:
            raise ValidationError(f"unexpected {self._peek()!r}")

    def _name(self, token: str) -> str:
        if token not in self._names:
            raise ValidationError(f"attribute name {token!r} is no defined placeholder")
        self._used.add(token)
        return self._names[token]

    def _value(self, token: str) -> dict[str, Any]:
        if token not in self._values:
            raise ValidationError(f"value {token!r} is not defined")
        self._used.add(token)
        return dict(self._values[token])


def normal(value: Mapping[str, Any]) -> dict[str, Any]:
    """An attribute value as DynamoDB stores it; refuses empty sets."""
    (kind, content), *more = value.items()
    if more:
        raise ValidationError("an attribute value has one type")
    if kind == "N":
        text = f"{Decimal(content):f}"
        return {"N": text.rstrip("0").rstrip(".") if "." in text else text}
    if kind in ("SS", "NS", "BS"):
        if not content or len(set(content)) != len(content):
            raise ValidationError("a set must have members, each once")
        return {kind: sorted(content)}
    return {kind: content}


def _compare(comparator: str, left: Mapping[str, Any] | None, right: Mapping[str, Any] | None) -> bool:
    if comparator == "=":
        return left is not None and right is not None and _plain(left) == _plain(right)
    if comparator == "<>":
        return left is None or right is None or _plain(left) != _plain(right)
    orders: dict[str, Callable[[Any, Any], bool]] = {
        "<": lambda a, b: a < b,
        "<=": lambda a, b: a <= b,
        ">": lambda a, b: a > b,
        ">=": lambda a, b: a >= b,
    }
    if comparator not in orders:
        raise ValidationError(f"unknown comparator {comparator}")
    if left is None or right is None or left.keys() != right.keys():
        return False
    return orders[comparator](_plain(left)[1], _plain(right)[1])


def _plain(value: Mapping[str, Any]) -> tuple[str, Any]:
    ((kind, content),) = value.items()
    if kind == "N":
        return kind, Decimal(content)
    return kind, frozenset(content) if kind in ("SS", "NS", "BS") else content
