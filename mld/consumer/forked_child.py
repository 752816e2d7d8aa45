"""`fork`: asks a running fork server for a child directly, instead of starting the command `mld-zygote`.

See docs/use/fork-server.md. The command `mld-zygote` works under any daemon: it asks the fork server for a child, and
then stands in for the child until the child ends. Here the daemon asks the server itself. That saves the process of
`mld-zygote`, some 7 ms of CPU and 0.1 MB for each child, more than the fork itself costs. Only a server that already
runs is asked. If no server runs, `fork` returns None, and the daemon runs the command. The command then starts a
server, or if that is impossible, the child itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import IO

from mld.protocol import fork_requests, meeting
from mld.protocol.fork_requests import Request
from mld.protocol.meeting import MeetingError

log = logging.getLogger(__name__)

ANSWER_TIMEOUT_S = 10.0  # a server that is still importing modules answers late, a stopped one never


class ForkedProcess:
    """A process that the fork server forked. It has those members of `subprocess.Popen` that `child` uses.

    It leads a process group of its own. Its parent is the server, which reports the exit on `connection`.
    """

    def __init__(self, pid: int, connection: socket.socket, pipes: Sequence[IO[bytes]]) -> None:
        self.pid = pid
        self.stdin, self.stdout, self.stderr = pipes
        self.returncode: int | None = None
        self._connection = connection

    def exit_handle(self) -> int:
        """Return a new descriptor that becomes readable when the process has exited."""
        return os.dup(self._connection.fileno())

    def poll(self) -> int | None:
        """Return the exit code, or the negative number of the signal that ended the process; None while it runs."""
        if self.returncode is None:
            with contextlib.suppress(BlockingIOError):
                self.returncode = _code(_receive(self._connection))
                self._connection.close()
        return self.returncode


def _receive(connection: socket.socket) -> bytes:
    """Return the server's next record; empty if the server has closed the connection."""
    try:
        return connection.recv(fork_requests.RECORD_BYTES)
    except ConnectionError:
        return b""


def _code(record: bytes) -> int:
    """Return the exit code that a record of the server reports, as `subprocess` does: negative for a signal."""
    match fork_requests.decode_record(record):
        case (fork_requests.EXIT, number):
            return number
        case (fork_requests.SIGNAL, number):
            return -number
    return -signal.SIGKILL  # the server is gone too: the status is lost


async def fork(command: Sequence[str], environment: Mapping[str, str]) -> ForkedProcess | None:
    """Have a fork server fork a child for this command, and return the child. Return None if the command is not
    `mld-zygote`, or if no server has forked a child; then the command must be run.
    """
    if PurePath(command[0]).name != fork_requests.PROGRAM or len(command) < 2:
        return None
    arguments = [os.fsencode(argument) for argument in command[1:]]
    variables = {os.fsencode(name): os.fsencode(value) for name, value in environment.items()}
    request = Request.of(os.getcwdb(), arguments, variables, own_group=True)  # noqa: PTH109
    connection = _connect(request, meeting.runtime_places(variables))
    if connection is None:
        return None
    with contextlib.ExitStack() as undo:
        undo.callback(connection.close)
        (stdin, stdout, stderr), child_ends = _pipes(undo)
        try:
            fork_requests.send_request(connection, request, child_ends)
            _close_all(child_ends)  # the server has copies of them
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                record = await asyncio.get_running_loop().sock_recv(connection, fork_requests.RECORD_BYTES)
        except (OSError, TimeoutError) as error:
            log.debug("the fork server does not answer: %r", error, extra={"action": "fork_unanswered"})
            return None
        if (answer := fork_requests.decode_record(record)) is None or answer[0] != fork_requests.PID:
            return None
        undo.pop_all()  # the child is there, so nothing is closed
        return ForkedProcess(answer[1], connection, (stdin, stdout, stderr))


def _close_all(descriptors: list[int]) -> None:
    """Close these descriptors, and empty the list, so that a second call closes nothing."""
    while descriptors:
        os.close(descriptors.pop())


def _connect(request: Request, places: Sequence[str]) -> socket.socket | None:
    """Return a connection to the fork server of this user that runs and can answer such requests; None if there is no
    such server. `places` are the directories in which it may have its socket.
    """
    owner = fork_requests.process_identity(os.getpid())
    directory = owner and meeting.find(fork_requests.PROGRAM, owner, places, fork_requests.NAME_BYTES_MAX)
    if directory is None:
        return None
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        os.close(fork_requests.open_runtime_directory(directory))  # raises unless only this user can use the directory
        connection.setblocking(False)
        connection.connect(fork_requests.socket_path(directory, request.server_name()))
        if fork_requests.peer(connection)[1] == os.getuid():
            return connection
    except (OSError, MeetingError):
        pass
    connection.close()
    return None


def _pipes(undo: contextlib.ExitStack) -> tuple[list[IO[bytes]], list[int]]:
    """Make three pipes, for stdin, stdout and stderr. Return our ends as files, and the child's ends as descriptors.
    `undo` gets callbacks that close all of them, in case the child cannot be forked.
    """
    child_ends: list[int] = []
    undo.callback(_close_all, child_ends)
    our_ends: list[IO[bytes]] = []
    for mode in ("wb", "rb", "rb"):
        read_end, write_end = os.pipe()
        our_end, child_end = (write_end, read_end) if mode == "wb" else (read_end, write_end)
        child_ends.append(child_end)
        our_ends.append(undo.enter_context(open(our_end, mode, buffering=0)))  # noqa: PTH123, SIM115
    return our_ends, child_ends
