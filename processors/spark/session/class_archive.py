"""Spark's classes as the JVM has them once they are read and verified: an AppCDS archive, made once per installation.

A session loads some 15,000 classes before its first commit, which is more than a third of the CPU of a start. The
archive stands beside PySpark, in the environment of this interpreter, because what stands there is code that the JVM
runs: whoever may write it may replace Spark's jars as well. The JVM compares it with the jars and with itself, and
starts without one that does not fit; its name has its size, because the JVM dies of one that was cut off.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from mld.processors.spark.session_errors import SessionError

PLACE = Path("share") / "mld"
"""In the environment of the interpreter."""
NAME = "spark-classes-{size}.jsa"
MAKING = ".making-"
QUIET = "-Xlog:cds*=off"
"""Why an archive does not fit is said on standard output, and is no news: the session starts without it."""
CHECKED = "-Xshare:auto -XX:+VerifySharedSpaces"
DUMP = "-XX:ArchiveClassesAtExit="
OF_THE_USER = ("-XX:SharedArchiveFile", "-XX:ArchiveClassesAtExit", "-XX:+AutoCreateSharedArchive", "-Xshare:")
"""Options with which the user says how classes are shared; two who say it do not start."""
LIST_SEPARATOR = ":"
"""Between two archives, for the JVM: a path that contains it cannot be said."""


def place() -> Path:
    return Path(sys.prefix) / PLACE


def find() -> Path | None:
    """Return the archive, if there is one and it is whole."""
    with suppress(OSError):
        for path in place().glob(NAME.format(size="*")):
            if path.name.endswith(f"-{path.stat().st_size}.jsa") and os.access(path, os.R_OK):
                return path
    return None


def options(said: str = "") -> str:
    """Return options of the JVM that use the archive, with a space before them; empty if there is none. `said`: what
    the user gives the JVM.
    """
    archive = find()
    if archive is None or LIST_SEPARATOR in str(archive) or any(option in said for option in OF_THE_USER):
        return ""
    return f' {CHECKED} {QUIET} "-XX:SharedArchiveFile={archive}"'


@contextmanager
def making() -> Iterator[Path]:
    """Give the place where a JVM is to leave the archive at its exit, within the block; then it takes that of the one
    before. Raises SessionError if it cannot be made or kept.
    """
    home = place()
    try:
        home.mkdir(parents=True, exist_ok=True)
        directory = TemporaryDirectory(prefix=MAKING, dir=home, ignore_cleanup_errors=True)
    except OSError as error:
        raise SessionError(f"no archive of classes can be kept in {home}: {error.strerror}") from error
    with directory as name:
        made = Path(name) / "classes"
        yield made
        try:
            target = home / NAME.format(size=made.stat().st_size)
            made.replace(target)
        except OSError as error:
            raise SessionError(
                f"the JVM has left no archive of classes in {home} ({error.strerror}); is the disk full?"
            ) from error
    for old in home.glob("spark-classes-*"):
        if old != target:
            with suppress(OSError):  # a JVM that uses it keeps what it has mapped
                old.unlink()
