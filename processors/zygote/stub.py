"""The command ``mld-zygote script.py``: asks the fork server for a child, and represents the child to the daemon.

See docs/use/fork-server.md.

It starts once per shard, so it imports only modules that are built into the interpreter. It has to wait as long as its
child lives, so it replaces itself by a shell of 0.1 MB, which passes signals to the child and ends as the child does.
If no child can be forked, it replaces itself by a plain child: Python running the script.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import _socket
import posix
import sys
from typing import NoReturn

from mld.protocol import fork_requests, meeting
from mld.protocol.fork_requests import Request
from mld.protocol.meeting import MeetingError

ATTEMPTS_MAX = 3  # a server may end just when it is asked; if that happens each time, start a plain child
BACKLOG = 1024  # connections that may wait while the server imports; Linux limits it to net.core.somaxconn
SHELL = "/bin/sh"
CONNECTION_FD = 3  # in the shell the connection to the server; in a new server the listening socket
# This shell waits for the line that reports how the child ended. The child is in our process group, so a signal to the
# group reaches the child directly; a signal to this process alone is passed on. If the connection ends without a line,
# server and child are gone, and it is not known how the child ended: the shell then kills itself.
WAIT = f"""
trap 's=1; kill -TERM $1' TERM
trap 's=1; kill -USR1 $1' USR1
trap 's=1; kill -USR2 $1' USR2
trap '' HUP INT QUIT
while s=; ! read -r what number <&{CONNECTION_FD}; do
    [ "$s" ] || {{ what=signal; number=9; break; }}
