"""Where a shard is: positions, high-water marks and spans, with the rules that keep a record from being written twice.

A `Position` names one user record of a shard. A mark is the last position of a shard that a sink holds; what stands at
or below it is never written again. A `Span` is the part of a shard that one batch holds: after the mark it was trimmed
at, up to and with its last record. A sink takes a span only if its own mark is still the one the batch was trimmed at.

Pure: values in, values out. Sequence numbers are decimal strings on the wire and ints here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

SEQUENCE_DIGITS_MAX = 129
"""Kinesis documents `0|([1-9]\\d{0,128})`; a longer number is a fault of whoever wrote it."""


class Position(NamedTuple):
    """One user record of a shard: sequence number, and its index within an aggregated record."""

    sequence: int
    sub: int = 0

    def encode(self) -> str:
        """`sequence` or `sequence:sub`, in decimal."""
        return f"{self.sequence}:{self.sub}" if self.sub else str(self.sequence)

    @classmethod
    def decode(cls, text: str) -> Position:
        """Raises ValueError if the text is no position."""
        sequence, _, sub = text.partition(":")
        return cls(_natural(sequence), _natural(sub) if sub else 0)


class Shard(NamedTuple):
    """A shard of a stream; a stream name that nobody knows is the empty string."""

    stream: str
    shard: str


QUERY = "(query)"
"""Stands for the stream in the marks of streaming queries; no stream can be called so."""


@dataclass(frozen=True, slots=True)
class Span:
    """A batch's part of one shard: all after `after` (None: from its beginning) up to and with `upto`."""

    after: Position | None
    upto: Position

    def __post_init__(self) -> None:
        if self.after is not None and self.upto <= self.after:
            raise ValueError(f"an empty span: after {self.after.encode()} up to {self.upto.encode()}")


Marks: TypeAlias = Mapping[Shard, Position]
"""The last position of each shard that a sink holds; a shard that is absent has nothing in it yet."""
Spans: TypeAlias = Mapping[Shard, Span]
"""What one batch holds of each shard."""


def fresh(position: Position, mark: Position | None) -> bool:
    """Whether a record at `position` is not in the sink yet."""
    return mark is None or position > mark


def spans(offered: Marks, marks: Marks) -> dict[Shard, Span]:
    """What is left of batches that end at `offered` once everything at or below `marks` is dropped."""
    return {shard: Span(marks.get(shard), upto) for shard, upto in offered.items() if fresh(upto, marks.get(shard))}


def moved(batch: Spans, marks: Marks) -> dict[Shard, Position | None]:
    """The shards of the batch whose mark is no longer the one it was trimmed at, with the mark as it is."""
    return {shard: marks.get(shard) for shard, span in batch.items() if marks.get(shard) != span.after}


def advanced(marks: Marks, batch: Spans) -> dict[Shard, Position]:
    """The marks once the batch is in the sink; to be asked only if nothing has `moved`."""
    return {**marks, **{shard: span.upto for shard, span in batch.items()}}


def merged(ours: Marks, theirs: Marks) -> dict[Shard, Position]:
    """Per shard the higher mark of the two."""
    return {shard: max(m for m in (ours.get(shard), theirs.get(shard)) if m) for shard in {**ours, **theirs}}


def lowest(every: list[Marks], shard: Shard) -> Position | None:
    """What all sinks hold of a shard: up to here a checkpoint may go. None if one of them holds nothing."""
    held = [marks.get(shard) for marks in every]
    known = [mark for mark in held if mark is not None]
    return min(known) if known and len(known) == len(held) else None


def encode_marks(marks: Marks) -> dict[str, dict[str, str]]:
    """Stream name -> shard id -> position, sorted, for JSON."""
    value: dict[str, dict[str, str]] = {}
    for shard in sorted(marks):
        value.setdefault(shard.stream, {})[shard.shard] = marks[shard].encode()
    return value


def decode_marks(value: object) -> dict[Shard, Position]:
    """The inverse of `encode_marks`. Raises ValueError that names what is wrong."""
    marks: dict[Shard, Position] = {}
    for stream, shards in _members(value, "marks"):
        for shard, position in _members(shards, f"the marks of stream {stream!r}"):
            if not isinstance(position, str):
                raise ValueError(f"the mark of {shard!r} is no string")
            marks[Shard(stream, shard)] = Position.decode(position)
    return marks


def _members(value: object, what: str) -> list[tuple[str, object]]:
    if not isinstance(value, dict):
        raise ValueError(f"{what}: not an object")
    return list(value.items())


def _natural(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= SEQUENCE_DIGITS_MAX):
        raise ValueError(f"not a decimal number: {text[:140]!r}")
    return int(text)
