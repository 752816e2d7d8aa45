"""What a group of several workers does when: names, pauses, ends, verdicts. Pure; `supervisor` carries it out.

*The fence of a dead worker.* The supervisor tells the others of a worker that has ended, with a time on the clock of
this machine until which that is true whatever happens: it starts no process under that name before. Rows that were
read before that time were written by the process that is dead, so the others may take them without waiting for the
lease duration; their writes are conditional on what they read, as always.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from signal import Signals

from mld.core.terminal import EXIT_CONFIGURATION
from mld.daemon.signals import EXIT_FAILURE, EXIT_SIGNAL_BASE

FENCE_S = 3.0
"""How long nobody runs under the name of a worker that has ended; others read the lease table several times in that."""
FENCE_MARGIN_S = 0.2
RESTART_PAUSE_MAX_S = 60.0
STEADY_S = 60.0
"""Who was up for so long has not failed again and again."""


def worker_names(base: str, count: int) -> tuple[str, ...]:
    """Return the worker ids of a group."""
    return tuple(f"{base}-{number}" for number in range(1, count + 1))


def cpus_usable(allowed: int, quota_cpus: float | None) -> int:
    """Return the number of CPUs that the process may run on, of which a container may have a share."""
    return allowed if quota_cpus is None else max(1, min(allowed, math.ceil(quota_cpus)))


def restart_pause_s(failures: int) -> float:
    """Return the pause before a worker that has failed so often in a row (1 or more) is started again."""
    return min(FENCE_S * 2.0 ** (failures - 1), RESTART_PAUSE_MAX_S) + FENCE_MARGIN_S


def group_end(code: int, *, was_ready: bool) -> int | None:
    """Return the exit code with which a group ends because a worker ended with `code` unasked; None if it goes on.

    It ends if not all workers have ever come up, so that whoever started it learns of that; later a worker, whatever
    ended it, is no reason to end the others. `code` is less than 0 if a signal ended the worker.
    """
    return None if was_ready else exit_code(code) or EXIT_FAILURE


def exit_code(code: int) -> int:
    """Return what a shell reports of a process that ended with `code`."""
    return EXIT_SIGNAL_BASE - code if code < 0 else code


def end_in_words(code: int) -> str:
    """Put into words how a worker ended."""
    if code == EXIT_CONFIGURATION:
        return "ended because its properties file has an error (exit code 2; mld check shows it)"
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was ended by {Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"


@dataclass(frozen=True, slots=True)
class WorkerAnswer:
    """What a member of the group says of itself when it is asked; `why_not` is None while it is well."""

    name: str
    is_running: bool
    why_not: str | None


def why_not_alive(answers: Iterable[WorkerAnswer]) -> str | None:
    """Return why the group is not alive; a worker that has ended is started again, and no reason to end the others."""
    return _first(answer for answer in answers if answer.is_running)


def why_not_ready(answers: Iterable[WorkerAnswer]) -> str | None:
    """Return why the group is not ready: not all of it is there."""
    return _first(answers)


def _first(answers: Iterable[WorkerAnswer]) -> str | None:
    return next((f"worker {one.name}: {one.why_not}" for one in answers if one.why_not is not None), None)
