"""Offsets of a streaming query: how far each shard is, and which shards come next. Pure.

An offset names for each shard the *range* that its batch reads, by the sequence numbers of the first and the last
Kinesis record in it and their number. So a batch that is run again, by a new driver, from the offset log alone, asks
for the same records as before, and a task that finds others knows that records are gone: sequence numbers of a shard
never change, and nothing is ever written between two of them that were read. Aggregates are never cut.

A child is admitted when none of its ancestors has anything left, and is read one batch later than the last of them, so
that the records of a partition key keep their order from batch to batch.

What one task reads: a span of a shard, and how the spans of a batch read are planned. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from types import MappingProxyType
from typing import Any

from mld.core.positions import SUB_MAX, TRIM_HORIZON, Position
from mld.core.streams import ChildShard, HashRange, IteratorType, Shard, StartingPoint
from mld.shards.graph import id_order, shares_keys

VERSION = 1
_AT_TIME = "AT_TIMESTAMP:"
TRIM_HORIZON_START = "TRIM_HORIZON"


class OffsetError(ValueError):
    """An offset that this program, or this stream, did not write."""


@dataclass(frozen=True, slots=True)
class ShardProgress:
    """One shard. `start` (TRIM_HORIZON or AT_TIMESTAMP:<ms>) counts until `last` is known.

    `first` to `last` (inclusive), `count` Kinesis records: what the batch that ends here reads; the next one begins
    after `last`. `children` once the shard is read to its end: those that have not been admitted yet.
    """

    keys: HashRange
    start: str = TRIM_HORIZON_START
    first: str | None = None
    last: str | None = None
    count: int = 0
    is_ended: bool = False
    children: Mapping[str, ChildShard] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def start_s(self) -> float | None:
        """Epoch seconds, if reading starts by time."""
        return int(self.start.removeprefix(_AT_TIME)) / 1000 if self.start.startswith(_AT_TIME) else None


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """`stream` is the ARN and when the stream was made."""

    stream: str
    shards: Mapping[str, ShardProgress]


def start_at(time_s: float) -> str:
    """Return a start by time, rounded down to the millisecond."""
    return f"{_AT_TIME}{int(time_s * 1000)}"


def initial_offset(stream: str, shards: Iterable[Shard], start: str) -> StreamOffset:
    """Return the offset at which all of `shards` are read from `start` on, but none before its parents in the list."""
    listed = {shard.shard_id: shard for shard in shards}
    roots = {
        name: ShardProgress(shard.hash_range, start)
        for name, shard in listed.items()
        if not any(parent in listed for parent in shard.parents)
    }
    return StreamOffset(stream, roots)


def advanced(
    progress: ShardProgress, first: str | None, last: str | None, count: int, ended: Iterable[ChildShard] | None
) -> ShardProgress:
    """Return the offset after a look at what follows: `count` records from `first` to `last`; `ended` with its children
    if it is over.
    """
    if count:
        progress = replace(progress, first=first, last=last, count=count)
    if ended is not None:
        progress = replace(progress, is_ended=True, children={child.shard_id: child for child in ended})
    return progress


def admitted(offset: StreamOffset, listed: Iterable[Shard]) -> StreamOffset:
    """Return the offset with the children whose turn has come, and without shards that nothing waits for any more.

    `listed`: what ListShards shows now, which tells who descends from whom.
    """
    parents = {shard.shard_id: set(shard.parents) for shard in listed}
    waiting: dict[str, ChildShard] = {}
    for progress in offset.shards.values():
        for child in progress.children.values():
            waiting[child.shard_id] = child
            parents.setdefault(child.shard_id, set()).update(child.parents)
    live = {name for name, progress in offset.shards.items() if not progress.is_ended} | waiting.keys()
    ready = {
        name for name in waiting if name not in offset.shards and not (_ancestors(name, parents) & (live - {name}))
    }
    shards: dict[str, ShardProgress] = {}
    for name, progress in offset.shards.items():
        left = {child: facts for child, facts in progress.children.items() if child not in ready | offset.shards.keys()}
        shards[name] = replace(progress, children=left) if progress.is_ended else progress
    for name in sorted(ready, key=id_order):
        shards[name] = ShardProgress(waiting[name].hash_range, _start_of(waiting[name], offset))
    return replace(offset, shards=shards)


def _start_of(child: ChildShard, offset: StreamOffset) -> str:
    """Return where a shard begins: a child begins with its oldest record, unless its parents were over before the time
    at which the query starts.
    """
    parents = [offset.shards[name] for name in sorted(child.parents & offset.shards.keys())]
    starts = {TRIM_HORIZON_START if parent.last is not None else parent.start for parent in parents}
    return starts.pop() if len(starts) == 1 else TRIM_HORIZON_START


def pruned(offset: StreamOffset) -> StreamOffset:
    """Return the offset without the shards that are over, and whose children were all admitted in an earlier batch."""
    kept = {name: one for name, one in offset.shards.items() if not one.is_ended or one.children}
    return replace(offset, shards=kept)


def heirs_of_lost(
    name: str, progress: ShardProgress, listed: Iterable[Shard], known: Iterable[str]
) -> list[ChildShard]:
    """Return who goes on for a shard that the stream has forgotten: its children, or else the oldest listed shards with
    keys of it. What lies between is lost.
    """
    shards, taken = list(listed), set(known)
    there = {shard.shard_id for shard in shards}
    return [
        ChildShard(shard.shard_id, shard.parents or frozenset({name}), shard.hash_range)
        for shard in shards
        if shard.shard_id not in taken
        and id_order(shard.shard_id) > id_order(name)
        and not any(parent in there for parent in shard.parents)
        and shares_keys(shard.hash_range, progress.keys)
    ]


def to_read(start: StreamOffset, end: StreamOffset) -> list[tuple[str, ShardProgress]]:
    """Return the shards with a range between two offsets of one query, oldest first.

    The range stands in `end` alone: a query whose first batch is run again asks for its initial position anew.
    """
    found = [
        (name, progress)
        for name, progress in end.shards.items()
        if progress.count and _range(progress) != _range(start.shards.get(name))
    ]
    return sorted(found, key=lambda one: id_order(one[0]))


def _range(progress: ShardProgress | None) -> tuple[str | None, str | None]:
    return (None, None) if progress is None else (progress.first, progress.last)


def _ancestors(name: str, parents: Mapping[str, set[str]]) -> set[str]:
    found: set[str] = set()
    todo = [name]
    while todo:
        for parent in parents.get(todo.pop(), ()):
            if parent not in found:
                found.add(parent)
                todo.append(parent)
    return found


# --- as JSON ----------------------------------------------------------------------------------------------------------


def to_json(offset: StreamOffset) -> dict[str, Any]:
    """Return keys in one order, so that equal offsets are equal texts."""
    return {
        "version": VERSION,
        "stream": offset.stream,
        "shards": {name: _shard_json(offset.shards[name]) for name in sorted(offset.shards, key=id_order)},
    }


def _shard_json(progress: ShardProgress) -> dict[str, Any]:
    value: dict[str, Any] = {"keys": _keys_text(progress.keys)}
    if progress.last is None:
        value["start"] = progress.start
    else:
        value |= {"first": progress.first, "last": progress.last, "count": progress.count}
    if progress.is_ended:
        value["children"] = {
            name: {"parents": ",".join(sorted(child.parents)), "keys": _keys_text(child.hash_range)}
            for name, child in sorted(progress.children.items())
        }
    return value


def from_json(value: Mapping[str, Any], stream: str | None = None) -> StreamOffset:
    """Invert `to_json`. Raises OffsetError, also if it belongs to another stream than `stream`."""
    if value.get("version") != VERSION:
        raise OffsetError(
            f"the offset has version {value.get('version')!r}, and this mld reads version {VERSION}: run the query "
            "with the mld that wrote its checkpoint, or give it a new checkpointLocation"
        )
    try:
        offset = StreamOffset(str(value["stream"]), {name: _progress(one) for name, one in value["shards"].items()})
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise OffsetError(f"the offset is not of this source: {type(error).__name__}: {error}") from None
    if stream is not None and stream != offset.stream:
        raise OffsetError(
            f"the checkpoint of the query belongs to the stream {offset.stream}, and this is {stream}: give the query "
            "a new checkpointLocation, because positions of one stream mean nothing in another"
        )
    return offset


def _progress(value: Mapping[str, Any]) -> ShardProgress:
    children = value.get("children")
    return ShardProgress(
        _keys(value["keys"]),
        value.get("start", TRIM_HORIZON_START),
        value.get("first"),
        value.get("last"),
        int(value.get("count", 0)),
        children is not None,
        {
            name: ChildShard(name, frozenset(child["parents"].split(",")), _keys(child["keys"]))
            for name, child in (children or {}).items()
        },
    )


def _keys_text(keys: HashRange) -> str:
    return f"{keys.start}-{keys.end}"


def _keys(text: str) -> HashRange:
    start, end = text.split("-")
    return HashRange(int(start), int(end))


PIECES_MAX = 24
"""Spans of one shard. They share its five reads a second, so more of them do not read faster."""


@dataclass(frozen=True, slots=True)
class ReadSpan:
    """Records of a shard after `after` (exclusive) through `through` (inclusive), of those that arrived before
    `before_ms`; without `through` the tip of the shard ends it.

    `first`: the Kinesis record with which the answers must begin, otherwise records are gone. `count`: how many Kinesis
    records the span has, if that is known.
    """

    shard_id: str
    hash_range: HashRange
    start: StartingPoint
    after: Position = TRIM_HORIZON
    through: Position | None = None
    before_ms: int | None = None
    first: str | None = None
    count: int | None = None


def last_before(sequence: str) -> Position:
    """Return the last position that may be taken by a record before this one."""
    return Position(str(int(sequence) - 1), SUB_MAX)


def span_of(shard_id: str, progress: ShardProgress) -> ReadSpan:
    """Return the range of an offset."""
    assert progress.first is not None and progress.last is not None
    return ReadSpan(
        shard_id,
        progress.keys,
        StartingPoint(IteratorType.AT_SEQUENCE_NUMBER, sequence=progress.first),
        through=Position(progress.last, SUB_MAX),
        first=progress.first,
        count=progress.count,
    )


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
