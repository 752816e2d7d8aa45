"""The fork server: imports a script's modules once, and forks a child for each shard. See docs/use/fork-server.md.

It has a single thread, and blocks only while it reads a request, at most REQUEST_TIMEOUT_S. It ends when its owner (the
daemon) and all its children have ended, or after IDLE_S without children. During the imports it prints to the first
child's standard error, afterwards nowhere, because it must not keep a child's pipe open.

A stub is the process `mld-zygote` that the daemon started for a child (`stub.py`). A line is the connection of a stub
to this server, as a descriptor.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import _socket
import array
import atexit
import contextlib
import fcntl
import gc
import os
import select
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from mld.processors.zygote.fork_safety import gather, open_descriptors, why_not_fork
from mld.processors.zygote.forked import SERVER_FD_MIN, Script, ScriptError, become
from mld.processors.zygote.stub import version_of
from mld.protocol import fork_requests, meeting
from mld.protocol.fork_requests import Request

IDLE_S = 60.0  # time without children: a shard that comes back within it finds a server with its imports made
REQUEST_TIMEOUT_S = 5.0  # from the connection to the end of the request, which a stub sends at once
DESCRIPTORS = 3
_ANCILLARY_BYTES = _socket.CMSG_SPACE(DESCRIPTORS * array.array("i").itemsize)
KEPT_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
"""The server ignores these signals. If one is sent to the whole process group, it is meant for the children, and the
server ends by itself when its owner ends.
"""


@dataclass(slots=True)
class End:
    """How a child's script ended: the exit status, the connection to the stub, and the server's process id.

    The child itself reports its end if the server, its parent, is gone.
    """

    code: int = 1
    line: int | None = None
    server: int = 0


def main(socket_path: str, owner: tuple[int, int], arguments: list[str], listener_fd: int) -> None:
    """Make the script's imports and serve stubs. The server never returns from here; a child does, after its script.

    `owner` is the daemon, as pid and start time; `arguments` are the script and its own arguments; `listener_fd` is the
    socket at `socket_path`, which already listens.
    """
    end = End()
    atexit.register(_report_end, end)  # registered first, so that it is called last
    request_environment = dict(os.environb)
    listener = socket.socket(fileno=own(listener_fd, close=True))
    known = open_descriptors()
    gc.disable()  # a collection would write into pages that the children share
    try:
        script = Script(arguments)
        script.preimport()
        reason = why_not_fork(gather(known))
    except ScriptError:
        script, reason = None, ""
    server = Server(listener, socket_path, owner, arguments, request_environment)
    if script is None or reason is not None:
        server.refuse(reason or "")
    server.watch_files(script.file)
    forked = server.serve()
    end.server, end.line = forked
    try:
        script.run()
    except SystemExit as error:
        end.code = 0 if error.code is None else error.code if isinstance(error.code, int) else 1
        raise
    end.code = 0


def _report_end(end: End) -> None:
    """Report the end of this child to its stub if the server is gone.

    A server that lives waits for the child, and reports how the process really ended.
    """
    if end.line is not None and os.getppid() != end.server:
        with contextlib.suppress(OSError):
            os.write(end.line, fork_requests.encode_record(fork_requests.EXIT, end.code & 0xFF))


class Server:
    """Accepts stubs at a listening socket, and forks a child for each whose request fits our imports."""

    def __init__(
        self,
        listener: socket.socket,
        path: str,
        owner: tuple[int, int],
        arguments: Sequence[str],
        environment: dict[bytes, bytes],
    ) -> None:
        self._listener = listener
        self._path = Path(path)
        self._inode = self._inode_of_path()
        self._arguments = [os.fsencode(argument) for argument in arguments]
        self._shared = fork_requests.shared_part(os.getcwdb(), self._arguments, environment)  # noqa: PTH109
        self._uid = os.getuid()
        self._files: dict[str, tuple[int, int]] = {}  # path to version, see `watch_files`
        self._children: dict[int, tuple[int, int]] = {}  # pidfd to process and line (its stub's connection)
        self._owner_handle = self._open_owner(owner)
        self._poll = select.poll()
        self._stubs: dict[int, int] = {}  # line to process

    def refuse(self, reason: str) -> NoReturn:
        """Note that this version of the script is not forked, answer PLAIN to the stubs that wait, and exit.

        Warn with `reason`, unless it is empty. A stub that gets PLAIN, or finds the note, becomes a plain child.
        """
        if reason:
            script = self._arguments[0].decode(errors="replace")
            text = f"{fork_requests.PROGRAM}: {script} is not forked, {reason}; its children are plain ones"
            os.write(2, text.encode() + b"\n")
        with contextlib.suppress(OSError):
            self._path.with_suffix(".plain").write_bytes(version_of(self._arguments))
        self._withdraw()
        self._listener.settimeout(0)
        with contextlib.suppress(BlockingIOError):
            while True:
                connection, _ = self._listener.accept()
                with contextlib.suppress(OSError, ValueError):
                    receive(connection)
                    connection.sendall(fork_requests.encode_record(fork_requests.PLAIN))
                connection.close()
        os._exit(0)

    def watch_files(self, script: str) -> None:
        """Remember the versions of the script and of the user's own modules: those outside the installed packages."""
        installed = tuple({sys.prefix, sys.base_prefix, sys.exec_prefix})
        paths = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
        own = [path for path in paths if path and not path.startswith(installed)]
        self._files = {path: _version(path) for path in [script, *own]}

    def serve(self) -> tuple[int, int]:
        """Wait for stubs, and for the end of children, of stubs and of the owner, and act on each; fork a child for a
        stub whose request fits. Only a child returns: the server's process id, and the child's connection to its stub.
        The server exits here, once it has no children, its socket is withdrawn (`_inode` is None), and no stub waits.
        The socket is withdrawn after IDLE_S without children, when the owner has ended, or when files have changed.
        """
        self._leave_first_child()
        handlers = {int(number): _signal.getsignal(number) for number in KEPT_SIGNALS}
        for number in KEPT_SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        # The collector leaves frozen objects alone, so the children go on sharing their pages.
        # No collection before this: each child would use the memory that was freed, and so copy the pages around it.
        gc.freeze()
        self._listener.setblocking(False)
        self._poll.register(self._listener, select.POLLIN)
        if self._owner_handle is not None:
            self._poll.register(self._owner_handle, select.POLLIN)
        while self._children or self._inode is not None or select.select([self._listener], [], [], 0)[0]:
            ready = self._poll.poll(None if self._children else IDLE_S * 1000)
            if not ready:
                self._withdraw()
            for descriptor, _ in ready:
                if descriptor == self._listener.fileno():
                    if (line := self._accept(handlers)) is not None:
                        return os.getppid(), line
                elif descriptor == self._owner_handle:
                    self._withdraw()
                    meeting.remove(str(self._path.parent))  # no stub of that daemon will come again
                    self._poll.unregister(descriptor)
                elif descriptor in self._children:
                    self._child_ended(descriptor)
                elif descriptor in self._stubs:
                    self._poll.unregister(descriptor)
                    # This stub has ended before its child: kill the child.
                    os.kill(self._stubs.pop(descriptor), signal.SIGKILL)
        os._exit(0)

    # --- one request; little code, because children do not share the pages that are written between two forks ---------

    def _accept(self, handlers: Mapping[int, Any]) -> int | None:
        """Answer one stub. In the child, return the descriptor of its connection to the stub; in the server, None.

        `handlers` are the handlers of the signals that the server ignores; the child gets them back.
        """
        try:
            descriptor, _ = self._listener._accept()  # type: ignore[attr-defined]  # without the object around it
        except OSError:
            return None
        line = own(descriptor, close=True)
        connection = _socket.socket(fileno=line)
        descriptors: list[int] = []
        try:
            request, descriptors = receive(connection)
            pid, uid = fork_requests.peer(connection)
            if uid != self._uid or len(descriptors) != DESCRIPTORS:
                return None
            if not self._answers(request):
                connection.sendall(fork_requests.encode_record(fork_requests.STALE))
                return None
            forked = self._fork(request, 0 if request.own_group else os.getpgid(pid), descriptors, line, handlers)
            connection.detach()  # so `line` stays open in the server, for the report of the child's end
            return forked
        except (OSError, ValueError):
            return None
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
            connection.close()

    def _answers(self, request: Request) -> bool:
        """Return whether the request fits our imports: the same command, directory and environment, unchanged files.

        If files have changed, withdraw.
        """
        for path, version in self._files.items():
            if _version(path) != version:
                self._withdraw()
                return False
        return request.shared == self._shared

    def _fork(
        self, request: Request, group: int, descriptors: list[int], line: int, handlers: Mapping[int, Any]
    ) -> int | None:
        """Fork a child. Return its connection to the stub in the child, None in the server.

        If its stub is killed, the child is killed, too, unless it leads a process group of its own. If the owner ends,
        the child reads the end of its input. `descriptors` are the stub's standard streams; `group` is the process
        group that the child joins (0: a new one).
        """
        pid = os.fork()
        if pid == 0:
            try:
                kept = become(request, group, descriptors, line, handlers)
                self._listener.detach()  # `become` has closed its descriptor with the server's others
                return kept
            except BaseException:
                os._exit(1)
        try:
            handle = own(os.pidfd_open(pid), close=True)
        except OSError:  # no descriptor is left, and without one the end of the child would not be seen
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise
        self._children[handle] = pid, line
        self._poll.register(handle, select.POLLIN)
        if not request.own_group:
            self._stubs[line] = pid
            self._poll.register(line, 0)  # reports only that the stub has closed the connection
        return None

    # --- when a child or the owner ends ------------------------------------------------------------------------------

    def _child_ended(self, handle: int) -> None:
        """Report the end of a child to its stub."""
        pid, line = self._children.pop(handle)
        _, status = os.waitpid(pid, 0)
        if os.WIFSIGNALED(status):
            record = fork_requests.encode_record(fork_requests.SIGNAL, os.WTERMSIG(status))
        else:
            record = fork_requests.encode_record(fork_requests.EXIT, os.WEXITSTATUS(status))
        with contextlib.suppress(OSError):
            os.write(line, record)
        if self._stubs.pop(line, None) is not None:
            self._poll.unregister(line)
        self._poll.unregister(handle)
        os.close(line)
        os.close(handle)

    def _open_owner(self, owner: tuple[int, int]) -> int | None:
        """Return a descriptor that becomes readable when the owner ends. If it has ended, withdraw and return None."""
        with contextlib.suppress(OSError):
            handle = own(os.pidfd_open(owner[0]), close=True)
            if fork_requests.process_identity(owner[0]) == owner:  # otherwise another process has this pid by now
                return handle
            os.close(handle)
        self._withdraw()
        return None

    # --- how this server ends ----------------------------------------------------------------------------------------

    def _withdraw(self) -> None:
        """Remove our socket, so that no more stubs connect. Stubs that have connected already still get answers."""
        if self._inode is None:
            return
        with contextlib.suppress(OSError):
            lock = os.open(self._path.parent, os.O_RDONLY)
            try:
                # Without the lock a new server could take the name between the check and the removal.
                fcntl.flock(lock, fcntl.LOCK_EX)
                if self._inode_of_path() == self._inode:
                    self._path.unlink()
            finally:
                os.close(lock)
        self._inode = None

    def _inode_of_path(self) -> int | None:
        """Return the inode of the socket at our path; None if there is none."""
        try:
            return self._path.stat().st_ino
        except OSError:
            return None

    def _leave_first_child(self) -> None:
        """Close our copies of the first child's standard error, by which this server has printed so far."""
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        nowhere = os.open(os.devnull, os.O_RDWR)
        for descriptor in (1, 2):
            os.dup2(nowhere, descriptor)
        os.close(nowhere)


