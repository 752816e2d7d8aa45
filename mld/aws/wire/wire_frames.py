"""`WireFrames`: reads the frames of one event stream from a socket, on the event loop and without blocking."""

from __future__ import annotations

import asyncio
import socket
import ssl

from mld.aws.wire.chunks import BrokenAnswerError
from mld.aws.wire.frame_stream import Frame, FrameStream

READ_BYTES = 64 * 1024
TURN_BYTES = 256 * 1024
"""Most bytes that are read in one turn of the loop. That takes some 0.2 ms, with TLS 0.5 ms."""
AHEAD_BYTES = 64 * 1024
"""Reading stops when whole frames of this many bytes wait to be taken. The frame under way is not counted."""


class WireFrames:
    """Reads frames from a connected socket, on one loop.

    Reading stops while whole frames wait to be taken (`AHEAD_BYTES`), so that TCP slows the sender down. A turn of the
    loop reads at most `TURN_BYTES`.
    """

    def __init__(self, plain_or_tls: socket.socket, first: bytes, *, chunked: bool) -> None:
        """Begin to read from the socket, which this object owns from now on. `first` are the bytes of the body that
        were read from it before; with `chunked` the body comes in chunks.
        """
        self._loop = asyncio.get_running_loop()
        self._socket = plain_or_tls
        self._socket.setblocking(False)
        self._chunked = chunked
        self._stream = FrameStream(chunked=chunked)
        self._failure: Exception | None = None  # why the stream ended, if not in order
        self._ended = False
        self._waiter: asyncio.Future[None] | None = None  # the caller of `next`, if it waits
        self._is_reading = False
        self._closed = False
        self._feed(first)
        self._resume_reading()

    async def next(self) -> Frame | None:
        """Return the next frame; None at the end of the answer. Raises OSError or BrokenAnswerError.

        Only one caller may wait at a time. It may be cancelled; no frame is lost then.
        """
        while True:
            frame = self._stream.take()
            self._resume_reading()
            if frame is not None:
                return frame
            if self._failure is not None:
                raise self._failure
            if self._ended:
                return None
            self._waiter = self._loop.create_future()
            await self._waiter

    def close(self) -> None:
        """Close the socket. May be called again; a caller of `next` gets an error."""
        if self._closed:
            return
        self._closed = True
        self._finish(BrokenAnswerError("the subscription was closed"))
        self._socket.close()

    # --- reading -----------------------------------------------------------------------------------------------------

    def _resume_reading(self) -> None:
        """Begin to read again, unless enough frames wait or the stream has ended."""
        if self._is_reading or self._ended or self._is_full:
            return
        self._is_reading = True
        self._loop.add_reader(self._socket.fileno(), self._readable)
        self._look_again()

    def _stop_reading(self) -> None:
        """Make the loop stop watching the socket; nothing is read until `_resume_reading`."""
        if self._is_reading:
            self._is_reading = False
            self._loop.remove_reader(self._socket.fileno())

    @property
    def _is_full(self) -> bool:
        return self._stream.waiting_bytes >= AHEAD_BYTES

    def _readable(self) -> None:
        """Read what has arrived, at most `TURN_BYTES`; wake the caller of `next` if a frame is complete."""
        if not self._is_reading:
            return
        try:
            self._read_turn()
        except (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            pass
        except Exception as error:  # nobody catches what a callback raises, so the caller of `next` gets it
            self._finish(error)
            return
        if self._is_full:
            self._stop_reading()
        if self._stream.frames:
            self._wake()

    def _read_turn(self) -> None:
        """Read what has come, up to the limit of one turn of the loop. Raises an error of the socket."""
        is_tls = isinstance(self._socket, ssl.SSLSocket)
        left = TURN_BYTES
        while left > 0 and not self._is_full and not self._ended:
            data = self._socket.recv(READ_BYTES)
            if not data:
                self._at_eof()
                return
            self._feed(data)
            if not is_tls and len(data) < READ_BYTES:
                return  # most likely nothing more has come
            left -= len(data)
        if is_tls:
            self._look_again()

    def _look_again(self) -> None:
        """Make the loop read again if TLS has decrypted bytes: for these it does not report the socket as readable."""
        if self._is_reading and isinstance(self._socket, ssl.SSLSocket) and self._socket.pending():
            self._loop.call_soon(self._readable)

    def _feed(self, data: bytes) -> None:
        """Cut bytes into frames, and note the end of the stream if they contain it."""
        try:
            self._stream.feed(data)
        except BrokenAnswerError as error:
            self._finish(error)
            return
        if self._stream.is_complete:
            self._finish(None if self._stream.is_between_frames else BrokenAnswerError("the last event is cut off"))

    def _at_eof(self) -> None:
        """Note that the server has closed the connection. That is the ordinary end only for a body without chunks."""
        if self._chunked or not self._stream.is_between_frames:
            self._finish(BrokenAnswerError("the server has closed the connection in the middle of the answer"))
        else:
            self._finish(None)

    def _finish(self, failure: Exception | None) -> None:
        """Stop reading, and note how the stream has ended. Frames that are whole can still be taken."""
        if not self._ended:
            self._stop_reading()
            self._ended = True
            self._failure = failure
        self._wake()

    def _wake(self) -> None:
        """Wake the caller of `next`, if one waits."""
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
