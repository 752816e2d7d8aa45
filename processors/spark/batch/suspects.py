"""Which records of a batch may be malformed, by a small bitmap that the job over the batch makes on its way.

A job says how many records it could not decode, not which: a list of them has no bound. So it sets one bit of 32,768
for each, by a checksum of where the record stands. Records whose bit is not set are not malformed; of the others only a
few are read once more. If many bits are set, that is no gain, and all are.

Pure: values in, values out.
"""

from __future__ import annotations

from binascii import crc32

from processors.spark.batch.micro_batch import Row
from processors.spark.high_water_marks import RecordPosition, StreamShard

BITS = 1 << 15
"""What Spark's `bitmap_construct_agg` has."""
SHARE_MAX = 4
"""Of the records; if more of them are malformed than one in so many, nothing is gained by leaving some out."""


def bit_of(shard: StreamShard, position: RecordPosition) -> int:
    """As `handover.BIT` has Spark compute it."""
    return crc32(f"{position.sequence}:{position.sub}:{shard.shard}".encode()) % BITS


def is_worth_it(seen: int, malformed: int) -> bool:
    return malformed * SHARE_MAX <= min(seen, BITS)


def suspects(shard: StreamShard, rows: list[Row], bitmap: bytes) -> list[Row]:
    """The rows whose bit is set."""
    found = []
    for row in rows:
        bit = bit_of(shard, row[0])
        if bitmap[bit >> 3] >> (bit & 7) & 1:
            found.append(row)
    return found
