"""Against a real Spark Connect server, with nothing but its client in this environment: `make test-connect`.

The server is of the PySpark of another environment, because the two packages have the same modules; so no JVM of ours
and no py4j can be in the way here.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from mld.processors.spark.high_water_marks import StreamShard
from mld.processors.spark.host.start_up import HostStartError
from mld.processors.spark.spark_errors import SessionGone
from tests.support.spark_bed import (
    PLAIN,
    WITH_HELPERS,
    bed,
    lay_helpers,
    run_more_than_a_driver_collects,
    run_with_helpers,
)
from tests.support.spark_servers import ConnectServer, spark_home

SERVER = os.environ.get("MLD_CONNECT_SERVER", "")
pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not SERVER, reason="make test-connect"),
    pytest.mark.filterwarnings("ignore::UserWarning:pyspark.*", "ignore::DeprecationWarning"),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConnectServer]:
    one = ConnectServer(tmp_path_factory.mktemp("connect"), spark_home(SERVER), sys.executable)
    yield one
    one.kill()


def remote(server: ConnectServer) -> str:
    return f"mld.spark.remote = {server.url}/;user_id=mld"


def test_there_is_only_the_client_here() -> None:
    assert importlib.util.find_spec("py4j") is None
    assert not (spark_home() / "jars").exists()


@pytest.mark.parametrize("spool", [True, False], ids=["spool", "client"])
def test_no_batch_passes_through_the_collect_of_the_server(
    server: ConnectServer, tmp_path: Path, spool: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    keys = [f"mld.spark.spool = {tmp_path / 'spool'}"] if spool else []
    with bed(tmp_path, PLAIN, remote(server), *keys) as made:
        run_more_than_a_driver_collects(made)
    assert f"master {server.url}, UI none" in caplog.text


def test_modules_beside_the_pipeline_reach_the_server(server: ConnectServer, tmp_path: Path) -> None:
    lay_helpers(tmp_path)
    with bed(tmp_path, WITH_HELPERS, remote(server)) as made:
        run_with_helpers(made)


def test_malformed_records_functions_of_the_user_and_poison(server: ConnectServer, tmp_path: Path) -> None:
    pipeline = """
from pyspark.sql import functions as F

def helper(n):
    return str(10 // n)

def transform(records, batch):
    return records.select("sequenceNumber", F.udf(helper, "string")("payload.n").alias("payload"))
"""
    keys = ["mld.spark.format = json", "mld.spark.schema = n INT", f"mld.spark.deadLetter = {tmp_path / 'dead'}"]
    with bed(tmp_path, pipeline, remote(server), *keys, "mld.spark.attemptsMax = 1") as made:
        data = {1: b'{"n":1}', 2: b"{bad", 3: b'{"n":0}', 4: b'{"n":5}'}
        outcome = made.run(data)
        assert (outcome.failed, outcome.figures.malformed, outcome.figures.poisoned) == ({}, 1, 1)
        assert made.rows() == Counter([(1, "10"), (4, "2")])
        dead = made.spark.read.json(str(tmp_path / "dead")).collect()
        assert {row.sequenceNumber: row.reason.rpartition("; cause: ")[2] for row in dead} == {
            "2": "not JSON of mld.spark.schema",
            "3": "ZeroDivisionError: integer division or modulo by zero",
        }


CANNOT_WORK = {
    "records.select('no_such_column')": "no_such_column",
    "records.select(F.udf(lambda text: lock.locked(), 'boolean')('payload').alias('x'))": "cannot pickle",
    "7": "returned int",
}


@pytest.mark.parametrize("returned", CANNOT_WORK)
def test_a_pipeline_that_cannot_work_stops_with_a_sentence(
    server: ConnectServer, tmp_path: Path, returned: str
) -> None:
    pipeline = f"""
import threading
from pyspark.sql import functions as F
lock = threading.Lock()

def transform(records, batch):
    return {returned}
"""
    with bed(tmp_path, pipeline, remote(server)) as made:
        outcome = made.run({1: b"one", 2: b"two"})
        assert CANNOT_WORK[returned] in outcome.failed[StreamShard("s", "a")]
        assert made.engine.mark_of(StreamShard("s", "a")) is None


def test_a_format_that_the_server_does_not_know_gets_a_sentence(server: ConnectServer, tmp_path: Path) -> None:
    with (
        pytest.raises(HostStartError, match=r"sink.out.format is nosuch, which Spark does not know: .*nosuch"),
        bed(tmp_path, PLAIN, remote(server), "mld.spark.sink.out.format = nosuch"),
    ):
        pass


def test_a_server_that_is_gone_ends_the_session_and_a_new_one_goes_on(tmp_path: Path) -> None:
    logs = tmp_path / "server"
    logs.mkdir()
    server = ConnectServer(logs, spark_home(SERVER), sys.executable)
    port = server.said
    try:
        with bed(tmp_path, PLAIN, remote(server)) as made:
            assert made.run({1: b"one"}).failed == {}
            server.kill()
            with pytest.raises(SessionGone, match="Spark does not answer any more"):
                made.run({1: b"one", 2: b"two"})
            server = ConnectServer(logs, spark_home(SERVER), sys.executable, port)
            with pytest.raises(SessionGone, match="Spark does not answer any more"):
                made.run({1: b"one", 2: b"two"})
        with bed(tmp_path, PLAIN, remote(server)) as made:
            assert made.run({1: b"one", 2: b"two"}).failed == {}
            assert made.rows() == Counter([(1, "one"), (2, "two")])
    finally:
        server.kill()
