"""`tune_process`: settings of the interpreter and of the C library that suit a daemon which moves much data."""

from __future__ import annotations

import gc
import sys

SWITCH_INTERVAL_S = 0.002  # a thread that reads a large body gives way this often; 0.5 ms costs an eighth more per GB
KEPT_MEMORY_BYTES = 16 * 1024 * 1024  # size of an answer; see `_keep_freed_memory`
COLLECT_EVERY = 50_000  # objects: a page of 10,000 records must not start a dozen collections


def tune_process() -> None:
    """Set how threads take turns, and how memory is kept, given back and collected. Call it when clients are open."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    _keep_freed_memory()
    gc.set_threshold(COLLECT_EVERY)
    _give_back_start_memory()
    gc.freeze()  # modules and service models stay for good; else every full collection walks them, 30 ms each time


def _keep_freed_memory() -> None:
    """Make the C library keep the memory of a freed page for the next page, instead of returning it to the kernel.

    glibc returns freed blocks that are larger than a threshold, and the free end of its heap beyond twice that. It
    raises the threshold to the size of the largest block that it has returned, so allocating and freeing one large
    block (which touches no memory) is enough. Without it the kernel clears new memory for every line, which costs a
    fifth of the CPU time of reading a backlog.
    """
    bytes(KEPT_MEMORY_BYTES)


def _give_back_start_memory() -> None:
    """Return to the kernel the memory that the start has freed: 2 MB of 61, mostly from reading service models."""
    gc.collect()
    try:
        import ctypes

        ctypes.CDLL(None).malloc_trim(0)
    except (ImportError, OSError, AttributeError):
        pass  # another C library
