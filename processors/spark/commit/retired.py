"""Shards that have ended, as short as they can be said: what becomes of their marks in an entry of a ledger.

Once the daemon has taken a shard's last checkpoint, and every sink holds all that came of it, nothing of the shard can
be new any more: whatever is delivered of it again, however late and by whomever, is dropped. So the ledger keeps the
shard for good, and the position is of no use. Kinesis counts its shards, so those that have ended are a few ranges of
numbers; ids of another kind (DynamoDB) are kept one by one.

Time plays no part: a worker that wakes after days, another retention, and a replay from an earlier position find the
same answer as before. Only a shard of which the sink has had a record is ever retired.

Pure: values in, values out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from itertools import pairwise

from mld.processors.spark.high_water_marks import ENDED, HighWaterMarks, StreamShard

NUMBERED = re.compile(r"shardId-(?P<number>\d{12})", re.ASCII)
SHARDS_MAX = 1_000_000
"""More than any stream has had: an entry that says more is damaged, and must not fill the memory."""


def retired(marks: HighWaterMarks, ended: HighWaterMarks) -> HighWaterMarks:
    """Return the marks, once those shards have ended whose last position is known and in the sink."""
    done = {shard: ENDED for shard, last in ended.items() if shard in marks and marks[shard] >= last}
    return {**marks, **done} if done else marks


def encode_retired(marks: HighWaterMarks) -> dict[str, list[str]]:
    """Encode stream -> ranges of the numbers of its shards that have ended, such as `0-63` and `70`, then other ids."""
    numbers: dict[str, list[int]] = {}
    others: dict[str, list[str]] = {}
    for stream, shard in sorted(shard for shard, mark in marks.items() if mark == ENDED):
        found = NUMBERED.fullmatch(shard)
        if found:
            numbers.setdefault(stream, []).append(int(found["number"]))
        else:
            others.setdefault(stream, []).append(shard)
    streams = sorted(numbers.keys() | others.keys())
    return {stream: [*_ranges(numbers.get(stream, [])), *_named(others.get(stream, []))] for stream in streams}


def decode_retired(value: object) -> HighWaterMarks:
    """Return the inverse of `encode_retired`: the mark ENDED for each shard. Raises ValueError that names what is
    wrong.
    """
    if not isinstance(value, Mapping):
        raise ValueError("what has ended: not an object")
    found: list[StreamShard] = []
    for stream, items in value.items():
        if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
            raise ValueError(f"what has ended of stream {stream!r}: not a list of texts")
        for item in items:
            found.extend(StreamShard(stream, shard) for shard in _ids(item))
            if len(found) > SHARDS_MAX:
                raise ValueError(f"what has ended: more than {SHARDS_MAX} shards")
    return dict.fromkeys(found, ENDED)


def _ranges(numbers: list[int]) -> list[str]:
    """Encode numbers in order -> `first-last`, or one number."""
    if not numbers:
        return []
    breaks = [(one, other) for one, other in pairwise(numbers) if other != one + 1]
    firsts = [numbers[0], *(other for _, other in breaks)]
    lasts = [*(one for one, _ in breaks), numbers[-1]]
    return [f"{first}-{last}" if last > first else f"{first}" for first, last in zip(firsts, lasts, strict=True)]


def _named(shards: list[str]) -> list[str]:
    return [f"={shard}" for shard in shards]


def _ids(item: str) -> Iterable[str]:
    if item.startswith("="):
        return (item[1:],)
    first, dash, last = item.partition("-")
    try:
        low, high = _number(first), _number(last) if dash else _number(first)
    except ValueError:
        raise ValueError(f"what has ended: no range of shards: {item[:60]!r}") from None
    if high < low or high - low >= SHARDS_MAX:
        raise ValueError(f"what has ended: no range of shards: {item[:60]!r}")
    return (f"shardId-{number:012d}" for number in range(low, high + 1))


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 12):
        raise ValueError(text[:60])
    return int(text)
