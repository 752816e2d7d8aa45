"""`encode_params`, `decode_answer`: the bodies of AWS's JSON protocol, in which bytes are base64 and times are epoch
seconds.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Mapping
from datetime import datetime
from typing import Any

_BLOB, _BLOBS = "B", "BS"


def encode_params(params: Mapping[str, Any]) -> bytes:
    """Return the body of a request with these parameters. Times are rounded down to the millisecond."""
    return _encode(params).encode()


def _plain(value: object) -> object:
    """Return a time or bytes in the form that they have in JSON. Raises TypeError for other types."""
    match value:
        case datetime():
            whole = int(value.replace(microsecond=0).timestamp())
            return whole if value.microsecond < 1000 else float(f"{whole}.{value.microsecond // 1000:03d}")
        case bytes() | bytearray():
            return b64encode(value).decode()
        case _:
            raise TypeError(f"{type(value).__name__} is not part of the JSON protocol")


_encode = json.JSONEncoder(default=_plain, separators=(",", ":")).encode


def decode_answer(body: bytes) -> dict[str, Any]:
    """Return the answer in a body. Binary attribute values of DynamoDB become bytes. Raises ValueError."""
    answer = json.loads(body) if body else {}
    if not isinstance(answer, dict):
        raise ValueError("the answer is no object")
    if b'"B"' in body or b'"BS"' in body:
        _restore_bytes(answer)
    return answer


def _restore_bytes(holder: Any) -> None:
    """Decode the values of `{"B": "base64"}` and `{"BS": [...]}` in place, at any depth.

    This function is not called for single texts and numbers, so that a page of 1 MB with one binary value stays cheap.
    """
    for place, value in holder.items() if isinstance(holder, dict) else enumerate(holder):
        if type(value) is dict:
            if len(value) == 1:
                ((kind, content),) = value.items()
                if type(content) is str:
                    if kind == _BLOB:
                        holder[place] = {kind: b64decode(content)}
                    continue
                if kind == _BLOBS and isinstance(content, list) and all(isinstance(item, str) for item in content):
                    holder[place] = {kind: [b64decode(item) for item in content]}
                    continue
            _restore_bytes(value)
        elif type(value) is list:
            _restore_bytes(value)
