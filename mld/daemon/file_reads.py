"""`FileReads`: reads files of the configuration while the daemon runs, in a thread and within a time limit.

A file may be on a network mount, and a mount that hangs answers no read, for ever. On the event loop that would cost
the daemon its leases. The thread is not waited for at the end of the process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from mld.aws.threads import Job, Workers
from mld.core.errors import MldError

T = TypeVar("T")

READ_S_MAX = 10.0
"""Longest wait for a file, as for the checks of disks."""


class FileHangsError(MldError):
    """A file was not read within `READ_S_MAX`."""


class FileReads:
    """Reads one file after the other. While a read hangs, all that follow fail in the same way."""

    def __init__(self, name: str) -> None:
        self._threads = Workers(threads_max=1, name=name)
        self._turn = asyncio.Lock()  # held until the thread is free: nothing queues up behind a read that hangs

    async def run(self, read: Callable[[], T]) -> T:
        """Return what `read` returns in the thread. Raises FileHangsError, and what `read` raises."""
        limit = asyncio.timeout(READ_S_MAX)
        try:
            async with limit:
                await self._turn.acquire()
                value: T = await self._submit(read).value()
                return value
        except TimeoutError:  # of the limit, or an error of the mount itself
            if not limit.expired():
                raise
            why = f"it was not read within {READ_S_MAX:g} s: its disk or network mount hangs, or one that it names"
            raise FileHangsError(why) from None

    def _submit(self, read: Callable[[], T]) -> Job:
        """Give the read to the thread, which releases the lock `_turn` when the read ends, even if nobody waits for it
        any more. So a later read begins only when this one has ended.
        """
        try:
            return self._threads.submit(Job(lambda _: read(), at_end=self._turn.release))
        except BaseException:
            self._turn.release()
            raise
