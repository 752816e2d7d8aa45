"""What one task reads: a span of a shard, and how the spans of a read are planned. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from mld.core.positions import SUB_MAX, TRIM_HORIZON, Position
from mld.core.streams import HashRange, IteratorType, Shard, StartingPoint

PIECES_MAX = 24
"""Spans of one shard. They share its five reads a second, so more of them do not read faster."""


@dataclass(frozen=True, slots=True)
class ReadSpan:
    """Records of a shard after `after` (exclusive) through `through` (inclusive), of those that arrived before
    `before_ms`; without `through` the tip of the shard ends it.

    `first`: the Kinesis record with which the answers must begin, otherwise records are gone.
    """

    shard_id: str
    hash_range: HashRange
    start: StartingPoint
    after: Position = TRIM_HORIZON
    through: Position | None = None
    before_ms: int | None = None
    first: str | None = None


def last_before(sequence: str) -> Position:
    """Return the last position that may be taken by a record before this one."""
    return Position(str(int(sequence) - 1), SUB_MAX)


def spans_between(shard: Shard, found: Sequence[str | None], before_ms: int | None) -> list[ReadSpan]:
    """Return spans between the first records at several times: `found[n]` is the sequence number of the first record
    that arrived at the n-th time or later, None if there is none yet. The last one is the end of the read.

    Each bound is one record that exists, so every record lies in exactly one span, whatever arrives meanwhile. Where
    the end is not known by a record, `before_ms` decides.
    """
    spans = []
    for begin, end in pairwise(found):
        if begin is None or begin == end:
            continue
        start = StartingPoint(IteratorType.AT_SEQUENCE_NUMBER, sequence=begin)
        through = None if end is None else last_before(end)
        spans.append(
            ReadSpan(
                shard.shard_id,
                shard.hash_range,
                start,
                through=through,
                before_ms=before_ms if end is None else None,
                first=begin,
            )
        )
        if end is None:
            break
    return spans


def times_between(start_s: float, end_s: float, step_s: float) -> list[float]:
    """Return times from start to end, `step_s` apart, or further so that there are at most `PIECES_MAX` spans."""
    step_s = max(step_s, (end_s - start_s) / PIECES_MAX)
    times = [start_s]
    while times[-1] + step_s < end_s:
        times.append(times[-1] + step_s)
    return [*times, end_s]


def checkpoint_spans(
    shards: Sequence[Shard],
    start: Mapping[str, Position] | None,
    until: Mapping[str, Position] | None,
    before_ms: int,
) -> list[ReadSpan]:
    """Return spans after one set of positions through another one.

    With `start`, a shard that is not in it is read from its beginning if it descends from one that is, otherwise not
    at all. With `until`, a shard that is not in it is not read. Without `until` the span ends at `before_ms`.
    """
    listed = {shard.shard_id: shard for shard in shards}
    wanted = set(listed if start is None else _descending(listed, start))
    if until is not None:
        wanted &= until.keys()
    spans = []
    for name in sorted(wanted):
        after = TRIM_HORIZON if start is None else start.get(name, TRIM_HORIZON)
        through = None if until is None else until[name]
        if after.is_shard_end or (through is not None and (through <= after or _is_nothing(through))):
            continue
        number = after.number
        point = (
            StartingPoint(IteratorType.TRIM_HORIZON)
            if number is None
            else StartingPoint(IteratorType.AT_SEQUENCE_NUMBER, sequence=after.sequence)
        )
        through = None if through is not None and through.is_shard_end else through
        spans.append(
            ReadSpan(
                name, listed[name].hash_range, point, after, through,
                before_ms if until is None else None,
                None if number is None else after.sequence,
            )
        )  # fmt: skip
    return spans


def _is_nothing(through: Position) -> bool:
    """Return whether it is the checkpoint of a lease that has not been read from."""
    return through.is_sentinel and not through.is_shard_end


def missing_shards(after: Mapping[str, Position], through: Mapping[str, Position], listed: Iterable[str]) -> list[str]:
    """Return shards with records between the positions that the stream does not have any more."""
    done = {name for name, position in after.items() if position.is_shard_end}
    return sorted((after.keys() | through.keys()) - done - set(listed))


def _descending(listed: Mapping[str, Shard], start: Mapping[str, Position]) -> set[str]:
    found = {name for name in listed if name in start}
    is_growing = True
    while is_growing:
        more = {name for name, shard in listed.items() if name not in found and shard.parents & (found | start.keys())}
        found |= more
        is_growing = bool(more)
    return found
