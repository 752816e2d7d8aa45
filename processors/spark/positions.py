"""Values that identify records: a position in a shard, a shard of a stream, and the part of a shard in one batch.

Pure: values in, values out. Sequence numbers are decimal strings in messages, and ints here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

SEQUENCE_DIGITS_MAX = 129
"""Most digits of a sequence number; Kinesis documents `0|([1-9]\\d{0,128})`. A longer number is an
error of its writer.
"""
AFTER_ANY = 10**SEQUENCE_DIGITS_MAX
"""Greater than any sequence number. The mark of a shard that has ended has this number."""
_POSITION = re.compile(rf"(\d{{1,{SEQUENCE_DIGITS_MAX}}})(?::(\d{{1,{SEQUENCE_DIGITS_MAX}}}))?", re.ASCII)
OF_A_RECORD = "#"
"""Some marks of a dead letter are for a single record instead of a shard. Their names, in the form of a shard id,
contain this character, which no real shard id has.
"""


class RecordPosition(NamedTuple):
    """The position of one user record in its shard: its sequence number, and its index within an aggregated record (0
    outside of one)."""

    sequence: int
    sub: int = 0

    def encode(self) -> str:
        """Return `sequence` or `sequence:sub`, in decimal."""
        return f"{self.sequence}:{self.sub}" if self.sub else str(self.sequence)

    def __str__(self) -> str:
        """Return the position for people."""
        return "its end" if self.sequence == AFTER_ANY else self.encode()

    @classmethod
    def decode(cls, text: object) -> RecordPosition:
        """Decode a position. Raises ValueError if the text is not a position."""
        found = _POSITION.fullmatch(text) if isinstance(text, str) else None
        if found is None:
            raise ValueError(f"the mark of a shard is no decimal number: {str(text)[:140]!r}")
        return cls(int(found[1]), int(found[2] or 0))


class StreamShard(NamedTuple):
    """A shard of a stream.

    `stream` is the stream's name; empty if it is unknown. If an application reads several streams, `stream` is
    ``region:account:name:epoch``, because several streams may have the same shard ids, and even the same name. No
    stream's name has a colon."""

    stream: str
    shard: str

    @property
    def stream_name(self) -> str:
        """The stream's name, without region, account and epoch."""
        return self.stream.split(":")[2] if self.stream.count(":") == 3 else self.stream

    @property
    def label(self) -> str:
        """The shard as people see it; with the stream's name if the application reads several streams."""
        return self.shard if self.stream_name == self.stream else f"{self.stream_name}/{self.shard}"


@dataclass(frozen=True, slots=True)
class ShardSpan:
    """The part of one shard in a batch: all records after the position `after` (None: from the shard's beginning), up
    to and including `upto`.
    """

    after: RecordPosition | None
    upto: RecordPosition

    def __post_init__(self) -> None:
        if self.after is not None and self.upto <= self.after:
            raise ValueError(f"an empty span: after {self.after.encode()} up to {self.upto.encode()}")
