"""The AppCDS archive: Spark's classes, already parsed and verified by the JVM. It is made once per installation.

A session loads some 15,000 classes before its first commit, which takes more than a third of a start's CPU. The archive
is code that the JVM runs, so it is in the environment of this interpreter, beside PySpark: whoever can write there can
replace Spark's jars as well. The JVM compares the archive with the jars and with itself, and starts without one that
does not fit. The file's name contains its size, because the JVM crashes on an archive that was cut off.
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
"""Directory within the environment of the interpreter."""
NAME = "spark-classes-{size}.jsa"
MAKING = ".making-"
QUIET = "-Xlog:cds*=off"
"""Suppresses the JVM's message on standard output when an archive does not fit: the session simply starts without
it."""
CHECKED = "-Xshare:auto -XX:+VerifySharedSpaces"
DUMP = "-XX:ArchiveClassesAtExit="
OF_THE_USER = ("-XX:SharedArchiveFile", "-XX:ArchiveClassesAtExit", "-XX:+AutoCreateSharedArchive", "-Xshare:")
"""Options with which the user shares classes in another way. A JVM with both does not start."""
LIST_SEPARATOR = ":"
"""Separates two archives for the JVM, so a path with this character cannot be used."""


def place() -> Path:
    """Return the directory of the archive."""
    return Path(sys.prefix) / PLACE


def find() -> Path | None:
    """Return the archive if there is a whole one, else None."""
    with suppress(OSError):
        for path in place().glob(NAME.format(size="*")):
            if path.name.endswith(f"-{path.stat().st_size}.jsa") and os.access(path, os.R_OK):
                return path
    return None


def options(said: str = "") -> str:
    """Return the JVM's options that load the archive, after a space; empty if there is no archive, or if the user's
    options (`said`) name another."""
    archive = find()
    if archive is None or LIST_SEPARATOR in str(archive) or any(option in said for option in OF_THE_USER):
        return ""
    return f' {CHECKED} {QUIET} "-XX:SharedArchiveFile={archive}"'


@contextmanager
def making() -> Iterator[Path]:
    """Yield a path to which a JVM that ends within this block writes its archive; then replace the old archive by it.
    Raises SessionError if it cannot be made or stored."""
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
            with suppress(OSError):  # a JVM that uses the old archive has it mapped already
                old.unlink()
