"""How a fork server is asked for a child: the request, its answers, and the socket on which they travel.

See docs/use/fork-server.md. One request travels on one connection: a length, NUL-separated fields, and the descriptors
of standard input, output and error. The answers are records of a fixed size: the first says what became of the request,
a later one reports the child's end.

It imports only modules that are part of the interpreter: a small program uses it that stands between another daemon and
the server, and starts 64 times when 64 shards do.
"""

from __future__ import annotations

import _socket
import posix
import sys
from collections.abc import Mapping, Sequence

from mld.protocol.meeting import MeetingError

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
