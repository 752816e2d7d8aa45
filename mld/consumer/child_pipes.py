"""The pipes of a child. `ChildInput` writes its stdin without blocking the loop; `ChildOutput` reads stdout or stderr.

Rules: protocol#child-outputs. `ChildInput.write` returns when the pipe has taken the whole piece. Reading an output can
be paused, so that a child cannot print faster than its lines are handled.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
from collections.abc import Callable
from typing import IO, cast

PIPE_BYTES = 256 * 1024
"""Size of the stdin pipe. With a large pipe the system switches less often between daemon and child. When all pipes of
a user take 64 MiB, Linux does not enlarge further pipes beyond 64 KiB."""
F_SETPIPE_SZ = 1031  # Linux's number for "set the size of a pipe"


class ChildInput:
    """A child's stdin. Pieces go straight into the pipe, without a buffer of ours."""

    def __init__(self, pipe: IO[bytes]) -> None:
        self._pipe = pipe
        self._loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[None] | None = None  # the writer that waits for room in the pipe
        os.set_blocking(pipe.fileno(), False)
        with contextlib.suppress(OSError):  # the user's limit is used up, or this is not Linux; any size will do
            fcntl.fcntl(pipe, F_SETPIPE_SZ, PIPE_BYTES)

    def write_now(self, piece: bytes) -> memoryview:
        """Write as much of the piece as the pipe takes without waiting, and return the rest. If the pipe is closed, the
        rest is the whole piece; `write` will raise the error.
        """
        rest = memoryview(piece)
        if self._waiter is None and not self._pipe.closed:
            with contextlib.suppress(OSError):
                rest = rest[os.write(self._pipe.fileno(), rest) :]
        return rest

    async def write(self, piece: bytes | memoryview) -> None:
        """Write a piece; one writer at a time. Raises BrokenPipeError if the child, or `close`, has closed the pipe."""
        rest = memoryview(piece)
        while True:
            if self._pipe.closed:
                raise BrokenPipeError("the child's stdin is closed")
            with contextlib.suppress(BlockingIOError):
                rest = rest[os.write(self._pipe.fileno(), rest) :]
            if not rest:
                return
            await self._room()

    async def _room(self) -> None:
        """Wait until the pipe has room, or is closed."""
        assert self._waiter is None, "one writer at a time"
        waiter = self._waiter = self._loop.create_future()
        self._loop.add_writer(self._pipe, _wake, waiter)
        try:
            await waiter
        finally:
            self._waiter = None
            if not self._pipe.closed:
                self._loop.remove_writer(self._pipe)

    def close(self) -> None:
        """Close stdin. The child can still read the bytes that are in the pipe, and then finds the end of its input.
        Idempotent.
        """
        if self._pipe.closed:
            return
        if self._waiter is not None:
            self._loop.remove_writer(self._pipe)
            _wake(self._waiter)
        self._pipe.close()


def _wake(waiter: asyncio.Future[None]) -> None:
    """Wake the writer that waits for room, unless it was woken or cancelled before."""
    if not waiter.done():
        waiter.set_result(None)


class ChildOutput(asyncio.Protocol):
    """A child's stdout or stderr: passes the bytes of the pipe, and its end, to two callbacks."""

    def __init__(self, pipe: IO[bytes], on_bytes: Callable[[bytes], None], on_end: Callable[[], None]) -> None:
        self._pipe = pipe
        self._on_bytes = on_bytes
        self._on_end = on_end
        self._transport: asyncio.ReadTransport | None = None

    async def connect(self) -> None:
        await asyncio.get_running_loop().connect_read_pipe(lambda: self, self._pipe)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.ReadTransport", transport)

    def data_received(self, data: bytes) -> None:
        self._on_bytes(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._on_end()

    def pause(self) -> None:
        if self._transport is not None:
            self._transport.pause_reading()

    def resume(self) -> None:
        if self._transport is not None:
            self._transport.resume_reading()

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def close(self) -> None:
        (self._transport or self._pipe).close()
