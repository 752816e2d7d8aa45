"""The archive of Spark's classes: a file with classes that the JVM has already parsed and verified. It is made once per
installation. From Java 25 on, it also says which methods to compile first.

A session loads some 15,000 classes before its first commit, which takes more than a third of a start's CPU time. The
JVM runs the code in the archive, so the archive is kept in the environment of this interpreter, where PySpark is: a
user who can write there can replace Spark's jars as well. The JVM checks whether the archive fits the jars and the JVM
itself, and starts without the archive if it does not. The file's name contains its size, because the JVM crashes on an
archive that was cut off.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from mld.processors.spark.session.java import Java
from mld.processors.spark.session_errors import SessionError

PLACE = Path("share") / "mld"
"""Directory of the archive, within the environment of the interpreter."""
NAME = "spark-classes-{size}.{suffix}"
MAKING = ".making-"
AHEAD_OF_TIME_SINCE = 25
"""First Java that makes an AOT cache at the end of one run (JEP 514)."""
OF_THE_USER = (
    "-XX:SharedArchiveFile",
    "-XX:ArchiveClassesAtExit",
    "-XX:+AutoCreateSharedArchive",
    "-Xshare:",
    "-XX:AOT",
)
"""Options with which the user shares classes in another way. A JVM with both does not start."""
OPTIONS_FROM_ENVIRONMENT = ("JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS", "SPARK_SUBMIT_OPTS")
"""Variables whose options the JVM, or Spark's launcher, adds to those of the command line."""
LIST_SEPARATOR = ":"
"""The JVM takes this character for a separator of two archives, so a path with it cannot be used."""


@dataclass(frozen=True, slots=True)
class ArchiveKind:
    """A kind of archive, and the JVM's options for it."""

    suffix: str
    making: str
    """Writes the archive to the path that follows when the JVM ends."""
    reading: str
    """Reads the archive at the path that follows."""
    quiet: str
    """Suppresses the messages that the JVM prints on standard output when an archive does not fit. The session then
    just starts without the archive."""
    checked: str
    """Has the JVM compare the archive's checksums, and start without the archive if it is damaged."""


CLASSES = ArchiveKind(
    "jsa",
    "-XX:ArchiveClassesAtExit=",
    "-XX:SharedArchiveFile=",
    "-Xlog:cds*=off",
    "-Xshare:auto -XX:+VerifySharedSpaces",
)
"""An AppCDS archive: classes as they are after loading."""
AHEAD_OF_TIME = ArchiveKind(
    "aot", "-XX:AOTCacheOutput=", "-XX:AOTCache=", "-Xlog:cds*=off -Xlog:aot*=off", "-XX:+VerifySharedSpaces"
)
"""An AOT cache: classes as they are after linking, and which methods to compile first."""


def kind_of(java: Java) -> ArchiveKind:
    """Return the best kind of archive that this Java can use."""
    return AHEAD_OF_TIME if java.version >= AHEAD_OF_TIME_SINCE else CLASSES


def place() -> Path:
    """Return the directory of the archive."""
    return Path(sys.prefix) / PLACE


def find(kind: ArchiveKind) -> Path | None:
    """Return the path of the archive; None if there is no complete one of this kind that this user may read."""
    with suppress(OSError):
        for path in place().glob(NAME.format(size="*", suffix=kind.suffix)):
            if path.stem.endswith(f"-{path.stat().st_size}") and os.access(path, os.R_OK):
                return path
    return None


def options(java: Java, env: Mapping[str, str], theirs: str = "") -> str:
    """Return the JVM's options that load the archive, with a space before them.

    Return an empty text if there is no archive, or if the user shares classes in another way (OF_THE_USER), by options
    of the command line (`theirs`) or in the environment `env` of the JVM."""
    kind = kind_of(java)
    theirs = " ".join([theirs, *(env.get(name, "") for name in OPTIONS_FROM_ENVIRONMENT)])
    archive = find(kind)
    if archive is None or LIST_SEPARATOR in str(archive) or any(option in theirs for option in OF_THE_USER):
        return ""
    return f' {kind.checked} {kind.quiet} "{kind.reading}{archive}"'


@contextmanager
def making(kind: ArchiveKind) -> Iterator[Path]:
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
            target = home / NAME.format(size=made.stat().st_size, suffix=kind.suffix)
            made.replace(target)
        except OSError as error:
            raise SessionError(
                f"the JVM has left no archive of classes in {home} ({error.strerror}); is the disk full?"
            ) from error
    for old in home.glob("spark-classes-*"):
        if old != target:
            with suppress(OSError):  # a JVM that uses the old archive has it mapped already
                old.unlink()
