"""Cuts the daemon's lines into columns of records.

A line in the form that our daemon and Amazon's write is cut at its quotation marks. Any other line is parsed as JSON. A
child uses this module, so it is quick to import. Pure: values in, values out.
"""

from __future__ import annotations

import json
import re
from binascii import Error as NotBase64
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from mld.processors.spark.fatal import FatalError
from mld.processors.spark.positions import RecordPosition

GROUP_BYTES = 640 * 1024
"""About how many bytes of lines a row group gets; it gets only whole records. The JVM reads each column of a group
into one array. With this size, and after base64 decoding, the array is below 512 KiB. Longer arrays are humongous
objects in the default heap of an executor, which are expensive: with groups of 4 MiB a record costs 23 us instead of
15.
"""
HEAD = b'{"action":"processRecords","records":['
RECORD_HEAD = b'{"data":"'
RECORD_TAIL = b',"action":"record"}'
SEPARATOR = RECORD_TAIL + b"," + RECORD_HEAD
"""Text between two records. It cannot occur within a record, because quotation marks in JSON strings are escaped."""
_LAG = re.compile(rb'\],"millisBehindLatest":(null|\d+)\}\s*\Z')
_PIECES = (
    b'{"data":"","partitionKey":"","sequenceNumber":"","approximateArrivalTimestamp":0,'
    b'"subSequenceNumber":0,"action":"record"}'
).split(b'"')
"""The pieces between the quotation marks of a record, in the form that our daemon and Amazon's write."""
_QUOTED = len(_PIECES) - 1
"""How many pieces each record adds when a line is split at quotation marks."""
_DATA, _KEY, _SEQUENCE, _ARRIVAL, _SUB = 3, 7, 11, 14, 16
"""The numbers of the pieces that have a record's values."""
_CONSTANT = {at: _PIECES[at] for at in {*range(1, _QUOTED)} - {_DATA, _KEY, _SEQUENCE, _ARRIVAL, _SUB}}
"""The pieces that are the same in all records."""
ARRIVAL_END, SUB_END = 1 << 63, 1 << 31
Row: TypeAlias = "tuple[RecordPosition, SparkRecord]"
"""A position and a record. In a replay of dead letters it is the position of the letter that holds the record."""


class LineError(FatalError):
    """A line is not a batch of records. The message is one sentence."""


class SparkRecord(NamedTuple):
    """A record with the columns of a page. Texts are in UTF-8; `key` is the partition key, `arrival` is in milliseconds
    since 1970, `sub` the index within a KPL aggregate.
    """

    data: bytes
    key: bytes | None
    sequence: bytes
    arrival: int | None
    sub: int
    stream: bytes
    shard: bytes

    @property
    def position(self) -> RecordPosition:
        return RecordPosition(int(self.sequence), self.sub)


class RecordColumns(NamedTuple):
    """Records of one shard, as columns: `keys` are their partition keys, `subs` their indexes within a KPL
    aggregate.
    """

    data: Sequence[bytes]
    keys: Sequence[bytes | None]
    sequences: Sequence[bytes]
    arrivals: Sequence[int | None]
    subs: Sequence[int]
    size: int
    """Bytes of the text that the records were parsed from."""

    def position(self, index: int) -> RecordPosition:
        return RecordPosition(int(self.sequences[index]), self.subs[index])


class Line(NamedTuple):
    """A line: its records in groups, its size in bytes (0 if it has no records), and how many milliseconds it is behind
    the tip. To iterate over the groups may raise LineError."""

    groups: Iterable[RecordColumns]
    size: int
    millis_behind_latest: int | None


