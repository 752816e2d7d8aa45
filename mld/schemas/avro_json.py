"""Turns Avro data into JSON text. Pure.

Rules: retrieval#avro-as-json. Each value has one form in JSON; the type names of union branches are not added. This
module needs fastavro, from the extra `schemas`. Hostile data may take any amount of time and memory, so only the
decoder's process may call it.
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

from mld.schemas.frame import UndecodableError


def avro_decoder(definition: str) -> Callable[[bytes], bytes]:
    """Return a function that turns data written with this schema into JSON text. It raises UndecodableError, and so
    does this call.
    """
    import fastavro

    try:
        schema = fastavro.parse_schema(json.loads(definition))
    except Exception as error:
        raise UndecodableError(f"the schema is no Avro schema: {error}") from error

    def decode(data: bytes) -> bytes:
        """Return one record's data as JSON text. Raises UndecodableError."""
        source = BytesIO(data)
        try:
            value = fastavro.schemaless_reader(source, schema, None, handle_unicode_errors="strict")
        except MemoryError:
            raise
        except Exception as error:
            raise UndecodableError(f"the data is not of its Avro schema: {type(error).__name__}: {error}") from error
        if source.tell() != len(data):
            raise UndecodableError(f"{len(data) - source.tell()} bytes are left after the Avro value")
        try:
            return json.dumps(plain(value), ensure_ascii=False, separators=(",", ":")).encode()
        except RecursionError as error:
            raise UndecodableError("the data is nested too deeply") from error

    return decode


def plain(value: Any) -> Any:
    """Return an Avro value as a JSON value (retrieval#avro-as-json). Raises UndecodableError."""
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
    raise UndecodableError(f"a value of the type {type(value).__name__} has no form in JSON")


def _instant(value: datetime) -> str:
    """Return a timestamp as text, in UTC; a local timestamp, which has no zone, is not converted."""
    if value.tzinfo is None:
        return value.isoformat()
    return value.astimezone(UTC).replace(tzinfo=None).isoformat() + "Z"
