"""`run_group`: starts several workers, and their common pages, for `mld run` with `mld.processes` above 1.

`mld.daemon.group` then keeps the workers running.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from mld.core.errors import MldError, StartupError
from mld.core.terminal import EXIT_FAILURE
from mld.core.whereabouts import new_worker_id
from mld.daemon.group import GroupPlan, WorkerGroup
from mld.daemon.group_rules import cpus_usable
from mld.daemon.missing_init import warn_without_init
from mld.daemon.signals import hang_up_here
from mld.daemon.systemd import claim_manager
from mld.properties.settings import Settings
from mld.properties.values import ONE_FOR_EACH_CPU

log = logging.getLogger(__name__)

PLACE_BYTES_MAX = 90  # longest directory; the address of a Unix socket has room for 107 bytes with the file's name
CPU_MAX = Path("/sys/fs/cgroup/cpu.max")


@contextlib.contextmanager
def group_place() -> Iterator[Path]:
    """Make a directory for the sockets of a group that only this user can enter, and remove it at the end.

    Raises StartupError.
    """
    try:
        place = tempfile.TemporaryDirectory(prefix="mld-unit-", ignore_cleanup_errors=True)
    except OSError as error:
        raise StartupError(f"set TMPDIR: there is no directory for the sockets of the workers: {error}") from error
    with place as name:
        if len(os.fsencode(name)) > PLACE_BYTES_MAX:
            raise StartupError(f"set TMPDIR to a shorter path: {name} is too long for the sockets of the workers")
        yield Path(name)


def workers_wanted(settings: Settings) -> int:
    """Return the number of workers that `mld.processes` asks for on this machine."""
    if settings.processes != ONE_FOR_EACH_CPU:
        return settings.processes
    from mld.fleet.report.cpu_formulas import parse_cpu_max  # imports clients of AWS, which a supervisor does not need

    try:
        quota_cpus = parse_cpu_max(CPU_MAX.read_text())
    except (OSError, ValueError, IndexError):
        quota_cpus = None
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return cpus_usable(allowed, quota_cpus)


async def run_group(settings: Settings, count: int, file: str, options: Sequence[str], overrides: Sequence[str]) -> int:
    """Run `count` workers with this properties file until they are stopped; return the exit code.

    `options` are the command line's options for the log, `overrides` are its `key=value` options.
    """
    manager = claim_manager(os.environ, os.getpid())
    name = settings.worker_id or new_worker_id()
    command = (sys.executable, "-P", "-m", "mld", "run", "-p", file, *options)
    log.info(
        "starting %d workers",
        count,
        extra={"action": "unit_starting", "application": settings.application_name, "worker": name},
    )
    warn_without_init()
    try:
        with group_place() as place:
            group = WorkerGroup(GroupPlan(command, name, count, overrides, os.environ), place, manager)
            hang_up = hang_up_here(is_supervised=manager.is_there)
            if settings.serving.http is None:
                return await group.run(hang_up)
            from mld.daemon.group_pages import GroupPages
            from mld.serving.web_serving import serving

            async with serving(GroupPages(group).routes(), settings.serving):
                return await group.run(hang_up)
    except MldError as error:
        log.error("%s", error, extra={"action": "daemon_failed"})
        return EXIT_FAILURE
