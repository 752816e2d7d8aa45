"""A child process with deadlines: bytes out, lines in, and a certain end. Knows no protocol."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import signal
from asyncio.subprocess import PIPE, Process
from collections import deque
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager, suppress

from mld.protocol.codec import LineSplitter
from mld.protocol.command import shell_command

READ_BYTES = 64 * 1024
LINES_WAITING_MAX = 1000
"""A child that floods us is not read further until its lines are handled."""
ERROR_LINES_MAX = 8
REAP_S = 5.0
"""Longest wait after SIGKILL, when only the kernel can delay the end."""


class CommandStartError(Exception):
    """The command cannot be started."""


class ExaminedChild:
    """One running process. Use `started`."""

    def __init__(self, process: Process) -> None:
        assert process.stdin and process.stdout and process.stderr
        self._process = process
        self._stdin, self._stdout, self._stderr = process.stdin, process.stdout, process.stderr
        self._lines: asyncio.Queue[str | None] = asyncio.Queue(LINES_WAITING_MAX)
        self._ended = False
        self.error_lines: deque[str] = deque(maxlen=ERROR_LINES_MAX)
        self._tasks = [asyncio.create_task(self._read_output()), asyncio.create_task(self._read_errors())]

    @property
    def ended(self) -> bool:
        """Whether the end of the output was read."""
        return self._ended

    async def write(self, pieces: Iterable[bytes]) -> None:
        """Write all pieces. Does not raise for a closed pipe, which shows as the end of output or as silence."""
        with suppress(BrokenPipeError, ConnectionResetError):
            for piece in pieces:
                self._stdin.write(piece)
                await self._stdin.drain()

    async def read_line(self, deadline_s: float) -> str | None:
        """Return the next line, None at the end of output. Raises TimeoutError at `deadline_s` of the loop's clock."""
        if self._ended:
            return None
        async with asyncio.timeout_at(deadline_s):
            line = await self._lines.get()
        self._ended = line is None
        return line

    def waiting_line(self) -> str | None:
        """Return a line that has already arrived; None if there is none."""
        with suppress(asyncio.QueueEmpty):
            line = self._lines.get_nowait()
            self._ended = self._ended or line is None
            return line
        return None

    async def end_input(self) -> None:
        with suppress(BrokenPipeError, ConnectionResetError):
            self._stdin.close()

    async def wait(self, timeout_s: float) -> int | None:
        """Return the exit status (negative: a signal), None if it still runs or its output is still open."""
        try:
            async with asyncio.timeout(timeout_s):
                while not self._ended:
                    self._ended = await self._lines.get() is None
                return await self._process.wait()
        except TimeoutError:
            return None

    async def kill(self) -> None:
        """End the process and all others of its group, whatever they do."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        # The public interface cannot let go of pipes that a process outside the group keeps open.
        self._process._transport.close()  # type: ignore[attr-defined]
        with suppress(TimeoutError):
            async with asyncio.timeout(REAP_S):
                await self._process.wait()

    async def _read_output(self) -> None:
        splitter = LineSplitter()
        while data := await self._stdout.read(READ_BYTES):
            for line in splitter.feed(data):
                await self._lines.put(line)
        for line in splitter.eof():
            await self._lines.put(line)
        await self._lines.put(None)

    async def _read_errors(self) -> None:
        splitter = LineSplitter()
        while data := await self._stderr.read(READ_BYTES):
            self.error_lines.extend(splitter.feed(data))
        self.error_lines.extend(splitter.eof())


@asynccontextmanager
async def started(command: Sequence[str]) -> AsyncIterator[ExaminedChild]:
    """Run the command in a process group of its own, killed at the end. Raises CommandStartError."""
    try:
        child = ExaminedChild(await _start(command))
    except (OSError, ValueError) as error:
        raise CommandStartError(f"{error}") from error
    try:
        yield child
    finally:
        await child.kill()


async def _start(command: Sequence[str]) -> Process:
    try:
        return await _exec(command)
    except OSError as error:
        path = shutil.which(command[0])
        if error.errno != errno.ENOEXEC or path is None:
            raise
        return await _exec(shell_command(path, command))


async def _exec(command: Sequence[str]) -> Process:
    return await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, stderr=PIPE, start_new_session=True)
