"""One embedded AWS for each test; the figures seen are printed at the end."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.interop.world import InteropWorld
from tests.support.servers import EmbeddedAws

MakeWorld = Callable[..., InteropWorld]
FIGURES: list[str] = []


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Not part of `make test`: minutes for each case, and a JDK."""
    if os.environ.get("MLD_INTEROP") != "1":
        skip = pytest.mark.skip(reason="`make interop` runs it")
        for item in items:
            if Path(__file__).parent in item.path.parents:
                item.add_marker(skip)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for figure in FIGURES:
        terminalreporter.write_line(figure)


@pytest.fixture
def make_world(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[MakeWorld]:
    made: list[InteropWorld] = []

    def note(text: str) -> None:
        FIGURES.append(f"{request.node.name}: {text}")
        print(FIGURES[-1], flush=True)

    with EmbeddedAws() as aws:

        def make(shards: int = 4) -> InteropWorld:
            made.append(InteropWorld(aws, tmp_path, shards=shards, note=note))
            return made[-1]

        yield make
        for world in made:
            world.close()
