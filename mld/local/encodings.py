"""`Encoding`: translates bodies between JSON and the encoding that a client uses: JSON or CBOR. Pure.

Our models work with JSON. CBOR, the default of the SDK for Java, is translated into JSON when a request arrives, and
the answer is translated into CBOR. In CBOR, data are byte strings instead of base64, and times are integer milliseconds
under tag 1 instead of seconds. The library `cbor2` is part of the extra ``mld[local]``.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from mld.local.kinesis_errors import KinesisError

_EPOCH_TIME = 1
"""The CBOR tag of times."""
_DATA = "Data"
_TIME_SUFFIX = "Timestamp"


@dataclass(frozen=True, slots=True)
class Encoding:
    """`read` translates a whole body into JSON, `write` translates JSON into a body. `read` raises KinesisError."""

    content_type: str
    read: Callable[[bytes], bytes]
    write: Callable[[bytes], bytes]


def encoding_of(headers: Mapping[str, str]) -> Encoding:
    """Return the encoding of a request, which its answer must have, too. Names in `headers` are in lower case."""
    return CBOR if headers.get("content-type", "").startswith(CBOR.content_type) else JSON


def _unchanged(body: bytes) -> bytes:
    return body


def _json_of(body: bytes) -> bytes:
    """Translate CBOR into JSON. Raises KinesisError."""
    import cbor2  # imported here, as only some SDKs need it

    try:
        fields = cbor2.loads(body, semantic_decoders={_EPOCH_TIME: _seconds}) if body else {}
        return json.dumps(fields, default=_base64).encode()
    except (cbor2.CBORDecodeError, TypeError, ValueError, RecursionError) as error:
        raise KinesisError("SerializationException", f"The request is not CBOR of Kinesis: {error}") from None


def _seconds(milliseconds: Any, _immutable: bool) -> float:
    """Convert a time of CBOR to seconds."""
    return float(milliseconds) / 1000


def _base64(value: object) -> str:
    """Return a byte string as base64, for `json.dumps`. Raises TypeError for any other value."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    raise TypeError(f"a value of type {type(value).__name__}")


def _cbor_of(body: bytes) -> bytes:
    """Translate JSON into CBOR."""
    import cbor2

    if not body:
        return b""

    def typed(fields: dict[str, Any]) -> dict[str, Any]:
        """Give the data and times in an answer the types that CBOR has for them."""
        for name, value in fields.items():
            if name == _DATA:
                fields[name] = base64.b64decode(value)
            elif name.endswith(_TIME_SUFFIX):
                fields[name] = cbor2.CBORTag(_EPOCH_TIME, round(value * 1000))
        return fields

    return cbor2.dumps(json.loads(body, object_hook=typed))


JSON = Encoding("application/x-amz-json-1.1", _unchanged, _unchanged)
CBOR = Encoding("application/x-amz-cbor-1.1", _json_of, _cbor_of)
