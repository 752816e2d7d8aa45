"""The frame that the serializers of the Glue Schema Registry put before a record's data. Pure.

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
INFLATED_BYTES_MAX = 32 * 1024 * 1024
"""Of one record. A record of Kinesis has 10 MiB at most; zlib makes a gigabyte of one if it is asked to."""


class FrameError(Exception):
    """A frame whose payload cannot be had; the text says why."""


@dataclass(frozen=True, slots=True)
class Frame:
    """A record's data, taken apart. `version_id` is the UUID of the schema version, as text."""

    version_id: str
    is_compressed: bool
    payload: bytes

    def inflated(self) -> bytes:
        """The payload as it was before compression. Raises FrameError."""
        return _inflated(self.payload) if self.is_compressed else self.payload


def frame_of(data: bytes) -> Frame | None:
    """The frame of a record's data; None if it has none."""
    if len(data) < HEADER_BYTES or data[0] != VERSION or data[1] not in (PLAIN, ZLIB):
        return None
    return Frame(str(UUID(bytes=data[2:HEADER_BYTES])), data[1] == ZLIB, data[HEADER_BYTES:])


def _inflated(data: bytes) -> bytes:
    inflater = zlib.decompressobj()
    try:
        found = inflater.decompress(data, INFLATED_BYTES_MAX)
        if inflater.unconsumed_tail or (not inflater.eof and len(found) == INFLATED_BYTES_MAX):
            raise FrameError(f"it inflates to more than {INFLATED_BYTES_MAX} bytes")
        found += inflater.flush()
    except zlib.error as error:
        raise FrameError(f"its zlib stream is damaged: {error}") from error
    if not inflater.eof:
        raise FrameError("its zlib stream is cut off")
    return found
