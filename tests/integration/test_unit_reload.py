"""SIGHUP to a unit whose worker has not come far enough to hear it."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

from mld.process.signals import HangUp
from mld.process.systemd import ServiceManager, Supervision
from mld.unit.supervisor import Unit, UnitPlan, unit_place

STARTING = """
import os, signal, socket
with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
    out.sendto(b"STATUS=starting", os.environ["NOTIFY_SOCKET"])
signal.pause()
"""


async def reloaded_and_stopped(place: Path) -> int:
    plan = UnitPlan((sys.executable, "-c", STARTING), "w", 1, (), os.environ)
    unit = Unit(plan, place, Supervision(ServiceManager(None)))
    running = asyncio.create_task(unit.run(HangUp.RELOAD))
    await unit.workers[0].told.wait()
    os.kill(os.getpid(), signal.SIGHUP)
    os.kill(os.getpid(), signal.SIGTERM)
    return await running


def test_a_worker_that_starts_reads_the_file_anyway_and_is_not_ended_by_a_reload() -> None:
    with unit_place() as place:
        assert asyncio.run(reloaded_and_stopped(place)) == 128 + signal.SIGTERM
