"""`LoopConnection`: a connection of the event loop, where requests go out and small answers come in without a thread.

A large answer, and one whose length is not announced, is left to a thread and `Connection.receive` as soon as its head
is known. A call that crosses to a thread and back costs two wake-ups: at the tip of a stream, a third of a poll.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable

from mld.aws.wire.answers import Answer, BrokenAnswerError, Incoming, NothingSentBackError
from mld.aws.wire.connection import GONE, LATER, Connection
from mld.core.waits import LazyTimer

BODY_BYTES_MAX = 8 * 1024
"""Of an answer that is made into values on the loop: 0.1 ms, and 1.5 ms where each record needs the slow way."""
READ_BYTES = 2 * BODY_BYTES_MAX


class LoopConnection:
    """Has `connection`, and calls `lost` when that ends while it is idle. Used on one loop, for one call at a time."""

    def __init__(self, connection: Connection, lost: Callable[[], None]) -> None:
        self.connection = connection
        self._loop = asyncio.get_running_loop()
        self._socket = connection.socket
        self._fd = connection.socket.fileno()
        self._is_tls = isinstance(connection.socket, ssl.SSLSocket)
        self._lost = lost
        self._answer: asyncio.Future[Answer | Incoming] | None = None
        self._incoming = Incoming()
        self._unsent = b""
        self._timer = LazyTimer(lambda: self.fail(TimeoutError("the read operation timed out")))
        self._has_fd = True
        self._loop.add_reader(self._fd, self._readable)

    @property
    def is_good(self) -> bool:
        """Whether it has not ended since it was used."""
        return self._has_fd and not self.connection.is_stale()

    async def exchange(self, request: bytes, *, timeout_s: float) -> Answer | Incoming:
        """Return an answer, or as much of a large one as has come, with which a thread goes on after `release`.

        Raises NothingSentBackError, and whatever else went wrong; after that and a cancellation `close` is due.
        """
        assert self._answer is None, "one call at a time"
        self._incoming = Incoming()
        self._answer = self._loop.create_future()
        answer = self._answer
        self._timer.begin(timeout_s)
        try:
            self._send(request)
            return await answer
        finally:
            self._timer.end()
            self._answer = None
            if answer.done() and not answer.cancelled():
                answer.exception()  # of one who was cancelled meanwhile; fetched so that nobody reports it

    def fail(self, error: Exception) -> None:
        """Give whoever waits for an answer this error instead."""
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)

    def release(self) -> Connection:
        """Leave the connection to a thread."""
        self._let_go_of_fd()
        self.connection.take_back()
        return self.connection

    def close(self) -> None:
        self._let_go_of_fd()
        self.connection.close()

    # --- on the loop -------------------------------------------------------------------------------------------------

    def _let_go_of_fd(self) -> None:
        self._timer.close()
        if self._has_fd:
            self._has_fd = False
            self._loop.remove_reader(self._fd)
            self._loop.remove_writer(self._fd)

    def _send(self, request: bytes) -> None:
        try:
            sent = self._socket.send(request)
        except LATER:
            sent = 0
        except GONE as error:
            self.fail(NothingSentBackError(f"{type(error).__name__}: {error}"))
            return
        if sent < len(request):
            self._unsent = request[sent:]
            self._loop.add_writer(self._fd, self._writable)

    # Callbacks of the loop have nobody above them: whatever is raised in one goes to the one who waits for the answer.

    def _writable(self) -> None:
        try:
            self._loop.remove_writer(self._fd)
            unsent, self._unsent = self._unsent, b""
            if self._answer is not None and not self._answer.done():
                self._send(unsent)
        except Exception as error:
            self.fail(error)

    def _readable(self) -> None:
        answer = self._answer
        try:
            if answer is None:
                self._look_while_idle()
            elif not answer.done():  # else about to be taken, or to be closed
                self._read(answer)
        except Exception as error:
            self.fail(error)

    def _read(self, answer: asyncio.Future[Answer | Incoming]) -> None:
        try:
            data = self._socket.recv(READ_BYTES)
        except LATER:
            return
        except GONE as error:
            raise self._incoming.cut_off(f"{type(error).__name__}: {error}") from error
        if not data:
            self._incoming.end()
        self._feed(data, answer)
        if self._is_tls and not answer.done() and self._socket.pending():  # type: ignore[attr-defined]
            self._loop.call_soon(self._readable_again, answer)

    def _look_while_idle(self) -> None:
        try:
            self._socket.recv(1)
        except LATER:
            return  # TLS talks to itself
        except Exception:
            self._lost()
            return
        self._lost()

    def _readable_again(self, answer: asyncio.Future[Answer | Incoming]) -> None:
        """Report it readable again: what is decrypted already makes no socket readable."""
        if self._answer is answer and self._has_fd:
            self._readable()

    def _feed(self, data: bytes, answer: asyncio.Future[Answer | Incoming]) -> None:
        incoming = self._incoming
        found = incoming.feed(data)
        is_small = incoming.length is not None and incoming.length <= BODY_BYTES_MAX
        if found is None and (is_small or not incoming.status):
            return
        if self._unsent:  # the other end has answered before it has heard all: what follows would be out of step
            raise BrokenAnswerError("an answer to half a request")
        if found is None:
            self._let_go_of_fd()  # before more arrives
        answer.set_result(incoming if found is None else found)
