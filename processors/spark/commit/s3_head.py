"""The head of a sink on S3: one object that is replaced under the condition that nobody else has replaced it since.

It holds the newest entry of the ledger (`ledger`), whether the files of that entry are all in their places, where they
come from, and from which time on writers may commit. There are no other entries: a number that was freed could be
created by a request that comes late, and an etag never recurs, because no two heads have the same `nonce`.

What fences whom:

* A writer commits by replacing the head that it has read. A late request of a dead writer, or of one that sleeps, is
  refused, however late it comes.
* Staging areas of dead writers are removed only once the head says `swept_to`: their tokens begin with the time they
  were made, and a writer does not commit over a head that was swept past its token. So the writer either reads such a
  head, and begins anew, or has read an older one, and is refused.

Pure: values in, values out. `s3_journal` sends the requests.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from mld.processors.spark.commit import ledger
from mld.processors.spark.commit.ledger import LedgerEntry

VERSION = 1
_TOKEN = re.compile(r"(?P<made>[0-9a-f]{10})-[0-9a-f]{32}", re.ASCII)


@dataclass(frozen=True, slots=True)
class StagedFile:
    """An object below the staging area of its entry's token, as it was written."""

    key: str
    etag: str
    size: int


@dataclass(frozen=True, slots=True)
class Head:
    """`entry` None: nothing was ever committed. `sources`: the staged file of each source of the entry's moves."""

    entry: LedgerEntry | None = None
    done: bool = True
    sources: Mapping[str, StagedFile] = field(default_factory=dict)
    swept_to: int = 0
    """Tokens made before this time, in seconds since 1970, commit no more."""
    nonce: str = ""


class WriterStep(Enum):
    """What a writer with a staged batch is to do, given the head."""

    COMMIT = "try to replace the head"
    FINISH = "put the files of the head's entry into their places, and look again"
    FINISH_OURS = "the head is our entry: put its files into their places"
    COMMITTED = "the head is our entry, and somebody has finished it"
    CLEARED_AWAY = "our staging area was, or is about to be, removed: stage again"


def next_step(head: Head | None, token: str) -> WriterStep:
    """Return the next step; `head` None: there is none yet."""
    if head is None:
        return WriterStep.COMMIT
    if head.entry is not None and head.entry.token == token:
        return WriterStep.COMMITTED if head.done else WriterStep.FINISH_OURS
    if not head.done:
        return WriterStep.FINISH
    return WriterStep.CLEARED_AWAY if is_swept(head, token) else WriterStep.COMMIT


def new_token(now_s: float, unique: str) -> str:
    """Return a token made of `unique`: 32 hexadecimal digits that nobody else has."""
    return f"{int(now_s):010x}-{unique}"


def made_at(token: str) -> int | None:
    """Return when a token was made, in seconds since 1970; None for what is no token."""
    found = _TOKEN.fullmatch(token)
    return None if found is None else int(found["made"], 16)


def is_swept(head: Head, token: str) -> bool:
    """Return whether a writer of this token may not commit over this head."""
    made = made_at(token)
    return made is None or made < head.swept_to


def committed(head: Head | None, entry: LedgerEntry, sources: Mapping[str, StagedFile], nonce: str) -> Head:
    """Return the head with which an entry is committed over `head`."""
    swept_to = 0 if head is None else head.swept_to
    return Head(entry, not entry.moves, dict(sources), swept_to, nonce)


def finished(head: Head, nonce: str) -> Head:
    """Return the head once the files of its entry are in their places. It still names their sources, for whoever finds
    some of them left over.
    """
    return replace(head, done=True, nonce=nonce)


def swept(head: Head | None, to_s: float, nonce: str) -> Head:
    """Return the head after which the staging areas made before `to_s` may be removed; `head` is done."""
    before = Head() if head is None else head
    return replace(before, swept_to=max(before.swept_to, int(to_s)), nonce=nonce)


def encode(head: Head) -> bytes:
    """Return one JSON object on one line, in ASCII."""
    value = {
        "application": "mld",
        "version": VERSION,
        "done": head.done,
        "sweptTo": head.swept_to,
        "nonce": head.nonce,
        "sources": {name: [file.key, file.etag, file.size] for name, file in sorted(head.sources.items())},
        "entry": None if head.entry is None else json.loads(ledger.encode(head.entry)),
    }
    return json.dumps(value, separators=(",", ":")).encode() + b"\n"


def decode(data: bytes) -> Head:
    """Decode a head. Raises ValueError that says what is wrong with the head."""
    try:
        value = json.loads(data)
        if value["version"] != VERSION:
            raise ValueError(f"a head of version {value['version']!r}; this program knows {VERSION}")
        entry = value["entry"]
        return Head(
            entry=None if entry is None else ledger.decode(json.dumps(entry).encode()),
            done=_boolean(value["done"]),
            sources={name: _staged(*file) for name, file in value["sources"].items()},
            swept_to=int(value["sweptTo"]),
            nonce=str(value["nonce"]),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"no head of a ledger: {error!r}") from error


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"neither true nor false: {value!r}")
    return value


def _staged(key: Any, etag: Any, size: Any) -> StagedFile:
    if not (isinstance(key, str) and isinstance(etag, str) and isinstance(size, int)):
        raise ValueError(f"no staged file: {[key, etag, size]!r}")
    if key.startswith("/") or ".." in key.split("/"):
        raise ValueError(f"a staged file outside of its staging area: {key!r}")
    return StagedFile(key, etag, size)
