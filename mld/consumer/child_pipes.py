"""The pipes of a child: its stdin, written without blocking the loop, and its stdout, read line by line.

Rules: protocol#child-outputs. `write` returns when the pipe has everything; a child that prints faster than its lines
are read is paused.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
from collections.abc import Callable
from typing import IO, cast

PIPE_BYTES = 256 * 1024  # of stdin: fewer process switches; Linux allows a user 64 MiB, then pipes stay at 64 KiB
F_SETPIPE_SZ = 1031


class ChildInput:
    """stdin: pieces go straight into the pipe, without a buffer of ours; `write` returns when the pipe has them."""

    def __init__(self, pipe: IO[bytes]) -> None:
        self._pipe = pipe
        self._loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[None] | None = None
        os.set_blocking(pipe.fileno(), False)
        with contextlib.suppress(OSError):  # beyond what one user may have in pipes, or not Linux: any size will do
            fcntl.fcntl(pipe, F_SETPIPE_SZ, PIPE_BYTES)

    def write_now(self, piece: bytes) -> memoryview:
        """Return what the pipe has no room for, without waiting; all of the piece if it is closed, which `write`
        reports.
        """
        rest = memoryview(piece)
        if self._waiter is None and not self._pipe.closed:
            with contextlib.suppress(OSError):
                rest = rest[os.write(self._pipe.fileno(), rest) :]
        return rest

    async def write(self, piece: bytes | memoryview) -> None:
        """Write, one writer at a time. Raises BrokenPipeError if the child, or `close`, has closed it."""
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
        """Wait until the pipe takes more, or is closed."""
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
        """End of input for the child, which can still read what is in the pipe. Idempotent."""
        if self._pipe.closed:
            return
        if self._waiter is not None:
            self._loop.remove_writer(self._pipe)
            _wake(self._waiter)
        self._pipe.close()


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


class ChildOutput(asyncio.Protocol):
    """Passes the bytes of a pipe, and its end, to two callbacks."""

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
