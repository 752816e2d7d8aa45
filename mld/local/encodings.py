"""How bodies travel: JSON, CBOR, and the event frames of SubscribeToShard. Pure.

Our models speak JSON. CBOR, which the SDK for Java speaks by default, is translated at the door: data are byte strings
instead of base64, times are integers of milliseconds under tag 1 instead of seconds. The codec is the library `cbor2`,
of the extra ``mld[local]``. The answer of SubscribeToShard is a stream of frames of
`application/vnd.amazon.eventstream`: total length, header length, CRC of both, headers (all of type string), payload,
CRC of everything before.
"""

from __future__ import annotations

import base64
import json
import struct
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from mld.local.kinesis_errors import KinesisError

_EPOCH_TIME = 1
"""The tag."""
_DATA = "Data"
_TIME_SUFFIX = "Timestamp"
_STRING_TYPE = 7


@dataclass(frozen=True, slots=True)
class Encoding:
    """`read` and `write` translate a whole body from and to JSON; `read` raises KinesisError."""

    content_type: str
    read: Callable[[bytes], bytes]
    write: Callable[[bytes], bytes]


def encoding_of(headers: Mapping[str, str]) -> Encoding:
    """Return the encoding of a request, and of its answer. `headers` have lower-case names."""
    return CBOR if headers.get("content-type", "").startswith(CBOR.content_type) else JSON


def _unchanged(body: bytes) -> bytes:
    return body


def _json_of(body: bytes) -> bytes:
    import cbor2  # only some SDKs speak it

    try:
        fields = cbor2.loads(body, semantic_decoders={_EPOCH_TIME: _seconds}) if body else {}
        return json.dumps(fields, default=_base64).encode()
    except (cbor2.CBORDecodeError, TypeError, ValueError, RecursionError) as error:
        raise KinesisError("SerializationException", f"The request is not CBOR of Kinesis: {error}") from None


def _seconds(milliseconds: Any, _immutable: bool) -> float:
    return float(milliseconds) / 1000


def _base64(value: object) -> str:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    raise TypeError(f"a value of type {type(value).__name__}")


def _cbor_of(body: bytes) -> bytes:
    import cbor2

    if not body:
        return b""

    def typed(fields: dict[str, Any]) -> dict[str, Any]:
        for name, value in fields.items():
            if name == _DATA:
                fields[name] = base64.b64decode(value)
            elif name.endswith(_TIME_SUFFIX):
                fields[name] = cbor2.CBORTag(_EPOCH_TIME, round(value * 1000))
        return fields

    return cbor2.dumps(json.loads(body, object_hook=typed))


JSON = Encoding("application/x-amz-json-1.1", _unchanged, _unchanged)
CBOR = Encoding("application/x-amz-cbor-1.1", _json_of, _cbor_of)


# --- streams of events -----------------------------------------------------------------------------------------------


def frame(headers: dict[str, str], payload: bytes) -> bytes:
    head = b"".join(
        bytes((len(name),)) + name.encode() + struct.pack(">BH", _STRING_TYPE, len(value.encode())) + value.encode()
        for name, value in headers.items()
    )
    prelude = struct.pack(">II", 12 + len(head) + len(payload) + 4, len(head))
    start = prelude + struct.pack(">I", zlib.crc32(prelude)) + head
    return start + payload + struct.pack(">I", zlib.crc32(payload, zlib.crc32(start)))


def initial_response(encoding: Encoding = JSON) -> bytes:
    """Return the event that must come first, or boto3 refuses the stream."""
    return event("initial-response", b"{}", encoding)


def event(event_type: str, payload: bytes, encoding: Encoding = JSON) -> bytes:
    """Return an event. `payload` is JSON, and is sent in `encoding`."""
    headers = {":event-type": event_type, ":content-type": encoding.content_type, ":message-type": "event"}
    return frame(headers, encoding.write(payload))


def exception(code: str, payload: bytes, encoding: Encoding = JSON) -> bytes:
    headers = {":exception-type": code, ":content-type": encoding.content_type, ":message-type": "exception"}
    return frame(headers, encoding.write(payload))
