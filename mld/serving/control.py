"""`ControlServer`: the control socket, on which a daemon answers commands of its own user on this machine.

A caller sends one line of JSON, such as ``{"ask": "status"}``. It gets one line of JSON with ``answer`` or ``error``.
If it asked for a trace of a child's messages, more lines follow, until either side ends the connection. The server runs
on the daemon's event loop, like the HTTP server: if the loop hangs, no answer comes. Connections, sizes and times are
bounded, and callers that send no request or read no answer cannot keep other callers out. Only the daemon's user may
connect: the permissions of the socket's directory (`mld.core.control_place`) keep other users out, and the caller's
user id is checked as well. No request changes anything.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any

from mld.core import control_place
from mld.core.control_place import ControlPlace, SocketPeer
from mld.core.errors import MldError
from mld.serving.control_file import claimed, inode_of

log = logging.getLogger(__name__)

CONNECTIONS_MAX = 512  # open at the same time; if one more comes, the one that is silent longest is ended
OF_PROCESS_MAX = 16  # connections of one process, so that a program that connects without end cannot keep others out
ANSWERS_MAX = 32  # answers that are made and sent at the same time
WAIT_S = 5.0  # how long a request waits until its answer is begun
REQUEST_BYTES_MAX = 4 * 1024
REQUEST_TIMEOUT_S = 10.0  # for the caller to send its request
ANSWER_TIMEOUT_S = 30.0  # for the daemon to make an answer, and for the caller to read each line of it
UNREAD_S = 1.0  # for the caller to read its answer, while other requests wait for theirs

Request = Mapping[str, Any]
Answer = Mapping[str, Any] | bytes
"""An object, or its JSON: a large answer is encoded by the function that makes it, in steps."""
ControlRoute = Callable[[Request], AsyncGenerator[Answer, None]]
"""A function that answers one kind of request. The first value that it yields is the answer; further values are sent as
they come.
"""


class RequestRefused(MldError):
    """The request cannot be answered. The caller gets the text, with the reason and the remedy."""


class ControlServer:
    """Answers requests on a socket for this user alone. The word after "ask" in a request selects one of `routes`."""

    def __init__(self, routes: Mapping[str, ControlRoute]) -> None:
        self._routes = routes
        self._server: asyncio.Server | None = None
        self._handle: int | None = None
        """A descriptor of the directory in which the socket is."""
        self._place: ControlPlace | None = None
        self._inode: tuple[int, int] | None = None
        self._open: set[asyncio.Task[None]] = set()
        """The connections."""
        self._of_process: Counter[SocketPeer | None] = Counter()
        """How many connections each process has open."""
        self._silent: dict[asyncio.Task[None], None] = {}
        """The connections whose request has not come yet, the oldest first."""
        self._streaming: dict[asyncio.Task[None], None] = {}
        """The connections that have their answer and follow a stream, the oldest first."""
        self._free = asyncio.Semaphore(ANSWERS_MAX)
        self._waiting = 0
        """How many requests wait until fewer than `ANSWERS_MAX` answers are made and sent."""
        self._unread: dict[asyncio.Timeout, float] = {}
        """The time limits of the answers that are being sent, the oldest first, and when each answer was sent for
        `UNREAD_S` (in the loop's time).
        """

    async def start(self, place: ControlPlace, *, is_named: bool) -> str:
        """Listen at `place`, and return its path. If a socket is there already, replace it only if no process answers.

        `is_named`: an operator chose the place, so dead sockets of other daemons in its directory are not removed.
        Raises ControlPlaceError.
        """
        handle = control_place.open_directory(place.directory, os.geteuid(), make=True)
        try:
            listening = await claimed(handle, place, is_named=is_named)
        except BaseException:
            os.close(handle)
            raise
        self._handle, self._place = handle, place
        self._inode = inode_of(place.name, handle)
        self._server = await asyncio.start_unix_server(self._accept, sock=listening, limit=REQUEST_BYTES_MAX)
        return place.path

    @property
    def is_there(self) -> bool:
        """Whether the socket's file is still the one that this server made. A cleaner of /tmp may have removed it."""
        return self._place is not None and inode_of(self._place.path) == self._inode

    async def close(self) -> None:
        """Stop listening and end every connection."""
        self.stop_listening()
        for task in self._open:
            task.cancel()
        if self._open:
            await asyncio.wait(self._open)
        await asyncio.sleep(0)  # a closed transport releases its socket in the next turn of the loop

    def stop_listening(self) -> None:
        """Stop listening, and remove the socket's file if it is still ours. Open connections continue."""
        if self._server is not None:
            self._server.close()
            self._server = None
        if self._handle is not None and self._place is not None:
            if self._inode is not None and inode_of(self._place.name, self._handle) == self._inode:
                with contextlib.suppress(OSError):
                    os.unlink(self._place.name, dir_fd=self._handle)
            os.close(self._handle)
            self._handle = None

    # --- one connection -----------------------------------------------------------------------------------------------

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection, or drop it if there is no room for it or the caller is another user."""
        task = asyncio.current_task()
        assert task is not None
        peer = control_place.peer_of(writer.get_extra_info("socket"))
        if not _is_own(peer) or not self._has_room(peer):
            writer.transport.abort()
            return
        self._open.add(task)
        self._of_process[peer] += 1
        try:
            await self._serve(task, reader, writer)
        except (OSError, asyncio.CancelledError):
            pass  # the caller is gone or too slow, this connection made room, or this server stops: nothing can be sent
        finally:
            self._open.discard(task)
            self._of_process[peer] -= 1
            if not self._of_process[peer]:
                del self._of_process[peer]
            writer.close()

    def _has_room(self, peer: SocketPeer | None) -> bool:
        """Return whether one more connection of this process may be open, after another one has been ended for it if
        need be.
        """
        is_known = peer is not None and peer.pid > 0  # the pid is 0 if the process is outside of our container
        if is_known and self._of_process[peer] >= OF_PROCESS_MAX:
            return False
        return len(self._open) < CONNECTIONS_MAX or self._make_room()

    def _make_room(self) -> bool:
        """End the connection that has been silent longest, or the oldest stream if no connection is silent.

        A command sends its request as soon as it has connected, so it is read long before it would be the oldest of
        hundreds of silent connections. Return False if all connections wait for an answer.
        """
        for candidates in (self._silent, self._streaming):
            if candidates:
                oldest = next(iter(candidates))
                del candidates[oldest]
                oldest.cancel()
                return True
        return False

    async def _serve(
        self, task: asyncio.Task[None], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Read the request, and send the answer and the lines after it."""
        try:
            self._silent[task] = None
            try:
                request = _request_of(await _line(reader))
            finally:
                self._silent.pop(task, None)
            asked = request.get("ask")
            route = self._routes.get(asked) if isinstance(asked, str) else None
            if route is None:
                raise RequestRefused(f"ask for one of {', '.join(sorted(self._routes))}")
            await self._until_free()
        except RequestRefused as error:
            await _send(writer, _error(str(error)))
            return
        async with contextlib.aclosing(route(request)) as answers:
            try:
                value, is_answered = await _first(answers)
                await self._send_soon(writer, value)
            finally:
                self._free.release()  # acquired by `_until_free`
            if is_answered:
                self._streaming[task] = None
                try:
                    await _send_rest(answers, reader, writer)
                finally:
                    self._streaming.pop(task, None)

    async def _until_free(self) -> None:
        """Wait until fewer than ANSWERS_MAX answers are made and sent, and count the caller's as one of them.

        To make room, the oldest answer that is being sent gets a shorter time limit: it is given up UNREAD_S after its
        start. Raises RequestRefused if there is no room within WAIT_S.
        """
        while self._free.locked() and self._unread:
            limit = next(iter(self._unread))
            due_s = self._unread.pop(limit)
            if not limit.expired():  # else that answer is given up already, and its task has not noticed yet
                limit.reschedule(due_s)
                break
        self._waiting += 1
        try:
            async with asyncio.timeout(WAIT_S):
                await self._free.acquire()
        except TimeoutError:
            raise RequestRefused(f"ask again: {ANSWERS_MAX} other requests are being answered") from None
        finally:
            self._waiting -= 1

    async def _send_soon(self, writer: asyncio.StreamWriter, value: Answer) -> None:
        """Send an answer. While other requests wait for theirs, its caller has less time to read it. Raises
        TimeoutError.
        """
        now = asyncio.get_running_loop().time()
        limit = asyncio.timeout_at(now + (UNREAD_S if self._waiting else ANSWER_TIMEOUT_S))
        try:
            async with limit:
                self._unread[limit] = now + UNREAD_S
                writer.write(_encoded(value) + b"\n")
                await writer.drain()
        finally:
            self._unread.pop(limit, None)


async def _line(reader: asyncio.StreamReader) -> bytes:
    """Read the line with the caller's request. Raises RequestRefused if it is too long; TimeoutError."""
    try:
        async with asyncio.timeout(REQUEST_TIMEOUT_S):
            return await reader.readline()
    except ValueError:
        raise RequestRefused(f"a request has at most {REQUEST_BYTES_MAX} bytes") from None


def _request_of(line: bytes) -> Request:
    """Return the caller's request. Raises RequestRefused if it is no object in JSON."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise RequestRefused('a request is one line of JSON, such as {"ask": "status"}')
    return value


async def _first(answers: AsyncGenerator[Answer, None]) -> tuple[bytes, bool]:
    """Return the line with the answer, or with an error if none can be made in time, and whether it is an answer."""
    try:
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            return b'{"answer":' + _encoded(await anext(answers)) + b"}", True
    except RequestRefused as error:
        return _error(str(error)), False
    except TimeoutError:
        return _error(f"no answer within {ANSWER_TIMEOUT_S:g} s"), False
    except Exception:
        log.exception("cannot answer a command", extra={"action": "control_failed"})
        return _error("this answer failed; the daemon's log says why"), False


async def _send_rest(
    answers: AsyncGenerator[Answer, None], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Send the lines after the answer, until there are no more or the caller closes its side."""

    async def send_all() -> None:
        """Send all further lines."""
        async for value in answers:
            await _send(writer, value)

    async def until_caller_leaves() -> None:
        """Read and drop what the caller sends, until it closes its side."""
        while await reader.read(REQUEST_BYTES_MAX):
            pass

    tasks = {asyncio.ensure_future(send_all()), asyncio.ensure_future(until_caller_leaves())}
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        for outcome in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(outcome, Exception) and not isinstance(outcome, ConnectionError | TimeoutError):
                log.error("a stream ended unexpectedly", exc_info=outcome, extra={"action": "control_failed"})


async def _send(writer: asyncio.StreamWriter, value: Answer) -> None:
    """Send one line. Raises TimeoutError if the caller does not read it in time."""
    writer.write(_encoded(value) + b"\n")
    async with asyncio.timeout(ANSWER_TIMEOUT_S):
        await writer.drain()


def _encoded(value: Answer) -> bytes:
    return value if isinstance(value, bytes) else json.dumps(value, separators=(",", ":")).encode()


def _error(words: str) -> bytes:
    return _encoded({"error": words})


def _is_own(peer: SocketPeer | None) -> bool:
    """Return whether the caller is this user. Log a caller of another user."""
    if peer is None or peer.uid == os.geteuid():  # None: not known; the directory admits only this user
        return True
    log.warning(
        "a caller of another user is refused", extra={"action": "control_refused", "uid": peer.uid, "pid": peer.pid}
    )
    return False
