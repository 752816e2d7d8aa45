"""Writes pages: Parquet files with the columns of records, which Spark reads directly. Also reads single records back.

The files use the simplest form of the format: plain, uncompressed columns, and small row groups, so that neither writer
nor reader needs much memory. Each column of a row group is one Parquet page. The columns are those of
`session.handover.RAW`. An index of our own between the data and the footer shows `rows` where the values are.

A child uses this module, so it is quick to import. Source of the format: https://parquet.apache.org/docs/file-format/
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from mld.processors.spark.batch.record_columns import GROUP_BYTES, RecordColumns, Row, SparkRecord
from mld.processors.spark.batch.thrift import BINARY, I32, I64, LIST, STRUCT, encoded, varint
from mld.processors.spark.fatal import FatalError
from mld.processors.spark.positions import RecordPosition, StreamShard

MAGIC = b"PAR1"
_INT32, _INT64, _BYTE_ARRAY = 1, 2, 6
_REQUIRED, _OPTIONAL = 0, 1
_COLUMNS = (
    ("data", _BYTE_ARRAY, False, _REQUIRED),
    ("partitionKey", _BYTE_ARRAY, True, _OPTIONAL),
    ("sequenceNumber", _BYTE_ARRAY, True, _REQUIRED),
    ("approximateArrivalTimestamp", _INT64, False, _OPTIONAL),
    ("subSequenceNumber", _INT32, False, _REQUIRED),
    ("s", _BYTE_ARRAY, True, _REQUIRED),
    ("h", _BYTE_ARRAY, True, _REQUIRED),
)
"""For each column: its name, its type, whether it is text, and whether it may have nulls."""
_UTF8, _PLAIN, _RLE, _UNCOMPRESSED, _DATA_PAGE = 0, 0, 3, 0, 0
_LENGTH = struct.Struct("<I")
_FORMATS = {_INT32: "i", _INT64: "q"}


class SpoolPage(NamedTuple):
    """A complete page: the number of its records, and the positions of the first and the last one."""

    records: int
    first: RecordPosition
    last: RecordPosition


class PageWriter:
    """Writes one page, row group by row group. If that fails, it removes the file and raises SpoolError."""

    def __init__(self, path: Path, shard: StreamShard) -> None:
        self.records = 0
        self._names = shard.stream_name.encode(), shard.shard.encode()
        self._first: RecordPosition | None = None
        self._last: RecordPosition | None = None
        self._file = _File(path)
        self._waiting: list[RecordColumns] = []
        self._waiting_bytes = 0

    def add(self, columns: RecordColumns) -> None:
        """Add records. They are written once they make a row group."""
        self._first = self._first or columns.position(0)
        self._last = columns.position(-1)
        self.records += len(columns.data)
        self._waiting.append(columns)
        self._waiting_bytes += columns.size
        if self._waiting_bytes >= GROUP_BYTES:
            self._put()

    def _put(self) -> None:
        """Write the waiting records as a row group, with the names of stream and shard in the last two columns."""
        groups, self._waiting, self._waiting_bytes = self._waiting, [], 0
        columns = groups[0][:5] if len(groups) == 1 else _joined(groups)
        self._file.put((*columns, *([name] * len(columns[0]) for name in self._names)))

    def abandon(self) -> None:
        """Remove the file."""
        self._file.abandon()

    def close(self) -> SpoolPage:
        """Finish the file, which must have at least one record."""
        if self._waiting:
            self._put()
        self._file.close()
        assert self._first is not None and self._last is not None
        return SpoolPage(self.records, self._first, self._last)


def _joined(groups: Sequence[RecordColumns]) -> Sequence[Sequence[Any]]:
    return [list(chain.from_iterable(columns)) for columns in zip(*(group[:5] for group in groups), strict=True)]


def write_records(path: Path, records: Iterable[SparkRecord]) -> None:
    """Write records of any shards as a page. If that fails, remove the file and raise SpoolError."""
    file = _File(path)
    group: list[SparkRecord] = []
    size = 0
    for record in records:
        group.append(record)
        size += len(record.data) + len(record.sequence)
        if size >= GROUP_BYTES:
            file.put([*zip(*group, strict=True)])
            group, size = [], 0
    if group:
        file.put([*zip(*group, strict=True)])
    file.close()


class SpoolError(FatalError):
    """Records cannot be stored. The message is one sentence, and names the remedy."""


def no_room(directory: Path, error: OSError) -> SpoolError:
    """Return the error to raise if a page cannot be written into this directory."""
    return SpoolError(
        f"no room for records in {directory}: {error.strerror}; nothing of them is checkpointed; make room, or name "
        "another directory by mld.spark.spool"
    )


class _File:
    """The Parquet file that is being written."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._groups: list[tuple[int, list[tuple[int, int, int]]]] = []
        """For each row group: the number of records, and for each column where its page begins, and the sizes of the
        page's head and data.
        """
        try:
            self._file = path.open("wb")
        except OSError as error:
            raise no_room(path.parent, error) from error
        self._at = self._write(MAGIC)

    def put(self, columns: Sequence[Sequence[Any]]) -> None:
        """Add a row group. Its columns are in the order of `_COLUMNS`."""
        count, places = len(columns[0]), []
        for (_, kind, _, repetition), values in zip(_COLUMNS, columns, strict=True):
            body = (_encoded_required if repetition == _REQUIRED else _encoded_optional)(values, kind)
            head = _page_head(count, len(body))
            self._write(head)
            self._write(body)
            places.append((self._at, len(head), len(body)))
            self._at += len(head) + len(body)
        self._groups.append((count, places))

    def close(self) -> None:
        self._write(_foot(self._groups))
        with self._all_or_nothing():
            self._file.close()

    def _write(self, data: bytes) -> int:
        with self._all_or_nothing():
            return self._file.write(data)

    @contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        """Remove the file if writing it fails, and raise SpoolError."""
        try:
            yield
        except OSError as error:
            self.abandon()
            raise no_room(self._path.parent, error) from error

    def abandon(self) -> None:
        with suppress(OSError):
            self._path.unlink(missing_ok=True)
        with suppress(OSError):
            self._file.close()


