"""The frame that the serializers of the Glue Schema Registry put before a record's data, and what is in it. Pure.

Rules: retrieval#schema-frames. A frame is recognised exactly as Amazon's Java library does: at least 18 bytes, the
first one 3, the second 0 (plain) or 5 (zlib), then the schema version's UUID, the more significant half first.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from uuid import UUID

HEADER_BYTES = 18
VERSION = 3
PLAIN, ZLIB = 0, 5
PAYLOAD_BYTES_MAX = 32 * 1024 * 1024
"""Of one record, as its child gets it. A record of Kinesis has 10 MiB at most; zlib makes a gigabyte of one."""


class UndecodableError(Exception):
    """A framed record that stays as it is; the text says why, and its child reads it."""


@dataclass(frozen=True, slots=True)
class Frame:
    """`version_id` is the UUID of the schema version, as text."""

    version_id: str
    is_compressed: bool


def frame_of(data: bytes) -> Frame | None:
    """Return the frame of a record, of which the first 18 bytes are enough; None if it has none."""
    if len(data) < HEADER_BYTES or data[0] != VERSION or data[1] not in (PLAIN, ZLIB):
        return None
    return Frame(str(UUID(bytes=data[2:HEADER_BYTES])), data[1] == ZLIB)


def inflated(payload: bytes) -> bytes:
    """Return a compressed payload as it was before. Raises UndecodableError."""
    inflater = zlib.decompressobj()
    try:
        found = inflater.decompress(payload, PAYLOAD_BYTES_MAX)
        if inflater.unconsumed_tail or (not inflater.eof and len(found) == PAYLOAD_BYTES_MAX):
            raise UndecodableError(f"it inflates to more than {PAYLOAD_BYTES_MAX} bytes")
        found += inflater.flush()
    except zlib.error as error:
        raise UndecodableError(f"its zlib stream is damaged: {error}") from error
    if not inflater.eof:
        raise UndecodableError("its zlib stream is cut off")
    return found
