"""`LoopConnection`: a connection on the event loop, for one call at a time.

The loop sends requests and receives small answers. An answer that is large, or whose length is not announced, is left
to a thread as soon as its head is known (`Connection.receive`). A small answer stays on the loop, because handing a
call to a thread and back costs two wake-ups: a third of the cost of a poll at the tip of a stream.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable

from mld.aws.wire.answers import Answer, Incoming, NothingSentBackError
from mld.aws.wire.chunks import BrokenAnswerError
from mld.aws.wire.connection import GONE, LATER, Connection
from mld.core.waits import LazyTimer

BODY_BYTES_MAX = 8 * 1024
"""Largest answer that is parsed on the loop. That takes 0.1 ms, or 1.5 ms if every record needs the slow parser."""
READ_BYTES = 2 * BODY_BYTES_MAX


class LoopConnection:
    """A connection that is used on one loop, for one call at a time."""

    def __init__(self, connection: Connection, lost: Callable[[], None]) -> None:
        """Watch `connection` on the running loop from now on, and call `lost` if it ends between two calls."""
        self.connection = connection
        self._loop = asyncio.get_running_loop()
        self._socket = connection.socket
        self._fd = connection.socket.fileno()
        self._is_tls = isinstance(connection.socket, ssl.SSLSocket)
        self._lost = lost
        self._answer: asyncio.Future[Answer | Incoming] | None = None
        """The answer for which the exchange under way waits; None between two calls."""
        self._incoming = Incoming()  # the parser of this answer
        self._head_only = False
        self._unsent = b""
        """The part of the request that the socket has not taken yet."""
        self._timeout_s = 0.0
        self._timer = LazyTimer(lambda: self.fail(TimeoutError(f"no answer within {self._timeout_s:g} s")))
        self._has_fd = True
        """Whether the loop watches the socket."""
        self._loop.add_reader(self._fd, self._readable)

    @property
    def is_good(self) -> bool:
        """Whether the connection is still open, as far as can be seen."""
        return self._has_fd and not self.connection.is_stale()

    async def exchange(self, request: bytes, *, timeout_s: float, head_only: bool = False) -> Answer | Incoming:
        """Send a request, and return the answer.

        If the answer is large, or with `head_only`, return the part that has come (`Incoming`). The caller then calls
        `release`, and a thread receives the rest. Raises NothingSentBackError or any other Exception. After an error or
        a cancellation, call `close`.
        """
        assert self._answer is None, "one call at a time"
        self._incoming, self._head_only = Incoming(), head_only
        self._answer = self._loop.create_future()
        answer = self._answer
        self._timeout_s = timeout_s
        self._timer.begin(timeout_s)
        try:
            self._send(request)
            return await answer
        finally:
            self._timer.end()
            self._answer = None
            if answer.done() and not answer.cancelled():
                answer.exception()  # the caller was cancelled; asyncio would log an error that is never fetched

    def fail(self, error: Exception) -> None:
        """Make the exchange under way raise `error`."""
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)

    def release(self) -> Connection:
        """Return the connection for use in a thread. This object is of no use any more."""
        self._let_go_of_fd()
        self.connection.take_back()
        return self.connection

    def close(self) -> None:
        self._let_go_of_fd()
        self.connection.close()

    # --- on the loop -------------------------------------------------------------------------------------------------

    def _let_go_of_fd(self) -> None:
        """Make the loop stop watching the socket."""
        self._timer.close()
        if self._has_fd:
            self._has_fd = False
            self._loop.remove_reader(self._fd)
            self._loop.remove_writer(self._fd)

    def _send(self, request: bytes) -> None:
        """Send what the socket takes now. The loop sends the rest when the socket is writable."""
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

    # Nobody catches an error that a callback of the loop raises. So `_writable` and `_readable` pass the error to the
    # caller that waits for the answer.

    def _writable(self) -> None:
        """Send more of a request that did not fit into the socket at once."""
        try:
            self._loop.remove_writer(self._fd)
            unsent, self._unsent = self._unsent, b""
            if self._answer is not None and not self._answer.done():
                self._send(unsent)
        except Exception as error:
            self.fail(error)

    def _readable(self) -> None:
        """Read what has arrived: a part of an answer, or while the connection is idle, a sign that the other end has
        closed it.
        """
        answer = self._answer
        try:
            if answer is None:
                self._look_while_idle()
            elif not answer.done():  # else its caller is about to take it, or to close the connection
                self._read(answer)
        except Exception as error:
            self.fail(error)

    def _read(self, answer: asyncio.Future[Answer | Incoming]) -> None:
        """Read bytes of the answer, and parse them. Raises the error that ends the exchange."""
        try:
            data = self._socket.recv(READ_BYTES)
        except LATER:
            return
        except GONE as error:
            raise self._incoming.cut_off(f"{type(error).__name__}: {error}") from error
        if not data:
            self._incoming.end()  # raises if the answer is not whole; else a thread is given it, and finds the end, too
        self._feed(data, answer)
        if self._is_tls and not answer.done() and self._socket.pending():  # type: ignore[attr-defined]
            self._loop.call_soon(self._readable_again, answer)

    def _look_while_idle(self) -> None:
        """Report the connection as lost if bytes or an end arrive while no call uses it."""
        try:
            self._socket.recv(1)
        except LATER:
            return  # it was a message of TLS itself
        except Exception:
            self._lost()
            return
        self._lost()

    def _readable_again(self, answer: asyncio.Future[Answer | Incoming]) -> None:
        """Read bytes that TLS has already decrypted: for these the loop does not report the socket as readable."""
        if self._answer is answer and self._has_fd:
            self._readable()

    def _feed(self, data: bytes, answer: asyncio.Future[Answer | Incoming]) -> None:
        """Parse bytes of the answer. If it is whole, end the exchange with it. If a thread has to read the rest, end
        the exchange with the part that has come. Else return, and wait for more bytes.
        """
        incoming = self._incoming
        if self._head_only:  # the loop reads the head, and a thread everything after it
            found, is_for_loop = None, not incoming.feed_head(data)
        else:
            found = incoming.feed(data)
            is_for_loop = incoming.length is not None and incoming.length <= BODY_BYTES_MAX
        if found is None and (is_for_loop or not incoming.status):
            return
        if self._unsent:  # if we sent the rest later, the server would take it for the beginning of the next request
            raise BrokenAnswerError("an answer to half a request")
        if found is None:
            self._let_go_of_fd()  # whatever arrives from now on is for the thread
        answer.set_result(incoming if found is None else found)
