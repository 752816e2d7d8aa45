"""`mld run` with more than one worker: the unit, its pages, and the exit code."""

from __future__ import annotations

import logging
import os
import sys
import uuid
from collections.abc import Sequence
from pathlib import Path

from mld.core.errors import MldError, StartupError
from mld.daemon.signals import EXIT_FAILURE, hang_up_here, warn_without_init
from mld.daemon.systemd import claim_supervision
from mld.daemon.unit.rules import cpus_usable
from mld.daemon.unit.supervisor import Unit, UnitPlan, unit_place
from mld.fleet.report.cpu import parse_cpu_max
from mld.properties.settings import Settings
from mld.properties.values import ONE_FOR_EACH_CPU

log = logging.getLogger(__name__)

CPU_MAX = Path("/sys/fs/cgroup/cpu.max")


def workers_wanted(settings: Settings) -> int:
    """How many workers `mld.processes` means here."""
    if settings.processes != ONE_FOR_EACH_CPU:
        return settings.processes
    try:
        quota_cpus = parse_cpu_max(CPU_MAX.read_text())
    except (OSError, ValueError, IndexError):
        quota_cpus = None
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return cpus_usable(allowed, quota_cpus)


async def run_unit(settings: Settings, count: int, file: str, options: Sequence[str], overrides: Sequence[str]) -> int:
    """Run `count` workers of the properties file until they are stopped; returns the exit code.

    `options` are those of the command line that concern the log, `overrides` its `key=value`.
    """
    supervision = claim_supervision(os.environ, os.getpid())
    name = settings.worker_id or str(uuid.uuid4())
    command = (sys.executable, "-P", "-m", "mld", "run", "-p", file, *options)
    log.info(
        "starting %d workers",
        count,
        extra={"action": "unit_starting", "application": settings.application_name, "worker": name},
    )
    warn_without_init()
    try:
        with unit_place() as place:
            unit = Unit(UnitPlan(command, name, count, overrides, os.environ), place, supervision)
            hang_up = hang_up_here(is_supervised=supervision.manager.is_there)
            if settings.serving.http is None:
                return await unit.run(hang_up)
            from mld.daemon.unit.pages import UnitPages

            pages = UnitPages(unit)
            try:
                await pages.start(settings.serving.http, settings.serving.http_hosts)
            except OSError as error:
                why = error.strerror or error
                raise StartupError(f"mld.http = {settings.serving.http}: {why}; choose another address") from error
            try:
                return await unit.run(hang_up)
            finally:
                await pages.close()
    except MldError as error:
        log.error("%s", error, extra={"action": "daemon_failed"})
        return EXIT_FAILURE
