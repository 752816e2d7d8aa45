"""Which event loop the daemon runs on (`mld.daemon.event_loop`)."""

from __future__ import annotations

import asyncio
import importlib.util

import pytest

from mld.daemon import event_loop


class OtherLoop(asyncio.SelectorEventLoop):
    """Stands for a loop of another package."""


async def kind_of_loop() -> type[asyncio.AbstractEventLoop]:
    return type(asyncio.get_running_loop())


def test_without_the_package_it_is_the_loop_of_asyncio(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_loop, "is_installed", lambda name: False)
    assert event_loop.loop_factory() is None


@pytest.mark.skipif(importlib.util.find_spec("uvloop") is None, reason="is for `make test-fast`")
def test_with_the_package_it_is_that_loop() -> None:
    factory = event_loop.loop_factory()
    assert event_loop.run(kind_of_loop(), factory).__module__.startswith("uvloop")


def test_the_loop_is_the_one_that_the_factory_makes() -> None:
    assert event_loop.run(kind_of_loop(), OtherLoop) is OtherLoop
