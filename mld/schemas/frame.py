"""The frame that the Glue Schema Registry puts before the data of a record, and its compression. Pure.

Rules: retrieval#schema-frames. A frame is recognised exactly as by Amazon's Java library. It has 18 bytes: the first is
3, the second 0 (plain) or 5 (zlib), the others are the UUID of the schema version, the more significant half first.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from uuid import UUID

HEADER_BYTES = 18
VERSION = 3
PLAIN, ZLIB = 0, 5
PAYLOAD_BYTES_MAX = 32 * 1024 * 1024
"""Longest payload that a child gets. A record of Kinesis has at most 10 MiB, which zlib may expand to a gigabyte."""


class UndecodableError(Exception):
    """A framed record cannot be decoded, so the child gets it unchanged. The text tells the child the reason."""


@dataclass(frozen=True, slots=True)
class Frame:
    """The content of a frame. `version_id` is the UUID of the schema version, as text."""

    version_id: str
    is_compressed: bool


def frame_of(data: bytes) -> Frame | None:
    """Return the schema frame of a record's data; None if it has none. The first 18 bytes of the data are enough."""
    if len(data) < HEADER_BYTES or data[0] != VERSION or data[1] not in (PLAIN, ZLIB):
        return None
    return Frame(str(UUID(bytes=data[2:HEADER_BYTES])), data[1] == ZLIB)


def inflated(payload: bytes) -> bytes:
    """Return a compressed payload uncompressed. Raises UndecodableError."""
    inflater = zlib.decompressobj()
    try:
        found = inflater.decompress(payload, PAYLOAD_BYTES_MAX)  # stops at the limit, and keeps what is left over
        if inflater.unconsumed_tail or (not inflater.eof and len(found) == PAYLOAD_BYTES_MAX):
            raise UndecodableError(f"it inflates to more than {PAYLOAD_BYTES_MAX} bytes")
        found += inflater.flush()
    except zlib.error as error:
        raise UndecodableError(f"its zlib stream is damaged: {error}") from error
    if not inflater.eof:
        raise UndecodableError("its zlib stream is cut off")
    return found
