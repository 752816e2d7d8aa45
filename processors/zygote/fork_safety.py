"""Decides for the fork server whether its process may be forked: not if it has threads, children, or open sockets or
pipes.
"""

from __future__ import annotations

import contextlib
import os
import stat
import threading
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Facts:
    """What a process has: Python threads, kernel threads, open sockets and pipes, and whether it has children."""

    python_threads: int
    kernel_threads: int
    shared_descriptors: int
    has_children: bool


def why_not_fork(facts: Facts) -> str | None:
    """Return why the process must not be forked, in words; None if it may be.

    A thread exists only in the parent, so a lock that it holds stays locked in the child for ever. Several children
    that use one connection would mix their bytes. A process that an import has started would belong to no child.
    """
    if max(facts.python_threads, facts.kernel_threads) > 1:
        return f"its imports start threads ({max(facts.python_threads, facts.kernel_threads) - 1} running)"
    if facts.shared_descriptors:
        return f"its imports open sockets or pipes ({facts.shared_descriptors})"
    if facts.has_children:
        return "its imports start processes"
    return None


def gather(known: frozenset[int]) -> Facts:
    """Return the facts of this process; the descriptors in `known` do not count."""
    return Facts(
        python_threads=threading.active_count(),
        kernel_threads=len(list(Path("/proc/self/task").iterdir())),
        shared_descriptors=sum(map(_is_shared, open_descriptors() - known)),
        has_children=_has_children(),
    )


def open_descriptors() -> frozenset[int]:
    """Return the open file descriptors of this process."""
    listed = [int(path.name) for path in Path("/proc/self/fd").iterdir()]
    # The descriptor of the listing itself is in the list, but closed by now.
    return frozenset(number for number in listed if _mode(number) is not None)


def _is_shared(descriptor: int) -> bool:
    """Return whether processes that share the descriptor would disturb each other: yes for sockets and pipes, no for
    files.
    """
    mode = _mode(descriptor)
    return mode is not None and not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISCHR(mode))


def _mode(descriptor: int) -> int | None:
    """Return the file mode of an open descriptor; None if it is not open."""
    with contextlib.suppress(OSError):
        return os.fstat(descriptor).st_mode
    return None


def _has_children() -> bool:
    """Return whether this process has children, running or ended but not waited for."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)  # looks, without waiting
    except ChildProcessError:
        return False
    return True
