"""Where the children of one daemon meet, and how a fork server that they find there is asked for a child.

They meet in a directory of their own, for sockets, locks and files of this user alone.

Other users may write into `/tmp` too, and could take a foreseeable name first. So the name ends at random, and only a
directory that belongs to this user and is closed to all others is accepted. The children of one daemon must all find
the same one: they look for it, or make it, under a lock that no other user can hold, because it is on a file that no
other user can open: the daemon's `/proc/<pid>/environ`. Without that file (no `/proc`, a daemon of another user) the
name has a fixed end, and a directory of another user is refused.

Fork servers: see docs/use/fork-server.md. One request travels on one connection: a length, NUL-separated fields, and
the descriptors of standard input, output and error. The answers are records of a fixed size: first one that says what
became of the request, later one with the end.

It imports only modules that are part of the interpreter: a small program uses it that stands between another daemon and
the server, and starts 64 times when 64 shards do.
"""

from __future__ import annotations

import _socket
import _stat
import posix
import sys
from collections.abc import Iterator, Mapping, Sequence

SOCKET_PATH_BYTES_MAX = 107  # of struct sockaddr_un, without the NUL
FALLBACK = "/tmp"  # noqa: S108
RANDOM_BYTES = 6
"""48 bits cannot be guessed before the directory is made, and afterwards it is ours."""
FIXED_END = "0"
Owner = tuple[int, int]
"""A process, by its id and start time, which are never reused together."""


class MeetingError(Exception):
    """There is no such directory, or no fork server to be found in it; one sentence says why."""


def runtime_places(environment: Mapping[bytes, bytes]) -> list[str]:
    """Return where sockets and locks may be, the best first: what systemd made for the service, then for the user's
    session, then where temporary files are.
    """
    service = environment.get(b"RUNTIME_DIRECTORY", b"").partition(b":")[0]
    private = [_text(place) for place in (service, environment.get(b"XDG_RUNTIME_DIR", b"")) if place]
    # A variable may be left from another user's session, as after `su`: only we may write there.
    return [place for place in private if _is_directory(place, 0o022)] + temporary_places(environment)


def temporary_places(environment: Mapping[bytes, bytes]) -> list[str]:
    """Return the places with room for data; the others may be in memory, with a few MB."""
    named = environment.get(b"TMPDIR", b"")
    return list(dict.fromkeys([*([_text(named)] if named else []), FALLBACK]))


def find(program: str, owner: Owner, places: Sequence[str], room_bytes: int = 0) -> str | None:
    """Return the directory of this daemon's children, if one of them has made it."""
    for place in _usable(program, owner, places, room_bytes):
        for name in _names(place, _prefix(program, owner)):
            return f"{place}/{name}"
    return None


def meet(program: str, owner: Owner, places: Sequence[str], room_bytes: int = 0) -> str:
    """Return the same, made if need be; a socket's path in it needs `room_bytes` more. Raises MeetingError."""
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
        if lock is None:
            return _make(f"{place}/{prefix}{FIXED_END}")
        return find(program, owner, [place]) or _make(f"{place}/{prefix}{posix.urandom(RANDOM_BYTES).hex()}")
    finally:
        if lock is not None:
            posix.close(lock)


def meetings(program: str, places: Sequence[str]) -> Iterator[tuple[Owner, str]]:
    """Yield all directories of this program that are this user's alone, with the daemon whose children meet there."""
    for place in places:
        for name in _names(place, f"{program}-"):
            pid, _, rest = name.removeprefix(f"{program}-").partition("-")
            start = rest.partition("-")[0]
            if pid.isdigit() and start.isdigit():
                yield (int(pid), int(start)), f"{place}/{name}"


def remove(directory: str) -> None:
    """Remove the directory and its files, as far as possible."""
    try:
        for name in posix.listdir(directory):
            posix.unlink(f"{directory}/{name}")
        posix.rmdir(directory)
    except OSError:
        pass


