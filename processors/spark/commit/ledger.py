"""The ledger of a sink: numbered entries, each with the marks of every shard of every writer of the sink so far.

The ledger is cumulative: the entry with the highest number, its *head*, says all there is to know, and older entries
are kept only to keep their numbers taken. An entry follows its head by one; whoever creates the file of that number
first has committed. What fences a late writer is therefore the number, and what saves it from writing a record twice
are the marks: a batch may follow a head only if each of its shards is still where the batch was trimmed.

The numbers are the sink's, the marks are each writer's own (`WriterIdentity`; `Admission` says who may write). Shards
that have ended have the mark ENDED, and take next to no room in the file.

Shards that have ended are named as briefly as they can be. Once a child has come to the end of its shard, and
every sink holds all that came of it, nothing of the shard can be new any more: whatever is delivered of it again,
however late and by whomever, is dropped. So the ledger keeps the shard for good, and the position is of no use. Kinesis
counts its shards, so those that have ended are a few ranges of numbers; ids of another kind (DynamoDB) are kept one by
one.

Time plays no part: a worker that wakes after days, another retention, and a replay from an earlier position find the
same answer as before. Only a shard of which the sink has had a record is ever retired.

Pure: values in, values out. `journal` keeps the files.

Which marks in the ledger of a sink are whose, and who may write there.

Every writer has marks of its own, so that none mistakes another's finished records for its own. A writer that is in
the ledger may go on. Another one is admitted if nobody else is in it, or if `mld.spark.sink.<name>.writers = shared`
says that several are meant to be; else it is refused, with its own name and theirs.

Pure: values in, values out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from mld.processors.spark.high_water_marks import (
    ENDED,
    OF_A_RECORD,
    HighWaterMarks,
    RecordPosition,
    ShardSpans,
    StreamShard,
    WriterIdentity,
    advanced,
    decode_marks,
    encode_marks,
    moved,
)
from mld.processors.spark.sink_port import Fenced, SinkRefused

NUMBERED = re.compile(r"shardId-(\d{12})", re.ASCII)
_ENDED = re.compile(r"=(?P<name>.*)|(?P<first>\d{1,12})(?:-(?P<last>\d{1,12}))?", re.ASCII | re.DOTALL)
SHARDS_MAX = 1_000_000
"""More than any stream has had: an entry that says more is damaged, and must not fill the memory."""


def retired(marks: HighWaterMarks, ended: HighWaterMarks) -> HighWaterMarks:
    """Return the marks, once those shards have ended whose last position is known and in the sink; those of single
    records are gone."""
    done = {shard: ENDED for shard, last in ended.items() if shard in marks and marks[shard] >= last}
    left = {**marks, **done} if done else marks
    return {shard: mark for shard, mark in left.items() if OF_A_RECORD not in shard.shard or shard not in done}


def encode_retired(marks: HighWaterMarks) -> dict[str, list[str]]:
    """Encode stream -> ranges of the numbers of its shards that have ended, such as `0-63` and `70`, then other ids."""
    streams: dict[str, list[str]] = {}
    for stream, shard in sorted(shard for shard, mark in marks.items() if mark == ENDED):
        streams.setdefault(stream, []).append(shard)
    return {
        stream: [*_ranges(shards), *(f"={shard}" for shard in shards if not NUMBERED.fullmatch(shard))]
        for stream, shards in streams.items()
    }


def _ranges(shards: Iterable[str]) -> Iterator[str]:
    """Yield `first-last`, or one number, of shards in order; numbers that follow each other are as far from their
    places."""
    numbers = (int(found[1]) for shard in shards if (found := NUMBERED.fullmatch(shard)))
    for _, some in groupby(enumerate(numbers), lambda one: one[1] - one[0]):
        first, *rest = (number for _, number in some)
        yield f"{first}-{rest[-1]}" if rest else f"{first}"


def decode_retired(value: object, room: int = SHARDS_MAX) -> HighWaterMarks:
    """Return the inverse of `encode_retired`: the mark ENDED for each shard, of which there may be `room`. Raises
    ValueError that names what is wrong.
    """
    if not isinstance(value, Mapping):
        raise ValueError("what has ended: not an object")
    marks: dict[StreamShard, RecordPosition] = {}
    ranges: list[tuple[str, int, int]] = []
    for stream, item in ((stream, item) for stream, items in value.items() for item in items):
        found = _ENDED.fullmatch(item) if isinstance(item, str) else None
        if found is None:
            raise ValueError(f"what has ended: no range of shards: {str(item)[:60]!r}")
        if (name := found["name"]) is not None:
            marks[StreamShard(stream, name)] = ENDED
            continue
        first, last = int(found["first"]), int(found["last"] or found["first"])
        room -= last - first + 1
        if last < first or room < 0:
            raise ValueError(f"what has ended: no range of shards, or too many of them: {item}")
        ranges.append((stream, first, last))
    for stream, first, last in ranges:
        marks |= {StreamShard(stream, f"shardId-{number:012d}"): ENDED for number in range(first, last + 1)}
    return marks


APPLICATION = "mld"
"""One name for all writers, whoever they are: an entry has the marks of all of them, so two entries of one number must
not both be there. By it an entry is known in the history of a table."""
VERSION = 3
"""That of mld 0.2.0. Entries that mld 0.1 wrote do not say whose their marks are, and are refused."""
NO_UNCLAIMED = {"marks": {}, "at": "", "batch": ""}
"""Stands in every entry, because mld 0.2.0 asks for it: marks without an owner, which nobody has."""
NUMBER_DIGITS = 12
"""One commit a second fills twelve digits in 31,000 years; zeros in front make names sort."""
ENTRIES_KEPT = 64
"""Newest entries that stay when old ones go: what a person wants to see of the last minute or so. Safety needs one."""
ENTRIES_SWEPT_FROM = 4 * ENTRIES_KEPT
"""So many there may be before the old ones go, so that sweeping is rare."""

ENTRY, DONE, FLOOR = "json", "done", "floor"
_TOKEN = re.compile(r"[0-9A-Za-z_][0-9A-Za-z_.-]{0,254}")
_NAME = re.compile(rf"(?P<number>\d{{{NUMBER_DIGITS},}})\.(?P<kind>{ENTRY}|{DONE}|{FLOOR})", re.ASCII)
_PUBLISHED = re.compile(rf"c(?P<number>\d{{{NUMBER_DIGITS},}})-.+", re.ASCII)

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


@dataclass(frozen=True, slots=True)
class Names:
    """What the ledger's directory holds: the numbers that are taken and those whose moves are all done.

    `floor`: entries of numbers up to this one were all done, and are removed; what is created there later is void."""

    taken: tuple[int, ...] = ()
    done: frozenset[int] = frozenset()
    floor: int = 0

    @classmethod
    def of(cls, names: Iterable[str]) -> Names:
        found = [(match["kind"], int(match["number"])) for name in names if (match := _NAME.fullmatch(name))]
        return cls(
            tuple(sorted(number for kind, number in found if kind == ENTRY)),
            frozenset(number for kind, number in found if kind == DONE),
            max((number for kind, number in found if kind == FLOOR), default=0),
        )

    @property
    def head(self) -> int:
        """The highest number; 0 if there is none."""
        return self.taken[-1] if self.taken else 0

    @property
    def unfinished(self) -> tuple[int, ...]:
        """Entries whose files may not all be in place yet, in the order in which to finish them."""
        return tuple(number for number in self.taken if number not in self.done and number > self.floor)

    @property
    def obsolete(self) -> tuple[int, ...]:
        """Old entries that may go, lowest first; none unless there are enough to be worth it.

        Everything below an unfinished entry is finished, but stays with it: numbers go from the bottom only."""
        if len(self.taken) < ENTRIES_SWEPT_FROM:
            return ()
        horizon = min((self.head - ENTRIES_KEPT, *(number - 1 for number in self.unfinished)))
        return tuple(number for number in self.taken if number <= horizon)


def commit_of(name: str) -> int | None:
    """Return the number of the commit that has published a file, by its name; None if it is another file."""
    found = _PUBLISHED.fullmatch(name)
    return int(found["number"]) if found else None


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


NAMED_MAX = 3
"""How many writers of a sink a sentence names."""


@dataclass(frozen=True, slots=True)
class Admission:
    """One writer at one sink. `place` is the sink for people; `shared`: other writers may be there, too."""

    writer: WriterIdentity
    sink: str
    place: str
    shared: bool = False
    ended: HighWaterMarks = field(default_factory=dict)
    """Shards that have ended, with the position of each that the sink holds."""

    def marks(self, head: LedgerEntry | None) -> HighWaterMarks:
        """Return the marks of this writer. Raises SinkRefused if it may not write here."""
        if head is None:
            return {}
        if self.writer not in head.writers and head.writers and not self.shared:
            raise SinkRefused(self._refusal([str(other) for other in sorted(head.writers)]))
        return head.writers.get(self.writer, {})

    def check(self, head: LedgerEntry | None, batch: ShardSpans) -> None:
        """Check whether the batch may follow this head. Raises SinkRefused and Fenced."""
        if changed := moved(batch, self.marks(head)):
            raise Fenced(self.sink, changed)

    def following(self, head: LedgerEntry | None, batch: ShardSpans, token: str, **said: Any) -> LedgerEntry:
        """Return the entry that follows `head` with this batch. Raises SinkRefused and Fenced."""
        self.check(head, batch)
        number, writers = (head.number + 1, head.writers) if head is not None else (1, {})
        marks = retired(advanced(writers.get(self.writer, {}), batch), self.ended)
        return LedgerEntry(number, token, {**writers, self.writer: marks}, **said)

    def _refusal(self, others: list[str]) -> str:
        named = "; ".join(others[:NAMED_MAX]) + (f" and {len(others) - NAMED_MAX} more" if others[NAMED_MAX:] else "")
        return (
            f"sink {self.sink}: {self.place} is written by {named}. This is {self.writer}, and what the sink holds of "
            "one says nothing about the other; nothing was written or acknowledged. Name another path or table; or, if "
            f"both are meant to write there, set mld.spark.sink.{self.sink}.writers = shared: each then has marks of "
            "its own"
        )
