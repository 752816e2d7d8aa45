"""Decodes the letters of a dead letter into records as the daemon delivered them.

A dead letter is a directory; each letter in it is one record that was put aside. The position of a letter is the number
of the commit that wrote it, and its place within that commit. So its position never changes, a later letter has a
higher position, and a single mark shows up to which letter a replay has come in a sink.

Pure: values in, values out.
"""

from __future__ import annotations

import json
import re
from binascii import a2b_base64
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import groupby

from mld.processors.spark.batch.record_columns import SUB_END, SparkRecord
from mld.processors.spark.positions import RecordPosition, StreamShard

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_DIGITS = re.compile(r"[0-9]{1,129}", re.ASCII)
REPLAY = "(dead letter)"
"""Takes the place of the stream's name in the marks of replayed letters. No stream can have this name."""


class LetterError(Exception):
    """A line is not a letter. The message is one sentence."""


@dataclass(frozen=True, slots=True)
class SparkLetter:
    """A record that was put aside. `position` is that of the letter, not that of the record in its shard. `sinks` are
    the sinks that lack the record (None: all). `writer` is the application and the pipeline that wrote the letter; None
    if the letter does not name them."""

    position: RecordPosition
    record: SparkRecord
    reason: str
    sinks: frozenset[str] | None
    writer: tuple[str, str] | None


def replay_shard(identity: str) -> StreamShard:
    """Return the name, in the form of a shard, under which sinks keep their mark for the letters of one directory."""
    return StreamShard(REPLAY, identity)


def letters_of(number: int, texts: Iterable[tuple[str, bytes]]) -> Iterator[SparkLetter]:
    """Yield the letters of the commit with this number, in order. `texts` are the names and contents of its files,
    sorted.

    Raises LetterError.
    """
    at = 0  # the number of the line within the commit, counted through all of its files
    for name, data in texts:
        for line in data.splitlines():
            try:
                yield _letter(RecordPosition(number, at), json.loads(line))
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
                raise LetterError(
                    f"{name} has a line that is no dead letter of mld-spark ({error!r}): {line[:80]!r}; take it out"
                ) from error
            at += 1


def _letter(position: RecordPosition, value: dict[str, object]) -> SparkLetter:
    """Return the letter in a JSON object. Raises ValueError, KeyError and TypeError."""
    data, key = value.get("data", ""), value.get("partitionKey")
    sequence, stream, shard = (value[name] for name in ("sequenceNumber", "streamName", "shardId"))
    if not all(isinstance(text, str) for text in (data, sequence, stream, shard, "" if key is None else key)):
        raise TypeError("a field of another type")
    if not _DIGITS.fullmatch(str(sequence)):
        raise ValueError("no sequenceNumber")
    sub = value.get("subSequenceNumber", 0)
    if type(sub) is not int or not 0 <= sub < SUB_END:
        raise ValueError("no subSequenceNumber")
    arrived, sinks, application = value.get("approximateArrivalTimestamp"), value.get("sinks"), value.get("application")
    record = SparkRecord(
        a2b_base64(str(data), strict_mode=True),
        None if key is None else str(key).encode(),
        str(sequence).encode(),
        None if arrived is None else (datetime.fromisoformat(str(arrived)) - _EPOCH) // _MILLISECOND,
        sub,
        str(stream).encode(),
        str(shard).encode(),
    )
    return SparkLetter(
        position,
        record,
        str(value.get("reason", "")),
        frozenset(map(str, sinks)) if isinstance(sinks, list) else None,
        None if application is None else (str(application), str(value.get("pipelineId", ""))),
    )


def for_us(
    letters: Iterable[SparkLetter], writer: tuple[str, str], sinks: frozenset[str]
) -> Iterator[tuple[frozenset[str] | None, list[SparkLetter]]]:
    """Yield the letters that `writer` has to replay, in order. Each group has consecutive letters that the same sinks
    lack, and comes with the names of these sinks (None: all).

    `sinks` are all sinks of this writer. Letters of other writers, and letters only for sinks that no longer exist, are
    left out. A letter that names no writer is taken for our own.
    """
    ours = (
        letter
        for letter in letters
        if letter.writer in (None, writer) and (letter.sinks is None or letter.sinks & sinks)
    )
    for lacking, group in groupby(ours, lambda letter: None if letter.sinks is None else letter.sinks & sinks):
        yield lacking, list(group)
