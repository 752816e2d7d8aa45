"""`DefinitionFiles`: the directory in which children find the definitions of schemas.

Rules: retrieval#schema-lookups. Each daemon has a directory of its own below TMPDIR, which it makes for its first
definition and removes at its end. Other users can write into such a place, too. So the name ends in random characters,
and nobody can make the directory first. The daemon holds a lock on its directory. The kernel releases the lock when the
daemon ends, however it ends; the next daemon of this user removes directories that nobody holds. A program that clears
temporary files, such as that of systemd, leaves locked directories alone.

These methods block, so callers run them in threads.
"""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import tempfile
import threading
from contextlib import suppress
from pathlib import Path

from mld.core.control_place import is_private

log = logging.getLogger(__name__)

PROGRAM = "mld-schemas"
FILES_MAX = 1_000
"""Definitions that are written, each of up to 170 KB. A producer with a registry of his own can make up more; a stream
has a few."""
TRIES = 3  # before we lock a new directory, another daemon may take it for that of a dead daemon, and remove it


class DefinitionFiles:
    """The directory of one daemon, in `parent`. It is made when it is needed. Call `close` at the end."""

    def __init__(self, parent: Path) -> None:
        self._parent = parent
        self._prefix = f"{PROGRAM}-{os.getuid()}-"
        self._turn = threading.Lock()
        self._folder: Path | None = None  # the daemon's own directory, once it is made
        self._lock: int | None = None  # the descriptor that holds the lock on it
        self._written: set[str] = set()  # the names of the files in it
        self._is_closed = False
        self._is_full_logged = False

    def write(self, name: str, text: str) -> str | None:
        """Write a private file, completely or not at all, and return its path; None if that fails, or if there are too
        many.
        """
        with self._turn:
            try:
                if self._is_closed or not self._has_room(name):
                    return None
                try:
                    path = self._write(self._own(), name, text)
                except FileNotFoundError:  # somebody has removed the directory
                    self._leave()
                    path = self._write(self._own(), name, text)
            except OSError as error:
                log.warning(
                    "the definition of schema version %s is not written: %s",
                    name,
                    error,
                    extra={"action": "schema_file_failed"},
                )
                return None
            self._written.add(name)
            return path

    def _has_room(self, name: str) -> bool:
        """Return whether this definition may be written. Log it once if there are too many."""
        if name in self._written or len(self._written) < FILES_MAX:
            return True
        if not self._is_full_logged:
            self._is_full_logged = True
            log.warning(
                "no more definitions of schemas are written: there are %d files in %s",
                FILES_MAX,
                self._folder,
                extra={"action": "schema_file_failed"},
            )
        return False

    @staticmethod
    def _write(folder: Path, name: str, text: str) -> str:
        """Write the file under a temporary name, rename it, and return its path. Raises OSError."""
        path = folder / name
        file = tempfile.NamedTemporaryFile("w", encoding="utf-8", errors="replace", dir=folder, delete=False)  # noqa: SIM115
        try:
            with file:
                file.write(text)
            Path(file.name).replace(path)
        except OSError:
            with suppress(OSError):
                Path(file.name).unlink()
            raise
        return str(path)

    def _own(self) -> Path:
        """Return the directory; if there is none, make it and lock it. Raises OSError.

        Until the directory is locked, another daemon may remove it; then another one is made, up to TRIES times.
        """
        for _ in range(TRIES):
            if self._folder is not None:
                return self._folder
            made = Path(tempfile.mkdtemp(prefix=self._prefix, dir=self._parent))
            self._lock, is_ours = _locked(made)
            if is_ours and made.is_dir():
                self._folder = made
            else:
                self._leave()
        if self._folder is None:
            raise OSError(f"no directory in {self._parent} stays; set TMPDIR to another place")
        return self._folder

    def _leave(self) -> None:
        """Release the lock on the directory, and forget the directory and its files."""
        if self._lock is not None:
            os.close(self._lock)
        self._folder, self._lock = None, None
        self._written.clear()

    def sweep(self) -> None:
        """Remove the directories of this user's daemons that did not remove them themselves, because they were
        killed.
        """
        with suppress(OSError), os.scandir(self._parent) as entries:
            for entry in entries:
                if entry.name.startswith(self._prefix) and is_private(Path(entry.path), os.getuid()):
                    _remove_unless_locked(Path(entry.path))

    def close(self) -> None:
        """Remove the directory. Nothing is written after that."""
        with self._turn:
            self._is_closed = True
            if self._folder is not None:
                shutil.rmtree(self._folder, ignore_errors=True)
            self._leave()


def _locked(directory: Path) -> tuple[int | None, bool]:
    """Lock a directory of ours. Return the descriptor that holds the lock, and whether no other process holds it.

    If the file system has no locks, return None and True.
    """
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        return None, False
    except OSError:
        os.close(handle)
        return None, True
    return handle, True


def _remove_unless_locked(directory: Path) -> None:
    """Remove a directory whose daemon is gone."""
    with suppress(OSError):
        handle, _ = _locked(directory)
        if handle is not None:
            shutil.rmtree(directory, ignore_errors=True)
            os.close(handle)
