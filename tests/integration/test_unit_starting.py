"""A group whose worker has not come far enough to hear a signal or to give one of life."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from mld.daemon.group import GroupPlan, WorkerGroup
from mld.daemon.run_group import group_place
from mld.daemon.signals import HangUp
from mld.daemon.systemd import ServiceManager

PATIENCE_S = 60.0
STARTING = """
import os, signal, socket
with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
    out.sendto(b"STATUS=starting", os.environ["NOTIFY_SOCKET"])
signal.pause()
"""


async def reloaded_and_stopped(place: Path) -> int:
    plan = GroupPlan((sys.executable, "-c", STARTING), "w", 1, (), os.environ)
    group = WorkerGroup(plan, place, ServiceManager(None))
    running = asyncio.create_task(group.run(HangUp.RELOAD))
    await group.workers[0].notified.wait()
    os.kill(os.getpid(), signal.SIGHUP)
    os.kill(os.getpid(), signal.SIGTERM)
    return await running


def test_a_worker_that_starts_reads_the_file_anyway_and_is_not_ended_by_a_reload() -> None:
    with group_place() as place:
        assert asyncio.run(reloaded_and_stopped(place)) == 128 + signal.SIGTERM


def test_what_a_worker_says_before_its_start_is_known_to_have_worked_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    started = asyncio.create_subprocess_exec

    async def overtaken(*command: str, **options: Any) -> asyncio.subprocess.Process:
        process = await started(*command, **options)
        async with asyncio.timeout(PATIENCE_S):
            await groups[0].workers[0].notified.wait()
        return process

    groups: list[WorkerGroup] = []

    async def stopped_while_it_starts(place: Path) -> int:
        plan = GroupPlan((sys.executable, "-c", STARTING), "w", 1, (), os.environ)
        groups.append(WorkerGroup(plan, place, ServiceManager(None)))
        running = asyncio.create_task(groups[0].run(HangUp.RELOAD))
        await groups[0].workers[0].notified.wait()
        os.kill(os.getpid(), signal.SIGTERM)
        return await running

    monkeypatch.setattr(asyncio, "create_subprocess_exec", overtaken)
    with group_place() as place:
        assert asyncio.run(stopped_while_it_starts(place)) == 128 + signal.SIGTERM


SLOW = (
    """
import os
with open(os.environ["GO_ON"]):
    pass
"""
    + STARTING
)


class CountsTicks(ServiceManager):
    """Sets `has_ticked` when the group has looked after its workers several times."""

    def __init__(self) -> None:
        super().__init__(None, keepalive_s=0.01)
        self._left = 5
        self.has_ticked = asyncio.Event()

    def alive(self) -> None:
        self._left -= 1
        if self._left == 0:
            self.has_ticked.set()


async def started_slowly_and_stopped(place: Path) -> int:
    go_on = place / "go-on"
    os.mkfifo(go_on)
    manager = CountsTicks()
    plan = GroupPlan((sys.executable, "-c", SLOW), "w", 1, (), {**os.environ, "GO_ON": str(go_on)})
    group = WorkerGroup(plan, place, manager)
    running = asyncio.create_task(group.run(HangUp.RELOAD))
    await manager.has_ticked.wait()
    holding = os.open(go_on, os.O_RDWR)  # does not wait for a reader, who may be gone
    told = asyncio.create_task(group.workers[0].notified.wait())
    await asyncio.wait([running, told], return_when=asyncio.FIRST_COMPLETED)
    os.close(holding)
    told.cancel()
    if not running.done():
        os.kill(os.getpid(), signal.SIGTERM)
    return await running


def test_the_watchdog_begins_when_a_worker_is_ready_as_that_of_systemd() -> None:
    with group_place() as place:
        assert asyncio.run(started_slowly_and_stopped(place)) == 128 + signal.SIGTERM
