"""Finds the directory that all children of one daemon share, for sockets, locks and files. Only this user can open it.

Other users can write into `/tmp` too, and could create a directory with a predictable name first. So the name ends in
random characters, and only a directory that belongs to this user and is closed to all others is accepted. All children
of a daemon must find the same directory. So they look for it, or make it, while they hold a lock on the daemon's
`/proc/<pid>/environ`, a file that no other user can open. Without that file (no `/proc`, or a daemon of another user)
the name has a fixed end instead of random characters, and a directory of another user is refused.

This module imports only built-in modules of the interpreter, so that it is imported fast: the command `mld-zygote` uses
it, and is started once for each shard.
"""

from __future__ import annotations

import _stat
import posix
import sys
from collections.abc import Iterator, Mapping, Sequence

SOCKET_PATH_BYTES_MAX = 107  # room in struct sockaddr_un, without the NUL
FALLBACK = "/tmp"  # noqa: S108
RANDOM_BYTES = 6
"""48 bits cannot be guessed before the directory is created; afterwards the name no longer has to be secret."""
FIXED_END = "0"
Owner = tuple[int, int]
"""The id and the start time of a process, which together are never reused."""


class MeetingError(Exception):
    """The directory cannot be created or used, or has no fork server; the text is one sentence that says why."""


def runtime_places(environment: Mapping[bytes, bytes]) -> list[str]:
    """Return the directories to try for sockets and locks, in this order: the directory of the systemd service, that of
    the login session, the directories for temporary files.
    """
    service = environment.get(b"RUNTIME_DIRECTORY", b"").partition(b":")[0]
    private = [_text(place) for place in (service, environment.get(b"XDG_RUNTIME_DIR", b"")) if place]
    # A variable may be left from another user's session, as after `su`: only we may write there.
    return [place for place in private if _is_directory(place, 0o022)] + temporary_places(environment)


def temporary_places(environment: Mapping[bytes, bytes]) -> list[str]:
    """Return the directories for temporary files, which have room for data. The other runtime directories may be in
    memory, with only a few MB.
    """
    named = environment.get(b"TMPDIR", b"")
    return list(dict.fromkeys([*([_text(named)] if named else []), FALLBACK]))


def find(program: str, owner: Owner, places: Sequence[str], room_bytes: int = 0) -> str | None:
    """Return the directory of this daemon's children, which is in one of `places`; None if no child has created it yet,
    or its path is too long for sockets with names of `room_bytes`.
    """
    for place in _usable(program, owner, places, room_bytes):
        for name in _names(place, _prefix(program, owner)):
            return f"{place}/{name}"
    return None


def meet(program: str, owner: Owner, places: Sequence[str], room_bytes: int = 0) -> str:
    """Return the directory of this daemon's children, and create it if it is missing. Raises MeetingError.

    `room_bytes` is the length of the longest socket name in the directory: the whole path of a socket must not be too
    long.
    """
    if found := find(program, owner, places, room_bytes):
        return found
    place = next(_usable(program, owner, places, room_bytes), None)
    if place is None:
        raise MeetingError(
            f"none of {', '.join(places)} is a directory to write in with a path short enough for a socket "
            f"({SOCKET_PATH_BYTES_MAX} bytes); set TMPDIR to one"
        )
    prefix = _prefix(program, owner)
    lock = _lock(owner)
    try:
        if lock is None:  # with a fixed name, children that come here at the same time use the same directory
            return _make(f"{place}/{prefix}{FIXED_END}")
        # Another child may have made the directory while this one waited for the lock.
        return find(program, owner, [place]) or _make(f"{place}/{prefix}{posix.urandom(RANDOM_BYTES).hex()}")
    finally:
        if lock is not None:
            posix.close(lock)


def meetings(program: str, places: Sequence[str]) -> Iterator[tuple[Owner, str]]:
    """Yield each daemon of this user that has such a directory in one of `places`, with the directory."""
    for place in places:
        for name in _names(place, f"{program}-"):
            pid, _, rest = name.removeprefix(f"{program}-").partition("-")
            start = rest.partition("-")[0]
            if pid.isdigit() and start.isdigit():
                yield (int(pid), int(start)), f"{place}/{name}"


def remove(directory: str) -> None:
    """Remove the directory and its files as far as possible."""
    try:
        for name in posix.listdir(directory):
            posix.unlink(f"{directory}/{name}")
        posix.rmdir(directory)
    except OSError:
        pass


def is_ours_alone(path: str) -> bool:
    """Return whether the path is a directory (not a link to one) that belongs to this user and is closed
    to all others.
    """
    return _is_directory(path, 0o077, follow_links=False)


def _make(path: str) -> str:
    """Create a directory for this user alone, or use it if it exists; return its path. Raises MeetingError."""
    try:
        posix.mkdir(path, 0o700)
    except FileExistsError:
        pass
    except OSError as error:
        raise MeetingError(f"cannot make {path}: {error.strerror}; set TMPDIR to a place with room") from None
    if not is_ours_alone(path):
        raise MeetingError(f"{path} is not a directory of this user alone; remove it, or set TMPDIR")
    return path


def _prefix(program: str, owner: Owner) -> str:
    return f"{program}-{owner[0]}-{owner[1]}-"


def _usable(program: str, owner: Owner, places: Sequence[str], room_bytes: int) -> Iterator[str]:
    """Yield those of `places` that we can write to, and whose path is short enough for a socket's name of
    `room_bytes`.
    """
    name_bytes = len(_prefix(program, owner)) + 2 * RANDOM_BYTES + 2  # and two slashes
    for place in places:
        fits = not room_bytes or len(_bytes(place)) + name_bytes + room_bytes <= SOCKET_PATH_BYTES_MAX
        if fits and posix.access(place, posix.W_OK | posix.X_OK) and _is_directory(place):
            yield place


def _names(place: str, prefix: str) -> list[str]:
    """Return the names of directories in `place` that begin with `prefix` and are closed to other users."""
    try:
        names = [name for name in posix.listdir(place) if name.startswith(prefix)]
    except OSError:
        return []
    return sorted(name for name in names if is_ours_alone(f"{place}/{name}"))


def _is_directory(path: str, not_for_others: int = 0, *, follow_links: bool = True) -> bool:
    """Return whether `path` is a directory. With `not_for_others`, it must also belong to this user and have none of
    these mode bits.
    """
    try:
        status = posix.stat(path, follow_symlinks=follow_links)
    except OSError:
        return False
    if not _stat.S_ISDIR(status.st_mode):
        return False
    return not not_for_others or (status.st_uid == posix.getuid() and not status.st_mode & not_for_others)


def _lock(owner: Owner) -> int | None:
    """Lock the file `/proc/<pid>/environ` of the daemon `owner`; wait while another child holds the lock. Return the
    descriptor that holds it until it is closed; None if no lock is possible.
    """
    import fcntl  # imported here, as only the process that makes the directory needs it

    try:
        handle = posix.open(f"/proc/{owner[0]}/environ", posix.O_RDONLY | posix.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
    except OSError:
        posix.close(handle)
        return None
    return handle


def _text(path: bytes) -> str:
    return path.decode(sys.getfilesystemencoding(), "surrogateescape").rstrip("/") or "/"


def _bytes(path: str) -> bytes:
    return path.encode(sys.getfilesystemencoding(), "surrogateescape")
