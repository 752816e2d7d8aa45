"""Locks the directories of a living session host, and removes the directories that dead hosts left.

A directory is removed only if its daemon is gone and nobody holds its lock.
"""

from __future__ import annotations

import fcntl
import shutil
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from mld.processors.spark.batch.running import FILE as RUNNING
from mld.processors.spark.run_directory import LOCK_FILE, SOCKET_FILE, all_directories, started_at

HOST_LOCK = "host.lock"


def clear(directory: Path, *, daemon_lives: bool) -> None:
    """Empty the directory of a host that ends. If the daemon lives, keep the files that its next host needs: locks, the
    socket, and the note of the records that were running."""
    if not daemon_lives:
        shutil.rmtree(directory, ignore_errors=True)
        return
    for entry in directory.iterdir() if directory.is_dir() else ():
        if entry.name in (LOCK_FILE, HOST_LOCK, SOCKET_FILE, RUNNING):
            continue
        if entry.is_dir():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            entry.unlink(missing_ok=True)


def sweep() -> None:
    """Remove the directories of hosts that were killed: their daemons are gone, and nobody holds their locks."""
    for (pid, start_time), directory in all_directories():
        if started_at(pid) == str(start_time):
            continue
        with suppress(OSError), hold(directory, wait=False):
            shutil.rmtree(directory, ignore_errors=True)


def hold(directory: Path, *, wait: bool = True) -> BinaryIO:
    """Lock a directory until the returned file is closed, which marks it as the directory of a living host.

    With `wait=False`, raise OSError if another process holds the lock."""
    lock = (directory / HOST_LOCK).open("ab")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException:
        lock.close()
        raise
    return lock
