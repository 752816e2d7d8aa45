"""`OperationRequest`: reads the fields of a request in AWS JSON, and refuses missing or malformed fields as AWS does.
Pure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from typing import Any, TypeVar

from mld.local.kinesis_errors import KinesisError, invalid, missing, validation
from mld.local.tokens import account_of_token, unpacked

T = TypeVar("T")

NAME = re.compile(r"[a-zA-Z0-9_.-]{1,128}")
SEQUENCE_NUMBER = re.compile(r"0|[1-9][0-9]{0,128}")
HASH_KEY = re.compile(r"0|[1-9][0-9]{0,38}")
_ACCOUNT_OF_ARN = re.compile(r"arn:[^:]*:kinesis:[^:]*:(\d{12}):")
_ARNS = ("StreamARN", "ConsumerARN", "ResourceARN")
_TOKENS = ("ShardIterator", "NextToken")
PAGE_MAX = 10_000
INT_MAX = 2**31 - 1


class OperationRequest:
    """The fields of a request. `text`, `integer`, `timestamp` and `nested` return None for a field that is absent, and
    `flag` returns False; the other methods raise KinesisError for it. All raise KinesisError for a malformed field.
    """

    __slots__ = ("_fields",)

    def __init__(self, fields: Mapping[str, Any]) -> None:
        self._fields = fields

    def text(self, key: str, pattern: re.Pattern[str] | None = None) -> str | None:
        """Return a text of the request; None if it is missing. Raises KinesisError if it is of another type or form."""
        value = self._get(key, str)
        if value is not None and pattern is not None and not pattern.fullmatch(value):
            raise validation(
                f"Value '{value}' at '{_camel(key)}' failed to satisfy constraint: Member must satisfy regular "
                f"expression pattern: {pattern.pattern}"
            )
        return None if value is None else str(value)

    def required(self, key: str, pattern: re.Pattern[str] | None = None) -> str:
        """Return a text that the request must have."""
        return _needed(key, self.text(key, pattern))

    def integer(self, key: str, low: int, high: int) -> int | None:
        """Return a whole number of the request; None if it is missing. Raises KinesisError if it is out of range."""
        value = self._get(key, int)
        if value is not None and not low <= value <= high:
            raise validation(
                f"Value '{value}' at '{_camel(key)}' failed to satisfy constraint: Member must have value between "
                f"{low} and {high}"
            )
        return None if value is None else int(value)

    def required_integer(self, key: str, low: int, high: int) -> int:
        """Return a whole number that the request must have."""
        return _needed(key, self.integer(key, low, high))

    def timestamp(self, key: str) -> float | None:
        """Return the field as a time in epoch seconds; None if the request does not have it."""
        value = self._get(key, (int, float))
        return None if value is None else float(value)

    def flag(self, key: str) -> bool:
        """Return a field that is true or false; False if it is absent."""
        return bool(self._get(key, bool))

    def nested(self, key: str) -> OperationRequest | None:
        """Return the fields of a structure in the request; None if it is absent."""
        value = self._get(key, dict)
        return None if value is None else OperationRequest(value)

    def required_nested(self, key: str) -> OperationRequest:
        """Return the fields of a structure that the request must have."""
        return _needed(key, self.nested(key))

    def choice(self, key: str, values: Collection[str], where: str = "") -> str:
        """Return a required field that must have one of these values. `where` is the name of the field in the error."""
        text = self.required(key)
        if text not in values:
            raise validation(
                f"Value '{text}' at '{where or _camel(key)}' failed to satisfy constraint: Member must satisfy enum "
                f"value set: {list(values)}"
            )
        return text

    def place(self, kind: str, otherwise: str) -> str:
        """Return the name after which a list continues: it is in NextToken if the request has one, else `otherwise`."""
        token = self.text("NextToken")
        return otherwise if token is None else str(unpacked(kind, token)[0])

    def entries(self, key: str) -> list[OperationRequest]:
        """Return the entries of a list. Raises KinesisError."""
        value = _needed(key, self._get(key, list))
        if not all(isinstance(item, dict) for item in value):
            raise KinesisError("SerializationException", f"{key} must be a list of structures.")
        return [OperationRequest(item) for item in value]

    def stream_or_none(self) -> str | None:
        """Return StreamARN or StreamName; None if neither is given. If both are given, they must name the same
        stream.
        """
        arn, name = self.text("StreamARN"), self.text("StreamName", NAME)
        if arn is not None and name is not None and not arn.endswith(f":stream/{name}"):
            raise invalid(f"StreamARN {arn} and StreamName {name} name different streams.")
        return arn or name

    def stream(self) -> str:
        """Return StreamARN or StreamName, one of which is required."""
        ref = self.stream_or_none()
        if ref is None:
            raise invalid("Either StreamName or StreamARN must be provided.")
        return ref

    def account(self) -> str | None:
        """Return the account that is named in an ARN, an iterator or a page token of the request. None: it is the
        account of the caller.
        """
        for key in _ARNS:
            if isinstance(arn := self._fields.get(key), str) and (named := _ACCOUNT_OF_ARN.match(arn)):
                return named[1]
        for key in _TOKENS:
            if isinstance(token := self._fields.get(key), str):
                return account_of_token(token)
        return None

    def _get(self, key: str, kind: type | tuple[type, ...]) -> Any:
        """Return a field, None if it is absent. Raises KinesisError if it has another type."""
        value = self._fields.get(key)
        if value is None:
            return None
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise KinesisError("SerializationException", f"{key} has the wrong type.")
        return value


def _needed(key: str, value: T | None) -> T:
    """Return a value of the field `key`. Raises KinesisError if it is None, because the request lacks the field."""
    if value is None:
        raise missing(_camel(key))
    return value


def _camel(key: str) -> str:
    """Return the name of a field as AWS writes it in errors: with a small first letter."""
    return key[:1].lower() + key[1:]


def parse(body: bytes) -> OperationRequest:
    """Parse the body of a request. Raises KinesisError."""
    try:
        fields = json.loads(body) if body else {}
    except ValueError as error:
        raise KinesisError("SerializationException", f"The request is not JSON: {error}") from None
    if not isinstance(fields, dict):
        raise KinesisError("SerializationException", "The request is not a JSON object.")
    return OperationRequest(fields)