done
[ "$what" = exit ] && exit "$number"
ulimit -c 0
trap - TERM USR1 USR2 HUP INT QUIT
kill -"$number" $$
exit $((128 + number))
"""


class Forks:
    """Asks the server for a fork of one command, and starts the server if there is none."""

    def __init__(self, arguments: list[bytes], environment: dict[bytes, bytes], library: str) -> None:
        self._arguments = arguments
        self._environment = environment
        self._request = request = Request.of(posix.getcwdb(), arguments, environment, own_group=False)
        self._library = library
        owner = fork_requests.process_identity(posix.getppid())
        if owner is None:
            raise MeetingError("the parent process cannot be seen in /proc")
        self._owner = owner
        self._places = meeting.runtime_places(environment)
        self._directory = meeting.meet(fork_requests.PROGRAM, owner, self._places, fork_requests.NAME_BYTES_MAX)
        self._name = request.server_name()
        self._path = fork_requests.socket_path(self._directory, self._name)

    def ask(self) -> tuple[_socket.socket, str, int] | None:
        """Return the connection and the server's answer (kind and number). Return None if a server has noted that this
        script is not to be forked.

        Raises MeetingError."""
        for _ in range(ATTEMPTS_MAX):
            connection = self._connect() or self._start()
            if connection is None:
                return None
            if fork_requests.peer(connection)[1] != posix.getuid():
                raise MeetingError(f"{self._path} belongs to another user")
            try:
                fork_requests.send_request(connection, self._request, (0, 1, 2))
                record = fork_requests.decode_record(connection.recv(fork_requests.RECORD_BYTES, _socket.MSG_WAITALL))
            except OSError:
                record = None
            # No answer means that nothing was forked, because a child would hold the connection and answer by itself.
            if record is not None and record[0] != fork_requests.STALE:
                return connection, *record
            connection.close()
        raise MeetingError("the fork server ends whenever it is asked")

    def _connect(self) -> _socket.socket | None:
        """Return a connection to the server; None if none listens."""
        connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
        try:
            connection.connect(self._path)
        except OSError:
            connection.close()
            return None
        return connection

    def _start(self) -> _socket.socket | None:
        """Start a server unless another stub has just done so, and return a connection to it. Return None if the server
        cannot be reached, or if a server has noted that this script is not to be forked."""
        import fcntl

        lock = fork_requests.open_runtime_directory(self._directory)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if self._is_refused():
                return None
            if (connection := self._connect()) is None:
                self._remove_leftovers()
                self._spawn()
                connection = self._connect()
            return connection
        finally:
            posix.close(lock)

    def _is_refused(self) -> bool:
        """Return whether a server has noted that this version of the script is not to be forked."""
        try:
            handle = posix.open(f"{self._directory}/{self._name}.plain", posix.O_RDONLY | posix.O_CLOEXEC)
        except OSError:
            return False
        noted = posix.read(handle, 256)
        posix.close(handle)
        return noted == version_of(self._arguments)

    def _remove_leftovers(self) -> None:
        """Remove the socket of a server that was killed, and the directories of daemons that are gone."""
        try:  # noqa: SIM105 - contextlib would have to be imported
            posix.unlink(self._path)
        except OSError:
            pass
        for owner, directory in meeting.meetings(fork_requests.PROGRAM, self._places):
            if fork_requests.process_identity(owner[0]) != owner:
                meeting.remove(directory)

    def _spawn(self) -> None:
        """Start a server on a socket that already listens, so that stubs can ask while the server still imports."""
        listener = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
        mask = posix.umask(0o177)  # only this user may connect
        try:
            listener.bind(self._path)
            listener.listen(BACKLOG)
        except OSError as error:
            raise MeetingError(f"{self._path}: {error.strerror}") from None
        finally:
            posix.umask(mask)
        # The server's input is a pipe that has ended; its output goes to the first child's standard error.
        empty, end = posix.pipe()
        posix.close(end)
        arguments = [sys.executable, f"{self._library}/mld/processors/zygote/__main__.py", "--serve", self._path]
        owner = [str(part) for part in self._owner]
        # The server serves other children, too, so it does not get the variables of this one.
        own = fork_requests.per_child(self._environment)
        environment = {name: value for name, value in self._environment.items() if name not in own}
        try:
            posix.posix_spawn(
                sys.executable,
                [*map(str.encode, [*arguments, *owner]), *self._arguments],
                environment,
                file_actions=[
                    (posix.POSIX_SPAWN_DUP2, empty, 0),
                    (posix.POSIX_SPAWN_DUP2, 2, 1),
                    (posix.POSIX_SPAWN_DUP2, listener.fileno(), CONNECTION_FD),
                ],
                setpgroup=0,
            )
        except OSError as error:
            posix.unlink(self._path)
            raise MeetingError(f"{sys.executable}: {error.strerror}") from None
        finally:
            posix.close(empty)
            listener.close()


def version_of(arguments: list[bytes]) -> bytes:
    """Return bytes that change whenever the script's file changes. For a module (``-m``) they are constant, because
    its file is not known here."""
    try:
        status = posix.stat(arguments[0])
    except OSError:
        return b"-"
    return b"%d %d %d %d" % (status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size)


def main(library: str) -> NoReturn:
    """Run the command: ask the server for a fork, and become the shell that waits for it; or become a plain child.
    This never returns: `_plain` and `_wait` replace the process, and `_end_as` ends it.

    The server's answer has the connection, a kind and a number: PLAIN (no fork), PID with the child's process id, or,
    if the child has already ended, EXIT or SIGNAL with its exit status or signal. `library` is the directory of our
    packages.
    """
    # Python ignores these signals; the program that replaces us must not.
    for number in (_signal.SIGPIPE, _signal.SIGXFSZ):
        _signal.signal(number, _signal.SIG_DFL)
    arguments = [argument.encode(sys.getfilesystemencoding(), "surrogateescape") for argument in sys.argv[1:]]
    if not arguments or (arguments[0].startswith(b"-") and arguments[0] != b"-m"):
        _warn("usage: mld-zygote script.py [argument ...] or mld-zygote -m module [argument ...]")
        posix._exit(2)
    try:
        answer = Forks(arguments, posix.environ, library).ask()
    except MeetingError as error:
        _warn(f"no fork server, a plain child instead: {error}")
        _plain(arguments)
    if answer is None or answer[1] == fork_requests.PLAIN:
        _plain(arguments)
    connection, kind, number = answer
    if kind == fork_requests.PID:
        _wait(connection, number)
    _end_as(kind, number)


def _plain(arguments: list[bytes]) -> NoReturn:
    """Replace this process by a plain child: Python running the script."""
    posix.execv(sys.executable, [sys.executable.encode(), *arguments])


def _wait(connection: _socket.socket, pid: int) -> NoReturn:
    """Replace this process by a shell that waits for the child and passes signals to it."""
    nowhere = posix.open("/dev/null", posix.O_RDWR)
    for number in (_signal.SIGHUP, _signal.SIGINT, _signal.SIGQUIT):
        _signal.signal(number, _signal.SIG_DFL)  # a shell cannot trap a signal that was ignored when the shell started
    for descriptor in (0, 1, 2):  # only the child may hold these streams, because the daemon waits for their end
        posix.dup2(nowhere, descriptor)
    posix.dup2(connection.detach(), CONNECTION_FD, inheritable=True)
    posix.set_inheritable(CONNECTION_FD, True)  # `dup2` does nothing if the connection has this number already
    posix.execv(SHELL, ["sh", "-c", WAIT, fork_requests.PROGRAM, str(pid)])


def _end_as(what: str, number: int) -> NoReturn:
    """End in the same way as the child, which the server has reported: by a signal, or with an exit status.

    For a child that had ended before this process could become the shell that waits for it.
    """
    if what == fork_requests.SIGNAL:
        if number not in (_signal.SIGKILL, _signal.SIGSTOP):
            _signal.signal(number, _signal.SIG_DFL)
        posix.kill(posix.getpid(), number)
    posix._exit(number)


def _warn(text: str) -> None:
    posix.write(2, f"{fork_requests.PROGRAM}: {text}\n".encode(sys.getfilesystemencoding(), "surrogateescape"))
