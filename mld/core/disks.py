"""Finds the directories that a daemon and its processor write to, and checks whether a write succeeds there.

Permissions do not show a full disk, an exceeded quota or a mount that became read-only. So a temporary file without a
name is written and synced; the kernel removes it in any case. The trial blocks, for ever if the file system hangs, so
callers run it in a thread.
"""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

from mld.properties.spark_names import PREFIX, PROGRAM
from mld.properties.values import DeadLetterKind
from mld.protocol.child_command import split_command

if TYPE_CHECKING:
    from mld.properties.loader import LoadedConfiguration

TRIAL_BYTES = 4096
LOW_SHARE = 0.05
"""The daemon warns if less than this share of the blocks or inodes is free. The alert uses the same figure."""
STANDARD_ERROR = 2
ARCHIVE = "mld.processors.archive"
SPARK_DIRECTORIES = {"deadLetter": "sparkDeadLetter", "spool": "spool"}
"""The keys of the Spark processor that name directories (without `PREFIX`), and the name of each `DiskPlace`."""
_REMEDIES = {
    errno.ENOSPC: "free some room there, or name another place",
    errno.EDQUOT: "raise the quota, or name another place",
    errno.EROFS: "mount it writable, or name another place",
}
UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
ALLOW = "let the daemon's user write there"


@dataclass(frozen=True, slots=True)
class DiskPlace:
    """A directory that is written to, or the file that `descriptor` has open. `name` is also a label of metrics."""

    name: str
    path: Path
    descriptor: int | None = None


@dataclass(frozen=True, slots=True)
class DiskRoom:
    """The space that is left in a place.

    `why` says why a trial write failed, and `remedy` what to do about it. `why` is None if the trial succeeded or could
    not be made. `free_share` is the free share of the blocks or of the inodes, whichever is less.
    """

    free_bytes: int
    free_share: float
    why: str | None = None
    remedy: str = ""

    @property
    def is_low(self) -> bool:
        return self.free_share < LOW_SHARE


def places_of(loaded: LoadedConfiguration, *, with_log: bool = False) -> tuple[DiskPlace, ...]:
    """Return the directories that the configuration names: for dead letters, for the archive processor, and for the
    Spark processor its spool and its own dead letters. With `with_log`, add the log file, if our standard error is a
    file.

    A value that is a URL is left out unless it is a `file://` URL, because it names no disk of this machine.
    """
    found = dict[str, str]()
    settings = loaded.settings
    letter = settings.child.dead_letter
    if letter is not None and letter.kind is DeadLetterKind.DIRECTORY:
        found["deadLetter"] = letter.name
    commands = [settings.child.command, *(stream.executable_name for stream in settings.streams)]
    for arguments in map(split_command, filter(None, commands)):
        found |= dict(_archive(arguments))
        if any(PurePath(argument).name == PROGRAM for argument in arguments):
            found["spool"] = tempfile.gettempdir()  # the default; a spool that is configured replaces it
    if "spool" in found:
        given = {name: loaded.spark.get(PREFIX + key, "") for key, name in SPARK_DIRECTORIES.items()}
        found |= {name: value for name, value in given.items() if value}
    local = {name: value.removeprefix("file://") for name, value in found.items()}
    places = [DiskPlace(name, Path(value).absolute()) for name, value in local.items() if "://" not in value]
    return (*places, *(_log_place() if with_log else ()))


def _archive(arguments: list[str]) -> Iterator[tuple[str, str]]:
    """Yield the directory that the archive processor writes to, if the command runs that processor."""
    for argument, following in pairwise(arguments):
        if argument == ARCHIVE:
            yield "archive", following


def _log_place() -> Iterator[DiskPlace]:
    """Yield the place of the log if standard error is a regular file."""
    try:
        if stat.S_ISREG(os.fstat(STANDARD_ERROR).st_mode):
            yield DiskPlace("log", Path(f"/proc/self/fd/{STANDARD_ERROR}"), STANDARD_ERROR)
    except OSError:
        return


def room_of(place: DiskPlace) -> DiskRoom:
    """Look at a place and try to write there; return how much room it has, or why it cannot be written. If it does not
    exist yet, its closest existing parent is used. A file that is open already (`descriptor`) is not written to.
    """
    try:
        directory = next((path for path in (place.path, *place.path.parents) if path.exists()), Path("/"))
        found = os.statvfs(directory if place.descriptor is None else place.descriptor)
    except OSError as error:
        return DiskRoom(0, 0.0, f"{place.path}: {error.strerror}", ALLOW)
    usable = found.f_blocks - found.f_bfree + found.f_bavail  # blocks used, and those that this user may still take
    shares = [found.f_bavail / usable if usable else 0.0]
    shares += [found.f_favail / found.f_files] if found.f_files else []  # btrfs has no fixed number of inodes
    why, remedy = (None, "") if place.descriptor is not None else _trial(directory)
    return DiskRoom(found.f_bavail * found.f_frsize, min(shares), why, remedy)


def _trial(directory: Path) -> tuple[str | None, str]:
    """Write and sync a temporary file. Return why that failed, with a remedy; (None, "") if it succeeded."""
    try:
        with tempfile.TemporaryFile(dir=directory, prefix=".mld-trial-") as file:
            file.write(bytes(TRIAL_BYTES))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return f"{directory} cannot be written to: {error.strerror}", _REMEDIES.get(error.errno or 0, ALLOW)
    return None, ""


def in_words(place: DiskPlace, room: DiskRoom) -> str | None:
    """Return a text that says what is wrong with a place; None if it is fine."""
    if room.why is not None:
        return f"{place.name}: {room.why}"
    if room.is_low:
        return f"{place.name}: {place.path} has {_size(room.free_bytes)} free, {room.free_share:.1%}"
    return None


def _size(count: float) -> str:
    """Return a number of bytes as text, such as `1.5 GiB`."""
    unit = 0
    while count >= 1024 and unit < len(UNITS) - 1:
        count, unit = count / 1024, unit + 1
    return f"{count:.3g} {UNITS[unit]}"
