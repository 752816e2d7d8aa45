"""What a world leaves behind when it ends."""

from __future__ import annotations

import asyncio
import gc
import sys
from typing import Any

import pytest

from tests.simulation.world.loop import Process, in_world, later_in_world, run_world


async def _wait_for_ever_and_clean_up(said: list[str]) -> None:
    try:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(asyncio.sleep(1e6))
            await asyncio.sleep(1e6)
    finally:
        said.append("unwound")
        await asyncio.sleep(1.0)
        await asyncio.sleep(1.0)


def test_nothing_is_left_for_the_garbage_collector_to_complain_about(monkeypatch: pytest.MonkeyPatch) -> None:
    complaints: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", complaints.append)
    said: list[str] = []

    async def main() -> None:
        for name in ("killed", "stopped", "running"):
            process = Process(name)
            process.spawn(_wait_for_ever_and_clean_up(said))
            await asyncio.sleep(1.0)
            if name == "killed":
                process.kill()
            elif name == "stopped":
                process.stop()
        in_world(_wait_for_ever_and_clean_up(said))
        await asyncio.sleep(1.0)

    run_world(main())
    assert said == ["unwound"] * 4
    gc.collect()
    assert not complaints


def test_what_is_done_in_the_world_happens_although_its_caller_is_stopped() -> None:
    async def main() -> None:
        happened: list[str] = []

        async def caller() -> None:
            later_in_world(2.0, happened.append, "served")
            await asyncio.sleep(1.5)
            happened.append("went on")

        process = Process("caller")
        process.spawn(caller())
        await asyncio.sleep(1.0)
        process.stop()
        await asyncio.sleep(2.0)
        assert happened == ["served"]
        process.resume()
        await asyncio.sleep(0.1)
        assert happened == ["served", "went on"]

    run_world(main())
