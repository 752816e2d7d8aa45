"""Python modules that the pipeline imports, sent to the executors.

Functions of the pipeline's own file travel by value. What they import from beside it travels by name, and a Python
worker has another working directory, often on another machine. So the Python files and packages of the pipeline's
directory go there in one zip, and so do `mld.spark.pyFiles` and `mld.spark.archives`. Never data, virtual environments,
hidden directories or what stands behind symbolic links to directories.

Everything is read once, when the host starts: a change is seen by the next host.
"""

from __future__ import annotations

import hashlib
import logging
import os
import sys
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from mld.processors.spark.settings import SparkSettings
from mld.processors.spark.sink_port import SessionError, first_line

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("mld.spark")

FILES_MAX = 2_000
BYTES_MAX = 16 << 20
"""Of all modules beside a pipeline. More is a directory that is no pipeline's own, such as a home."""
ENTRIES_MAX = 20_000
"""Names that are looked at in search of modules; a directory of data may have millions."""
SUFFIX = ".py"
ENVIRONMENT = "pyvenv.cfg"
"""What a virtual environment has in its top directory."""
PY_FILES = "mld.spark.pyFiles"
ARCHIVES = "mld.spark.archives"
MODULE_SUFFIXES = (".py", ".zip", ".egg")
ARCHIVE_SUFFIXES = (".zip", ".jar", ".tar.gz", ".tgz", ".tar")
EPOCH = (1980, 1, 1, 0, 0, 0)
"""The time of every file in our zips, so that equal modules make equal zips."""


@dataclass(frozen=True, slots=True)
class TooMuch:
    """Why the modules of a directory are not sent."""

    why: str


@dataclass(frozen=True, slots=True)
class Parcels:
    """What goes to the executors: modules, then archives, each a path on this machine or a URI."""

    modules: tuple[str, ...] = ()
    archives: tuple[str, ...] = ()


# --- decisions -------------------------------------------------------------------------------------------------------


def is_elsewhere(name: str) -> bool:
    """Return whether a name is a URI of another file system, which Spark fetches."""
    scheme, colon, rest = name.partition(":")
    return bool(colon) and rest.startswith("/") and "/" not in scheme and scheme != "file"


def names_of(text: str | None) -> tuple[str, ...]:
    """Return the names in the value of a key, with commas between them."""
    return tuple(name for part in (text or "").split(",") if (name := part.strip()))


def twins(names: Iterable[str]) -> str | None:
    """Return the first file name that two of the paths share."""
    seen: set[str] = set()
    for name in names:
        last = name.partition("#")[0].rstrip("/").rpartition("/")[2]
        if last in seen:
            return last
        seen.add(last)
    return None


def local_path(name: str) -> Path:
    """Return a name without `file:` and without the alias after `#`."""
    plain = name.partition("#")[0]
    return Path(f"/{plain[5:].lstrip('/')}" if plain.startswith("file:") else plain).absolute()


# --- what is on the disk ---------------------------------------------------------------------------------------------


def check(settings: SparkSettings) -> None:
    """Check both keys, without a session. Raises SessionError that names key and file."""
    for name in names_of(settings.py_files):
        _check(name, PY_FILES, MODULE_SUFFIXES, settings, "a .py, .zip or .egg file, or a directory of modules")
    twice = twins((*names_of(settings.py_files), *names_of(settings.archives)))
    if twice:
        raise SessionError(
            f"{PY_FILES} and {ARCHIVES} have two files named {twice}, which clash on the executors; rename one"
        )
    for name in names_of(settings.archives):
        _check(name, ARCHIVES, ARCHIVE_SUFFIXES, settings, "a .zip, .jar, .tar, .tar.gz or .tgz file")


def _check(name: str, key: str, suffixes: tuple[str, ...], settings: SparkSettings, wanted: str) -> None:
    if is_elsewhere(name):
        if not name.partition("#")[0].endswith(suffixes):
            raise SessionError(f"{key} has {name}; write {wanted}")
        return
    path = local_path(name)
    is_modules = key == PY_FILES and path.is_dir()
    if not path.exists():
        raise SessionError(f"{key} has {name}, and there is no {path}; paths are relative to the daemon's directory")
    if not is_modules and (not path.is_file() or not path.name.endswith(suffixes)):
        raise SessionError(f"{key} has {name}, which is none of what can be sent; write {wanted}")
    if not os.access(path, os.R_OK):
        raise SessionError(f"{key} has {name}, and this user may not read {path}")
    if path.suffix in (".zip", ".egg") and not zipfile.is_zipfile(path):
        raise SessionError(f"{key} has {name}, and {path} is no zip file")


def importable_here(settings: SparkSettings) -> None:
    """Let this process import `mld.spark.pyFiles` too: the pipeline's file is read before there is a session."""
    for name in names_of(settings.py_files):
        if not is_elsewhere(name):
            path = local_path(name)
            entry = str(path.parent if path.suffix == SUFFIX else path)
            if entry not in sys.path:
                sys.path.append(entry)