def read_line(line: bytes) -> Line:
    """Cut a `processRecords` line into columns. Raises LineError.

    The columns come in groups of records, so that not all of them are in memory at once; those of a group are made when
    it is iterated over. If the line begins and ends as our daemon's and Amazon's do, it is divided into groups first; a
    group that is not written as ours is parsed as JSON. Any other line is parsed as JSON as a whole, and its records
    are divided into groups as if all had the same size.
    """
    lag = _LAG.search(line, max(0, len(line) - 64))
    if lag is not None and line.startswith(HEAD + RECORD_HEAD) and line.endswith(RECORD_TAIL, 0, lag.start()):
        chunks = _chunks(line, lag.start())
        groups = (_cut_apart(one) or _columns(_loaded(b"[" + one + b"]", one), len(one)) for one in chunks)
        return Line(groups, len(line), None if lag[1] == b"null" else int(lag[1]))
    value = _loaded(line, line)
    try:
        if value["action"] != "processRecords":
            raise LineError(f"not a batch: {line[:80]!r}")
        records, behind = list(value["records"]), value.get("millisBehindLatest")
        behind = None if behind is None else int(behind)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise LineError(f"not a batch ({error!r}): {line[:80]!r}") from error
    each = max(1, len(line) // max(1, len(records)))
    step = max(1, GROUP_BYTES // each)
    parts = (records[at : at + step] for at in range(0, len(records), step))
    return Line((_columns(part, each * len(part)) for part in parts), len(line) if records else 0, behind)


def _chunks(line: bytes, end: int) -> Iterator[bytes]:
    """Yield pieces of whole records, of about GROUP_BYTES each. The records of the line end at `end`."""
    at = len(HEAD)
    while at < end:
        found = line.find(SEPARATOR, at + GROUP_BYTES, end)
        stop = end if found < 0 else found + len(RECORD_TAIL)
        yield line[at:stop]
        at = stop + 1


def _cut_apart(chunk: bytes) -> RecordColumns | None:
    """Return the columns of records that are written as our daemon writes them; None if they are not.

    The text is split at its quotation marks. Then each record adds the same number of pieces: some are the same in all
    records, the others have the record's values. If anything else is found, the caller parses the text as JSON.
    """
    from pybase64 import b64decode  # imported late: most processes that import this module do not decode

    pieces = chunk.split(b'"')
    count, rest = divmod(len(pieces), _QUOTED)
    between = pieces[_QUOTED:-1:_QUOTED]
    if rest != 1 or (pieces[0], pieces[-1]) != (b"{", b"}") or between.count(b"},{") != count - 1:
        return None
    if any(pieces[at::_QUOTED].count(text) != count for at, text in _CONSTANT.items()):
        return None
    keys, sequences = pieces[_KEY::_QUOTED], pieces[_SEQUENCE::_QUOTED]
    try:
        if not chunk.isascii():
            b"".join(keys).decode()  # raises ValueError if a key is not UTF-8
        if b"\\" in chunk:
            keys = [str(json.loads(b'"%b"' % key)).encode() for key in keys]
        data = [b64decode(piece, validate=True) for piece in pieces[_DATA::_QUOTED]]
        arrivals, subs = _numbers(pieces[_ARRIVAL::_QUOTED]), _numbers(pieces[_SUB::_QUOTED])
    except ValueError:
        return None
    if min(arrivals) < 0 or max(arrivals) >= ARRIVAL_END or min(subs) < 0 or max(subs) >= SUB_END:
        return None
    if not (b"".join(sequences).isdigit() and all(sequences)):
        return None
    return RecordColumns(data, keys, sequences, arrivals, subs, len(chunk))


def _numbers(pieces: Sequence[bytes]) -> list[int]:
    """Parse numbers from pieces such as `:17,`. Raises ValueError."""
    return list(map(int, b"".join(pieces)[1:-1].split(b",:")))


def _loaded(text: bytes, quoted: bytes) -> Any:
    """Parse JSON. Raises LineError that quotes the beginning of `quoted`."""
    try:
        return json.loads(text.decode("utf-8", "replace"))
    except (ValueError, RecursionError) as error:
        raise LineError(f"not a batch ({error!r}): {quoted[:80]!r}") from error


def _record(value: Mapping[str, Any]) -> SparkRecord:
    """Return a record from its JSON object. Raises ValueError, KeyError and TypeError."""
    from pybase64 import b64decode

    sequence, arrival = str(value["sequenceNumber"]), value.get("approximateArrivalTimestamp")
    if not (sequence.isascii() and sequence.isdigit()):
        raise ValueError(f"a record whose sequenceNumber is {sequence[:140]!r}")
    sub = int(value.get("subSequenceNumber") or 0)
    if not 0 <= sub < SUB_END or not (arrival is None or abs(int(arrival)) < ARRIVAL_END):
        raise ValueError(f"numbers of the record {sequence} are beyond their bounds")
    try:
        data = b64decode(value["data"] or "", validate=True)
    except NotBase64 as error:
        raise ValueError(f"data of the record {sequence} is no base64") from error
    key = value["partitionKey"].encode("utf-8", "replace") if isinstance(value["partitionKey"], str) else None
    return SparkRecord(data, key, sequence.encode(), None if arrival is None else int(arrival), sub, b"", b"")


def _columns(values: Sequence[Mapping[str, Any]], size: int) -> RecordColumns:
    """Return the columns of records that were parsed as JSON objects from `size` bytes. Raises LineError."""
    try:
        records = list(map(_record, values))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise LineError(f"not a batch ({error!r}): {str(values)[:80]}") from error
    data, keys, sequences, arrivals, subs, _, _ = zip(*records, strict=True)
    return RecordColumns(data, keys, sequences, arrivals, subs, size)
