"""Spark's own log of the inbox files that a query has taken, `sources/<n>` of its checkpoint: read, and kept short.

Spark writes one file per batch, gathers every tenth time all entries so far into `<n>.compact`, and never lets go of
one. Without care it would grow for ever. So entries of files that are gone from the inbox are dropped from the newest
`.compact`, which Spark reads again only to write the next. The log also tells, independent of everything else, whether
a query has taken a file: no record is acknowledged on the word of one source alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

VERSION = b"v1"
COMPACT = ".compact"
KEPT = 100
"""Entries of files that are gone; Spark needs those of its last batches, of which it keeps 100."""
TRIMMED_FROM = 10 * KEPT
_ENTRY = re.compile(r"/(\d{12,})\.jsonl$")


class LogUnknown(Exception):
    """The log is not written as this program knows it; one sentence."""


def number_of(path: str) -> int | None:
    """Return the number of an inbox file in the path of an entry."""
    found = _ENTRY.search(path)
    return int(found[1]) if found else None


def entries(data: bytes, place: str) -> list[tuple[int, bytes]]:
    """Number and line of every entry that is an inbox file."""
    version, _, rest = data.partition(b"\n")
    if version != VERSION:
        raise LogUnknown(f"{place} is of version {version[:20]!r}, this program knows {VERSION!r}")
    found = []
    for line in rest.splitlines():
        try:
            number = number_of(json.loads(line)["path"])
        except (ValueError, KeyError, TypeError) as error:
            raise LogUnknown(f"{place} has an entry that is none: {line[:80]!r}") from error
        if number is not None:
            found.append((number, line))
    return found


def newest(names: Iterable[str]) -> tuple[int | None, list[int]]:
    """Return the number of the newest `.compact`, and those of the batches after it."""
    plain: list[int] = []
    compact: list[int] = []
    for name in names:
        digits = name.removesuffix(COMPACT)
        if digits.isascii() and digits.isdigit():
            (compact if name.endswith(COMPACT) else plain).append(int(digits))
    last = max(compact, default=None)
    return last, sorted(number for number in plain if last is None or number > last)


def numbers(log: Path) -> set[int]:
    """Return inbox files that a query has taken, by one of its logs; of those that are gone only the last are known.

    Raises LogUnknown."""
    last, plain = newest(path.name for path in log.iterdir())
    files = [*([f"{last}{COMPACT}"] if last is not None else []), *map(str, plain)]
    found: set[int] = set()
    for name in files:
        with suppress(FileNotFoundError):  # gathered meanwhile: it is read again with the next acknowledgement
            found.update(number for number, _ in entries((log / name).read_bytes(), str(log / name)))
    return found


def trim(log: Path, done: int) -> bool:
    """Drop entries of files up to `done`, which are gone, but the last; whether there was enough to be worth it."""
    last, _ = newest(path.name for path in log.iterdir())
    if last is None:
        return False
    path = log / f"{last}{COMPACT}"
    data = path.read_bytes()
    if data.count(b"\n") < TRIMMED_FROM:
        return False
    kept = [line for number, line in entries(data, str(path)) if number > done - KEPT]
    draft = log / f".{path.name}.draft"
    draft.write_bytes(b"\n".join((VERSION, *kept)))
    # First the checksum: a file without one is not checked, one with that of another file is refused.
    (log / f".{path.name}.crc").unlink(missing_ok=True)
    draft.replace(path)
    return True


def logs(checkpoint: Path) -> list[Path]:
    """Return those of all sources of a query; a pipeline that joins `records` with itself has several."""
    try:
        return sorted(path for path in (checkpoint / "sources").iterdir() if path.is_dir())
    except FileNotFoundError:
        return []


def missing(checkpoint: Path, wanted: Iterable[int]) -> set[int]:
    """Return those of the inbox files that a source of the query has not taken. Raises LogUnknown."""
    wanted = set(wanted)
    taken = [found for log in logs(checkpoint) if (found := numbers(log))]
    if not taken:
        return wanted
    return {number for number in wanted if any(number not in found for found in taken)}
