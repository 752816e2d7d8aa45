"""The protocol by which a fork server is asked for a child: the request, the answers, and the socket that carries them.

See docs/use/fork-server.md. A connection carries one request: a length, fields separated by NUL, and the descriptors of
standard input, output and error. Answers are records of a fixed size. The first says whether the child was forked; a
later one reports how the child ended.

This module imports only built-in modules of the interpreter, so that it is imported fast: the command `mld-zygote` uses
it, and is started once for each shard.
"""

from __future__ import annotations

import _socket
import posix
import sys
from collections.abc import Mapping, Sequence

from mld.protocol.meeting import MeetingError

PROGRAM = "mld-zygote"
OF_SHARD = frozenset({
    b"MLD_SHARD_ID", b"MLD_LEASE_KEY", b"MLD_ANCESTOR_SHARD_IDS", b"MLD_CHILD_NUMBER", b"MLD_CHILDREN_PER_SHARD",
    b"PWD", b"OLDPWD", b"SHLVL", b"_",
})  # fmt: skip
"""Environment variables that may always differ between the children of one server: variables about the shard, and
variables that shells set."""
STREAM_ID = b"MLD_STREAM_ID"
OF_STREAM = frozenset({STREAM_ID, b"MLD_STREAM_NAME", b"MLD_STREAM_ARN", b"MLD_STREAM_CREATED"})
"""Environment variables that may also differ if the application reads several streams; in that case `STREAM_ID` is set.
With one stream they must be equal, because a module may read the stream's name while it is imported."""
NAME_BYTES_MAX = 32 + len(".plain")
"""Length of the longest file name of a server in the directory that `meeting` finds: 32 hexadecimal digits
(`Request.server_name`) and a suffix."""
RECORD_BYTES = 16
LENGTH_BYTES = 8
REQUEST_BYTES_MAX = 8 * 1024 * 1024  # Linux allows an environment and arguments of 6 MiB
_DIRECTORY_FLAGS = posix.O_RDONLY | posix.O_DIRECTORY | posix.O_NOFOLLOW | posix.O_CLOEXEC
_HASH_MODULUS = 2**127 - 1  # a prime; the remainder serves as a hash, because hashlib takes time to import
_VERSION = b"1"
# Results of a request, in the first answer.
PID = "pid"  # the child runs, with this process id
PLAIN = "plain"  # this script cannot be forked, so start it as an ordinary process
STALE = "stale"  # the server's modules are out of date, or from another environment, so start a new server
# How a child ended, in the later answer.
EXIT = "exit"
SIGNAL = "signal"


def per_child(environment: Mapping[bytes, bytes]) -> frozenset[bytes]:
    """Return the environment variables that may differ between this child and others of its server."""
    return OF_SHARD | OF_STREAM if STREAM_ID in environment else OF_SHARD


def shared_part(cwd: bytes, arguments: Sequence[bytes], environment: Mapping[bytes, bytes]) -> bytes:
    """Return, as one text, everything that must be equal for all children of a server: the working directory, the
    arguments, and all environment variables except those of `per_child`.
    """
    own = per_child(environment)
    variables = sorted(name + b"=" + value for name, value in environment.items() if name not in own)
    return b"\0".join([cwd, *arguments, b"", *variables])


class Request:
    """A request to fork one child. With `own_group` the child leads a process group of its own; otherwise it joins that
    of the requesting process.

    `variables` may differ between children. `shared` is only compared as a whole. So the server does little for a
    request, which matters because whatever it does unshares memory pages that it shares with its children.
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
        """Make the request for a child with this working directory, these arguments and this environment."""
        own = per_child(environment)
        variables = [(name, value) for name, value in environment.items() if name in own]
        return cls(shared_part(cwd, arguments, environment), variables, own_group=own_group)

    def server_name(self) -> str:
        """Return the name of the server for this request: equal for all requests that one server may answer."""
        return f"{int.from_bytes(self.shared, 'little') % _HASH_MODULUS:032x}"

    def encode(self) -> bytes:
        """Return the bytes to send: the length of the body, and the body, whose fields are separated by NUL. An empty
        field divides the variables of this child from what all children of the server share.
        """
        variables = [name + b"=" + value for name, value in self.variables]
        body = b"\0".join([_VERSION, b"1" if self.own_group else b"0", *variables, b"", self.shared])
        return b"%*d" % (LENGTH_BYTES, len(body)) + body

    @classmethod
    def decode(cls, body: bytes) -> Request:
        """Parse the bytes after the length. Raises ValueError."""
        head, _, shared = body.partition(b"\0\0")
        version, own_group, *variables = head.split(b"\0")
        if version != _VERSION:
            raise ValueError(f"request of version {version!r}")
        parts = [variable.partition(b"=") for variable in variables]
        return cls(shared, [(name, value) for name, _, value in parts], own_group=own_group == b"1")


def encode_record(what: str, number: int = 0) -> bytes:
    """Return an answer of the server, RECORD_BYTES long: one of the words above, and a number that belongs to it."""
    return f"{what} {number}".ljust(RECORD_BYTES - 1).encode() + b"\n"


def decode_record(record: bytes) -> tuple[str, int] | None:
    """Return the word and the number of an answer; None if the answer is incomplete, because the other side is gone."""
    if len(record) != RECORD_BYTES:
        return None
    what, number = record.decode().split()
    return what, int(number)


def process_identity(pid: int) -> tuple[int, int] | None:
    """Return the id and the start time of a process, which together are never reused; None if no such process runs."""
    try:
        handle = posix.open(f"/proc/{pid}/stat", posix.O_RDONLY | posix.O_CLOEXEC)
    except OSError:
        return None
    try:
        # Field 22 is the start time. The second field is the program's name, which may contain blanks and brackets.
        return pid, int(posix.read(handle, 4096).rpartition(b")")[2].split()[19])
    except (OSError, IndexError):
        return None
    finally:
        posix.close(handle)


def open_runtime_directory(directory: str) -> int:
    """Open a directory and return its descriptor. Raises MeetingError unless the directory belongs to this user and is
    closed to all others.
    """
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
    """Return the process id and the user id of the process at the other end, as the kernel knows them."""
    raw = connection.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, 12)  # struct ucred: pid, uid, gid
    return int.from_bytes(raw[:4], sys.byteorder), int.from_bytes(raw[4:8], sys.byteorder)


def send_request(connection: _socket.socket, request: Request, descriptors: Sequence[int]) -> None:
    """Send a request with the descriptors. On a non-blocking connection, raises OSError if the socket does not take the
    whole request at once.
    """
    data = request.encode()
    packed = b"".join(descriptor.to_bytes(4, sys.byteorder) for descriptor in descriptors)
    sent = connection.sendmsg([data], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, packed)])
    if sent < len(data):
        connection.sendall(data[sent:])
