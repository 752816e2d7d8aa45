"""DynamoDB's expressions, evaluated on items in DynamoDB JSON. Each text is parsed once, into closures.

Conditions, filters and key conditions: = <> < <= > >=, BETWEEN, IN, AND, OR, NOT, parentheses, attribute_exists,
attribute_not_exists, attribute_type, begins_with, contains, size. Updates: SET (with +, -, if_not_exists, list_append),
REMOVE, ADD, DELETE. Paths into maps and lists. Projections: whole attributes.

Stricter than DynamoDB in one point: attribute names must be placeholders, as a plain name may be a reserved word. As in
DynamoDB, every placeholder must be defined and every definition used. Items are never changed in place.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from typing import Any, Generic, TypeVar

Value = dict[str, Any]
Item = dict[str, Value]
Names = Mapping[str, str]
Values = Mapping[str, Value]
Path = tuple[str | int, ...]
Operand = Callable[[Names, Values, Mapping[str, Any]], Value | None]
Condition = Callable[[Names, Values, Mapping[str, Any]], bool]
Change = Callable[[Names, Values, Item, Item], None]
"""names, values, the item before, the item being made."""
PathOf = Callable[[Names], Path]

PARSED_MAX = 4096
DIGITS_MAX = 38
_TOKEN = re.compile(r"\s*(<>|<=|>=|[=<>(),.+\[\]-]|[#:]?\w+)")
_SETS = ("SS", "NS", "BS")
_ORDERED = ("S", "N", "B")
_ORDERS: dict[str, Callable[[Any, Any], bool]] = {
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}
_NONE: frozenset[str] = frozenset()
_KEY_CONDITION = re.compile(r"\s*(#\w+)\s*=\s*(:\w+)\s*(?:\s[Aa][Nn][Dd]\s(.+))?", re.DOTALL)
P = TypeVar("P")


class ValidationError(Exception):
    """What DynamoDB reports as ValidationException."""


class Expressions:
    """The expressions of one request. `finish` complains about placeholders that were defined and not used."""

    __slots__ = ("_names", "_used", "_values")

    def __init__(self, names: Names | None, values: Mapping[str, Any] | None) -> None:
        self._names: Names = names or {}
        self._values: Values = {name: normal(value) for name, value in values.items()} if values else {}
        self._used: list[_Parsed[Any]] = []

    def holds(self, condition: str, item: Mapping[str, Any]) -> bool:
        """Whether `item` ({} for a missing one) satisfies `condition`."""
        return self._use(_condition_of(condition)).run(self._names, self._values, item)

    def updated(self, update: str, item: Mapping[str, Any]) -> Item:
        """`item` after `update`; what stands on the right of a SET is read from the item before it."""
        parsed = self._use(_update_of(update))
        before = dict(item)
        after = dict(item)
        paths, changes = parsed.run
        _check_overlap([path(self._names) for path in paths])
        for change in changes:
            change(self._names, self._values, before, after)
        return after

    def projected(self, projection: str, item: Item) -> Item:
        """The attributes of `item` that are asked for."""
        wanted = [self._names[name] for name in self._use(_projection_of(projection)).run]
        return {name: item[name] for name in wanted if name in item}

    def key_condition(self, condition: str) -> tuple[str, Value, str | None]:
        """(name of the hash attribute, its value, the condition on the range attribute if any)."""
        match = _KEY_CONDITION.fullmatch(condition)
        if match is None:
            raise ValidationError("Query condition missed key schema element")
        name, value, rest = match.groups()
        self._use(_Parsed(None, frozenset({name}), frozenset({value})))
        return self._names[name], self._values[value], rest

    def names_in(self, condition: str) -> set[str]:
        """The attributes a condition begins its paths with (and those of steps inside)."""
        return {self._names[name] for name in self._use(_condition_of(condition)).names}

    def finish(self) -> None:
        used = self._used
        if len(used) == 1 and len(used[0].names) == len(self._names) and len(used[0].values) == len(self._values):
            return  # what is used is defined, so as many are all
        names = self._names.keys() - _NONE.union(*[parsed.names for parsed in self._used])
        values = self._values.keys() - _NONE.union(*[parsed.values for parsed in self._used])
        if names or values:
            raise ValidationError(f"unused in expressions: {sorted(names | values)}")

    def _use(self, parsed: _Parsed[P]) -> _Parsed[P]:
        if not parsed.names <= self._names.keys():
            missing = sorted(parsed.names - self._names.keys())
            raise ValidationError(f"attribute names {missing} are no defined placeholders")
        if not parsed.values <= self._values.keys():
            raise ValidationError(f"values {sorted(parsed.values - self._values.keys())} are not defined")
        self._used.append(parsed)
        return parsed


# --- values -----------------------------------------------------------------------------------------------------------


def normal(value: Mapping[str, Any]) -> Value:
    """An attribute value as DynamoDB stores it; refuses what is no value, and empty sets."""
    if len(value) != 1:
        raise ValidationError("an attribute value has one type")
    ((kind, content),) = value.items()
    if kind == "S" and isinstance(content, str):  # most are texts
        return {kind: content}
    match kind:
        case "N" if isinstance(content, str):
            return {kind: number_text(content)}
        case "SS" | "NS" | "BS":
            members = [number_text(member) for member in content] if kind == "NS" else list(content)
            if not members or len(set(members)) != len(members):
                raise ValidationError("a set must have members, each once")
            return {kind: sorted(members)}
        case "M":
            return {kind: {name: normal(member) for name, member in content.items()}}
        case "L":
            return {kind: [normal(member) for member in content]}
        case "B" if isinstance(content, bytes | bytearray):
            return {kind: bytes(content)}
        case "BOOL" | "NULL" if isinstance(content, bool):
            return {kind: content}
    raise ValidationError(f"{kind} {content!r} is no attribute value")


@lru_cache(maxsize=PARSED_MAX)
def number_text(text: str) -> str:
    """A number as DynamoDB gives it back: without exponent, plus sign and needless zeros."""
    try:
        number = Decimal(text)
        if not number.is_finite() or len(number.normalize().as_tuple().digits) > DIGITS_MAX:
            raise ValidationError(f"{text!r} is no number")
    except (InvalidOperation, TypeError):
        raise ValidationError(f"{text!r} is no number") from None
    plain = f"{number:f}"
    if "." in plain:
        plain = plain.rstrip("0").rstrip(".")
    return "0" if plain in ("-0", "") else plain


def copied(data: Any) -> Any:
    """A deep copy of what requests and answers are made of."""
    if isinstance(data, dict):
        return {name: copied(member) for name, member in data.items()}
    if isinstance(data, list | tuple):
        return [copied(member) for member in data]
    return data


def _same(left: Mapping[str, Any] | None, right: Mapping[str, Any] | None) -> bool:
    if left is None or right is None:
        return False
    if left == right:
        return True
    try:
        return normal(left) == normal(right)
    except ValidationError:  # a broken item that a test has planted
        return False


def _is_ordered(operator: str, left: Value | None, right: Value | None) -> bool:
    if left is None or right is None or left.keys() != right.keys():
        return False
    ((kind, content),) = left.items()
    if kind not in _ORDERED:
        raise ValidationError(f"{operator} of type {kind}")
    other = right[kind]
    return _ORDERS[operator](Decimal(content), Decimal(other)) if kind == "N" else _ORDERS[operator](content, other)


def _contains(left: Value | None, right: Value | None) -> bool:
    if left is None or right is None:
        return False
    ((kind, content),) = left.items()
    ((other_kind, other),) = right.items()
    if kind in _SETS:
        return other_kind == kind[0] and other in content
    if kind == "L":
        return any(_same(member, right) for member in content)
    return kind == other_kind and kind in ("S", "B") and other in content


def _begins_with(left: Value | None, right: Value | None) -> bool:
    if right is None or next(iter(right)) not in ("S", "B"):
        raise ValidationError("begins_with needs a text")
    if left is None or left.keys() != right.keys():
        return False
    ((kind, content),) = left.items()
    return bool(content.startswith(right[kind]))


def _is_of_type(left: Value | None, right: Value | None) -> bool:
    return left is not None and right is not None and right.get("S") in left


def _size(value: Value | None) -> Value | None:
    if value is None:
        return None
    ((kind, content),) = value.items()
    if kind in ("N", "BOOL", "NULL"):
        return None
    return {"N": str(len(content.encode()) if kind == "S" else len(content))}


def _sum(left: Value | None, right: Value | None, sign: int) -> Value:
    if left is None or right is None:
        raise ValidationError("The provided expression refers to an attribute that does not exist in the item")
    if "N" not in left or "N" not in right:
        raise ValidationError("Incorrect operand type for operator or function: not a number")
    return {"N": number_text(str(Decimal(left["N"]) + sign * Decimal(right["N"])))}


# --- paths ------------------------------------------------------------------------------------------------------------


def _found(path: Path, item: Mapping[str, Any]) -> Value | None:
    found: Any = item.get(str(path[0]))
    for step in path[1:]:
        if found is None:
            return None
        if isinstance(step, int):
            inside = found.get("L", ())
            found = inside[step] if step < len(inside) else None
        else:
            found = found.get("M", {}).get(step)
    return found  # type: ignore[no-any-return]


def _changed(value: Any, path: Path, change: Callable[[Value | None], Value | None]) -> Value | None:
    """`value` with the part at `path` changed; None removes it."""
    if not path:
        return change(value)
    step, rest = path[0], path[1:]
    if isinstance(step, int):
        if value is None or "L" not in value:
            raise ValidationError("The document path provided in the update expression is invalid for update")
        members = list(value["L"])
        new = _changed(members[step] if step < len(members) else None, rest, change)
        members[step : step + 1] = [] if new is None else [new]
        return {"L": members}
    if value is None or "M" not in value:
        raise ValidationError("The document path provided in the update expression is invalid for update")
    inside = dict(value["M"])
    new = _changed(inside.pop(step, None), rest, change)
    return {"M": inside if new is None else inside | {step: new}}


def _put(item: Item, path: Path, change: Callable[[Value | None], Value | None]) -> None:
    name = path[0]
    assert isinstance(name, str)
    new = _changed(item.get(name), path[1:], change)
    if new is None:
        item.pop(name, None)
    else:
        item[name] = new


def _check_overlap(paths: list[Path]) -> None:
    if len(paths) == len({path[0] for path in paths}):
        return
    for number, path in enumerate(paths):
        for other in paths[number + 1 :]:
            length = min(len(path), len(other))
            if path[:length] == other[:length]:
                raise ValidationError("two document paths overlap with each other")


# --- parsing ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Parsed(Generic[P]):
    run: P
    names: frozenset[str]
    values: frozenset[str]


@lru_cache(maxsize=PARSED_MAX)
def _condition_of(text: str) -> _Parsed[Condition]:
    parser = _Parser(text)
    return parser.finished(parser.either())


@lru_cache(maxsize=PARSED_MAX)
def _update_of(text: str) -> _Parsed[tuple[list[PathOf], list[Change]]]:
    parser = _Parser(text)
    return parser.finished(parser.update())


@lru_cache(maxsize=PARSED_MAX)
def _projection_of(text: str) -> _Parsed[list[str]]:
    parser = _Parser(text)
    return parser.finished(parser.listed(parser.name))


class _Parser:
    """Recursive descent over one text. The names and values it meets are collected."""

    def __init__(self, text: str) -> None:
        self._tokens: list[str] = _TOKEN.findall(text)
        if "".join(self._tokens) != re.sub(r"\s", "", text):
            raise ValidationError(f"syntax error in {text!r}")
        self._at = 0
        self._names: set[str] = set()
        self._values: set[str] = set()

    def finished(self, run: P) -> _Parsed[P]:
        if self._at < len(self._tokens):
            raise ValidationError(f"unexpected {self._tokens[self._at]!r}")
        return _Parsed(run, frozenset(self._names), frozenset(self._values))

    # conditions

    def either(self) -> Condition:
        parts = [self._both()]
        while self._skip("OR"):
            parts.append(self._both())
        if len(parts) == 1:
            return parts[0]
        return lambda names, values, item: any(part(names, values, item) for part in parts)

    def _both(self) -> Condition:
        parts = [self._negated()]
        while self._skip("AND"):
            parts.append(self._negated())
        if len(parts) == 1:
            return parts[0]
        if len(parts) == 2:
            first, second = parts
            return lambda names, values, item: first(names, values, item) and second(names, values, item)
        return lambda names, values, item: all(part(names, values, item) for part in parts)

    def _negated(self) -> Condition:
        if self._skip("NOT"):
            inner = self._negated()
            return lambda names, values, item: not inner(names, values, item)
        if self._skip("("):
            inside = self.either()
            self._expect(")")
            return inside
        if self._peek_follows("("):
            function = self._next()
            if function != "size":
                return self._function(function)
            self._at -= 1
        return self._comparison()

    def _function(self, function: str) -> Condition:
        self._expect("(")
        _, left = self._path()
        if function in ("attribute_exists", "attribute_not_exists"):
            self._expect(")")
            wanted = function == "attribute_exists"
            return lambda names, values, item: (left(names, values, item) is not None) is wanted
        test = {"begins_with": _begins_with, "contains": _contains, "attribute_type": _is_of_type}.get(function)
        if test is None:
            raise ValidationError(f"no function {function!r} in conditions")
        self._expect(",")
        right = self._operand()
        self._expect(")")
        return lambda names, values, item: test(left(names, values, item), right(names, values, item))

    def _comparison(self) -> Condition:
        left = self._operand()
        if self._skip("BETWEEN"):
            low = self._operand()
            self._expect("AND")
            high = self._operand()
            return lambda names, values, item: (
                _is_ordered(">=", left(names, values, item), low(names, values, item))
                and _is_ordered("<=", left(names, values, item), high(names, values, item))
            )
        if self._skip("IN"):
            self._expect("(")
            choices = self.listed(self._operand)
            self._expect(")")
            return lambda names, values, item: any(
                _same(left(names, values, item), choice(names, values, item)) for choice in choices
            )
        operator = self._next()
        right = self._operand()
        if operator == "=":
            return lambda names, values, item: _same(left(names, values, item), right(names, values, item))
        if operator == "<>":
            return lambda names, values, item: not _same(left(names, values, item), right(names, values, item))
        if operator not in _ORDERS:
            raise ValidationError(f"unknown comparator {operator}")
        return lambda names, values, item: _is_ordered(operator, left(names, values, item), right(names, values, item))

    def _operand(self) -> Operand:
        token = self._peek()
        if token is not None and token.startswith(":"):
            value = self._value()
            return lambda names, values, item: values[value]
        if token == "size":
            self._next()
            self._expect("(")
            _, inner = self._path()
            self._expect(")")
            return lambda names, values, item: _size(inner(names, values, item))
        return self._path()[1]

    def _path(self) -> tuple[PathOf, Operand]:
        first = self.name()
        steps: list[str | int] = []
        while True:
            if self._skip("."):
                steps.append(self.name())
            elif self._skip("["):
                if not (number := self._next()).isdecimal():
                    raise ValidationError(f"{number!r} is no index of a list")
                steps.append(int(number))
                self._expect("]")
            else:
                break
        if not steps:
            return lambda names: (names[first],), lambda names, values, item: item.get(names[first])

        def path(names: Names) -> Path:
            return (names[first], *(names[step] if isinstance(step, str) else step for step in steps))

        return path, lambda names, values, item: _found(path(names), item)

    # updates

    def update(self) -> tuple[list[PathOf], list[Change]]:
        paths: list[PathOf] = []
        changes: list[Change] = []
        clauses: set[str] = set()
        while self._peek() is not None:
            clause = self._next().upper()
            act = {"SET": self._set, "REMOVE": self._remove, "ADD": self._add, "DELETE": self._delete}.get(clause)
            if act is None or clause in clauses:
                raise ValidationError(f"unknown or repeated update clause {clause}")
            clauses.add(clause)
            for path, change in self.listed(act):
                paths.append(path)
                changes.append(change)
        if not changes:
            raise ValidationError("an update expression must not be empty")
        return paths, changes

    def _set(self) -> tuple[PathOf, Change]:
        path, _ = self._path()
        self._expect("=")
        term = self._term()
        if (sign := {"+": 1, "-": -1}.get(self._peek() or "")) is not None:
            self._next()
            first, second, factor = term, self._term(), sign
            term = lambda names, values, item: _sum(  # noqa: E731
                first(names, values, item), second(names, values, item), factor
            )
        value_of = term

        def change(names: Names, values: Values, before: Item, after: Item) -> None:
            value = value_of(names, values, before)
            if value is None:
                raise ValidationError("The provided expression refers to an attribute that does not exist in the item")
            _put(after, path(names), lambda _: value)

        return path, change

    def _term(self) -> Operand:
        if not self._peek_follows("("):
            return self._operand()
        function = self._next()
        self._expect("(")
        first = self._operand()
        self._expect(",")
        second = self._operand()
        self._expect(")")
        if function == "if_not_exists":

            def kept(names: Names, values: Values, item: Mapping[str, Any]) -> Value | None:
                present = first(names, values, item)
                return second(names, values, item) if present is None else present

            return kept
        if function == "list_append":

            def appended(names: Names, values: Values, item: Mapping[str, Any]) -> Value | None:
                parts = [first(names, values, item), second(names, values, item)]
                if any(part is None or "L" not in part for part in parts):
                    raise ValidationError("list_append needs two lists")
                return {"L": [member for part in parts if part is not None for member in part["L"]]}

            return appended
        raise ValidationError(f"no function {function!r} in updates")

    def _remove(self) -> tuple[PathOf, Change]:
        path, found = self._path()

        def change(names: Names, values: Values, before: Item, after: Item) -> None:
            if found(names, values, after) is not None:
                _put(after, path(names), lambda _: None)

        return path, change

    def _add(self) -> tuple[PathOf, Change]:
        path, _ = self._path()
        value = self._value()
        return path, lambda names, values, before, after: _put(
            after, path(names), lambda present: _added(present, values[value])
        )

    def _delete(self) -> tuple[PathOf, Change]:
        path, _ = self._path()
        value = self._value()
        return path, lambda names, values, before, after: _put(
            after, path(names), lambda present: _less(present, values[value])
        )

    # tokens

    def listed(self, part: Callable[[], P]) -> list[P]:
        found = [part()]
        while self._skip(","):
            found.append(part())
        return found

    def name(self) -> str:
        token = self._next()
        if not token.startswith("#"):
            raise ValidationError(f"attribute name {token!r} is no placeholder")
        self._names.add(token)
        return token

    def _value(self) -> str:
        token = self._next()
        if not token.startswith(":"):
            raise ValidationError(f"{token!r} is no value")
        self._values.add(token)
        return token

    def _peek(self) -> str | None:
        return self._tokens[self._at] if self._at < len(self._tokens) else None

    def _peek_follows(self, wanted: str) -> bool:
        """Whether a word comes next, and then `wanted`."""
        token = self._peek()
        return (
            token is not None
            and token.isidentifier()
            and self._at + 1 < len(self._tokens)
            and self._tokens[self._at + 1] == wanted
        )

    def _next(self) -> str:
        token = self._peek()
        if token is None:
            raise ValidationError("unexpected end of expression")
        self._at += 1
        return token

    def _skip(self, wanted: str) -> bool:
        token = self._peek()
        if token is None or token.upper() != wanted:
            return False
        self._at += 1
        return True

    def _expect(self, wanted: str) -> None:
        if (token := self._next()).upper() != wanted:
            raise ValidationError(f"{token!r} instead of {wanted!r}")


def _added(present: Value | None, value: Value) -> Value:
    ((kind, content),) = value.items()
    if kind != "N" and kind not in _SETS:
        raise ValidationError("ADD of something that is neither number nor set")
    if present is None:
        return value
    if kind not in present:
        raise ValidationError("ADD to something of another type")
    if kind == "N":
        return _sum(present, value, 1)
    return {kind: sorted({*present[kind], *content})}


def _less(present: Value | None, value: Value) -> Value | None:
    ((kind, content),) = value.items()
    if kind not in _SETS:
        raise ValidationError("DELETE of something that is no set")
    if present is None:
        return None
    if kind not in present:
        raise ValidationError("DELETE from something of another type")
    rest = sorted(set(present[kind]) - set(content))
    return {kind: rest} if rest else None
