"""Which event loop the daemon runs on (`mld.event_loop`)."""

from __future__ import annotations

import asyncio
import importlib.util

import pytest

from mld import event_loop
from mld.views import choice
from properties.remarks import Level
from properties.values import EventLoop
from tests.support.fleet import settings_of


class OtherLoop(asyncio.SelectorEventLoop):
    """Stands for a loop of another package."""


async def kind_of_loop() -> type[asyncio.AbstractEventLoop]:
    return type(asyncio.get_running_loop())


def test_without_the_package_auto_is_the_loop_of_asyncio(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_loop, "find_spec", lambda name: None)
    assert event_loop.loop_factory_of(EventLoop.AUTO) is None


@pytest.mark.parametrize("name, refused", [("uvloop", 1), ("auto", 0), ("asyncio", 0)])
def test_a_loop_that_is_not_installed_is_refused(name: str, refused: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "find_spec", lambda module: None)
    settings = settings_of(**{"mld.eventLoop": name})
    errors = [remark for remark in choice.missing_extras(settings, "app.properties") if remark.level is Level.ERROR]
    assert len(errors) == refused
    assert all("pip install 'mld[fast]'" in str(error) for error in errors)


@pytest.mark.skipif(importlib.util.find_spec("uvloop") is None, reason="is for `make test-fast`")
@pytest.mark.parametrize("wanted", [EventLoop.AUTO, EventLoop.UVLOOP])
def test_with_the_package_it_is_that_loop(wanted: EventLoop) -> None:
    factory = event_loop.loop_factory_of(wanted)
    assert event_loop.run(kind_of_loop(), factory).__module__.startswith("uvloop")


def test_a_choice_of_asyncio_wins_over_what_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_loop, "find_spec", lambda name: object())
    assert event_loop.loop_factory_of(EventLoop.ASYNCIO) is None


def test_the_loop_is_the_one_that_the_factory_makes() -> None:
    assert event_loop.run(kind_of_loop(), OtherLoop) is OtherLoop
