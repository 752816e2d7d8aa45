"""The whole into a PostgreSQL: daemon, children, host and JVM; a row that it will not take, crashes, the password."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from pathlib import Path

import pytest

from tests.integration.test_spark import SESSION_S, processes, start, wanted
from tests.jdbc.conftest import Table
from tests.support.databases import Postgres

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(600),
    pytest.mark.skipif("MLD_JDBC" not in os.environ, reason="make test-jdbc"),
]
REFUSED = "RECORD-7"


@pytest.fixture(scope="module")
def database():
    with Postgres() as running:
        yield running


def test_every_record_once_though_database_and_host_are_killed_and_one_row_is_refused(
    make_world, spark, database, monkeypatch
):
    table = Table(database, spark)
    table.sql(f"CREATE TABLE {table.name} (sequenceNumber TEXT PRIMARY KEY, text TEXT CHECK (text <> '{REFUSED}'))")
    world = make_world(shards=2)
    world.put(60)
    monkeypatch.setenv("LAKE_PASSWORD", database.password)
    options = {**table.options, "password": "${LAKE_PASSWORD}"}
    dead = world.directory / "dead"
    daemon = start(
        world,
        **{
            "mld.spark.sink.out.format": "jdbc",
            "mld.spark.sink.out.path": "",
            "mld.spark.conf.spark.jars": database.jar,
            "mld.spark.attemptsMax": 1,
            **{f"mld.spark.sink.out.options.{name}": value for name, value in options.items()},
        },
    )

    def is_written():
        good = wanted(world)
        del good[REFUSED]
        return Counter(text for (text,) in table.sql(f"SELECT text FROM {table.name}")) == good

    world.until(is_written, SESSION_S, "the records, but for one, in the table")
    letters = [json.loads(line) for file in dead.glob("c[0-9]*-*") for line in file.read_text().splitlines()]
    assert [letter["reason"].count("violates check constraint") for letter in letters] == [1]

    database.kill()
    world.put(30)
    world.until(lambda: "trying again" in daemon.log(), SESSION_S, "an attempt without a database")
    database.start()
    world.until(is_written, SESSION_S, "the records of that time")

    (host,) = processes(daemon, "processors.spark.host")
    commands = [Path(f"/proc/{pid}/cmdline").read_text() for pid in daemon.survivors()]
    os.kill(host, signal.SIGKILL)
    world.put(30)
    world.until(is_written, SESSION_S, "the records behind the death of the host")
    assert daemon.stop(timeout_s=200) == 0
    world.until_caught_up(1)
    assert is_written()
    said = daemon.log() + "".join(commands) + json.dumps(letters) + repr(table.sql("SELECT entry FROM mld_ledger"))
    assert database.password not in said
