"""One embedded AWS for each test; the figures seen are printed as they come and at the end."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.servers import EmbeddedAws

if TYPE_CHECKING:
    from tests.interop.world import InteropWorld

MakeWorld = Callable[..., "InteropWorld"]
FIGURES: list[str] = []
# Not part of `make test`: minutes for each case, a JDK, and a package that nothing else needs.
collect_ignore_glob = [] if os.environ.get("MLD_INTEROP") == "1" else ["test_*.py"]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for figure in FIGURES:
        terminalreporter.write_line(figure)


@pytest.fixture
def make_world(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[MakeWorld]:
    from tests.interop.world import InteropWorld

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
