"""Where a shard is: positions, high-water marks and spans, with the rules that keep a record from being written twice.

A `RecordPosition` names one user record of a shard. A high-water mark is the last position of a shard that a sink
holds; what stands at or below it is never written again. A `ShardSpan` is the part of a shard that one batch holds:
after the mark it was trimmed at, up to and with its last record. A sink takes a span only if its own mark is still the
one at which the batch was trimmed.

Who writes into a sink: the application, its pipeline, and one stream of all that ever bore that name.

A mark is a sequence number of one stream, and says nothing about another. Two regions, two accounts, or a stream that
was deleted and made again have the same stream name and shard ids; only the ARN and the time of creation tell them
apart. Two applications over one stream read the same records, and each means to write its own. An application that
reads several streams is one writer, whose marks have the streams' identifiers in place of their names.

Pure: values in, values out. Sequence numbers are decimal strings on the wire and ints here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

SEQUENCE_DIGITS_MAX = 129
"""Kinesis documents `0|([1-9]\\d{0,128})`; a longer number is a fault of whoever wrote it."""


_POSITION = re.compile(rf"(\d{{1,{SEQUENCE_DIGITS_MAX}}})(?::(\d{{1,{SEQUENCE_DIGITS_MAX}}}))?", re.ASCII)


class RecordPosition(NamedTuple):
    """One user record of a shard: sequence number, and its index within an aggregated record."""

    sequence: int
    sub: int = 0

    def encode(self) -> str:
        """Return `sequence` or `sequence:sub`, in decimal."""
        return f"{self.sequence}:{self.sub}" if self.sub else str(self.sequence)

    def __str__(self) -> str:
        """Return the position for people."""
        return "its end" if self == ENDED else self.encode()

    @classmethod
    def decode(cls, text: object) -> RecordPosition:
        """Decode a position. Raises ValueError if the text is no position."""
        found = _POSITION.fullmatch(text) if isinstance(text, str) else None
        if found is None:
            raise ValueError(f"the mark of a shard is no decimal number: {str(text)[:140]!r}")
        return cls(int(found[1]), int(found[2] or 0))


ENDED = RecordPosition(10**SEQUENCE_DIGITS_MAX)
"""The mark of a shard that has ended, after any record: all of it is in the sink, and nothing of it is new again."""


class StreamShard(NamedTuple):
    """A shard of a stream.

    `stream` is the stream's name, empty if nobody knows it; ``region:account:name:epoch`` where an application reads
    several streams, whose shards may have the same ids and whose names may be the same, too. No name has a colon.
    """

    stream: str
    shard: str

    @property
    def stream_name(self) -> str:
        """The name in `stream`."""
        return self.stream.split(":")[2] if self.stream.count(":") == 3 else self.stream

    @property
    def label(self) -> str:
        """For people: with the stream, if there are several."""
        return self.shard if self.stream_name == self.stream else f"{self.stream_name}/{self.shard}"


OF_A_RECORD = "#"
"""In the id of a shard: what stands for one of its records in the marks of a dead letter. No shard can be called so."""


@dataclass(frozen=True, slots=True)
class ShardSpan:
    """A batch's part of one shard: all after `after` (None: from its beginning) up to and with `upto`."""

    after: RecordPosition | None
    upto: RecordPosition

    def __post_init__(self) -> None:
        if self.after is not None and self.upto <= self.after:
            raise ValueError(f"an empty span: after {self.after.encode()} up to {self.upto.encode()}")


HighWaterMarks: TypeAlias = Mapping[StreamShard, RecordPosition]
"""The last position of each shard that a sink holds; a shard that is absent has nothing in it yet."""
ShardSpans: TypeAlias = Mapping[StreamShard, ShardSpan]
"""What one batch holds of each shard."""


def fresh(position: RecordPosition, mark: RecordPosition | None) -> bool:
    """Return whether a record at `position` is not in the sink yet."""
    return mark is None or position > mark


Preceding: TypeAlias = Mapping[StreamShard, HighWaterMarks]
"""What stands before the next records of a shard: itself up to the position right before them, unless they are its
first, and the shards that it follows, all of which had to end."""
Gap: TypeAlias = tuple[StreamShard, RecordPosition, RecordPosition]
"""A sink holds a shard up to a mark, and what is delivered now comes after another position of it."""


def gaps(preceding: Preceding, marks: HighWaterMarks) -> dict[StreamShard, Gap]:
    """Return the shards before whose next records a sink with these marks lacks something, and what.

    A shard without a mark is new to the sink, which begins there, and it never held what came before: of the shards
    that it follows, those that it holds have to be there to their ends. Once a shard is begun they are not asked for:
    somebody may have accepted what is missing of them."""
    found: dict[StreamShard, Gap] = {}
    for shard, wanted in preceding.items():
        for one, upto in wanted.items():
            if (one == shard or shard not in marks) and one in marks and fresh(upto, marks[one]):
                found.setdefault(shard, (one, marks[one], upto))
    return found


def spans(ends: HighWaterMarks, marks: HighWaterMarks) -> dict[StreamShard, ShardSpan]:
    """Return what is left of batches that end at `ends` once everything at or below `marks` is dropped."""
    return {shard: ShardSpan(marks.get(shard), upto) for shard, upto in ends.items() if fresh(upto, marks.get(shard))}


