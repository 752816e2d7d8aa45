"""What surrounds a host: the processes it watches, what is printed in it, and what it leaves behind."""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from mld.processors.spark.batch.running import FILE as RUNNING
from mld.processors.spark.link import LOCK_FILE, SOCKET_FILE, TEXT_CHARS_MAX, all_directories, started_at
from mld.processors.spark.settings import Sanitizer

WATCH_POLL_S = 0.5
"""How often to look: at processes, where the system has no pidfd; and for a child that can take printed lines."""
SAID_LINES_MAX = 1_000
"""Lines kept while there is no child to pass them to."""
TAG = "spark: "
LINE_BYTES_MAX = 16 * 1024
HOST_LOCK = "host.lock"


def watch_process(loop: asyncio.AbstractEventLoop, pid: int, ended: Callable[[], None]) -> None:
    """Call `ended` when a process ends that is not our child, or is PySpark's."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        loop.call_soon(ended)
        return
    except (AttributeError, OSError):
        _poll_process(loop, pid, ended)
        return

    def over() -> None:
        loop.remove_reader(handle)
        os.close(handle)
        ended()

    loop.add_reader(handle, over)


def _poll_process(loop: asyncio.AbstractEventLoop, pid: int, ended: Callable[[], None]) -> None:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        ended()
        return
    except PermissionError:  # it is another user's
        pass
    loop.call_later(WATCH_POLL_S, _poll_process, loop, pid, ended)


class PrintedLines:
    """Everything that is printed on standard output and error, Spark's and the user's, tagged, towards a child."""

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
        for line in bounded_lines(pipe):
            said = self._fit(line.decode("utf-8", "replace").rstrip("\r\n"))
            self._kept.append(f"{TAG}{said[:LINE_BYTES_MAX]}\n")
            if not self._scheduled:
                self._scheduled = True
                with suppress(RuntimeError):  # the loop is closed: we are at our end
                    self._loop.call_soon_threadsafe(self.deliver)

    def deliver(self) -> None:
        """Pass on what there is, as much as a frame takes at once; what no child can take is kept, the newest of
        it."""
        self._scheduled = False
        while self._kept:
            some: list[str] = []
            size = 0
            while self._kept and (not some or size + len(self._kept[0]) <= TEXT_CHARS_MAX):
                some.append(self._kept.popleft())
                size += len(some[-1])
            if not self._pass_on("".join(some)):
                self._kept.extendleft(reversed(some))
                return

    async def _keep_delivering(self) -> None:
        """Deliver until the loop ends: a child may come, or find time, when nothing is printed."""
        while True:
            await asyncio.sleep(WATCH_POLL_S)
            self.deliver()


def bounded_lines(pipe: BinaryIO) -> Iterator[bytes]:
    """Yield the lines of a pipe; of one that is too long, or never ends, the beginning."""
    while line := pipe.readline(LINE_BYTES_MAX):
        yield line
        while line and not line.endswith(b"\n"):
            line = pipe.readline(LINE_BYTES_MAX)


def clear(directory: Path, *, daemon_lives: bool) -> None:
    """Leave only what the next host of the same daemon is found and locked by, and what was running."""
    if not daemon_lives:
        shutil.rmtree(directory, ignore_errors=True)
        return
    for entry in directory.iterdir() if directory.is_dir() else ():
        if entry.name in (LOCK_FILE, HOST_LOCK, SOCKET_FILE, RUNNING):
            continue
        if entry.is_dir():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            entry.unlink(missing_ok=True)


def sweep() -> None:
    """Remove what hosts that were killed have left behind: their daemons are gone, and nobody holds their lock."""
    for (pid, start_time), directory in all_directories():
        if started_at(pid) == str(start_time):
            continue
        with suppress(OSError), hold(directory, wait=False):
            shutil.rmtree(directory, ignore_errors=True)


def hold(directory: Path, *, wait: bool = True) -> BinaryIO:
    """Lock the directory as that of a living host, for as long as the file given back is open."""
    lock = (directory / HOST_LOCK).open("ab")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException:
        lock.close()
        raise
    return lock
