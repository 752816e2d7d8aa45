"""One HDFS and one session for all tests: `make test-hdfs`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest

from mld.processors.spark.commit.hadoop_store import HadoopStore
from tests.hdfs.cluster import Cluster
from tests.hdfs.fetch import installed

USER = "worker"
"""As whom Spark writes; the directories of the tests are its own, all others the superuser's."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    why = None if "MLD_HDFS" in os.environ else "make test-hdfs"
    if why is None and not installed():
        why = "the jars of Hadoop could not be fetched"
    for item in items:
        if "tests/hdfs/" in str(item.path):
            item.add_marker(pytest.mark.spark)
            item.add_marker(pytest.mark.filterwarnings("ignore::ResourceWarning"))
            if why:
                item.add_marker(pytest.mark.skip(reason=why))


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("hdfs")) as made:
        made.make("/", mode="755")
        yield made


@pytest.fixture(scope="session")
def spark(cluster: Cluster) -> Iterator[Any]:
    from tests.prove_spark.jvm import Jvm

    os.environ["HADOOP_USER_NAME"] = USER
    jvm = Jvm()
    del os.environ["PYSPARK_SUBMIT_ARGS"]  # hosts of the tests have their own
    yield jvm.session
    jvm.kill()
    del os.environ["HADOOP_USER_NAME"]


_numbers = count(1)


@pytest.fixture
def home(cluster: Cluster) -> str:
    """A directory of the test's own, in HDFS; its URI."""
    path = f"/home é%20/{next(_numbers)}"
    cluster.make(path, owner=USER)
    return f"{cluster.uri}{path}"


@pytest.fixture
def store_at(spark: Any) -> Callable[[str], HadoopStore]:
    return lambda uri: HadoopStore(spark, uri, "key")
