"""Which event loop the daemon runs on (`mld.event_loop`)."""

from __future__ import annotations

import asyncio
import importlib.util

import pytest

from mld import event_loop
from properties.remarks import ConfigurationError
from properties.values import EventLoop


class OtherLoop(asyncio.SelectorEventLoop):
    """Stands for a loop of another package."""


async def kind_of_loop() -> type[asyncio.AbstractEventLoop]:
    return type(asyncio.get_running_loop())


def test_without_the_package_auto_is_the_loop_of_asyncio(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_loop, "find_spec", lambda name: None)
    assert event_loop.loop_factory_of(EventLoop.AUTO, "app.properties") is None
    with pytest.raises(ConfigurationError, match=r"pip install 'mld\[fast\]'"):
        event_loop.loop_factory_of(EventLoop.UVLOOP, "app.properties")


@pytest.mark.skipif(importlib.util.find_spec("uvloop") is None, reason="is for `make test-fast`")
@pytest.mark.parametrize("choice", [EventLoop.AUTO, EventLoop.UVLOOP])
def test_with_the_package_it_is_that_loop(choice: EventLoop) -> None:
    factory = event_loop.loop_factory_of(choice, "app.properties")
    assert event_loop.run(kind_of_loop(), factory).__module__.startswith("uvloop")


def test_a_choice_of_asyncio_wins_over_what_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_loop, "find_spec", lambda name: object())
    assert event_loop.loop_factory_of(EventLoop.ASYNCIO, "app.properties") is None


def test_the_loop_is_the_one_that_the_factory_makes() -> None:
    assert event_loop.run(kind_of_loop(), OtherLoop) is OtherLoop
