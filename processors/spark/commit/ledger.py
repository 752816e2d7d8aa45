"""The ledger of a sink: numbered entries, each with the marks of every shard of every writer of the sink so far.

The ledger is cumulative: the entry with the highest number, its *head*, holds the whole state, and older entries are
kept only so that their numbers stay taken. An entry follows its head by one; whoever creates the file of that number
first has committed. So the number stops a late writer, and the marks stop it from writing a record twice: a batch may
follow a head only if each of its shards is still where the batch was trimmed.

The numbers belong to the sink, the marks to each writer (`admission`). Shards that have ended are encoded by
`ended_shards`. Time plays no part: a worker that wakes after days, another retention, and a replay from an earlier
position find the same answer as before.

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
"""One name for all writers, whoever they are: an entry has the marks of all of them, so two entries of one number must
not both be there. By it an entry is known in the history of a table."""
VERSION = 3
"""That of mld 0.2.0. Entries that mld 0.1 wrote do not say whose their marks are, and are refused."""
NO_UNCLAIMED = {"marks": {}, "at": "", "batch": ""}
"""Stands in every entry, because mld 0.2.0 asks for it: marks without an owner, which nobody has."""
_TOKEN = re.compile(r"[0-9A-Za-z_][0-9A-Za-z_.-]{0,254}")
Columns = tuple[tuple[str, str], ...]
"""Name and type of each column, in order."""


@dataclass(frozen=True, slots=True)
class FileMove:
    """A file or directory that an entry publishes: from the writer's staging area to its place in the sink."""

    source: str
    target: str


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """One commit. `token` names the writer's staging area, which is unique, and so says whose entry it is."""

    number: int
    token: str
    writers: Mapping[WriterIdentity, HighWaterMarks] = field(default_factory=dict)
    moves: tuple[FileMove, ...] = ()
    layout: str = ""
    """Format and partitioning of the sink's files; one directory keeps one."""
    columns: Columns = ()
    batch_id: str = ""
    writer: str = ""
    at: str = ""
    rows: int | None = None
    swept_to: int = 0
    """Staging areas that were made before this time, in seconds since 1970, may be gone: their writers commit no more.
    Of ledgers that are directories."""


def encode(entry: LedgerEntry) -> bytes:
    """Return one JSON object on one line, in ASCII (a name that is no UTF-8 survives as escapes)."""
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
    """Decode an entry; `where` names the sink and the entry's place. Raises SinkRefused."""
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
    except Exception as error:  # whatever a text can raise that somebody else has written
        raise damaged(where, error) from error


def damaged(where: str, error: Exception) -> SinkRefused:
    """Return why a sink is refused that has something else where an entry should be."""
    if isinstance(error, SinkRefused):  # it says so itself
        return error
    said = error if isinstance(error, ValueError) else repr(error)
    return SinkRefused(f"{where} is damaged: {said}; restore it, or use a new directory or table")


def _check_version(value: Mapping[str, Any], where: str) -> None:
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
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"no number of an entry: {value!r}")
    return value


def _string(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"not a string: {value!r}")
    return value


def _token(value: object) -> str:
    """Return the name of a staging area, which is removed once its files are moved."""
    if not _TOKEN.fullmatch(token := _string(value)):
        raise ValueError(f"no name of a staging area: {token[:60]!r}")
    return token


def _inside(value: object) -> str:
    """Return a path below the sink; an entry must never move anything elsewhere, or from there."""
    path = _string(value)
    path.encode("utf-8", "surrogateescape")  # else no file can be called so
    if "\0" in path or not {"", ".", ".."}.isdisjoint(path.split("/")):
        raise ValueError(f"a path that leaves the sink: {path!r}")
    return path
