"""The AppCDS archive: a file with Spark's classes, already parsed and verified by the JVM. It is made once per
installation.

A session loads some 15,000 classes before its first commit, which takes more than a third of a start's CPU time. The
JVM runs the code in the archive, so the archive is kept in the environment of this interpreter, where PySpark is: a
user who can write there can replace Spark's jars as well. The JVM checks whether the archive fits the jars and the JVM
itself, and starts without the archive if it does not. The file's name contains its size, because the JVM crashes on an
archive that was cut off.
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
"""Directory of the archive, within the environment of the interpreter."""
NAME = "spark-classes-{size}.jsa"
MAKING = ".making-"
QUIET = "-Xlog:cds*=off"
"""Suppresses the message that the JVM prints on standard output when an archive does not fit. The session then just
starts without the archive."""
CHECKED = "-Xshare:auto -XX:+VerifySharedSpaces"
DUMP = "-XX:ArchiveClassesAtExit="
OF_THE_USER = ("-XX:SharedArchiveFile", "-XX:ArchiveClassesAtExit", "-XX:+AutoCreateSharedArchive", "-Xshare:")
"""Options with which the user shares classes in another way. A JVM with both does not start."""
LIST_SEPARATOR = ":"
"""The JVM takes this character for a separator of two archives, so a path with it cannot be used."""


def place() -> Path:
    """Return the directory of the archive."""
    return Path(sys.prefix) / PLACE


def find() -> Path | None:
    """Return the path of the archive; None if there is no complete one that this user may read."""
    with suppress(OSError):
        for path in place().glob(NAME.format(size="*")):
            if path.name.endswith(f"-{path.stat().st_size}.jsa") and os.access(path, os.R_OK):
                return path
    return None


def options(theirs: str = "") -> str:
    """Return the JVM's options that load the archive, with a space before them.

    Return an empty text if there is no archive, or if the user's options (`theirs`) concern another one."""
    archive = find()
    if archive is None or LIST_SEPARATOR in str(archive) or any(option in theirs for option in OF_THE_USER):
        return ""
    return f' {CHECKED} {QUIET} "-XX:SharedArchiveFile={archive}"'


@contextmanager
def making() -> Iterator[Path]:
    """Yield a path to which a JVM has to write its archive before this block ends. Then replace the old archive by it.

    Raises SessionError if the archive cannot be made or stored."""
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
