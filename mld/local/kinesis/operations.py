"""Reads the fields of a JSON request, with the refusals that AWS gives for what is missing or malformed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum
from typing import Any, TypeVar

from mld.local.kinesis import errors
from mld.local.kinesis.errors import KinesisError
from mld.local.kinesis.tokens import account_of_token, decode_name

NAME = re.compile(r"[a-zA-Z0-9_.-]{1,128}")
SEQUENCE_NUMBER = re.compile(r"0|[1-9][0-9]{0,128}")
HASH_KEY = re.compile(r"0|[1-9][0-9]{0,38}")
_ACCOUNT_OF_ARN = re.compile(r"arn:[^:]*:kinesis:[^:]*:(\d{12}):")
_ARNS = ("StreamARN", "ConsumerARN", "ResourceARN")
_TOKENS = ("ShardIterator", "NextToken")
PAGE_MAX = 10_000
INT_MAX = 2**31 - 1

_E = TypeVar("_E", bound=Enum)


class OperationRequest:
    """One operation's arguments. `text`, `integer` and so on return None for an absent field."""

    __slots__ = ("_fields",)

    def __init__(self, fields: Mapping[str, Any]) -> None:
        self._fields = fields

    def text(self, key: str, pattern: re.Pattern[str] | None = None) -> str | None:
        value = self._get(key, str)
        if value is not None and pattern is not None and not pattern.fullmatch(value):
            raise errors.validation(
                f"Value '{value}' at '{_camel(key)}' failed to satisfy constraint: Member must satisfy regular "
                f"expression pattern: {pattern.pattern}"
            )
        return None if value is None else str(value)

    def required(self, key: str, pattern: re.Pattern[str] | None = None) -> str:
        value = self.text(key, pattern)
        if value is None:
            raise errors.missing(_camel(key))
        return value

    def integer(self, key: str, low: int, high: int) -> int | None:
        value = self._get(key, int)
        if value is not None and not low <= value <= high:
            raise errors.validation(
                f"Value '{value}' at '{_camel(key)}' failed to satisfy constraint: Member must have value between "
                f"{low} and {high}"
            )
        return None if value is None else int(value)

    def required_integer(self, key: str, low: int, high: int) -> int:
        value = self.integer(key, low, high)
        if value is None:
            raise errors.missing(_camel(key))
        return value

    def timestamp(self, key: str) -> float | None:
        """Return epoch seconds."""
        value = self._get(key, (int, float))
        return None if value is None else float(value)

    def flag(self, key: str) -> bool:
        return bool(self._get(key, bool))

    def strings(self, key: str) -> list[str]:
        values = self._get(key, list) or []
        return [str(v) for v in values]

    def mapping(self, key: str) -> dict[str, str]:
        values = self._get(key, dict) or {}
        return {str(k): str(v) for k, v in values.items()}

    def nested(self, key: str) -> OperationRequest | None:
        value = self._get(key, dict)
        return None if value is None else OperationRequest(value)

    def required_nested(self, key: str) -> OperationRequest:
        value = self.nested(key)
        if value is None:
            raise errors.missing(_camel(key))
        return value

    def choice(self, key: str, kind: type[_E], where: str = "") -> _E:
        """Return a required field with the value of one of `kind`; `where` is what refusals call it."""
        text = self.required(key)
        try:
            return kind(text)
        except ValueError:
            raise errors.validation(
                f"Value '{text}' at '{where or _camel(key)}' failed to satisfy constraint: Member must satisfy enum "
                f"value set: {[item.value for item in kind]}"
            ) from None

    def place(self, kind: str, otherwise: str) -> str:
        """Return the name after which a listing goes on: that in the page token, if there is one."""
        token = self.text("NextToken")
        return otherwise if token is None else decode_name(kind, token)

    def entries(self, key: str) -> list[OperationRequest]:
        value = self._get(key, list)
        if value is None:
            raise errors.missing(_camel(key))
        if not all(isinstance(item, dict) for item in value):
            raise KinesisError("SerializationException", f"{key} must be a list of structures.")
        return [OperationRequest(item) for item in value]

    def stream_or_none(self) -> str | None:
        """Read StreamARN or StreamName; if both are given, they must name the same stream."""
        arn, name = self.text("StreamARN"), self.text("StreamName", NAME)
        if arn is not None and name is not None and not arn.endswith(f":stream/{name}"):
            raise errors.invalid(f"StreamARN {arn} and StreamName {name} name different streams.")
        return arn or name

    def stream(self) -> str:
        ref = self.stream_or_none()
        if ref is None:
            raise errors.invalid("Either StreamName or StreamARN must be provided.")
        return ref

    def account(self) -> str | None:
        """Return the account of the stream that the request names by an ARN, an iterator or a page token; None if it
        names it by the name alone, and so means the caller's.
        """
        for key in _ARNS:
            if isinstance(arn := self._fields.get(key), str) and (named := _ACCOUNT_OF_ARN.match(arn)):
                return named[1]
        for key in _TOKENS:
            if isinstance(token := self._fields.get(key), str):
                return account_of_token(token)
        return None

    def _get(self, key: str, kind: type | tuple[type, ...]) -> Any:
        value = self._fields.get(key)
        if value is None:
            return None
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise KinesisError("SerializationException", f"{key} has the wrong type.")
        return value


def _camel(key: str) -> str:
    return key[:1].lower() + key[1:]
