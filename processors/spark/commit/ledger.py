"""Entries of a sink's ledger, and their encoding. Each commit adds one entry, which has a number, and the high-water
marks of all shards of all writers.

So the entry with the highest number, the *head*, has the whole state. Older entries are kept only so that their numbers
stay taken. To commit, a writer creates the file of the next number; only the first that creates it has committed, so a
late writer finds the number taken. The marks prevent that a record is written twice: the records up to the marks are
dropped from a batch, and the batch may follow a head only if the head still has these marks for its shards.

All writers of a sink share the numbers, but each has marks of its own (`admission`). `ended_shards` encodes the shards
that have ended. No decision depends on time. So all decisions are right even if a worker wakes after days, whatever the
retention of the stream is, and if records are replayed from an earlier position.

Pure: values in, values out. `journal` keeps the files.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mld.processors.spark.commit.ended_shards import SHARDS_MAX, decode_retired, encode_retired
from mld.processors.spark.high_water_marks import HighWaterMarks, decode_marks, encode_marks
from mld.processors.spark.sink_port import SinkRefused
from mld.processors.spark.writer_identity import WriterIdentity

APPLICATION = "mld"
"""The name of the ledger in tables, the same for all writers: an entry has the marks of all writers, so no two entries
may have the same number. The name also identifies an entry in the history of a table.
"""
VERSION = 3
"""The version of the format, unchanged since mld 0.2.0. Entries of mld 0.1 do not record which writer their marks
belong to, and are refused.
"""
NUMBER_MAX = 10**18
"""Greater than the number of any entry. Tables store the number in 64 bits, and it is part of the positions of dead
letters (`letters`)."""
NO_UNCLAIMED = {"marks": {}, "at": "", "batch": ""}
"""Marks that belong to no writer. There are none any more, but mld 0.2.0 needs the key in an entry."""
_TOKEN = re.compile(r"[0-9A-Za-z_][0-9A-Za-z_.-]{0,254}")
Columns = tuple[tuple[str, str], ...]
"""Name and type of each column, in order."""


@dataclass(frozen=True, slots=True)
class FileMove:
    """A file or directory that an entry publishes: it moves from the writer's staging area to its place in the sink."""

    source: str
    target: str


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """One commit. `token` is the name of the writer's staging area. It is unique, so a writer recognizes its own entry
    by it.

    `writers` has the marks of every writer after this commit. `batch_id`, `writer`, `at` (the time) and `rows` are only
    for people.
    """

    number: int
    token: str
    writers: Mapping[WriterIdentity, HighWaterMarks] = field(default_factory=dict)
    moves: tuple[FileMove, ...] = ()
    layout: str = ""
    """Format and partitioning of the sink's files. A directory keeps its layout."""
    columns: Columns = ()
    batch_id: str = ""
    writer: str = ""
    at: str = ""
    rows: int | None = None
    swept_to: int = 0
    """Staging areas that were made before this time, in seconds since 1970, may have been removed, so their writers
    must not commit them. Used only if the ledger is a directory.
    """


def encode(entry: LedgerEntry) -> bytes:
    """Encode an entry as one JSON object on one line, in ASCII. Names of files that are not UTF-8 become escapes."""
    value: dict[str, Any] = {
        "application": APPLICATION,
        "version": VERSION,
        "number": entry.number,
        "token": entry.token,
        "batch": entry.batch_id,
        "writer": entry.writer,
        "at": entry.at,
        "rows": entry.rows,
        "writers": [
            {**writer._asdict(), "marks": encode_marks(marks), "ended": encode_retired(marks)}
            for writer, marks in sorted(entry.writers.items())
        ],
        "unclaimed": NO_UNCLAIMED,
        "layout": entry.layout,
        "columns": [list(column) for column in entry.columns],
        "moves": [[move.source, move.target] for move in entry.moves],
        **({"sweptTo": entry.swept_to} if entry.swept_to else {}),
    }
    return json.dumps(value, separators=(",", ":")).encode() + b"\n"


def decode(data: bytes, where: str) -> LedgerEntry:
    """Decode an entry. `where` names the sink and the entry's place, for messages. Raises SinkRefused."""
    try:
        value = json.loads(data)
        _check_version(value, where)
        writers: dict[WriterIdentity, HighWaterMarks] = {}
        for writer in value["writers"]:
            room = SHARDS_MAX - sum(map(len, writers.values()))
            marks = {**decode_marks(writer["marks"]), **decode_retired(writer["ended"], room)}
            writers[WriterIdentity.decode(writer)] = marks
        return LedgerEntry(
            number=_integer(value["number"]),
            token=_token(value["token"]),
            writers=writers,
            moves=tuple(FileMove(_inside(source), _inside(target)) for source, target in value["moves"]),
            columns=tuple((_string(name), _string(kind)) for name, kind in value["columns"]),
            layout=_string(value["layout"]),
            batch_id=_string(value["batch"]),
            writer=_string(value["writer"]),
            at=_string(value["at"]),
            rows=value["rows"],
            swept_to=int(value.get("sweptTo", 0)),
        )
    except Exception as error:  # the text may come from another program, and may cause any exception
        raise damaged(where, error) from error


def damaged(where: str, error: Exception) -> SinkRefused:
    """Return the error that refuses a sink because the text at `where` is not an entry."""
    if isinstance(error, SinkRefused):  # it is a sentence already
        return error
    why = error if isinstance(error, ValueError) else repr(error)
    return SinkRefused(f"{where} is damaged: {why}; restore it, or use a new directory or table")


def _check_version(value: Mapping[str, Any], where: str) -> None:
    """Refuse entries of other versions of mld. Raises SinkRefused and ValueError."""
    version = value["version"]
    if not isinstance(version, int):
        raise ValueError(f"an entry of version {version!r}")
    if version > VERSION:
        raise SinkRefused(f"{where} is of a later mld (version {version}, this one knows {VERSION}); run that one")
    if version != VERSION or value["unclaimed"]["marks"]:
        raise SinkRefused(
            f"{where} was written by mld 0.1 (version {version}), which does not say whose marks it has; this mld "
            "neither reads nor changes it. Use a new directory or table; the old one keeps its rows"
        )


def _integer(value: object) -> int:
    """Return the number of an entry. Raises ValueError for any other value."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value < NUMBER_MAX:
        raise ValueError(f"no number of an entry: {value!r}")
    return value


def _string(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"not a string: {value!r}")
    return value


def _token(value: object) -> str:
    """Return the name of a staging area. Raises ValueError for any other value: a directory of this name is removed
    once its files are moved, so it must not be another one.
    """
    if not _TOKEN.fullmatch(token := _string(value)):
        raise ValueError(f"no name of a staging area: {token[:60]!r}")
    return token


def _inside(value: object) -> str:
    """Check that a path stays within the sink: an entry must never move files from or to other places."""
    path = _string(value)
    path.encode("utf-8", "surrogateescape")  # raises if no file can have this name
    if "\0" in path or not {"", ".", ".."}.isdisjoint(path.split("/")):
        raise ValueError(f"a path that leaves the sink: {path!r}")
    return path
