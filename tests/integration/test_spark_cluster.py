"""A real standalone cluster: records that no driver collects, executors and masters that are killed."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import tarfile
import threading
import zipfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="needs the extra: pip install 'mld-kinesis[spark]'")

from mld.processors.spark.batch.outcome import BatchOutcome
from tests.integration.test_spark import SESSION_S, start, texts, wanted
from tests.integration.world import MakeWorld
from tests.support.daemon import until
from tests.support.spark_bed import (
    HELPERS,
    PLAIN,
    WITH_HELPERS,
    Bed,
    bed,
    lay_helpers,
    run_more_than_a_driver_collects,
    run_with_helpers,
)
from tests.support.spark_servers import Cluster
from tests.support.spark_servers import cluster as running_cluster

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(900),
]
CONF = {
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.driver.maxResultSize": "1m",
}
EXECUTOR_S = 45
"""Within this a session has executors, even where its JVMs share two cores; a session without them is given up."""
SESSION_STARTS = 4
"""Where the machine does more besides, a session has executors within so many times the start of the cluster."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running_cluster(tmp_path_factory.mktemp("cluster")) as one:
        yield one


@contextlib.contextmanager
def on(cluster: Cluster, directory: Path, *keys: str, pipeline: str = PLAIN) -> Iterator[Bed]:
    from pyspark import SparkContext

    if SparkContext._active_spark_context is not None:  # of another module's tests
        SparkContext._active_spark_context.stop()
    conf = [f"mld.spark.conf.{name} = {value}" for name, value in CONF.items()]
    spool = f"mld.spark.spool = {directory / 'spool'}"
    with bed(
        directory, pipeline, f"mld.spark.master = {cluster.url}", "mld.spark.driverMemory = 600m", spool, *conf, *keys
    ) as it:
        yield it


def test_no_batch_passes_through_the_collect_of_the_driver(cluster: Cluster, tmp_path: Path) -> None:
    with on(cluster, tmp_path) as made:
        run_more_than_a_driver_collects(made)


@pytest.fixture
def another_jvm() -> None:
    """Modules are sent by what starts the JVM, as each host starts one."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    if (gateway := SparkContext._gateway) is not None:
        if SparkContext._active_spark_context is not None:
            SparkContext._active_spark_context.stop()
        gateway.proc.kill()
        gateway.proc.communicate()
        SparkContext._gateway = SparkContext._jvm = None
        SparkSession._instantiatedSession = None


@pytest.fixture
def forget_helpers() -> Iterator[None]:
    before = list(sys.path)
    yield
    sys.path[:] = before
    for name in [name for name in sys.modules if name.startswith("mld_test_")]:
        del sys.modules[name]


@pytest.mark.usefixtures("forget_helpers", "another_jvm")
def test_modules_reach_executors_by_the_key_of_spark(cluster: Cluster, tmp_path: Path) -> None:
    lay_helpers(tmp_path)
    with zipfile.ZipFile(tmp_path / "helpers.zip", "w") as zipped:
        for name in HELPERS:
            zipped.write(tmp_path / name, name)
    key = f"mld.spark.conf.spark.submit.pyFiles = {tmp_path / 'helpers.zip'}"
    with on(cluster, tmp_path, key, pipeline=WITH_HELPERS) as made:
        run_with_helpers(made)


READS_AN_ARCHIVE = """
import mld_test_given
from pyspark import SparkFiles
from pyspark.sql import functions as F

def told(text):
    return mld_test_given.say(text) + open(SparkFiles.get("words") + "/word.txt").read()

def transform(records, batch):
    return records.select("sequenceNumber", F.udf(told, "string")("payload").alias("payload"))
"""


@pytest.mark.usefixtures("forget_helpers", "another_jvm")
def test_a_module_and_an_archive_reach_executors(cluster: Cluster, tmp_path: Path) -> None:
    given, archive = tmp_path / "mld_test_given.py", tmp_path / "words.tar.gz"
    given.write_text("def say(text):\n    return text + ' '\n")
    (tmp_path / "word.txt").write_text("there")
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(tmp_path / "word.txt", "word.txt")
    keys = f"mld.spark.conf.spark.submit.pyFiles = {given}", f"mld.spark.conf.spark.archives = {archive}#words"
    with on(cluster, tmp_path, *keys, pipeline=READS_AN_ARCHIVE) as made:
        assert made.run({1: b"hello"}).failed == {}
        assert made.rows() == Counter({(1, "hello there"): 1})


HOLDING = """
import os, time
from pathlib import Path
from pyspark.sql import functions as F

def hold(text):
    if text == "hold":
        daemon = Path(f"/proc/{os.getppid()}/stat").read_text()
        Path("@", "held-by-" + daemon.rpartition(")")[2].split()[1]).touch()
        for _ in range(6000):
            if Path("@", "go").exists():
                break
            time.sleep(0.02)
    return text

def transform(records, batch):
    return records.repartition(4).select("sequenceNumber", F.udf(hold, "string")("payload").alias("payload"))
"""


def test_an_executor_that_is_killed_in_the_middle_of_a_job(cluster: Cluster, tmp_path: Path) -> None:
    data = {n: b"hold" if n == 7 else b"%d" % n for n in range(1, 100)}
    outcomes: list[BatchOutcome] = []
    with on(cluster, tmp_path, pipeline=HOLDING.replace("@", str(tmp_path))) as made:
        running = threading.Thread(target=lambda: outcomes.append(made.run(data)))
        running.start()
        (held,) = until(lambda: list(tmp_path.glob("held-by-*")), 120, "a task that is under way")
        executor = int(held.name.rpartition("-")[2])
        assert "CoarseGrainedExecutorBackend" in Path(f"/proc/{executor}/cmdline").read_text()
        os.kill(executor, signal.SIGKILL)
        (tmp_path / "go").touch()
        running.join(300)
        (outcome,) = outcomes
        assert (outcome.failed, outcome.figures.attempts) == ({}, 1)
        assert made.rows() == Counter((n, text.decode()) for n, text in data.items())


def checkpoints(world: Any) -> dict[str, Any]:
    return {key: lease.checkpoint for key, lease in world.leases().items()}


@pytest.mark.timeout(1800)
def test_a_cluster_that_goes_away_and_comes_back(
    cluster: Cluster, make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    world = make_world()
    world.put(200)
    conf = {f"mld.spark.conf.{name}": value for name, value in CONF.items()}
    limit_s = max(EXECUTOR_S, round(SESSION_STARTS * cluster.started_s))
    patience_s = limit_s + SESSION_S
    keys = {
        **conf,
        "mld.spark.master": cluster.url,
        "mld.spark.spool": world.directory / "spool",
        "mld.spark.startTimeoutMillis": 1000 * limit_s,
    }
    daemon = start(world, **keys)
    world.until(lambda: texts(world) == wanted(world), patience_s, "the first records in the sink")
    world.until_caught_up(1)
    before = checkpoints(world)

    cluster.kill()
    world.put(200)
    given_up = f"the job has had no executor for {limit_s} s"
    world.until(lambda: given_up in daemon.log(), patience_s, "the session is given up")
    world.until(lambda: "Failed to connect to master" in daemon.log(), patience_s, "the master is missed")
    assert checkpoints(world) == before

    cluster.start()
    world.until(lambda: texts(world) == wanted(world), patience_s, "the records behind the outage")
    assert daemon.stop(timeout_s=200) == 0
    world.until_caught_up(1)
    until(lambda: not daemon.survivors(), SESSION_S, "the host and its JVM gone")
    assert list((world.directory / "spool").iterdir()) == []
