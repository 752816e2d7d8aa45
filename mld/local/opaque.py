"""Opaque texts for clients to hand back: iterators and page tokens. Pure.

A text is base64 of a checksum and of fields that describe the place themselves, so that a model remembers none of them.
"""

from __future__ import annotations

import base64
import binascii
import zlib

_SEPARATOR = "\x1f"
_CHECKSUM_BYTES = 4


def pack(kind: str, *fields: object) -> str:
    body = _SEPARATOR.join((kind, *map(str, fields))).encode()
    return base64.b64encode(zlib.crc32(body).to_bytes(_CHECKSUM_BYTES, "big") + body).decode()


def unpack(kind: str, text: str, count: int) -> list[str] | None:
    """Return the `count` fields of a text of this kind; None if we did not make it."""
    try:
        raw = binascii.a2b_base64(text.encode("ascii"), strict_mode=True)
    except (binascii.Error, UnicodeEncodeError):
        return None
    checksum, body = raw[:_CHECKSUM_BYTES], raw[_CHECKSUM_BYTES:]
    fields = body.decode(errors="replace").split(_SEPARATOR)
    if zlib.crc32(body).to_bytes(_CHECKSUM_BYTES, "big") != checksum or fields[0] != kind or len(fields) != count + 1:
        return None
    return fields[1:]