def is_ours_alone(path: str) -> bool:
    """Return whether it is a directory (not a link to one) of this user, and closed to all others."""
    return _is_directory(path, 0o077, follow_links=False)


def _make(path: str) -> str:
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
    name_bytes = len(_prefix(program, owner)) + 2 * RANDOM_BYTES + 2  # and two slashes
    for place in places:
        fits = not room_bytes or len(_bytes(place)) + name_bytes + room_bytes <= SOCKET_PATH_BYTES_MAX
        if fits and posix.access(place, posix.W_OK | posix.X_OK) and _is_directory(place):
            yield place


def _names(place: str, prefix: str) -> list[str]:
    try:
        names = [name for name in posix.listdir(place) if name.startswith(prefix)]
    except OSError:
        return []
    return sorted(name for name in names if is_ours_alone(f"{place}/{name}"))


def _is_directory(path: str, not_for_others: int = 0, *, follow_links: bool = True) -> bool:
    """Return whether it is a directory; and if some bits of its mode are not for others, one of ours without them."""
    try:
        status = posix.stat(path, follow_symlinks=follow_links)
    except OSError:
        return False
    if not _stat.S_ISDIR(status.st_mode):
        return False
    return not not_for_others or (status.st_uid == posix.getuid() and not status.st_mode & not_for_others)


def _lock(owner: Owner) -> int | None:
    """Return a descriptor that holds the lock until it is closed; None where there can be no lock."""
    import fcntl  # only who makes the directory needs it

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


PROGRAM = "mld-zygote"
OF_SHARD = frozenset({b"MLD_SHARD_ID", b"MLD_LEASE_KEY", b"MLD_ANCESTOR_SHARD_IDS", b"PWD", b"OLDPWD", b"SHLVL", b"_"})
"""Variables in which the children of one server always may differ: the shard, and what a shell sets by itself."""
STREAM_ID = b"MLD_STREAM_ID"
OF_STREAM = frozenset({STREAM_ID, b"MLD_STREAM_NAME", b"MLD_STREAM_ARN", b"MLD_STREAM_CREATED"})
"""The same where an application reads several streams, which `STREAM_ID` tells. Where it reads one, modules may look
at its name while they are imported."""
NAME_BYTES_MAX = 32 + len(".plain")
"""Longest name of a server's files in the directory where the children of its daemon meet."""
RECORD_BYTES = 16
LENGTH_BYTES = 8
REQUEST_BYTES_MAX = 8 * 1024 * 1024  # Linux allows an environment and arguments of 6 MiB
_DIRECTORY_FLAGS = posix.O_RDONLY | posix.O_DIRECTORY | posix.O_NOFOLLOW | posix.O_CLOEXEC
_HASH_MODULUS = 2**127 - 1
_VERSION = b"1"

# What became of a request.
PID = "pid"  # the child runs, with this process id
PLAIN = "plain"  # this script cannot be forked: start it the plain way
STALE = "stale"  # the server's modules are out of date, or are those of another environment: start a new server
# The end of a child.
EXIT = "exit"
SIGNAL = "signal"


def per_child(environment: Mapping[bytes, bytes]) -> frozenset[bytes]:
    """Return the variables in which this child may differ from others of its server."""
    return OF_SHARD | OF_STREAM if STREAM_ID in environment else OF_SHARD


def shared_part(cwd: bytes, arguments: Sequence[bytes], environment: Mapping[bytes, bytes]) -> bytes:
    """Return what all children of one server have in common: directory, arguments, and variables but those
    `per_child`.
    """
    own = per_child(environment)
    variables = sorted(name + b"=" + value for name, value in environment.items() if name not in own)
    return b"\0".join([cwd, *arguments, b"", *variables])