def _encoded_required(values: Sequence[Any], kind: int) -> bytes:
    """Encode a column without nulls: each value as it is, a text with its length before it. `kind` is Parquet's
    type.
    """
    if kind == _BYTE_ARRAY:
        return b"".join(chain.from_iterable(zip(map(_LENGTH.pack, map(len, values)), values, strict=True)))
    return struct.pack(f"<{len(values)}{_FORMATS[kind]}", *values)


def _encoded_optional(values: Sequence[Any], kind: int) -> bytes:
    """Encode a column that may have nulls: first a bit for each value, which is 0 for a null, as one run of Parquet's
    hybrid encoding; then the values that are not null."""
    bits = (1 << len(values)) - 1
    if None in values:
        bits -= sum(1 << at for at, value in enumerate(values) if value is None)
    byte_count = -(-len(values) // 8)
    run = varint(byte_count << 1 | 1) + bits.to_bytes(byte_count, "little")
    return _LENGTH.pack(len(run)) + run + _encoded_required([value for value in values if value is not None], kind)


def _page_head(count: int, size: int) -> bytes:
    """Return the head of a page with this many values and bytes (PageHeader in parquet.thrift)."""
    page = encoded((1, I32, count), (2, I32, _PLAIN), (3, I32, _RLE), (4, I32, _RLE))
    return encoded((1, I32, _DATA_PAGE), (2, I32, size), (3, I32, size), (5, STRUCT, page))


def _foot(groups: Sequence[tuple[int, Sequence[tuple[int, int, int]]]]) -> bytes:
    """Return the bytes after the data: our index for `rows`, and Parquet's footer (FileMetaData in parquet.thrift, with
    the numbers of its fields).
    """
    kept = [[count, *((at + head, size) for at, head, size in places)] for count, places in groups]
    index = json.dumps(kept).encode()
    elements = [encoded((4, BINARY, "mld"), (5, I32, len(_COLUMNS)))]
    for name, kind, is_text, repetition in _COLUMNS:
        utf8 = [(6, I32, _UTF8)] if is_text else []
        elements.append(encoded((1, I32, kind), (3, I32, repetition), (4, BINARY, name), *utf8))
    records, rows = sum(count for count, _ in groups), [_group(*group) for group in groups]
    footer = encoded((1, I32, 1), (2, LIST, (STRUCT, elements)), (3, I64, records), (4, LIST, (STRUCT, rows)))
    return b"".join((index, _LENGTH.pack(len(index)), footer, _LENGTH.pack(len(footer)), MAGIC))


def _group(count: int, places: Sequence[tuple[int, int, int]]) -> bytes:
    """Return the description of one row group in the footer (RowGroup in parquet.thrift, with the numbers of its
    fields).

    `places` has for each column where its page begins, and the sizes of the page's head and data.
    """
    chunks = []
    for (name, kind, *_), (at, head, size) in zip(_COLUMNS, places, strict=True):
        about = encoded(
            (1, I32, kind),
            (2, LIST, (I32, (_PLAIN, _RLE))),
            (3, LIST, (BINARY, (name,))),
            (4, I32, _UNCOMPRESSED),
            (5, I64, count),
            (6, I64, head + size),
            (7, I64, head + size),
            (9, I64, at),
        )
        chunks.append(encoded((2, I64, at), (3, STRUCT, about)))
    whole = sum(head + size for _, head, size in places)
    return encoded((1, LIST, (STRUCT, chunks)), (2, I64, whole), (3, I64, count))


def rows(path: Path) -> Iterator[Row]:
    """Yield the records of a page that this module has written, in order.

    The file is read from its end: the length of the footer, and before the footer the length of our index. The index
    has for each row group the number of records, and for each column where its values are.
    """
    with path.open("rb") as file:
        file.seek(-_LENGTH.size - len(MAGIC), 2)
        footer = file.seek(-_LENGTH.size - len(MAGIC) - _LENGTH.unpack(file.read(_LENGTH.size))[0], 2)
        file.seek(footer - _LENGTH.size)
        index = footer - _LENGTH.size - _LENGTH.unpack(file.read(_LENGTH.size))[0]
        file.seek(index)
        for count, *places in json.loads(file.read(footer - _LENGTH.size - index)):
            columns = []
            for (_, kind, _, repetition), (at, size) in zip(_COLUMNS, places, strict=True):
                file.seek(at)
                body = file.read(size)
                is_required = repetition == _REQUIRED
                columns.append(_required(body, 0, kind, count) if is_required else _optional(body, kind, count))
            for values in zip(*columns, strict=True):
                record = SparkRecord(*values)
                yield record.position, record


def _optional(body: bytes, kind: int, count: int) -> list[Any]:
    """Decode a column of `count` values that may be null: the inverse of `_encoded_optional`."""
    at = _LENGTH.size + _LENGTH.unpack_from(body)[0]
    bits = int.from_bytes(body[at - -(-count // 8) : at], "little")
    found = iter(_required(body, at, kind, bits.bit_count()))
    return [next(found) if bit == "1" else None for bit in reversed(f"{bits:0{count}b}")]


def _required(body: bytes, at: int, kind: int, count: int) -> Iterable[Any]:
    """Decode `count` values that are not null, from position `at` of `body`: the inverse of `_encoded_required`."""
    return _texts(body, at) if kind == _BYTE_ARRAY else struct.unpack_from(f"<{count}{_FORMATS[kind]}", body, at)


def _texts(body: bytes, at: int) -> Iterator[bytes]:
    """Yield the texts of a column, from position `at` of `body`; before each text is its length."""
    while at < len(body):
        stop = at + _LENGTH.size + _LENGTH.unpack_from(body, at)[0]
        yield body[at + _LENGTH.size : stop]
        at = stop