def moved(batch: ShardSpans, marks: HighWaterMarks) -> dict[StreamShard, RecordPosition | None]:
    """Return the shards of the batch whose mark is no longer the one it was trimmed at, with the mark as it is."""
    return {shard: marks.get(shard) for shard, span in batch.items() if marks.get(shard) != span.after}


def advanced(marks: HighWaterMarks, batch: ShardSpans) -> dict[StreamShard, RecordPosition]:
    """Return the marks once the batch is in the sink; to be asked only if nothing has `moved`."""
    return {**marks, **{shard: span.upto for shard, span in batch.items()}}


def lowest(every: list[HighWaterMarks], shard: StreamShard) -> RecordPosition | None:
    """Return what all sinks hold of a shard: up to here a checkpoint may go. None if one of them holds nothing."""
    held = [marks.get(shard) for marks in every]
    known = [mark for mark in held if mark is not None]
    return min(known) if known and len(known) == len(held) else None


def encode_marks(marks: HighWaterMarks) -> dict[str, dict[str, str]]:
    """Encode stream name -> shard id -> position, sorted, for JSON; what has ended is left out."""
    value: dict[str, dict[str, str]] = {}
    for shard, mark in sorted(marks.items()):
        if mark != ENDED:
            value.setdefault(shard.stream, {})[shard.shard] = mark.encode()
    return value


def decode_marks(value: object) -> dict[StreamShard, RecordPosition]:
    """Return the inverse of `encode_marks`. Raises ValueError that names what is wrong."""
    if not isinstance(value, Mapping) or not all(isinstance(shards, Mapping) for shards in value.values()):
        raise ValueError("the marks are no object of objects")
    return {
        StreamShard(stream, shard): RecordPosition.decode(position)
        for stream, shards in value.items()
        for shard, position in shards.items()
    }


# --- whose marks they are --------------------------------------------------------------------------------------------

ARN_VARIABLE, CREATED_VARIABLE = "MLD_STREAM_ARN", "MLD_STREAM_CREATED"
"""Set by the daemon in a child's environment, from `DescribeStreamSummary` at the start of the child."""
ID_VARIABLE = "MLD_STREAM_ID"
"""Set in the environment of every child if the application reads several streams: ``account:name:epoch``."""
ANCESTORS_VARIABLE = "MLD_ANCESTOR_SHARD_IDS"
"""Set by the daemon in a child's environment: the ids of the shards that its shard follows, with spaces between."""
SEVERAL = "(several streams)"
"""Stands for the ARN of a writer that reads several streams; its marks name each stream by its identifier."""
REGION_AND_MORE = 5  # colons of an ARN
PIPELINE_KEY, STREAM_KEY = "mld.spark.pipelineId", "mld.spark.streamId"


class WriterIdentity(NamedTuple):
    """Equal if and only if the marks of one are those of the other."""

    application: str = ""
    pipeline: str = ""
    """`mld.spark.pipelineId`: another one begins with no marks, and so writes everything that it is given again."""
    stream: str = ""
    """The stream's name, as in `Shard.stream`."""
    arn: str = ""
    """The ARN of the stream; or what `mld.spark.streamId` says instead."""
    created: str = ""
    """When the stream was made, in UTC as `2026-01-02T03:04:05.678Z`; empty with `mld.spark.streamId`."""

    def __str__(self) -> str:
        if self.arn == SEVERAL:
            return f"application {self.application}, pipeline {self.pipeline}, several streams"
        born = f" created {self.created}" if self.created else ""
        return f"application {self.application}, pipeline {self.pipeline}, stream {self.arn}{born}"

    @classmethod
    def decode(cls, value: Mapping[str, object]) -> WriterIdentity:
        """Decode an identity. Raises KeyError and TypeError if the value is none; what else it holds is left alone."""
        texts = [text for name in cls._fields if isinstance(text := value[name], str)]
        if len(texts) < len(cls._fields):
            raise TypeError(f"an identity of something else than texts: {value!r}")
        return cls(*texts)


def identity_of(
    env: Mapping[str, str], *, application: str, pipeline: str, stream: str, stream_id: str | None
) -> WriterIdentity | None:
    """Return this writer, by what the daemon or `mld.spark.streamId` says; None if neither tells one stream from
    another.
    """
    if env.get(ID_VARIABLE):
        return WriterIdentity(application, pipeline, arn=SEVERAL)
    if stream_id:
        return WriterIdentity(application, pipeline, stream, stream_id)
    arn, created = env.get(ARN_VARIABLE), env.get(CREATED_VARIABLE)
    return WriterIdentity(application, pipeline, stream, arn, created) if arn and created else None


def stream_key(env: Mapping[str, str]) -> str:
    """Return what stands for the stream in the marks of a child's shard (`StreamShard.stream`)."""
    identifier, arn = env.get(ID_VARIABLE), env.get(ARN_VARIABLE, "")
    if not identifier:
        return env.get("MLD_STREAM_NAME", "")
    region = arn.split(":")[3] if arn.count(":") >= REGION_AND_MORE else ""
    return f"{region}:{identifier}"  # two regions may have streams of one account, name and time


UNKNOWN = (
    "the daemon does not say which stream this is, of all that ever had its name, and marks in a sink would mean "
    f"nothing: allow it kinesis:DescribeStreamSummary, or (under another daemon) name the stream by {STREAM_KEY}, with "
    "another value whenever it is deleted and made again"
)
