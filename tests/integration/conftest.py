"""One embedded AWS for all integration tests; each test has a stream and a table of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.integration.world import World
from tests.support.servers import EmbeddedAws, KinesisLocal, ServerProcess

MakeWorld = Callable[..., World]


@pytest.fixture(scope="session")
def aws_server() -> Iterator[EmbeddedAws]:
    with EmbeddedAws() as server:
        yield server


@pytest.fixture(scope="session")
def kinesis_local() -> Iterator[ServerProcess]:
    with KinesisLocal() as server:
        yield server


@pytest.fixture
def aws(aws_server: EmbeddedAws) -> Iterator[EmbeddedAws]:
    """Without faults, before and after."""
    yield aws_server
    aws_server.clear_faults()


@pytest.fixture
def make_world(aws: EmbeddedAws, tmp_path: Path) -> Iterator[MakeWorld]:
    made: list[World] = []

    def make(shards: int = 1, kinesis: ServerProcess | None = None) -> World:
        made.append(World(aws, tmp_path, shards=shards, kinesis=kinesis))
        return made[-1]

    yield make
    for world in made:
        world.close()
