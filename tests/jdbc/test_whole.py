"""The whole into a PostgreSQL: daemon, children, host and JVM; a row that it will not take, crashes, the password."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections import Counter
from pathlib import Path

import pytest

from tests.acceptance.commands import mld
from tests.integration.test_spark import SESSION_S, processes, start, wanted
from tests.integration.world import ENVIRONMENT
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


def test_a_fail_over_to_a_standby_that_lags_stops_the_shard_until_it_is_read_again(make_world, spark):
    """What the standby never got is not passed over in silence: the sentence names both positions, and says what to
    do. A database of its own, because its data go back in time."""
    with Postgres() as database:
        table = Table(database, spark)
        table.sql(f"CREATE TABLE {table.name} (sequenceNumber TEXT PRIMARY KEY, text TEXT)")
        world = make_world(shards=1)
        options = {f"mld.spark.sink.out.options.{name}": value for name, value in table.options.items()}
        secret = world.directory / "password"
        secret.write_text(database.password)
        keys = {
            "mld.spark.sink.out.format": "jdbc",
            "mld.spark.sink.out.path": "",
            "mld.spark.conf.spark.jars": database.jar,
            **options,
            "mld.spark.sink.out.options.password": f"${{file:{secret}}}",
        }
        daemon = start(world, **keys)

        def written():
            return Counter(text for (text,) in table.sql(f"SELECT text FROM {table.name}"))

        def is_written():
            return written() == wanted(world)

        world.put(20)
        world.until(is_written, SESSION_S, "the first records")
        database.stop()
        standby = database.directory / "standby"
        shutil.copytree(database.data, standby)
        database.start()
        world.put(20)
        world.until(is_written, SESSION_S, "the records that the standby lacks")
        world.until_caught_up(SESSION_S)
        database.stop()
        shutil.rmtree(database.data)
        standby.rename(database.data)
        own(database)
        database.start()
        before = written()
        world.put(20)
        said = "the application has come to"
        world.until(lambda: said in daemon.log(), SESSION_S, "the sentence")
        assert written() == before
        assert daemon.stop(timeout_s=200) == 0
        (mark,) = {line.split(" up to ")[1].split(",")[0] for line in daemon.log().splitlines() if said in line}
        to_the_mark = ("reset", daemon.file, "--shard", "0", "--to", mark, "--execute")
        reset = mld(*to_the_mark, cwd=world.directory, environment=ENVIRONMENT)  # where it saves the rows
        assert reset.returncode == 0, reset.stderr
        daemon = start(world, **keys)
        world.until(is_written, SESSION_S, "every record, once")
        assert daemon.stop(timeout_s=200) == 0


def own(database):
    """Give copies to the user that the server runs as."""
    if os.geteuid() == 0:
        for path in (database.data, *database.data.rglob("*")):
            shutil.chown(path, database.account)
    database.data.chmod(0o700)


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

    (host,) = processes(daemon, "mld.processors.spark.host")
    commands = [Path(f"/proc/{pid}/cmdline").read_text() for pid in daemon.survivors()]
    os.kill(host, signal.SIGKILL)
    world.put(30)
    world.until(is_written, SESSION_S, "the records behind the death of the host")
    assert daemon.stop(timeout_s=200) == 0
    world.until_caught_up(1)
    assert is_written()
    said = daemon.log() + "".join(commands) + json.dumps(letters) + repr(table.sql("SELECT entry FROM mld_ledger"))
    assert database.password not in said
