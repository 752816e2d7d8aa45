"""Passes everything that is printed in a session host to the daemon's log, through a child.

While no child can take lines, the newest lines are kept. A line that is too long is cut.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import BinaryIO

from mld.processors.spark.link import TEXT_CHARS_MAX
from mld.processors.spark.sanitizing import Sanitizer

DELIVER_EVERY_S = 0.5
"""How often the host tries to pass on the lines that are kept."""
SAID_LINES_MAX = 1_000
"""How many lines are kept while no child can take them; then the oldest are dropped."""
TAG = "spark: "
LINE_BYTES_MAX = 16 * 1024


class PrintedLines:
    """Everything that Spark and the user's code print on standard output and error, each line with a tag.

    Creating an instance replaces both by a pipe, reads the pipe on a thread, and delivers its lines on `loop` until
    the process ends. `pass_on` gives lines to a child, and returns False if none can take them. `fit` removes secrets.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, pass_on: Callable[[str], bool], fit: Sanitizer) -> None:
        self._loop = loop
        self._fit = fit
        self._pass_on = pass_on
        self._kept: deque[str] = deque(maxlen=SAID_LINES_MAX)
        self._scheduled = False
        read, write = os.pipe()
        os.dup2(write, 1)
        os.dup2(write, 2)
        os.close(write)
        threading.Thread(target=self._pump, args=[os.fdopen(read, "rb")], daemon=True, name="printed").start()
        self._delivering = loop.create_task(self._keep_delivering())

    def _pump(self, pipe: BinaryIO) -> None:
        """Read printed lines until the pipe ends, on a thread of its own."""
        for line in bounded_lines(pipe):
            text = self._fit(line.decode("utf-8", "replace").rstrip("\r\n"))
            self._kept.append(f"{TAG}{text[:LINE_BYTES_MAX]}\n")
            if not self._scheduled:
                self._scheduled = True
                with suppress(RuntimeError):  # the loop is closed: we are at our end
                    self._loop.call_soon_threadsafe(self.deliver)

    def deliver(self) -> None:
        """Pass on the lines that are kept, in frames. Stop when no child can take them."""
        self._scheduled = False
        while self._kept:
            lines: list[str] = []
            size = 0
            while self._kept and (not lines or size + len(self._kept[0]) <= TEXT_CHARS_MAX):
                lines.append(self._kept.popleft())
                size += len(lines[-1])
            if not self._pass_on("".join(lines)):
                self._kept.extendleft(reversed(lines))
                return

    async def _keep_delivering(self) -> None:
        """Deliver again and again, because lines may have been printed while no child could take them."""
        while True:
            await asyncio.sleep(DELIVER_EVERY_S)
            self.deliver()


def bounded_lines(pipe: BinaryIO) -> Iterator[bytes]:
    """Yield the lines of a pipe. Of a line that is too long only the first LINE_BYTES_MAX bytes are yielded."""
    while line := pipe.readline(LINE_BYTES_MAX):
        yield line
        while line and not line.endswith(b"\n"):
            line = pipe.readline(LINE_BYTES_MAX)
