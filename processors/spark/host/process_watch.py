"""Notices when a process ends that is not a child of the session host: the daemon, or the JVM that PySpark started."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

WATCH_POLL_S = 0.5
"""How often a process is checked on systems without pidfd."""


def watch_process(loop: asyncio.AbstractEventLoop, pid: int, ended: Callable[[], None]) -> None:
    """Call `ended` on the loop when the process `pid` ends; at once if there is no such process. The end is noticed by
    a pidfd, or by polling on systems without pidfd.
    """
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        loop.call_soon(ended)
        return
    except (AttributeError, OSError):
        _poll_process(loop, pid, ended)
        return

    def over() -> None:
        """Close the pidfd, which has become readable because the process has ended, and call `ended`."""
        loop.remove_reader(handle)
        os.close(handle)
        ended()

    loop.add_reader(handle, over)


def _poll_process(loop: asyncio.AbstractEventLoop, pid: int, ended: Callable[[], None]) -> None:
    """Check again and again whether the process lives, and call `ended` when it does not."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        ended()
        return
    except PermissionError:  # another user's process, which lives
        pass
    loop.call_later(WATCH_POLL_S, _poll_process, loop, pid, ended)
