"""A line with many records -> a Parquet file, which Spark reads without taking text apart; and back, for a few.

The plainest file that the format has: columns without nulls, as they are, uncompressed; small groups of rows, so that
neither who writes nor who reads it holds much at once, and one page for each column of a group. The
columns are those of `session.handover.RAW`. Between pages and footer stands where the values are, for `lines`.

A line is cut at its quotation marks, as our daemon and Amazon's write it. One that is written in another way, or has
what no column takes, is `Irregular`, and goes as text (`record_lines`).

A child uses this, so it is quick to import. Source of the format: https://parquet.apache.org/docs/file-format/
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from mld.processors.spark.batch import thrift
from mld.processors.spark.batch.record_lines import HEAD, RECORD_TAIL, SEPARATOR, end_of, names
from mld.processors.spark.high_water_marks import RecordPosition, StreamShard

GROUP_BYTES = 256 * 1024
"""Of a line, for one group of rows; a record is not divided. The JVM reads each column of a group into one array: with
4 MiB such arrays are huge objects of its heap, and a record costs it 23 us instead of 15."""
MAGIC = b"PAR1"

_QUOTED = 20
"""Pieces between quotation marks, and between those, that a record makes."""
_DATA, _KEY, _SEQUENCE, _ARRIVAL, _SUB = 3, 7, 11, 14, 16
_CONSTANT = {
    1: b"data",
    2: b":",
    4: b",",
    5: b"partitionKey",
    6: b":",
    8: b",",
    9: b"sequenceNumber",
    10: b":",
    12: b",",
    13: b"approximateArrivalTimestamp",
    15: b"subSequenceNumber",
    17: b"action",
    18: b":",
    19: b"record",
}

_INT32, _INT64, _BYTE_ARRAY = 1, 2, 6
_COLUMNS = (
    ("data", _BYTE_ARRAY, False),
    ("partitionKey", _BYTE_ARRAY, True),
    ("sequenceNumber", _BYTE_ARRAY, True),
    ("approximateArrivalTimestamp", _INT64, False),
    ("subSequenceNumber", _INT32, False),
    ("s", _BYTE_ARRAY, True),
    ("h", _BYTE_ARRAY, True),
)
"""Name, type, and whether it is text."""
_KEPT = 5
"""Columns that `lines` reads; the others are the shard's names."""
_UTF8, _REQUIRED, _PLAIN, _RLE, _UNCOMPRESSED, _DATA_PAGE = 0, 0, 0, 3, 0, 0
_LENGTH = struct.Struct("<I")


class Irregular(Exception):
    """The records of this line have to go as text."""


class PageFile(NamedTuple):
    """What a file holds: how many records, and the positions of the first and the last one."""

    records: int
    first: RecordPosition
    last: RecordPosition
    millis_behind_latest: int | None


class _Columns(NamedTuple):
    data: Sequence[bytes]
    keys: Sequence[bytes]
    sequences: Sequence[bytes]
    arrivals: Sequence[int]
    subs: Sequence[int]


def write(path: Path, line: bytes, shard: StreamShard) -> PageFile:
    """Make the file. Raises Irregular and OSError; there is no file then."""
    try:
        return _write(path, line, shard)
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def lines(path: Path) -> bytes:
    """Return the records of a file as `record_lines.split` would give them."""
    with path.open("rb") as file:
        file.seek(-_LENGTH.size - len(MAGIC), 2)
        footer = file.seek(-_LENGTH.size - len(MAGIC) - _LENGTH.unpack(file.read(_LENGTH.size))[0], 2)
        file.seek(footer - _LENGTH.size)
        index = footer - _LENGTH.size - _LENGTH.unpack(file.read(_LENGTH.size))[0]
        file.seek(index)
        stream, shard, groups = json.loads(file.read(footer - _LENGTH.size - index))
        named = names(StreamShard(stream, shard))
        found: list[bytes] = []
        for count, *places in groups:
            pages = []
            for at, size in places:
                file.seek(at)
                pages.append(file.read(size))
            found += _lines(count, pages, named)
    return b"".join(found)


def no_room(directory: Path, error: OSError) -> str:
    """Return what to tell who operates it."""
    return (
        f"no room for records in {directory}: {error.strerror}; nothing of them was accepted; make room, or name "
        "another directory by mld.spark.spool"
    )


def _write(path: Path, line: bytes, shard: StreamShard) -> PageFile:
    end = end_of(line)
    if end is None:
        raise Irregular
    groups: list[tuple[int, list[tuple[int, int, int]]]] = []
    first: RecordPosition | None = None
    with path.open("wb") as file:
        at = file.write(MAGIC)
        for chunk in _chunks(line, end.at):
            columns = _taken_apart(chunk)
            count = len(columns.data)
            first = first or _position(columns, 0)
            places = []
            for values in _pages(columns, shard):
                head = _page_head(count, len(values))
                file.write(head)
                file.write(values)
                places.append((at, len(head), len(values)))
                at += len(head) + len(values)
            groups.append((count, places))
        file.write(_foot(groups, shard))
    assert first is not None
    return PageFile(sum(count for count, _ in groups), first, _position(columns, -1), end.millis_behind_latest)


def _chunks(line: bytes, end: int) -> Iterator[bytes]:
    """Yield whole records, parted by what cannot stand within one."""
    at = len(HEAD)
    while at < end:
        found = line.find(SEPARATOR, at + GROUP_BYTES, end)
        stop = end if found < 0 else found + len(RECORD_TAIL)
        yield line[at:stop]
        at = stop + 1


