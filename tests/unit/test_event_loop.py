"""Which event loop the daemon runs on (`mld.daemon.process`)."""

from __future__ import annotations

import asyncio
import importlib.util

import pytest

from mld.daemon import process


class OtherLoop(asyncio.SelectorEventLoop):
    """Stands for a loop of another package."""


async def kind_of_loop() -> type[asyncio.AbstractEventLoop]:
    return type(asyncio.get_running_loop())


def test_without_the_package_it_is_the_loop_of_asyncio(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "is_installed", lambda name: False)
    assert process.loop_factory() is None


@pytest.mark.skipif(importlib.util.find_spec("uvloop") is None, reason="is for `make test-fast`")
def test_with_the_package_it_is_that_loop() -> None:
    factory = process.loop_factory()
    assert process.run(kind_of_loop(), factory).__module__.startswith("uvloop")


def test_the_loop_is_the_one_that_the_factory_makes() -> None:
    assert process.run(kind_of_loop(), OtherLoop) is OtherLoop
