"""Avro data as JSON text. Pure; needs fastavro, of the extra `schemas`, which is imported when the first schema comes.

Rules: retrieval#avro-as-json. One value has one form, whatever the branch of a union: no type names are added.

fastavro's compiled reader trusts data in two ways that ours must not be trusted: values nested some ten thousand times
end the process, and an array of values without bytes is as long as four bytes of data say. So schemas that contain
themselves are read by its Python reader, which fails instead, and arrays of nothing are refused.
"""

from __future__ import annotations

import json
import math
from base64 import b64encode
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, time
from decimal import Decimal
from io import BytesIO
from typing import Any
from uuid import UUID

TOO_DEEP = "the data is nested too deeply"


class AvroError(Exception):
    """A schema that is none, or data that is not of the schema; the text says why."""


def avro_decoder(definition: str) -> Callable[[bytes], bytes]:
    """What makes JSON text of data of this schema, the writer's. Raises AvroError; so does what it returns."""
    import fastavro
    from fastavro import _read_py

    try:
        schema = fastavro.parse_schema(json.loads(definition))
        shape = SchemaShape(schema)
    except Exception as error:
        raise AvroError(f"the schema is no Avro schema: {error}") from error
    if shape.has_array_of_nothing:
        raise AvroError("the schema has an array of values without bytes, such as null; data could make it endless")
    read = _read_py.schemaless_reader if shape.contains_itself else fastavro.schemaless_reader

    def decode(data: bytes) -> bytes:
        source = BytesIO(data)
        try:
            value = read(source, schema, None, handle_unicode_errors="strict")
        except RecursionError as error:
            raise AvroError(TOO_DEEP) from error
        except Exception as error:
            raise AvroError(f"the data is not of its Avro schema: {type(error).__name__}: {error}") from error
        if source.tell() != len(data):
            raise AvroError(f"{len(data) - source.tell()} bytes are left after the Avro value")
        try:
            return json.dumps(plain(value), ensure_ascii=False, separators=(",", ":")).encode()
        except RecursionError as error:
            raise AvroError(TOO_DEEP) from error

    return decode


class SchemaShape:
    """What of a parsed schema makes data dangerous: named types within themselves, and arrays of nothing."""

    def __init__(self, schema: Any) -> None:
        self.contains_itself = False
        self.has_array_of_nothing = False
        self._bytes_min: dict[str, int | None] = {}
        """Of named types; None: its own definition is being read."""
        self._least(schema)

    def _least(self, schema: Any) -> int:
        """Bytes that a value has at least; 0 or 1, where 1 is any more."""
        if isinstance(schema, list):
            for branch in schema:
                self._least(branch)
            return 1
        if isinstance(schema, str):
            return self._named(schema)
        kind = schema["type"]
        match kind:
            case "record" | "error":
                name = schema["name"]
                self._bytes_min[name] = None
                least = max((self._least(field["type"]) for field in schema["fields"]), default=0)
                self._bytes_min[name] = least
                return least
            case "fixed":
                self._bytes_min[schema["name"]] = least = min(int(schema["size"]), 1)
                return least
            case "enum":
                self._bytes_min[schema["name"]] = 1
                return 1
            case "array":
                self.has_array_of_nothing |= self._least(schema["items"]) == 0
                return 1
            case "map":
                self._least(schema["values"])
                return 1
        return self._least(kind)

    def _named(self, name: str) -> int:
        if name == "null":
            return 0
        least = self._bytes_min.get(name, 1)
        if least is None:
            self.contains_itself = True
            return 1
        return least


def plain(value: Any) -> Any:
    """The value in terms of JSON (retrieval#avro-as-json)."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else str(value).replace("inf", "Infinity").replace("nan", "NaN")
        case bytes() | bytearray():
            return b64encode(value).decode("ascii")
        case Decimal():
            return format(value, "f")
        case datetime():
            return _instant(value)
        case date() | time():
            return value.isoformat()
        case UUID():
            return str(value)
        case Mapping():
            return {str(key): plain(inner) for key, inner in value.items()}
        case list() | tuple():
            return [plain(inner) for inner in value]
    raise AvroError(f"a value of the type {type(value).__name__} has no form in JSON")


def _instant(value: datetime) -> str:
    """A timestamp in UTC, or a local one as it is."""
    if value.tzinfo is None:
        return value.isoformat()
    return value.astimezone(UTC).replace(tzinfo=None).isoformat() + "Z"
