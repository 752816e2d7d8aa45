"""Python modules that the pipeline imports, sent to the executors.

Functions of the pipeline's own file travel by value. What they import from beside it travels by name, and a Python
worker has another working directory, often on another machine. So the Python files and packages of the pipeline's
directory go there in one zip, and so does what `mld.spark.pyFiles` names. Never data, virtual environments, hidden
directories or what stands behind symbolic links to directories.

Everything is read once, when the host starts: a change is seen by the next host.
"""

from __future__ import annotations

import hashlib
import logging
import os
import sys
import zipfile
from collections.abc import Iterable
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
MODULE_SUFFIXES = (".py", ".zip", ".egg")
WANTED = "write a .py, .zip or .egg file, or a directory of modules"
EPOCH = (1980, 1, 1, 0, 0, 0)
"""The time of every file in our zips, so that equal modules make equal zips."""


class TooMuch(Exception):
    """Why the modules of a directory are not sent."""


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
        last = name.rstrip("/").rpartition("/")[2]
        if last in seen:
            return last
        seen.add(last)
    return None


def local_path(name: str) -> Path:
    """Return a name without `file:`."""
    return Path(f"/{name[5:].lstrip('/')}" if name.startswith("file:") else name).absolute()


# --- what is on the disk ---------------------------------------------------------------------------------------------


def check(settings: SparkSettings) -> None:
    """Check the key, without a session. Raises SessionError that names key and file."""
    names = names_of(settings.py_files)
    for name in names:
        _check(name)
    if twice := twins(names):
        raise SessionError(f"{PY_FILES} has two files named {twice}, which clash on the executors; rename one")


def _check(name: str) -> None:
    if is_elsewhere(name):
        if not name.endswith(MODULE_SUFFIXES):
            raise SessionError(f"{PY_FILES} has {name}; {WANTED}")
        return
    path = local_path(name)
    if not path.exists():
        raise SessionError(
            f"{PY_FILES} has {name}, and there is no {path}; paths are relative to the daemon's directory"
        )
    if not path.is_dir() and not (path.is_file() and path.name.endswith(MODULE_SUFFIXES)):
        raise SessionError(f"{PY_FILES} has {name}, which is none of what can be sent; {WANTED}")
    if not os.access(path, os.R_OK):
        raise SessionError(f"{PY_FILES} has {name}, and this user may not read {path}")
    if path.suffix in (".zip", ".egg") and not zipfile.is_zipfile(path):
        raise SessionError(f"{PY_FILES} has {name}, and {path} is no zip file")


def importable_here(settings: SparkSettings) -> None:
    """Let this process import `mld.spark.pyFiles` too: the pipeline's file is read before there is a session."""
    for name in names_of(settings.py_files):
        if not is_elsewhere(name):
            path = local_path(name)
            entry = str(path.parent if path.suffix == SUFFIX else path)
            if entry not in sys.path:
                sys.path.append(entry)


def parcels(settings: SparkSettings, scratch: Path) -> tuple[str, ...]:
    """Return everything that is to be sent, as paths on this machine or URIs; zips of directories are made in
    `scratch`. Raises SessionError.
    """
    found = _beside(settings.pipeline, scratch)
    for name in names_of(settings.py_files):
        path = local_path(name)
        if is_elsewhere(name) or not path.is_dir():
            found.append(name if is_elsewhere(name) else str(path))
            continue
        try:
            zipped = _zip_of(path, scratch)
        except (OSError, TooMuch) as error:
            raise SessionError(f"{PY_FILES} has {name}: {error}; name the directory that has the modules") from error
        if zipped is None:
            raise SessionError(f"{PY_FILES} has {name}, which has no Python file")
        found.append(str(zipped))
    return tuple(found)


def _beside(pipeline: str, scratch: Path) -> list[str]:
    """Return a zip of the modules beside `path/to/pipeline.py:function`; SQL imports nothing."""
    name, colon, _ = pipeline.rpartition(":")
    if not colon or not name.endswith(SUFFIX):
        return []
    own = Path(name).absolute().parent
    try:
        made = _zip_of(own, scratch)
    except OSError as error:
        log.warning("modules in %s are not sent to executors: %s", own, error)
    except TooMuch as error:
        log.warning(
            "modules in %s, the directory of the pipeline, are not sent to executors: it has %s; give the pipeline a "
            "directory of its own, or name its modules in %s",
            own,
            error,
            PY_FILES,
        )
    else:
        return [] if made is None else [str(made)]
    return []


def modules_below(top: Path) -> list[str]:
    """Return Python files in a directory and its packages, as relative paths, sorted. Raises TooMuch, and OSError for
    the top.

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
            raise TooMuch(f"more than {ENTRIES_MAX} files and directories")
        own = [entry for entry in entries if entry.name.endswith(SUFFIX) and not entry.name.startswith(".")]
        files = [entry for entry in own if entry.is_file()]
        if place != top and (not files or any(entry.name == ENVIRONMENT for entry in entries)):
            continue
        sizes |= {str(Path(entry).relative_to(top)): entry.stat().st_size for entry in files}
        if len(sizes) > FILES_MAX:
            raise TooMuch(f"more than {FILES_MAX} Python files")
        if sum(sizes.values()) > BYTES_MAX:
            raise TooMuch(f"more than {BYTES_MAX >> 20} MiB of Python files")
        deeper = (entry for entry in entries if entry.is_dir(follow_symlinks=False))
        waiting += [Path(one) for one in deeper if one.name.isidentifier() and one.name != "__pycache__"]
    return sorted(sizes)


def _zip_of(top: Path, scratch: Path) -> Path | None:
    """Return a zip of a directory's modules, named by what is in it; None if it has none. Raises TooMuch and
    OSError.
    """
    contents = []
    for name in modules_below(top):
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


def send(session: SparkSession, what: Iterable[str]) -> None:
    """Send the modules before the first job. Raises SessionError that names the file."""
    for name in what:
        try:
            session.sparkContext.addPyFile(name)
        except Exception as error:
            raise SessionError(f"{name} cannot be sent to the executors ({PY_FILES}): {first_line(error)}") from error
        log.info("sent to the executors: %s", Path(name).name)
