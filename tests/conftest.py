"""What holds for every test: how Hypothesis searches, and which servers there are: one of a kind for a test process.

No example has a deadline, and slow drawing is no failure: how long an example takes says something about the machine
and its load, not about the code. In CI the examples are the same in every run, so that a change is judged by what it
changes.
"""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.leftovers import pytest_sessionfinish, pytest_sessionstart

if TYPE_CHECKING:
    from tests.integration.world import MakeWorld, World
    from tests.support.servers import EmbeddedAws, KinesisLocal, Ministack, Moto, ServerProcess

try:
    from hypothesis import HealthCheck, settings
except ModuleNotFoundError:
    pass  # the environments of `make test-lakehouse` and its like have no Hypothesis, and no test that needs it
else:
    settings.register_profile(
        "mld", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=bool(os.environ.get("CI"))
    )
    settings.load_profile("mld")


__all__ = ["pytest_sessionfinish", "pytest_sessionstart"]

# Processes started here inherit what is ignored, and under `nohup` that is SIGHUP, which daemons are to obey.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as shells have it in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)


LONGEST = (
    *("test_kinesis_mock_crosscheck", "test_streams", "test_liveness", "test_steering", "test_hostile_children"),
    *("test_fanout", "test_real_systemd", "test_cron", "test_daemon", "test_resets", "test_supervised"),
    *("test_operations", "test_children_of_streams", "test_image", "test_fanout_renewal"),
    *("test_other_users", "test_quickstart", "test_spark_engine"),
)
"""Files whose tests wait longest, the longest first."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that take longest begin first, so that no process is left alone with one of them in the end."""
    ranks = {name: rank for rank, name in enumerate(LONGEST)}
    items.sort(key=lambda item: ranks.get(item.path.stem, len(ranks)))


@pytest.fixture(scope="module", autouse=True)
def _what_was_there_before() -> None:
    """Spare garbage collections all that collecting and earlier files have made: else each walks through millions of
    objects, a quarter of a second for those tests that ask for one."""
    gc.collect()
    gc.freeze()


# The modules below are imported when a test wants them: the environments of `make test-lakehouse` do not have them.


@pytest.fixture(scope="session")
def aws_server() -> Iterator[EmbeddedAws]:
    """Has moto's DynamoDB. Each test has a stream and a table of its own."""
    from tests.support.servers import EmbeddedAws

    with EmbeddedAws() as server:
        yield server


@pytest.fixture(scope="session")
def kinesis_local() -> Iterator[KinesisLocal]:
    from tests.support.servers import KinesisLocal

    with KinesisLocal() as server:
        yield server


@pytest.fixture(scope="session")
def ministack() -> Iterator[Ministack]:
    from tests.support.servers import Ministack

    with Ministack() as server:
        yield server


@pytest.fixture(scope="session")
def moto() -> Iterator[Moto]:
    from tests.support.servers import Moto

    with Moto() as server:
        yield server


@pytest.fixture
def aws(aws_server: EmbeddedAws) -> Iterator[EmbeddedAws]:
    """The embedded AWS without faults, before and after."""
    yield aws_server
    aws_server.clear_faults()


@pytest.fixture
def make_world(aws: EmbeddedAws, tmp_path: Path) -> Iterator[MakeWorld]:
    from tests.integration.world import World

    made: list[World] = []

    def make(shards: int = 1, kinesis: ServerProcess | None = None) -> World:
        made.append(World(aws, tmp_path, shards=shards, kinesis=kinesis))
        return made[-1]

    yield make
    for world in made:
        world.close()
