"""Puts the Kinesis Client Library 3.5.1 and a worker of ours that drives it where the interop tests look for them.

    python -m tests.interop.kcl.fetch

Amazon publishes the library of that version in Maven Central, but not its MultiLangDaemon. So Maven resolves the
library by `pom.xml`, every jar is compared with `jars.sha256`, and javac compiles the small worker in `src`, which
drives the library's own Scheduler and hands the records to a child process. Doing it again costs nothing. Needs Maven
and a JDK 17; ends with status 1 and a sentence if something is missing or not the pinned one.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.support.locked import wrong_jars

VERSION = "3.5.1"
HERE = Path(__file__).parent
SOURCES = sorted((HERE / "src").glob("*.java"))
CACHE = Path(__file__).resolve().parents[3] / ".cache" / "java-kcl" / VERSION
COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
DOWNLOAD_TIMEOUT_S = 900  # 130 jars, 75 MB
COMPILE_TIMEOUT_S = 120


class FetchError(Exception):
    """A sentence that says what is missing and what to do."""


def class_path() -> str | None:
    """For `java -cp`; None if the library was not fetched or the worker not compiled since it was changed."""
    jars, classes = _jars(), _classes()
    return f"{classes}:{jars}/*" if jars.is_dir() and classes.is_dir() else None


def fetch() -> None:
    """Fetch and compile unless both is done. Raises FetchError."""
    CACHE.mkdir(parents=True, exist_ok=True)
    if not _jars().is_dir():
        with tempfile.TemporaryDirectory(dir=CACHE) as temporary:
            _download(Path(temporary) / "jars")
    if not _classes().is_dir():
        with tempfile.TemporaryDirectory(dir=CACHE) as temporary:
            _compile(Path(temporary) / "classes")


# Named after what they are made of: a change of the list or of a source makes them anew.
def _jars() -> Path:
    return CACHE / f"jars-{_digest(HERE / 'pom.xml', HERE / 'jars.sha256')}"


def _classes() -> Path:
    return CACHE / f"classes-{_digest(HERE / 'jars.sha256', *SOURCES)}"


def _digest(*files: Path) -> str:
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:12]


def _download(work: Path) -> None:
    options = ["-q", "-B", "-f", str(HERE / "pom.xml"), f"-DoutputDirectory={work}", "-DincludeScope=runtime"]
    _run([_tool("mvn"), *options, COPY], DOWNLOAD_TIMEOUT_S)
    if wrong := wrong_jars(work, HERE / "jars.sha256"):
        names = ", ".join(wrong)
        raise FetchError(f"the jars that Maven has resolved are not those of {HERE / 'jars.sha256'}: {names}")
    # One rename, so that an interrupted run leaves nothing half done.
    work.replace(_jars())


def _compile(work: Path) -> None:
    work.mkdir()
    options = ["-proc:none", "-d", str(work), "-cp", f"{_jars()}/*"]
    _run([_tool("javac"), *options, *map(str, SOURCES)], COMPILE_TIMEOUT_S)
    work.replace(_classes())


def _tool(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise FetchError(f"{name} is not on the PATH: `make interop` needs a JDK 17 and Maven")
    return found


def _run(command: list[str], timeout_s: float) -> None:
    try:
        subprocess.run(command, check=True, timeout=timeout_s)
    except (subprocess.SubprocessError, OSError) as error:
        raise FetchError(f"{Path(command[0]).name} did not do its work: {error}") from error


if __name__ == "__main__":
    try:
        fetch()
    except FetchError as error:
        sys.exit(str(error))
    print(CACHE)
