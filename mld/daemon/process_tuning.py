"""`tune_process`: changes settings of the interpreter and of the C library for a daemon that moves much data."""

from __future__ import annotations

import gc
import sys

SWITCH_INTERVAL_S = (
    0.002  # how often a thread that reads a large body lets others run; with 0.5 ms, a GB costs 1/8 more
)
KEPT_MEMORY_BYTES = 16 * 1024 * 1024  # about the largest answer; see `_keep_freed_memory`
COLLECT_EVERY = 50_000  # new objects between two collections: a page of 10,000 records must not start a dozen of them


def tune_process() -> None:
    """Set how threads take turns, and how memory is kept, given back and collected.

    Call it once clients are open, because opening them needs memory that is then given back.
    """
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    _keep_freed_memory()
    gc.set_threshold(COLLECT_EVERY)
    _give_back_start_memory()
    gc.freeze()  # so that full collections skip modules and service models, which stay for good: it saves 30 ms each


def _keep_freed_memory() -> None:
    """Make the C library keep the memory of a freed page of records for the next page, instead of returning it to the
    kernel.

    glibc returns freed blocks that are larger than a threshold, and the free end of its heap if it is longer than twice
    the threshold. It raises the threshold to the size of the largest block that it has returned. So it is enough to
    allocate and free one large block, without touching its memory. Otherwise the kernel clears new memory for every
    line, which costs a fifth of the CPU time of reading a backlog.
    """
    bytes(KEPT_MEMORY_BYTES)


def _give_back_start_memory() -> None:
    """Return the memory that the start has freed to the kernel: 2 MB of 61 MB, mostly from reading service models."""
    gc.collect()
    try:
        import ctypes

        ctypes.CDLL(None).malloc_trim(0)
    except (ImportError, OSError, AttributeError):
        pass  # another C library
