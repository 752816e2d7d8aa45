"""A session with the drivers, a PostgreSQL, and sinks over it."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path

import pytest

from mld.processors.spark.sink_spec import SinkSpec
from mld.processors.spark.sinks.factory import make_sink
from tests.support.databases import Postgres
from tests.support.fetch_databases import DRIVERS, installed

NAMES = itertools.count()


def pytest_collection_modifyitems(items):
    """Of this directory: py4j leaves its sockets to the end of the process."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.filterwarnings("ignore::ResourceWarning"))


@pytest.fixture(scope="session")
def spark():
    if not installed() or shutil.which("java") is None:
        pytest.skip("no databases, or no Java: make test-jdbc")
    from pyspark.sql import SparkSession

    conf = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "700m",
        "spark.jars": ",".join(str(jar.file) for jar in DRIVERS),
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Duser.timezone=UTC",
        "spark.log.level": "OFF",
    }
    builder = SparkSession.builder.master("local[2]")
    for key, value in conf.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    yield session
    session.stop()


@pytest.fixture(scope="module")
def database():
    if not installed():
        pytest.skip("make test-jdbc")
    with Postgres() as running:
        yield running


class Table:
    """A table of the test's own, its sinks, and what is in it by a connection of its own."""

    def __init__(self, database, spark):
        self.database, self.spark = database, spark
        self.name = f"t{next(NAMES)}"
        self.options = {
            "url": database.url,
            "dbtable": self.name,
            "user": database.user,
            "password": database.password,
        }

    def sink(self, **more):
        options = {**self.options, **more.pop("options", {})}
        return make_sink(SinkSpec("out", "jdbc", options=options, **more), self.spark)

    def sql(self, *statements):
        """Run statements; the rows of the last one, if it has any."""
        with self.sink()._connection() as connection:
            return [connection.run(statement) for statement in statements][-1]

    def rows(self, columns="*"):
        return sorted(self.sql(f"SELECT {columns} FROM {self.name}"), key=repr)

    def stages(self):
        return [name for (name,) in self.sql("SELECT table_name FROM information_schema.tables") if "mld_stage" in name]


@pytest.fixture
def table(database, spark):
    return Table(database, spark)
