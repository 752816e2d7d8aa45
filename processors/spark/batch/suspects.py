"""Which records of a batch may be malformed, by a small bitmap that the job over the batch makes on its way.

A job says how many records it could not decode, not which: a list of them has no bound. So it sets one bit of 32,768
for each, by a checksum of where the record stands. Records whose bit is not set are not malformed; of the others only a
few are read once more. If many bits are set, that is no gain, and all are.

Pure: values in, values out.
"""

from __future__ import annotations

from binascii import crc32
from collections.abc import Sequence

from mld.processors.spark.batch.record_columns import Row
from mld.processors.spark.high_water_marks import RecordPosition

BITS = 1 << 15
"""What Spark's `bitmap_construct_agg` has."""
SHARE_MAX = 4
"""Of the records; if more of them are malformed than one in so many, nothing is gained by leaving some out."""


def bit_of(shard: str, position: RecordPosition) -> int:
    """Return the bit as `handover.BIT` has Spark compute it."""
    return crc32(f"{position.sequence}:{position.sub}:{shard}".encode()) % BITS


def is_worth_it(seen: int, malformed: int) -> bool:
    return malformed * SHARE_MAX <= min(seen, BITS)


def suspects(rows: Sequence[Row], bitmap: bytes) -> list[Row]:
    """Return the rows whose bit is set, by what their columns say: records that are replayed have positions of their
    own.
    """
    found = []
    for row in rows:
        bit = bit_of(row[1].shard.decode(), row[1].position)
        if bitmap[bit >> 3] >> (bit & 7) & 1:
            found.append(row)
    return found
