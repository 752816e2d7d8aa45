"""Puts the Kinesis Client Library where the interop tests look for it: 3.5.1 with a worker of ours, 2.7.2 as it is.

    python -m tests.interop.kcl.fetch

Of 3.5.1 Amazon publishes the library in Maven Central, but not its MultiLangDaemon: javac compiles the small worker in
`src`, which drives the library's own Scheduler and hands the records to a child process. Of 2.7.2 both are there.
Maven resolves each by its `pom.xml`, and every jar is compared with the `jars.sha256` beside it. Doing it again costs
nothing. Needs Maven and a JDK 17; ends with status 1 and a sentence if something is missing or not the pinned one.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.support.locked import wrong_jars

HERE = Path(__file__).parent
SOURCES = sorted((HERE / "src").glob("*.java"))
CACHE = Path(__file__).resolve().parents[3] / ".cache" / "java-kcl"
COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
DOWNLOAD_TIMEOUT_S = 900  # 130 jars, 75 MB
COMPILE_TIMEOUT_S = 120


class FetchError(Exception):
    """A sentence that says what is missing and what to do."""


@dataclass(frozen=True, slots=True)
class Library:
    """The jars that the `pom.xml` of a folder asks for."""

    version: str
    folder: Path

    @property
    def jars(self) -> Path:
        """Where they are kept; named after what they are made of, so that a change of the list makes them anew."""
        digest = _digest(self.folder / "pom.xml", self.folder / "jars.sha256")
        return CACHE / self.version / f"jars-{digest}"

    def fetch(self) -> None:
        """Have Maven download them, unless they are there. Raises FetchError."""
        if self.jars.is_dir():
            return
        self.jars.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self.jars.parent) as temporary:
            work = Path(temporary) / "jars"
            options = ["-q", "-B", "-f", str(self.folder / "pom.xml"), f"-DoutputDirectory={work}"]
            _run([_tool("mvn"), *options, "-DincludeScope=runtime", COPY], DOWNLOAD_TIMEOUT_S)
            if wrong := wrong_jars(work, self.folder / "jars.sha256"):
                listed = self.folder / "jars.sha256"
                raise FetchError(f"the jars that Maven has resolved are not those of {listed}: {', '.join(wrong)}")
            # One rename, so that an interrupted run leaves nothing half done.
            work.replace(self.jars)


LIBRARY_3 = Library("3.5.1", HERE)
DAEMON_2 = Library("2.7.2", HERE / "daemon2")


def class_path() -> str | None:
    """For `java -cp`; None if the library was not fetched or the worker not compiled since it was changed."""
    jars, classes = LIBRARY_3.jars, _classes()
    return f"{classes}:{jars}/*" if jars.is_dir() and classes.is_dir() else None


def class_path_of_2x() -> str | None:
    """For `java -cp` of Amazon's MultiLangDaemon 2.7.2; None if it was not fetched."""
    return f"{DAEMON_2.jars}/*" if DAEMON_2.jars.is_dir() else None


def fetch() -> None:
    """Fetch and compile what is not there. Raises FetchError."""
    for library in (LIBRARY_3, DAEMON_2):
        library.fetch()
    if not _classes().is_dir():
        with tempfile.TemporaryDirectory(dir=_classes().parent) as temporary:
            _compile(Path(temporary) / "classes")


def _classes() -> Path:
    return CACHE / LIBRARY_3.version / f"classes-{_digest(HERE / 'jars.sha256', *SOURCES)}"


def _digest(*files: Path) -> str:
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:12]


def _compile(work: Path) -> None:
    work.mkdir()
    options = ["-proc:none", "-d", str(work), "-cp", f"{LIBRARY_3.jars}/*"]
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
