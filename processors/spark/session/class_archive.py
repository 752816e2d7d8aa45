"""Spark's classes as the JVM has them once they are read and verified: an AppCDS archive, made once per installation.

A session loads some 15,000 classes before its first commit, which is more than a third of the CPU of a start. The
archive stands beside PySpark, in the environment of this interpreter, because what stands there is code that the JVM
runs: whoever may write it may replace Spark's jars as well. Its name has a key of everything the JVM compares (the
jars, the JVM), so another PySpark or JVM has another one, and its size, because the JVM dies of one that was cut off;
what else is damaged there the JVM finds by its checksums. Then, and if there is no archive, it starts without.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import mkdtemp

from mld.processors.spark.sink_port import SessionError

PLACE = Path("share") / "mld"
"""In the environment of the interpreter."""
PREFIX, SUFFIX = "spark-classes-", ".jsa"
KEY_DIGITS = 16
MAKING = ".making-"
JVM_LIBRARY = Path("lib") / "server" / "libjvm.so"
QUIET = "-Xlog:cds*=off"
"""Why an archive does not fit is said on standard output, and is no news: the session starts without it."""
CHECKED = "-Xshare:auto -XX:+VerifySharedSpaces"
DUMP = "-XX:ArchiveClassesAtExit="
OF_THE_USER = ("-XX:SharedArchiveFile", "-XX:ArchiveClassesAtExit", "-XX:+AutoCreateSharedArchive", "-Xshare:")
"""Options with which the user says how classes are shared; two who say it do not start."""
LIST_SEPARATOR = ":"
"""Between two archives, for the JVM: a path that contains it cannot be said."""

Stamp = tuple[str, int, int]
"""Of a file: its path, its size, and the time of its last change in seconds; what the JVM compares."""


# --- decisions -------------------------------------------------------------------------------------------------------


def key_of(stamps: Iterable[Stamp]) -> str:
    """Return the key of the archive for this JVM and these jars."""
    text = "\n".join(f"{path} {size} {changed}" for path, size, changed in sorted(stamps))
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:KEY_DIGITS]


def name_of(key: str, size: int) -> str:
    return f"{PREFIX}{key}-{size}{SUFFIX}"


def is_archive(name: str, size: int, key: str) -> bool:
    """Return whether a file of this name and size is the whole archive of this key."""
    return name == name_of(key, size)


def is_ours(name: str) -> bool:
    """Return whether a file in our directory is an archive, of whatever key."""
    return name.startswith(PREFIX) and name.endswith(SUFFIX)


def is_usable(archive: Path, said: str) -> bool:
    """Return whether the JVM may be given this archive besides the options of the user."""
    return LIST_SEPARATOR not in str(archive) and not any(option in said for option in OF_THE_USER)


def options_for(archive: Path) -> str:
    """Return what a JVM is told to use it."""
    return f'{CHECKED} {QUIET} "-XX:SharedArchiveFile={archive}"'


# --- what is on the disk ---------------------------------------------------------------------------------------------


def place() -> Path:
    return Path(sys.prefix) / PLACE


def key(java: Path) -> str | None:
    """Return the key for the JVM with this home; None if it, or PySpark, is none that is known here."""
    found = importlib.util.find_spec("pyspark")
    homes = (found.submodule_search_locations or ()) if found is not None else ()
    try:
        jars = [entry for home in homes for entry in os.scandir(Path(home) / "jars")]
        stamps = [_stamp(entry.path) for entry in jars]
        stamps.append(_stamp(str((java / JVM_LIBRARY).resolve(strict=True))))
    except OSError:
        return None
    return key_of(stamps)


def _stamp(path: str) -> Stamp:
    stat = os.stat(path)  # noqa: PTH116 - of 300 files at every start
    return path, stat.st_size, int(stat.st_mtime)


def find(java: Path, directory: Path | None = None) -> Path | None:
    """Return the archive for this JVM, if there is one and it is whole."""
    wanted = key(java)
    if wanted is None:
        return None
    try:
        with os.scandir(directory or place()) as entries:
            there = (Path(entry) for entry in entries if is_archive(entry.name, entry.stat().st_size, wanted))
            return next((path for path in there if os.access(path, os.R_OK)), None)
    except OSError:
        return None


def options(java: Path, said: str = "") -> str:
    """Return options of the JVM that use the archive, with a space before them; empty if there is none. `said`: what
    the user gives the JVM.
    """
    archive = find(java)
    return f" {options_for(archive)}" if archive is not None and is_usable(archive, said) else ""


@contextmanager
def making(java: Path, directory: Path | None = None) -> Iterator[Path]:
    """Give the place where a JVM is to leave the archive at its exit, within the block; then it takes its place, and
    those of other keys are removed. Raises SessionError if it cannot be made or kept.
    """
    wanted, home = key(java), directory or place()
    if wanted is None:
        raise SessionError(f"there is no {java / JVM_LIBRARY}, or PySpark has no jars: no archive of classes for them")
    try:
        home.mkdir(parents=True, exist_ok=True)
        made = Path(mkdtemp(prefix=MAKING, dir=home)) / "classes"
    except OSError as error:
        raise SessionError(f"no archive of classes can be kept in {home}: {error.strerror}") from error
    try:
        yield made
        try:
            target = home / name_of(wanted, made.stat().st_size)
            made.replace(target)
        except OSError as error:
            raise SessionError(
                f"the JVM has left no archive of classes in {home} ({error.strerror}); is the disk full?"
            ) from error
    finally:
        with suppress(OSError):
            made.unlink(missing_ok=True)
            made.parent.rmdir()
    for old in home.iterdir():
        if is_ours(old.name) and old != target:
            with suppress(OSError):  # a JVM that uses it keeps what it has mapped
                old.unlink()
