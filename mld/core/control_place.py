"""Where a daemon's control socket is, for the daemon that makes it and the commands that look for it.

Who can connect can change the level of the log and read records, so the socket is 0600 in a directory that belongs to
this user and is closed to all others; another directory is refused. A socket's address has room for 107 bytes only:
`address_of` names it by the open directory, so that a path may be as long as any. The file is named after the
application, so that a command finds it from the properties file, and ends at random, so that it names one daemon only.
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
"""Where systemd makes a service's RUNTIME_DIRECTORY, which only the service itself is told."""
APPLICATION_CHARACTERS_MAX = 48
RANDOM_BYTES = 4
OWN_DIRECTORY = 0o700
OTHERS = 0o077
_ODD = re.compile(r"[^A-Za-z0-9_-]+")
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid: struct ucred


class ControlPlaceError(Exception):
    """A directory cannot hold the socket, or the socket cannot be had; one sentence with the remedy."""


@dataclass(frozen=True, slots=True)
class ControlPlace:
    """A file for a socket: `directory` may be missing, `name` is in it."""

    directory: Path
    name: str

    @property
    def path(self) -> str:
        return str(self.directory / self.name)


def directories(environ: Mapping[str, str], uid: int) -> list[Path]:
    """Return where a daemon's socket may be, the best first: systemd's for the service, the session's, the temporary
    one.
    """
    service = environ.get("RUNTIME_DIRECTORY", "").partition(":")[0]
    session = environ.get("XDG_RUNTIME_DIR", "")
    return [
        *(_of_service(Path(service)) if service.startswith("/") else []),
        *([Path(session, PROGRAM)] if session.startswith("/") else []),
        Path(FALLBACK, f"{PROGRAM}-{uid}"),
    ]


def places_to_look(environ: Mapping[str, str], uid: int) -> list[Path]:
    """Return `directories`, and where a daemon may have made its socket that has another environment than we have."""
    system = Path(SYSTEM_PLACES)
    session = system / "user" / str(uid) / PROGRAM
    services = [place for found in sorted(_matching(system, PROGRAM)) for place in _of_service(found)]
    spare = sorted(_matching(Path(FALLBACK), f"{PROGRAM}-{uid}-"))
    return list(dict.fromkeys([*directories(environ, uid), session, *services, *spare]))


def _of_service(directory: Path) -> list[Path]:
    """Choose the directory of the service. Others may look into a RuntimeDirectory unless the unit says otherwise;
    then one in it is used.
    """
    return [directory, directory / PROGRAM]


def _matching(directory: Path, prefix: str) -> Iterator[Path]:
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                if entry.name.startswith(prefix):
                    yield Path(entry.path)
    except OSError:
        return


def spare_directory(uid: int) -> Path:
    """Return a directory whose name nobody can foresee, for when somebody else has made the usual one."""
    return Path(FALLBACK, f"{PROGRAM}-{uid}-{os.urandom(RANDOM_BYTES).hex()}")


def prefix_of(application: str) -> str:
    """Return how the sockets of an application begin; the checksum tells names apart that look alike when made fit."""
    fit = _ODD.sub("_", application)[:APPLICATION_CHARACTERS_MAX]
    return f"{fit}-{zlib.crc32(application.encode('utf-8', 'surrogatepass')):08x}."


def new_name(application: str) -> str:
    """Return a name that no socket ever had, so that a dead one may be removed without a look who made it."""
    return f"{prefix_of(application)}{os.urandom(RANDOM_BYTES).hex()}{SUFFIX}"


def sockets_of(application: str | None, environ: Mapping[str, str], uid: int) -> list[ControlPlace]:
    """Return the sockets of an application's daemons on this machine, alive or not; None: of all applications."""
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
    """Return whether it is a directory, not a link to one, of this user, and closed to all others."""
    try:
        return _why_not_private(os.lstat(directory), uid) is None
    except OSError:
        return False


def open_directory(directory: Path, uid: int, *, make: bool) -> int:
    """Return a descriptor of the directory, made if it is missing. Raises ControlPlaceError unless it is private."""
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
    """Make it unless it is there. Not in another user's directory, which a variable may name after `su`."""
    if not directory.is_dir():
        owner = directory.parent.stat().st_uid
        if owner not in (uid, 0):
            raise ControlPlaceError(f"the directory {directory} is not there, and the one above it is of user {owner}")
        directory.mkdir(OWN_DIRECTORY, exist_ok=True)


def _why_not_private(status: os.stat_result, uid: int) -> str | None:
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
    """Return the address of a socket in an open directory, short wherever the directory is; by its path without
    /proc.
    """
    short = Path(f"/proc/self/fd/{handle}")
    return str((short if short.is_dir() else directory) / name)


@dataclass(frozen=True, slots=True)
class SocketPeer:
    """Who is at the other end: a process that connected, or one that listens."""

    pid: int
    uid: int


def peer_of(connection: socket.socket) -> SocketPeer | None:
    """Return who is at the other end; None where the system does not tell."""
    option = getattr(socket, "SO_PEERCRED", None)
    if option is None:
        return None
    pid, uid, _ = _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, option, _CREDENTIALS.size))
    return SocketPeer(pid, uid)


def is_answered(address: str) -> bool:
    """Return whether a process listens there. Only a refusal says that nobody does; one that is too busy is alive."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(address)
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError:
            return True
        return True
