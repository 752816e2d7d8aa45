"""`WireFrames`: reads the frames of one event stream from a socket that it has to itself, on the event loop.

The connection was made, and the head of the answer read, in a thread; here nothing blocks. Reading stops while whole
frames wait to be taken (`AHEAD_BYTES`), so that the sender is held up by the connection's own flow control. A turn of
the loop reads at most `TURN_BYTES`.
"""

from __future__ import annotations

import asyncio
import socket
import ssl

from mld.aws.wire.answers import BrokenAnswerError, Frame, FrameStream

READ_BYTES = 64 * 1024
TURN_BYTES = 256 * 1024
"""Some 0.2 ms, with TLS 0.5 ms."""
AHEAD_BYTES = 64 * 1024
"""Of whole frames that wait; the one under way comes on top of it."""


class WireFrames:
    """Owns `plain_or_tls`, which is connected; `first` was read from it already. Used on one loop only."""

    def __init__(self, plain_or_tls: socket.socket, first: bytes, *, chunked: bool) -> None:
        self._loop = asyncio.get_running_loop()
        self._socket = plain_or_tls
        self._socket.setblocking(False)
        self._chunked = chunked
        self._stream = FrameStream(chunked=chunked)
        self._failure: Exception | None = None
        self._ended = False
        self._waiter: asyncio.Future[None] | None = None
        self._is_reading = False
        self._closed = False
        self._feed(first)
        self._read_on()

    async def next(self) -> Frame | None:
        """Return the next frame; None at the end of the answer. Raises OSError or BrokenAnswerError.

        One caller at a time. May be cancelled without loss.
        """
        while True:
            frame = self._stream.take()
            self._read_on()
            if frame is not None:
                return frame
            if self._failure is not None:
                raise self._failure
            if self._ended:
                return None
            self._waiter = self._loop.create_future()
            await self._waiter

    def close(self) -> None:
        """Close the source. May be called again; a caller of `next` gets an error."""
        if self._closed:
            return
        self._closed = True
        self._over(BrokenAnswerError("the subscription was closed"))
        self._socket.close()

    # --- reading -----------------------------------------------------------------------------------------------------

    def _read_on(self) -> None:
        if self._is_reading or self._ended or self._is_full:
            return
        self._is_reading = True
        self._loop.add_reader(self._socket.fileno(), self._readable)
        self._look_again()

    def _stop_reading(self) -> None:
        if self._is_reading:
            self._is_reading = False
            self._loop.remove_reader(self._socket.fileno())

    @property
    def _is_full(self) -> bool:
        return self._stream.waiting_bytes >= AHEAD_BYTES

    def _readable(self) -> None:
        if not self._is_reading:
            return
        try:
            self._read_turn()
        except (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            pass
        except Exception as error:  # nobody is above a callback of the loop but the one who waits
            self._over(error)
            return
        if self._is_full:
            self._stop_reading()
        if self._stream.frames:
            self._wake()

    def _read_turn(self) -> None:
        is_tls = isinstance(self._socket, ssl.SSLSocket)
        left = TURN_BYTES
        while left > 0 and not self._is_full and not self._ended:
            data = self._socket.recv(READ_BYTES)
            if not data:
                self._at_eof()
                return
            self._feed(data)
            if not is_tls and len(data) < READ_BYTES:
                return  # there is no more, most likely
            left -= len(data)
        if is_tls:
            self._look_again()

    def _look_again(self) -> None:
        """Look again: what is decrypted already makes no socket readable."""
        if self._is_reading and isinstance(self._socket, ssl.SSLSocket) and self._socket.pending():
            self._loop.call_soon(self._readable)

    def _feed(self, data: bytes) -> None:
        try:
            self._stream.feed(data)
        except BrokenAnswerError as error:
            self._over(error)
            return
        if self._stream.is_complete:
            self._over(None if self._stream.is_between_frames else BrokenAnswerError("the last event is cut off"))

    def _at_eof(self) -> None:
        """End the body: an answer without announced length ends with its connection; every other one is cut off."""
        if self._chunked or not self._stream.is_between_frames:
            self._over(BrokenAnswerError("the server has closed the connection in the middle of the answer"))
        else:
            self._over(None)

    def _over(self, failure: Exception | None) -> None:
        """Stop reading; frames that are whole can still be taken."""
        if not self._ended:
            self._stop_reading()
            self._ended = True
            self._failure = failure
        self._wake()

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
