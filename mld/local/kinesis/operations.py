"""The registry of the operations of `json_api`, and the shape of their results."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeVar

from mld.local.kinesis import errors
from mld.local.kinesis.model import Kinesis
from mld.local.kinesis.operation_request import OperationRequest
from mld.local.kinesis.tokens import decode_name

PAGE_MAX = 10_000
INT_MAX = 2**31 - 1

_E = TypeVar("_E", bound=Enum)


@dataclass(frozen=True, slots=True)
class OperationResult:
    """`touched` names the shards that got records, as (stream name, shard id)."""

    body: bytes
    touched: frozenset[tuple[str, str]] = frozenset()


Handler = Callable[[Kinesis, OperationRequest, float], OperationResult]
HANDLERS: dict[str, Handler] = {}
"""By the operation's name in the API."""


def operation(function: Handler) -> Handler:
    """Register a function; ``put_record`` becomes PutRecord."""
    words = function.__name__.split("_")
    HANDLERS["".join(word.capitalize() for word in words)] = function
    return function


def answer(fields: dict[str, Any] | None = None) -> OperationResult:
    return OperationResult(b"" if fields is None else json.dumps(fields).encode())


def choice(kind: type[_E], text: str, where: str) -> _E:
    try:
        return kind(text)
    except ValueError:
        raise errors.validation(
            f"Value '{text}' at '{where}' failed to satisfy constraint: Member must satisfy enum value set: "
            f"{[item.value for item in kind]}"
        ) from None


def resume(kind: str, token: str) -> str:
    name = decode_name(kind, token)
    if name is None:
        raise errors.invalid("NextToken is invalid.")
    return name
