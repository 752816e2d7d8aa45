"""`Wired`: a connection while the event loop has it: requests go out and small answers come in without a thread.

Only what is simple is done here: a head with a length, a body of at most `BODY_BYTES_MAX`. Whatever else arrives is
left, with what was read of it, to a thread and `Connection.resume`, which knows all the rest of HTTP. A call that
crosses to a thread and back costs two wake-ups; at the tip of a stream that was a third of a poll.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable

from mld.aws.wire.connection import (
    Answer,
    BrokenAnswerError,
    Connection,
    NothingSentBackError,
    check_crc32,
    headers_of,
    length_of,
    may_be_kept,
    status_of,
)

BODY_BYTES_MAX = 8 * 1024
"""Of an answer that is made into values on the loop: 0.1 ms, and 1.5 ms where each record needs the slow way."""
HEAD_BYTES_MAX = 8 * 1024
READ_BYTES = HEAD_BYTES_MAX + BODY_BYTES_MAX
_GONE = (BrokenPipeError, ConnectionResetError, ssl.SSLEOFError)
_LATER = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class Large:
    """An answer for a thread to read; `ahead` is what has come of it."""

    __slots__ = ("ahead",)

    def __init__(self, ahead: bytes) -> None:
        self.ahead = ahead


def answer_in(data: bytes) -> tuple[Answer, bool] | Large | int:
    """The answer that `data` is, and whether its connection can be used again; or how many bytes it will have at least.

    Raises BrokenAnswerError.
    """
    head, end, body = data.partition(b"\r\n\r\n")
    if not end:
        return Large(data) if b"\n\n" in data or len(data) >= HEAD_BYTES_MAX else len(data) + 1
    first, *lines = head.split(b"\r\n")
    status, headers = status_of(first), headers_of(lines)
    length_text = headers.get(b"content-length")
    if length_text is None or status < 200 or b"transfer-encoding" in headers:
        return Large(data)
    length = length_of(length_text)
    if length > BODY_BYTES_MAX:
        return Large(data)
    if len(body) < length:
        return len(data) + length - len(body)
    keep = len(body) == length and may_be_kept(headers)
    body = body[:length]
    check_crc32(headers, body)
    return Answer(status, headers, body), keep


class Wired:
    """Has `connection`, and calls `lost` when that ends while it is idle. Used on one loop, for one call at a time."""

    def __init__(self, connection: Connection, lost: Callable[[], None]) -> None:
        self.connection = connection
        self._loop = asyncio.get_running_loop()
        self._socket = connection.socket
        self._fd = connection.socket.fileno()
        self._is_tls = isinstance(connection.socket, ssl.SSLSocket)
        self._lost = lost
        self._answer: asyncio.Future[tuple[Answer, bool] | Large] | None = None
        self._data = b""
        self._wanted = 0
        self._unsent = b""
        self._has_fd = True
        self._loop.add_reader(self._fd, self._readable)

    @property
    def is_good(self) -> bool:
        """Whether it has not ended since it was used."""
        return self._has_fd and not self.connection.is_stale()

    async def exchange(self, request: bytes, *, timeout_s: float) -> tuple[Answer, bool] | Large:
        """An answer, and whether the connection can be used again.

        Raises NothingSentBackError, and whatever else went wrong; after that and a cancellation `close` is due, after
        `Large` a `release`.
        """
        assert self._answer is None, "one call at a time"
        self._data, self._wanted = b"", 1
        self._answer = self._loop.create_future()
        answer = self._answer
        timer = self._loop.call_later(timeout_s, self.fail, TimeoutError("the read operation timed out"))
        try:
            self._send(request)
            return await answer
        finally:
            timer.cancel()
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
        if self._has_fd:
            self._has_fd = False
            self._loop.remove_reader(self._fd)
            self._loop.remove_writer(self._fd)

    def _send(self, request: bytes) -> None:
        try:
            sent = self._socket.send(request)
        except _LATER:
            sent = 0
        except _GONE as error:
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

    def _read(self, answer: asyncio.Future[tuple[Answer, bool] | Large]) -> None:
        try:
            data = self._socket.recv(READ_BYTES)
        except _LATER:
            return
        except _GONE as error:
            self.fail(self._ended(f"{type(error).__name__}: {error}"))
            return
        if not data:
            self.fail(self._ended("the server has closed the connection"))
            return
        self._data = self._data + data if self._data else data
        if len(self._data) >= self._wanted:
            self._look(answer)
        if self._is_tls and not answer.done() and self._socket.pending():  # type: ignore[attr-defined]
            self._loop.call_soon(self._readable_again, answer)

    def _look_while_idle(self) -> None:
        try:
            self._socket.recv(1)
        except _LATER:
            return  # TLS talks to itself
        except Exception:
            self._lost()
            return
        self._lost()

    def _readable_again(self, answer: asyncio.Future[tuple[Answer, bool] | Large]) -> None:
        """What is decrypted already makes no socket readable."""
        if self._answer is answer and self._has_fd:
            self._readable()

    def _look(self, answer: asyncio.Future[tuple[Answer, bool] | Large]) -> None:
        found = answer_in(self._data)
        if isinstance(found, int):
            self._wanted = found
        elif self._unsent:  # the other end has answered before it has heard all: what follows would be out of step
            raise BrokenAnswerError("an answer to half a request")
        else:
            if isinstance(found, Large):
                self._let_go_of_fd()  # before more arrives
            answer.set_result(found)

    def _ended(self, reason: str) -> Exception:
        if self._data:
            return BrokenAnswerError("the answer is cut off")
        return NothingSentBackError(reason)
