"""Which files of a directory a compaction puts together, and which directories are worth a look.

Every commit adds a file, so a directory is full of small ones. Enough of them of about one size become one of the next
size, and so on until a file is large: so a record is written again two or three times, however long the table grows (a
few times more in files of some KB), and a directory has few small files at any time. A directory to which nothing has
been added for a while is tidied up sooner. Large files are left alone for good.

Pure: values in, values out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

MEBIBYTE = 1024 * 1024
TARGET_BYTES = 64 * MEBIBYTE
"""About what a compaction reads at most: it has to fit into a JVM beside a micro-batch, and to be over soon."""
SIZES = (1 * MEBIBYTE, 8 * MEBIBYTE, 32 * MEBIBYTE)
"""Upper ends of the sizes that are put together; what is larger than the last is large enough."""
FILES_MIN = 32
"""So many of one size are put together. Spark lists that many paths without a job of its own."""
FILES_MAX = 256
"""Files of one compaction, whose names are all in its ledger entry."""
ALONE_BYTES = 8 * MEBIBYTE
"""The same where Spark has one task at a time, so that a micro-batch would wait for the end of a compaction."""
QUIET_S = 600.0
QUIET_FILES = 4
"""A directory that was quiet for that long is put together from that many small files on."""


@dataclass(frozen=True, slots=True)
class ListedFile:
    """A file of a directory: its name there, bytes, and seconds since it was written."""

    name: str
    size: int
    age_s: float


def to_compact(
    files: Iterable[ListedFile],
    files_min: int = FILES_MIN,
    target_bytes: int = TARGET_BYTES,
    *,
    all_small: bool = False,
) -> tuple[str, ...]:
    """Return the files that become one now, oldest first; none if it is not worth it.

    `files` are those of commits, `target_bytes` is about the most that is read. `all_small`: somebody wants few files,
    whatever it costs."""
    small = sorted(_small(files, target_bytes), key=lambda one: one.name)
    for group in _by_size(small):
        if len(group) >= files_min or sum(one.size for one in group) >= target_bytes:
            return _first_of(group, target_bytes)
    is_quiet = len(small) >= QUIET_FILES and min(one.age_s for one in small) >= QUIET_S
    return _first_of(small, target_bytes) if is_quiet or all_small else ()


def missing(files: Iterable[ListedFile], files_min: int, target_bytes: int = TARGET_BYTES) -> int:
    """Return how many more files make `to_compact` worth another look; 1 at least."""
    small = _small(files, target_bytes)
    return max(1, files_min - max((len(group) for group in _by_size(small)), default=0))


def _small(files: Iterable[ListedFile], target_bytes: int) -> list[ListedFile]:
    return [one for one in files if one.size < min(SIZES[-1], target_bytes // 2)]


def _by_size(small: Sequence[ListedFile]) -> list[list[ListedFile]]:
    ends = (0, *SIZES)
    return [[one for one in small if low <= one.size < high] for low, high in zip(ends, SIZES, strict=False)]


def _first_of(files: Sequence[ListedFile], target_bytes: int) -> tuple[str, ...]:
    chosen: list[str] = []
    size = 0
    for one in files[:FILES_MAX]:
        size += one.size
        if size > target_bytes:
            break
        chosen.append(one.name)
    return tuple(chosen) if len(chosen) > 1 else ()


@dataclass(frozen=True, slots=True)
class Watched:
    """What is known of a directory: files added since the last look, when the last of them came, on a monotonic clock
    in seconds, and how many more make another look worth it (0: nobody has looked yet)."""

    added: int
    at: float
    missing: int = 0


Directories = Mapping[str, Watched]
"""By the path below the sink; the sink itself is the empty one."""


def with_added(known: Directories, added: Mapping[str, int], now: float) -> Directories:
    """Return what is known once commits have added files."""
    fresh = {path: known.get(path, Watched(0, now)) for path in added}
    return {**known, **{path: Watched(one.added + added[path], now, one.missing) for path, one in fresh.items()}}


def looked(known: Directories, path: str, missing_now: int, now: float) -> Directories:
    """Return what is known once a directory was looked at and left as it is. One that was quiet then is forgotten."""
    one = known[path]
    rest = {name: other for name, other in known.items() if name != path}
    return rest if now - one.at >= QUIET_S else {**rest, path: Watched(0, one.at, missing_now)}


def due(known: Directories, now: float) -> str | None:
    """Return the directory to look at now: of those that have enough, the one with the most new files."""
    full = [path for path, one in known.items() if one.added >= one.missing or now - one.at >= QUIET_S]
    return max(full, key=lambda path: (known[path].added, path), default=None)


def next_quiet_s(known: Directories, now: float) -> float | None:
    """Return seconds until a directory may have become quiet; None if none is watched."""
    return min((max(0.0, one.at + QUIET_S - now) for one in known.values()), default=None)