def receive(connection: _socket.socket) -> tuple[Request, list[int]]:
    """Return the request and its descriptors; the caller has to close them. Raises OSError or ValueError.

    A request is its length as decimal digits, and then as many bytes. The descriptors come with the first part.
    """
    connection.settimeout(REQUEST_TIMEOUT_S)
    data, ancillary, _, _ = connection.recvmsg(65536, _ANCILLARY_BYTES, _socket.MSG_CMSG_CLOEXEC)
    packed = b"".join(part for _, kind, part in ancillary if kind == _socket.SCM_RIGHTS)
    descriptors = array.array("i", packed).tolist()
    try:
        length = int(data[: fork_requests.LENGTH_BYTES])
        if not 0 < length <= fork_requests.REQUEST_BYTES_MAX:
            raise ValueError(f"a request of {length} bytes")
        body = data[fork_requests.LENGTH_BYTES :]
        while len(body) < length:
            if not (more := connection.recv(length - len(body))):
                raise ValueError("half a request")
            body += more
        return Request.decode(body), descriptors
    except (OSError, ValueError):
        for descriptor in descriptors:
            os.close(descriptor)
        raise


def own(descriptor: int, *, close: bool = False) -> int:
    """Return a copy of the descriptor, with a number in the server's own range (from SERVER_FD_MIN on), all of which a
    forked child closes. `close`: close the original.
    """
    moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, SERVER_FD_MIN)
    if close:
        os.close(descriptor)
    return moved


def _version(path: str) -> tuple[int, int]:
    """Return when a file was changed and how large it is, to notice changes; zeros if it is missing."""
    try:
        status = os.stat(path)  # noqa: PTH116
    except OSError:
        return 0, 0
    return status.st_mtime_ns, status.st_size
