"""`ControlServer`: the control socket, on which a daemon answers commands of its own user on this machine.

A caller sends one line of JSON, such as ``{"ask": "status"}``. It gets one line of JSON with ``answer`` or ``error``.
If it asked for a trace of a child's messages, more lines follow, until either side ends the connection. The server runs
on the daemon's event loop, like the HTTP server: if the loop hangs, no answer comes. Connections, sizes and times are
bounded, and a slow caller delays no other. Only the daemon's user may connect: the permissions of the socket's
directory (`mld.core.control_place`) keep other users out, and the caller's user id is checked as well. No request
changes anything.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any

from mld.core import control_place
from mld.core.control_place import ControlPlace
from mld.core.errors import MldError
from mld.serving.control_file import claimed, inode_of

log = logging.getLogger(__name__)

CONNECTIONS_MAX = 32  # served at the same time
WAITING_MAX = 256  # connections that wait to be served; more are closed at once
WAIT_S = 5.0  # how long a connection waits to be served
REQUEST_BYTES_MAX = 4 * 1024
REQUEST_TIMEOUT_S = 10.0  # for the caller to send its request
SILENT_S = 1.0  # the same, while other connections wait to be served
ANSWER_TIMEOUT_S = 30.0  # for the daemon to make an answer, and for the caller to read each line of it

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
        self._free = asyncio.Semaphore(CONNECTIONS_MAX)
        self._waiting = 0
        self._silent: dict[asyncio.Timeout, float] = {}
        """The time limits of the connections that are served and have sent no request, the oldest first, and when each
        has been silent for `SILENT_S`.
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
        """Serve one connection when there is room for it, or drop it if too many wait or the caller is another user.

        If there is no room, the connection that has been silent longest is ended, but not before `SILENT_S`. So
        connections that ask for nothing cannot keep a command out, and if many commands come at once, all are answered.
        """
        task = asyncio.current_task()
        assert task is not None
        if (self._free.locked() and self._waiting >= WAITING_MAX) or not _is_own(writer):
            writer.transport.abort()
            return
        self._open.add(task)
        try:
            if self._free.locked() and self._silent:
                limit = next(iter(self._silent))
                limit.reschedule(self._silent.pop(limit))
            await self._until_free()
            try:
                await self._serve(reader, writer)
            finally:
                self._free.release()
        except (OSError, asyncio.CancelledError):
            pass  # the caller is gone or too slow, or this server stops: nothing can be sent
        finally:
            self._open.discard(task)
            writer.close()

    async def _until_free(self) -> None:
        """Wait until fewer than CONNECTIONS_MAX connections are served. Raises TimeoutError."""
        self._waiting += 1
        try:
            async with asyncio.timeout(WAIT_S):
                await self._free.acquire()
        finally:
            self._waiting -= 1

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Read the request, and send the answer and the lines after it."""
        try:
            request = _request_of(await self._line(reader))
            asked = request.get("ask")
            route = self._routes.get(asked) if isinstance(asked, str) else None
            if route is None:
                raise RequestRefused(f"ask for one of {', '.join(sorted(self._routes))}")
            answers = route(request)
        except RequestRefused as error:
            await _send(writer, {"error": str(error)})
            return
        async with contextlib.aclosing(answers):
            if await _send_first(answers, writer):
                await _send_rest(answers, reader, writer)

    async def _line(self, reader: asyncio.StreamReader) -> bytes:
        """Read the line with the caller's request. Raises RequestRefused if it is too long; TimeoutError."""
        now = asyncio.get_running_loop().time()
        limit = asyncio.timeout_at(now + (SILENT_S if self._waiting else REQUEST_TIMEOUT_S))
        try:
            async with limit:
                self._silent[limit] = now + SILENT_S
                return await reader.readline()
        except ValueError:
            raise RequestRefused(f"a request has at most {REQUEST_BYTES_MAX} bytes") from None
        finally:
            self._silent.pop(limit, None)


def _request_of(line: bytes) -> Request:
    """Return the caller's request. Raises RequestRefused if it is no object in JSON."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise RequestRefused('a request is one line of JSON, such as {"ask": "status"}')
    return value


async def _send_first(answers: AsyncGenerator[Answer, None], writer: asyncio.StreamWriter) -> bool:
    """Send the answer, or an error if it cannot be made in time. Return whether more lines may follow."""
    is_answered = False
    try:
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            value = b'{"answer":' + _encoded(await anext(answers)) + b"}"
            is_answered = True
    except RequestRefused as error:
        value = _error(str(error))
    except TimeoutError:
        value = _error(f"no answer within {ANSWER_TIMEOUT_S:g} s")
    except Exception:
        log.exception("cannot answer a command", extra={"action": "control_failed"})
        value = _error("this answer failed; the daemon's log says why")
    await _send(writer, value)
    return is_answered


async def _send_rest(
    answers: AsyncGenerator[Answer, None], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Send the lines after the answer, until there are no more or the caller closes its side."""

    async def send_all() -> None:
        async for value in answers:
            await _send(writer, value)

    async def until_caller_leaves() -> None:
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
    writer.write(_encoded(value) + b"\n")
    async with asyncio.timeout(ANSWER_TIMEOUT_S):
        await writer.drain()


def _encoded(value: Answer) -> bytes:
    return value if isinstance(value, bytes) else json.dumps(value, separators=(",", ":")).encode()


def _error(words: str) -> bytes:
    return _encoded({"error": words})


def _is_own(writer: asyncio.StreamWriter) -> bool:
    """Return whether the caller is this user. Log a caller of another user."""
    peer = control_place.peer_of(writer.get_extra_info("socket"))
    if peer is None or peer.uid == os.geteuid():
        return True
    log.warning(
        "a caller of another user is refused", extra={"action": "control_refused", "uid": peer.uid, "pid": peer.pid}
    )
    return False
