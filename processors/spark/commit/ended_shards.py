"""The marks of shards that have ended, and their encoding in an entry of the ledger, which needs little space.

A mark is the position up to which the records of a shard are in a sink. A shard counts as ended once its child process
has reached the shard's end and all its records are in every sink. From then on no record of it can be new: if any
worker delivers one again, it is dropped. So the ledger keeps the shard for ever with the mark ENDED, and needs no
position. Kinesis numbers its shards, so the ended shards are a few ranges of numbers. Shard ids of another form
(DynamoDB) are kept one by one.

A shard is recorded as ended only if the sink has had a record of it. Pure: values in, values out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby

from mld.processors.spark.high_water_marks import ENDED, HighWaterMarks
from mld.processors.spark.positions import OF_A_RECORD, RecordPosition, StreamShard

NUMBERED = re.compile(r"shardId-(\d{12})", re.ASCII)
_ENDED = re.compile(r"=(?P<name>.*)|(?P<first>\d{1,12})(?:-(?P<last>\d{1,12}))?", re.ASCII | re.DOTALL)
SHARDS_MAX = 1_000_000
"""Most ended shards in an entry; no stream has had so many. An entry with more is damaged, and must not fill the
memory.
"""


def retired(marks: HighWaterMarks, ended: HighWaterMarks) -> HighWaterMarks:
    """Return the marks after the shards in `ended` have ended: each shard whose mark has reached the position given
    there gets the mark ENDED. The marks of single records (`OF_A_RECORD`) are removed instead."""
    done = {shard: ENDED for shard, last in ended.items() if shard in marks and marks[shard] >= last}
    left = {**marks, **done} if done else marks
    return {shard: mark for shard, mark in left.items() if OF_A_RECORD not in shard.shard or shard not in done}


def encode_retired(marks: HighWaterMarks) -> dict[str, list[str]]:
    """Encode the shards with the mark ENDED, by stream: first numbers and ranges of numbers, such as `70` and `0-63`;
    then ids of another form, each after `=`.
    """
    streams: dict[str, list[str]] = {}
    for stream, shard in sorted(shard for shard, mark in marks.items() if mark == ENDED):
        streams.setdefault(stream, []).append(shard)
    return {
        stream: [*_ranges(shards), *(f"={shard}" for shard in shards if not NUMBERED.fullmatch(shard))]
        for stream, shards in streams.items()
    }


def _ranges(shards: Iterable[str]) -> Iterator[str]:
    """Yield `first-last`, or a single number, for the numbered ones of these sorted shards.

    In a range without gaps the number of each shard minus its index is constant, so shards are grouped by that.
    """
    numbers = (int(found[1]) for shard in shards if (found := NUMBERED.fullmatch(shard)))
    for _, pairs in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0]):
        first, *rest = (number for _, number in pairs)
        yield f"{first}-{rest[-1]}" if rest else f"{first}"


def decode_retired(value: object, room: int = SHARDS_MAX) -> HighWaterMarks:
    """Decode the result of `encode_retired`: return the mark ENDED for each shard, for at most `room` shards. Raises
    ValueError that names the wrong part."""
    if not isinstance(value, Mapping):
        raise ValueError("what has ended: not an object")
    marks: dict[StreamShard, RecordPosition] = {}
    ranges: list[tuple[str, int, int]] = []
    for stream, item in ((stream, item) for stream, items in value.items() for item in items):
        found = _ENDED.fullmatch(item) if isinstance(item, str) else None
        if found is None:
            raise ValueError(f"what has ended: no range of shards: {str(item)[:60]!r}")
        if (name := found["name"]) is not None:
            marks[StreamShard(stream, name)] = ENDED
            continue
        first, last = int(found["first"]), int(found["last"] or found["first"])
        room -= last - first + 1
        if last < first or room < 0:
            raise ValueError(f"what has ended: no range of shards, or too many of them: {item}")
        ranges.append((stream, first, last))
    # Only now, because damaged ranges may stand for any number of shards.
    for stream, first, last in ranges:
        marks |= {StreamShard(stream, f"shardId-{number:012d}"): ENDED for number in range(first, last + 1)}
    return marks
