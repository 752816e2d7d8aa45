"""The rules of a group of workers: their names and number, when a worker that ended is restarted, when the group ends.

Pure. `mld.daemon.group` acts on them.
"""

from __future__ import annotations

import math
from signal import Signals

from mld.core.terminal import EXIT_CONFIGURATION, EXIT_FAILURE
from mld.daemon.signals import EXIT_SIGNAL_BASE

FENCE_S = 3.0
"""For this long after a worker has ended, no process runs under its name. It is long enough for the other workers to
read the lease table several times.
"""
FENCE_MARGIN_S = 0.2
"""A worker is started again this long after its fence is over, at the earliest."""
RESTART_PAUSE_MAX_S = 60.0  # FENCE_MARGIN_S is added to it
STEADY_S = 60.0
"""If a worker ran for longer than this before it failed, the failures before that no longer count."""


def worker_names(base: str, count: int) -> tuple[str, ...]:
    """Return the worker ids of a group."""
    return tuple(f"{base}-{number}" for number in range(1, count + 1))


def cpus_usable(allowed: int, quota_cpus: float | None) -> int:
    """Return how many CPUs this process can keep busy: as many as it may run on, but not more than its container's
    quota.
    """
    return allowed if quota_cpus is None else max(1, min(allowed, math.ceil(quota_cpus)))


def restart_pause_s(failures: int) -> float:
    """Return the seconds to wait before restarting a worker that has failed `failures` times in a row (1 or more)."""
    return min(FENCE_S * 2.0 ** (failures - 1), RESTART_PAUSE_MAX_S) + FENCE_MARGIN_S


def group_end(code: int, *, was_ready: bool) -> int | None:
    """Return the exit code with which the group ends because a worker ended by itself; None if the group goes on.

    The group ends if its workers have never all been ready, so that the failure of the start is seen. A group that was
    ready once goes on, however the worker ended. `code` is the worker's exit code, below 0 if a signal ended it.
    """
    return None if was_ready else exit_code(code) or EXIT_FAILURE


def exit_code(code: int) -> int:
    """Return the exit code that a shell shows for a process that ended with `code`."""
    return EXIT_SIGNAL_BASE - code if code < 0 else code


def end_in_words(code: int) -> str:
    """Put into words how a worker ended, by its exit code."""
    if code == EXIT_CONFIGURATION:
        return "ended because its properties file has an error (exit code 2; mld check shows it)"
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was ended by {Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"
