"""One embedded AWS for each test, each test with either version of Java; the figures seen are printed as they come
and at the end.

A test for other kinds of Java workers says `@pytest.mark.parametrize("java", [...], indirect=True)`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.servers import EmbeddedAws

if TYPE_CHECKING:
    from tests.interop.java import Release
    from tests.interop.world import InteropWorld

KINDS = ("3.1.3", "3.5.1")
EVERY_LAYOUT = (*KINDS, "3.5.1-legacy")
"""For tests of who leads and who reports, which the newest does in other tables if an older fleet has left them."""
MakeWorld = Callable[..., "InteropWorld"]
FIGURES: list[str] = []
# Not part of `make test`: minutes for each case, a JDK, and a package that nothing else needs.
collect_ignore_glob = [] if os.environ.get("MLD_INTEROP") == "1" else ["test_*.py"]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for figure in FIGURES:
        terminalreporter.write_line(figure)


@pytest.fixture(params=KINDS)
def java(request: pytest.FixtureRequest) -> Release:
    from tests.interop.java import RELEASES

    return RELEASES[request.param]


@pytest.fixture
def make_world(tmp_path: Path, java: Release, request: pytest.FixtureRequest) -> Iterator[MakeWorld]:
    from tests.interop.world import InteropWorld

    made: list[InteropWorld] = []

    def note(text: str) -> None:
        FIGURES.append(f"{request.node.name}: {text}")
        print(FIGURES[-1], flush=True)

    with EmbeddedAws() as aws:

        def make(shards: int = 4, *, is_loaded: bool = True) -> InteropWorld:
            made.append(InteropWorld(aws, tmp_path, release=java, shards=shards, note=note, is_loaded=is_loaded))
            return made[-1]

        yield make
        for world in made:
            world.close()