def _taken_apart(chunk: bytes) -> _Columns:
    """Take a chunk apart. Raises Irregular."""
    from pybase64 import b64decode  # only who writes needs it

    pieces = chunk.split(b'"')
    count, rest = divmod(len(pieces), _QUOTED)
    between = pieces[_QUOTED:-1:_QUOTED]
    if rest != 1 or (pieces[0], pieces[-1]) != (b"{", b"}") or between.count(b"},{") != count - 1:
        raise Irregular
    if any(pieces[at::_QUOTED].count(text) != count for at, text in _CONSTANT.items()):
        raise Irregular
    keys, sequences = pieces[_KEY::_QUOTED], pieces[_SEQUENCE::_QUOTED]
    try:
        if not chunk.isascii():
            b"".join(keys).decode()
        if b"\\" in chunk:
            keys = [str(json.loads(b'"%b"' % key)).encode() for key in keys]
        data = [b64decode(piece, validate=True) for piece in pieces[_DATA::_QUOTED]]
        arrivals, subs = _numbers(pieces[_ARRIVAL::_QUOTED]), _numbers(pieces[_SUB::_QUOTED])
        if min(arrivals) < 0 or max(arrivals) >> 63 or min(subs) < 0 or max(subs) >> 31:
            raise Irregular
    except ValueError as error:
        raise Irregular from error
    if not (b"".join(sequences).isdigit() and all(sequences)):
        raise Irregular
    return _Columns(data, keys, sequences, arrivals, subs)


def _numbers(pieces: Sequence[bytes]) -> list[int]:
    """Parse the numbers of `:17,` and so on. Raises ValueError."""
    return list(map(int, b"".join(pieces)[1:-1].split(b",:")))


def _position(columns: _Columns, index: int) -> RecordPosition:
    return RecordPosition(int(columns.sequences[index]), columns.subs[index])


def _pages(columns: _Columns, shard: StreamShard) -> Iterator[bytes]:
    count = len(columns.data)
    yield from map(_plain, (columns.data, columns.keys, columns.sequences))
    yield struct.pack(f"<{count}q", *columns.arrivals)
    yield struct.pack(f"<{count}i", *columns.subs)
    for name in (shard.stream_name, shard.shard):
        yield _plain([name.encode()]) * count


def _plain(values: Sequence[bytes]) -> bytes:
    lengths = map(_LENGTH.pack, map(len, values))
    return b"".join(chain.from_iterable(zip(lengths, values, strict=True)))


def _page_head(count: int, size: int) -> bytes:
    levels = thrift.i32(3, _RLE), thrift.i32(4, _RLE)  # there are none
    page = thrift.struct(thrift.i32(1, count), thrift.i32(2, _PLAIN), *levels)
    sizes = thrift.i32(2, size), thrift.i32(3, size)
    return thrift.struct(thrift.i32(1, _DATA_PAGE), *sizes, thrift.inner(5, page))


def _foot(groups: Sequence[tuple[int, Sequence[tuple[int, int, int]]]], shard: StreamShard) -> bytes:
    kept = [[count, *((at + head, size) for at, head, size in places[:_KEPT])] for count, places in groups]
    index = json.dumps([shard.stream_name, shard.shard, kept]).encode()
    elements = [thrift.struct(thrift.i32(3, _REQUIRED), thrift.text(4, "mld"), thrift.i32(5, len(_COLUMNS)))]
    for name, kind, is_text in _COLUMNS:
        said = [thrift.i32(6, _UTF8)] if is_text else []
        elements.append(thrift.struct(thrift.i32(1, kind), thrift.i32(3, _REQUIRED), thrift.text(4, name), *said))
    rows = [_group(count, places) for count, places in groups]
    footer = thrift.struct(
        thrift.i32(1, 1),
        thrift.structs(2, elements),
        thrift.i64(3, sum(count for count, _ in groups)),
        thrift.structs(4, rows),
    )
    return b"".join((index, _LENGTH.pack(len(index)), footer, _LENGTH.pack(len(footer)), MAGIC))


def _group(count: int, places: Sequence[tuple[int, int, int]]) -> bytes:
    chunks = []
    for (name, kind, _), (at, head, size) in zip(_COLUMNS, places, strict=True):
        sizes = thrift.i64(6, head + size), thrift.i64(7, head + size)
        about = (
            thrift.i32(1, kind),
            thrift.i32s(2, (_PLAIN,)),
            thrift.texts(3, (name,)),
            thrift.i32(4, _UNCOMPRESSED),
            thrift.i64(5, count),
            *sizes,
            thrift.i64(9, at),
        )
        chunks.append(thrift.struct(thrift.i64(2, at), thrift.inner(3, thrift.struct(*about))))
    whole = sum(head + size for _, head, size in places)
    return thrift.struct(thrift.structs(1, chunks), thrift.i64(2, whole), thrift.i64(3, count))


def _lines(count: int, pages: Sequence[bytes], named: bytes) -> Iterator[bytes]:
    from pybase64 import b64encode

    data, keys, sequences = map(_values, pages[:3])
    arrivals, subs = struct.unpack(f"<{count}q", pages[3]), struct.unpack(f"<{count}i", pages[4])
    for row in zip(data, keys, sequences, arrivals, subs, strict=True):
        key = json.dumps(row[1].decode()).encode()
        yield (
            (
                b'{"data":"%b","partitionKey":%b,"sequenceNumber":"%b","approximateArrivalTimestamp":%d,'
                b'"subSequenceNumber":%d' % (b64encode(row[0]), key, *row[2:])
            )
            + named
            + b"\n"
        )


def _values(page: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(page):
        stop = at + _LENGTH.size + _LENGTH.unpack_from(page, at)[0]
        yield page[at + _LENGTH.size : stop]
        at = stop
