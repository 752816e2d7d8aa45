"""The raw `processRecords` line of a batch -> one JSON line per record, as Spark reads them.

Our daemon and Amazon's write a line in one fixed order of keys, so that it need not be parsed: between two records
stands a text that cannot occur within one (a quotation mark inside a JSON string is escaped). There the line is cut,
and each record gets the names of its stream and shard in place of its constant `action`. A line written in any other
way is parsed and written anew.

Pure: values in, values out. Bytes are copied once, and looked at three times.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from mld.processors.spark.high_water_marks import RecordPosition, StreamShard

HEAD = b'{"action":"processRecords","records":['
RECORD_HEAD = b'{"data":"'
RECORD_TAIL = b',"action":"record"}'
SEQUENCE_KEY = b'"sequenceNumber":"'
SHARD_KEY = b',"h":'
SUB_KEY = b'"subSequenceNumber":'
_LAG = re.compile(rb'\],"millisBehindLatest":(null|\d+)\}\s*\Z')
SEPARATOR = RECORD_TAIL + b"," + RECORD_HEAD
_DIGITS = re.compile(rb"\d+")


class LineError(Exception):
    """A line that is no batch; one sentence."""


@dataclass(frozen=True, slots=True)
class ShardBatch:
    """A shard's batch: its records as lines, each with its newline, and where it begins and ends."""

    records: bytes | bytearray
    count: int
    first: RecordPosition | None
    last: RecordPosition | None
    millis_behind_latest: int | None


EMPTY = ShardBatch(b"", 0, None, None, None)


class LineEnd(NamedTuple):
    """Where the last record of a line ends, and how far behind the shard's tip it is."""

    at: int
    millis_behind_latest: int | None


def end_of(line: bytes | bytearray) -> LineEnd | None:
    """Return where it ends; None if the line has no records, or is not written as ours are."""
    lag = _LAG.search(line, max(0, len(line) - 64))
    if lag is None or not line.startswith(HEAD + RECORD_HEAD) or not line.endswith(RECORD_TAIL, 0, lag.start()):
        return None
    return LineEnd(lag.start(), None if lag[1] == b"null" else int(lag[1]))


def split(line: bytes | bytearray, shard: StreamShard) -> ShardBatch:
    """Split a line. Raises LineError if the line is no batch."""
    named = names(shard)
    end = end_of(line)
    if end is None:
        return _parsed(line, shard)
    count = line.count(RECORD_TAIL)
    records = bytearray(line) if isinstance(line, bytes) else line  # `replace` makes a copy of the same kind
    records = records.replace(SEPARATOR, named + b"\n" + RECORD_HEAD)
    grown = len(records) - len(line)
    # Both ends are cut off in place, which moves nothing.
    del records[len(records) - (len(line) - end.at) - len(RECORD_TAIL) :]
    del records[: len(HEAD)]
    records += named + b"\n"
    if not _is_regular(line, grown, count, named):
        return _parsed(line, shard)
    first = position_of(records[: records.index(b"\n")])
    last = position_of(records[records.rfind(b"\n", 0, -1) + 1 :])
    return ShardBatch(records, count, first, last, end.millis_behind_latest)


def _is_regular(line: bytes | bytearray, grown: int, count: int, named: bytes) -> bool:
    """Return whether all `count` records were cut apart: each has a tail, and each tail but the last one was
    replaced.
    """
    each = len(named) + 1 + len(RECORD_HEAD) - len(SEPARATOR)
    cut = grown == each * (count - 1) if each else line.count(SEPARATOR) == count - 1
    return cut and line.find(b"\n", 0, -1) < 0


def position_of(record: bytes | bytearray) -> RecordPosition:
    """Return the position in a line made by `split`."""
    sequence = record.find(SEQUENCE_KEY)
    number = _DIGITS.match(record, sequence + len(SEQUENCE_KEY)) if sequence >= 0 else None
    at = record.find(SUB_KEY, sequence)
    sub = _DIGITS.match(record, at + len(SUB_KEY)) if at >= 0 else None
    if number is None or sub is None:
        raise LineError(f"a record without a position: {record[-200:]!r}")
    return RecordPosition(int(number[0]), int(sub[0]))


def shard_of(record: bytes) -> str:
    """Return the id of the shard in a line made by `split`."""
    return str(json.loads(record[record.rindex(SHARD_KEY) + len(SHARD_KEY) :].rstrip()[:-1]))


def rows(records: bytes) -> Iterator[tuple[RecordPosition, bytes]]:
    """Yield each line of `split` with its position."""
    for line in records.splitlines(keepends=True):
        yield position_of(line), line


def names(shard: StreamShard) -> bytes:
    """Return the end of a record's line: stream and shard."""
    return b',"s":%b,"h":%b}' % (json.dumps(shard.stream_name).encode(), json.dumps(shard.shard).encode())


def _parsed(line: bytes | bytearray, shard: StreamShard) -> ShardBatch:
    """Split the slow way, for a daemon that writes in another style."""
    named = names(shard)
    try:
        value = json.loads(line)
        if value["action"] != "processRecords":
            raise LineError(f"not a batch: {line[:80]!r}")
        records = value["records"]
        if not records:
            return replace(EMPTY, millis_behind_latest=value.get("millisBehindLatest"))
        lines = [_written(record, named) for record in records]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise LineError(f"not a batch ({error!r}): {line[:80]!r}") from error
    return ShardBatch(
        b"".join(lines), len(lines), position_of(lines[0]), position_of(lines[-1]), value.get("millisBehindLatest")
    )


def _written(record: dict[str, Any], named: bytes) -> bytes:
    kept = {
        "data": record["data"] or "",
        "partitionKey": record["partitionKey"],
        "sequenceNumber": str(record["sequenceNumber"]),
        "approximateArrivalTimestamp": record.get("approximateArrivalTimestamp"),
        "subSequenceNumber": int(record.get("subSequenceNumber") or 0),
    }
    kept |= {name: value for name, value in record.items() if name.startswith("schema") and isinstance(value, str)}
    return json.dumps(kept, separators=(",", ":")).encode()[:-1] + named + b"\n"