class Request:
    """One child to be forked. `own_group`: it leads a process group, else it joins that of whoever asks.

    `variables` are those in which it differs from others. `shared` is compared as a whole and never taken apart, so
    that the server, whose every step costs its children shared pages, has little to do.
    """

    __slots__ = ("own_group", "shared", "variables")

    def __init__(self, shared: bytes, variables: Sequence[tuple[bytes, bytes]], *, own_group: bool) -> None:
        self.shared = shared
        self.variables = list(variables)
        self.own_group = own_group

    @classmethod
    def of(
        cls, cwd: bytes, arguments: Sequence[bytes], environment: Mapping[bytes, bytes], *, own_group: bool
    ) -> Request:
        own = per_child(environment)
        variables = [(name, value) for name, value in environment.items() if name in own]
        return cls(shared_part(cwd, arguments, environment), variables, own_group=own_group)

    def server_name(self) -> str:
        """Return a name that is equal for all requests of one daemon that one server may answer."""
        return f"{int.from_bytes(self.shared, 'little') % _HASH_MODULUS:032x}"

    def encode(self) -> bytes:
        variables = [name + b"=" + value for name, value in self.variables]
        body = b"\0".join([_VERSION, b"1" if self.own_group else b"0", *variables, b"", self.shared])
        return b"%*d" % (LENGTH_BYTES, len(body)) + body

    @classmethod
    def decode(cls, body: bytes) -> Request:
        """Return the request in the bytes after the length. Raises ValueError."""
        head, _, shared = body.partition(b"\0\0")
        version, own_group, *variables = head.split(b"\0")
        if version != _VERSION:
            raise ValueError(f"request of version {version!r}")
        parts = [variable.partition(b"=") for variable in variables]
        return cls(shared, [(name, value) for name, _, value in parts], own_group=own_group == b"1")


def encode_record(what: str, number: int = 0) -> bytes:
    return f"{what} {number}".ljust(RECORD_BYTES - 1).encode() + b"\n"


def decode_record(record: bytes) -> tuple[str, int] | None:
    """Return what a record says, and its number; None if it was cut off, because the other side is gone."""
    if len(record) != RECORD_BYTES:
        return None
    what, number = record.decode().split()
    return what, int(number)


def process_identity(pid: int) -> tuple[int, int] | None:
    """Return the id and the time of the start, which together are never given twice; None if there is no such
    process.
    """
    try:
        handle = posix.open(f"/proc/{pid}/stat", posix.O_RDONLY | posix.O_CLOEXEC)
    except OSError:
        return None
    try:
        return pid, int(posix.read(handle, 4096).rpartition(b")")[2].split()[19])
    except (OSError, IndexError):
        return None
    finally:
        posix.close(handle)


def open_runtime_directory(directory: str) -> int:
    """Return a descriptor of the directory, which only this user can have made and written to. Raises MeetingError."""
    try:
        handle = posix.open(directory, _DIRECTORY_FLAGS)
    except OSError as error:
        raise MeetingError(f"{directory}: {error.strerror}") from None
    status = posix.fstat(handle)
    if status.st_uid != posix.getuid() or status.st_mode & 0o077:
        posix.close(handle)
        raise MeetingError(f"{directory} is not ours alone (owner {status.st_uid}, mode {status.st_mode & 0o777:o})")
    return handle


def socket_path(directory: str, name: str) -> str:
    return f"{directory}/{name}.sock"


def peer(connection: _socket.socket) -> tuple[int, int]:
    """Process and user id of the other end, as the kernel knows them."""
    raw = connection.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, 12)
    return int.from_bytes(raw[:4], sys.byteorder), int.from_bytes(raw[4:8], sys.byteorder)


def send_request(connection: _socket.socket, request: Request, descriptors: Sequence[int]) -> None:
    """Send a request on a connection that blocks, or that takes all of it at once. Raises OSError otherwise."""
    data = request.encode()
    packed = b"".join(descriptor.to_bytes(4, sys.byteorder) for descriptor in descriptors)
    sent = connection.sendmsg([data], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, packed)])
    if sent < len(data):
        connection.sendall(data[sent:])