def parcels(settings: SparkSettings, scratch: Path) -> Parcels:
    """Return everything that is to be sent; zips of directories are made in `scratch`. Raises SessionError."""
    check(settings)
    modules: list[str] = []
    own = pipeline_directory(settings.pipeline)
    if own is not None:
        try:
            made = _zip_of(own, scratch)
        except OSError as error:
            log.warning("modules in %s are not sent to executors: %s", own, error)
            made = None
        if isinstance(made, TooMuch):
            log.warning(
                "modules in %s, the directory of the pipeline, are not sent to executors: it has %s; give the pipeline "
                "a directory of its own, or name its modules in %s",
                own,
                made.why,
                PY_FILES,
            )
        elif made is not None:
            modules.append(str(made))
    for name in names_of(settings.py_files):
        path = local_path(name)
        if is_elsewhere(name) or not path.is_dir():
            modules.append(name if is_elsewhere(name) else str(path))
            continue
        try:
            zipped = _zip_of(path, scratch)
        except OSError as error:
            raise SessionError(f"{PY_FILES} has {name}: {error}") from error
        if zipped is None or isinstance(zipped, TooMuch):
            why = "no Python file" if zipped is None else zipped.why
            raise SessionError(f"{PY_FILES} has {name}, and {path} has {why}; name the directory that has the modules")
        modules.append(str(zipped))
    archives = tuple(
        name if is_elsewhere(name) else f"{local_path(name)}{''.join(name.partition('#')[1:])}"
        for name in names_of(settings.archives)
    )
    return Parcels(tuple(modules), archives)


def pipeline_directory(pipeline: str) -> Path | None:
    """Return the directory of `path/to/pipeline.py:function`; None for SQL, which imports nothing."""
    name, colon, _ = pipeline.rpartition(":")
    return Path(name).absolute().parent if colon and name.endswith(SUFFIX) else None


def modules_below(top: Path) -> list[str] | TooMuch:
    """Return Python files in a directory and its packages, as relative paths, sorted. Raises OSError for the top.

    Below the top a directory counts if it has Python files, with or without `__init__.py`, and is no virtual
    environment."""
    sizes: dict[str, int] = {}
    seen = 0
    waiting = [top]
    while waiting:
        place = waiting.pop()
        try:
            with os.scandir(place) as found:
                entries = list(islice(found, ENTRIES_MAX - seen))
        except PermissionError:
            if place == top:
                raise
            continue
        seen += len(entries)
        if seen >= ENTRIES_MAX:
            return TooMuch(f"more than {ENTRIES_MAX} files and directories")
        own = [entry for entry in entries if entry.name.endswith(SUFFIX) and not entry.name.startswith(".")]
        files = [entry for entry in own if entry.is_file()]
        if place != top and (not files or any(entry.name == ENVIRONMENT for entry in entries)):
            continue
        sizes |= {str(Path(entry).relative_to(top)): entry.stat().st_size for entry in files}
        if len(sizes) > FILES_MAX:
            return TooMuch(f"more than {FILES_MAX} Python files")
        if sum(sizes.values()) > BYTES_MAX:
            return TooMuch(f"more than {BYTES_MAX >> 20} MiB of Python files")
        deeper = (entry for entry in entries if entry.is_dir(follow_symlinks=False))
        waiting += [Path(one) for one in deeper if one.name.isidentifier() and one.name != "__pycache__"]
    return sorted(sizes)


def _zip_of(top: Path, scratch: Path) -> Path | TooMuch | None:
    """Return a zip of a directory's modules, named by what is in it; None if it has none. Raises OSError."""
    found = modules_below(top)
    if isinstance(found, TooMuch):
        return found
    contents = []
    for name in found:
        try:
            contents.append((name, (top / name).read_bytes()))
        except FileNotFoundError:
            continue  # an editor's file, gone meanwhile
        except PermissionError as error:
            log.warning("%s is not sent to executors: %s", top / name, error.strerror)
    return pack(contents, scratch) if contents else None


def pack(contents: Iterable[tuple[str, bytes]], scratch: Path) -> Path:
    """Return a zip of these files, for this user alone; equal contents make a file of the same name."""
    digest = hashlib.sha256()
    pieces = list(contents)
    for name, data in pieces:
        digest.update(b"%d %b %d " % (len(name.encode()), name.encode(), len(data)) + data)
    path = scratch / f"mld-modules-{digest.hexdigest()[:16]}.zip"
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb") as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as zipped:
        for name, data in pieces:
            zipped.writestr(zipfile.ZipInfo(name, EPOCH), data, zipfile.ZIP_DEFLATED)
    return path


# --- to the executors ------------------------------------------------------------------------------------------------


def send(session: SparkSession, what: Parcels) -> None:
    """Send the modules before the first job. Raises SessionError that names the file."""
    for kind, names in (("pyfile", what.modules), ("archive", what.archives)):
        for name in names:
            try:
                if kind == "pyfile":
                    session.sparkContext.addPyFile(name)
                else:
                    session.sparkContext.addArchive(name)
            except Exception as error:
                key = PY_FILES if kind == "pyfile" else ARCHIVES
                raise SessionError(f"{name} cannot be sent to the executors ({key}): {first_line(error)}") from error
    if what.modules or what.archives:
        log.info("sent to the executors: %s", ", ".join(Path(name).name for name in (*what.modules, *what.archives)))
