"""The path of a daemon's control socket. The daemon creates the socket there, and commands such as `mld status` find
it.

Any process that can connect can read records (`mld tap`). So the socket has mode 0600, and its directory must belong to
this user and be closed to all others; any other directory is refused. The path in a Unix socket's address is limited
to 107 bytes. Longer paths work too, because `address_of` names the open directory by its descriptor. The socket's file
is named after the application, so that commands can find it from the properties file. The name ends in random
characters, so that each daemon has a name of its own.
"""

from __future__ import annotations

import os
import re
import socket
import stat
import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

PROGRAM = "mld"
SUFFIX = ".sock"
FALLBACK = "/tmp"  # noqa: S108 - a directory there is only used if it is this user's alone
SYSTEM_PLACES = "/run"
"""systemd creates the RUNTIME_DIRECTORY of a service in this directory. Only the service itself gets that variable, so
commands search here."""
APPLICATION_CHARACTERS_MAX = 48
RANDOM_BYTES = 4
OWN_DIRECTORY = 0o700  # mode of a directory that only its owner may use
OTHERS = 0o077  # the bits of a mode that give other users any access
_ODD = re.compile(r"[^A-Za-z0-9_-]+")
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid: struct ucred


class ControlPlaceError(Exception):
    """A directory cannot hold the socket, or no socket was found. The text is one sentence with the remedy."""


@dataclass(frozen=True, slots=True)
class ControlPlace:
    """The directory and file name of a socket. `directory` may not exist."""

    directory: Path
    name: str

    @property
    def path(self) -> str:
        return str(self.directory / self.name)


def directories(environ: Mapping[str, str], uid: int) -> list[Path]:
    """Return the directories in which a daemon tries to create its socket, in this order: that of its systemd service,
    that of the login session, one below /tmp.
    """
    service = environ.get("RUNTIME_DIRECTORY", "").partition(":")[0]
    session = environ.get("XDG_RUNTIME_DIR", "")
    return [
        *(_of_service(Path(service)) if service.startswith("/") else []),
        *([Path(session, PROGRAM)] if session.startswith("/") else []),
        Path(FALLBACK, f"{PROGRAM}-{uid}"),
    ]


def places_to_look(environ: Mapping[str, str], uid: int) -> list[Path]:
    """Return the directories in which to look for sockets: `directories`, then those that a daemon with another
    environment may have used (of this user's login session, of systemd services, and `spare_directory`).
    """
    system = Path(SYSTEM_PLACES)
    session = system / "user" / str(uid) / PROGRAM
    services = [place for found in sorted(_matching(system, PROGRAM)) for place in _of_service(found)]
    spare = sorted(_matching(Path(FALLBACK), f"{PROGRAM}-{uid}-"))
    return list(dict.fromkeys([*directories(environ, uid), session, *services, *spare]))


def _of_service(directory: Path) -> list[Path]:
    """Return the two directories to try for a service: its RuntimeDirectory, and one inside it. The inner one is used
    if other users can read the RuntimeDirectory, which they can unless the unit forbids it.
    """
    return [directory, directory / PROGRAM]


def _matching(directory: Path, prefix: str) -> Iterator[Path]:
    """Yield the entries of a directory whose names begin with `prefix`; none if the directory cannot be read."""
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                if entry.name.startswith(prefix):
                    yield Path(entry.path)
    except OSError:
        return


def spare_directory(uid: int) -> Path:
    """Return a directory with an unpredictable name, for the case that another user has made the usual one."""
    return Path(FALLBACK, f"{PROGRAM}-{uid}-{os.urandom(RANDOM_BYTES).hex()}")


def prefix_of(application: str) -> str:
    """Return the beginning of the names of an application's sockets. Its checksum separates applications whose names
    become equal when odd characters are replaced.
    """
    fit = _ODD.sub("_", application)[:APPLICATION_CHARACTERS_MAX]
    return f"{fit}-{zlib.crc32(application.encode('utf-8', 'surrogatepass')):08x}."


def new_name(application: str) -> str:
    """Return a name that no socket has had before. So a socket that nobody answers can safely be removed, whoever made
    it.
    """
    return f"{prefix_of(application)}{os.urandom(RANDOM_BYTES).hex()}{SUFFIX}"


def sockets_of(application: str | None, environ: Mapping[str, str], uid: int) -> list[ControlPlace]:
    """Return the sockets of an application's daemons on this machine, whether or not the daemons still run. If
    `application` is None, return the sockets of all applications.
    """
    prefix = "" if application is None else prefix_of(application)
    found = []
    for directory in places_to_look(environ, uid):
        if not is_private(directory, uid):
            continue
        names = sorted(path.name for path in _matching(directory, prefix) if path.name.endswith(SUFFIX))
        found += [ControlPlace(directory, name) for name in names]
    return found


# --- the directory ----------------------------------------------------------------------------------------------------


def is_private(directory: Path, uid: int) -> bool:
    """Return whether the path is a directory, not a link to one, that belongs to this user and is closed
    to all others.
    """
    try:
        return _why_not_private(os.lstat(directory), uid) is None
    except OSError:
        return False


def open_directory(directory: Path, uid: int, *, make: bool) -> int:
    """Open the directory and return its descriptor; with `make`, create it first if it is missing. Raises
    ControlPlaceError unless the directory is private.
    """
    try:
        if make:
            _make(directory, uid)
        handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise ControlPlaceError(f"the directory {directory} cannot be used: {error.strerror}") from error
    why = _why_not_private(os.fstat(handle), uid)
    if why is not None:
        os.close(handle)
        raise ControlPlaceError(f"the directory {directory} {why}")
    return handle


def _make(directory: Path, uid: int) -> None:
    """Create the directory if it is missing, but not inside a directory of another user than root: after `su`,
    XDG_RUNTIME_DIR may still name one of the earlier user.
    """
    if not directory.is_dir():
        owner = directory.parent.stat().st_uid
        if owner not in (uid, 0):
            raise ControlPlaceError(f"the directory {directory} is not there, and the one above it is of user {owner}")
        directory.mkdir(OWN_DIRECTORY, exist_ok=True)


def _why_not_private(status: os.stat_result, uid: int) -> str | None:
    """Return why a directory with this status is not private to the user; None if it is."""
    if not stat.S_ISDIR(status.st_mode):
        return "is not a directory"
    if status.st_uid != uid:
        return f"belongs to user {status.st_uid}, not to this one ({uid})"
    if status.st_mode & OTHERS:
        mode = stat.S_IMODE(status.st_mode)
        return f"is open to other users (mode {mode:04o}): name one that is made for it, with mode 0700"
    return None


# --- the socket -------------------------------------------------------------------------------------------------------


def address_of(handle: int, directory: Path, name: str) -> str:
    """Return the address of the socket `name` in the open directory. It is short, however long the path is; without
    /proc it is the path itself.
    """
    short = Path(f"/proc/self/fd/{handle}")
    return str((short if short.is_dir() else directory) / name)


@dataclass(frozen=True, slots=True)
class SocketPeer:
    """The process at the other end of a socket."""

    pid: int
    uid: int


def peer_of(connection: socket.socket) -> SocketPeer | None:
    """Return the process at the other end; None if the system cannot report it."""
    option = getattr(socket, "SO_PEERCRED", None)
    if option is None:
        return None
    pid, uid, _ = _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, option, _CREDENTIALS.size))
    return SocketPeer(pid, uid)


def is_answered(address: str) -> bool:
    """Return whether a process listens at the address. Only a refused connection or a missing file proves that none
    does. Any other error counts as a busy process.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(address)
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError:
            return True
        return True
