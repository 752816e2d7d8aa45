"""`claimed`: makes the file of the control socket at its place, for this user alone.

The file appears at its place only when the socket listens. Until then, a lock on the directory keeps other daemons out.
If a socket is at the place already, it is replaced only if no process answers there.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import socket
import stat
from pathlib import Path

from mld.core import control_place
from mld.core.control_place import SUFFIX, ControlPlace, ControlPlaceError

BACKLOG = 32
STALE_LOOKED_AT_MAX = 1_000  # entries of the directory in which sockets of dead daemons are looked for
LOCK_TRIES, LOCK_PAUSE_S = 40, 0.05  # a daemon that starts holds the lock for some milliseconds
OWN_SOCKET = 0o600


async def claimed(handle: int, place: ControlPlace, *, is_named: bool) -> socket.socket:
    """Return a listening socket at the place, whose directory is open as `handle`. If an operator named the place
    (`is_named`), dead sockets beside it are left alone. Raises ControlPlaceError if the place is taken or cannot be
    used.
    """
    await _lock(handle, place.directory)
    try:
        if not is_named:
            _remove_stale(handle, place.directory)
        _check_free(handle, place)
        return _listening(handle, place)
    except OSError as error:
        raise ControlPlaceError(f"{place.path} cannot be made: {error.strerror or error}") from error
    finally:
        fcntl.flock(handle, fcntl.LOCK_UN)


async def _lock(handle: int, directory: Path) -> None:
    """Lock the directory of the socket. Raises ControlPlaceError if another process holds the lock for too long."""
    for _ in range(LOCK_TRIES):
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        await asyncio.sleep(LOCK_PAUSE_S)
    raise ControlPlaceError(f"another process holds the lock on {directory}")


def _check_free(handle: int, place: ControlPlace) -> None:
    """Raise ControlPlaceError if the place has a file that is not a socket, or a socket that is answered."""
    try:
        status = os.stat(place.name, dir_fd=handle, follow_symlinks=False)
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(status.st_mode):
        raise ControlPlaceError(f"remove {place.path}, which is no socket, or name another path")
    if control_place.is_answered(control_place.address_of(handle, place.directory, place.name)):
        raise ControlPlaceError(f"give each daemon a path of its own: another process answers at {place.path}")


def _listening(handle: int, place: ControlPlace) -> socket.socket:
    """Return a socket that was bound under a temporary name and renamed, so that callers find it only
    when it listens.
    """
    temporary_name = f".{os.getpid()}-{os.urandom(4).hex()}"
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listening.setblocking(False)
        with contextlib.suppress(OSError):  # not every system can do it; the directory admits only this user anyway
            os.fchmod(listening.fileno(), OWN_SOCKET)  # the file gets this mode, whatever the umask is
        listening.bind(control_place.address_of(handle, place.directory, temporary_name))
        try:
            os.chmod(temporary_name, OWN_SOCKET, dir_fd=handle)
            listening.listen(BACKLOG)
            os.rename(temporary_name, place.name, src_dir_fd=handle, dst_dir_fd=handle)
        except BaseException:
            os.unlink(temporary_name, dir_fd=handle)
            raise
    except BaseException:
        listening.close()
        raise
    return listening


def _remove_stale(handle: int, directory: Path) -> None:
    """Remove the sockets of daemons that were killed. Their names are never used again."""
    with os.scandir(handle) as entries:
        names = [entry.name for entry, _ in zip(entries, range(STALE_LOOKED_AT_MAX), strict=False)]
    for name in names:
        if name.endswith(SUFFIX) and not control_place.is_answered(control_place.address_of(handle, directory, name)):
            with contextlib.suppress(OSError):
                os.unlink(name, dir_fd=handle)


def inode_of(path: str, handle: int | None = None) -> tuple[int, int] | None:
    """Return device and inode of the file at this path, relative to `handle` if given; None if there is no file."""
    try:
        status = os.stat(path, dir_fd=handle, follow_symlinks=False)
    except OSError:
        return None
    return status.st_dev, status.st_ino
