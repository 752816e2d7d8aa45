"""A Delta table on S3, with a session as the daemon starts it, on a server that was written by others."""

from __future__ import annotations

import os
import threading
from collections import Counter
from dataclasses import replace

import pytest

from mld.processors.spark.high_water_marks import spans
from mld.processors.spark.positions import RecordPosition, StreamShard
from mld.processors.spark.session import jvm_classes, spark_session
from mld.processors.spark.sink_port import Fenced, SinkError
from mld.processors.spark.sinks.delta import is_conditional
from mld.processors.spark.sinks.factory import make_sink
from tests.support.s3_servers import BIN, SECRET, Versitygw
from tests.support.servers import ACCOUNT
from tests.unit.spark.twins import settings_of

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif("MLD_LAKEHOUSE" not in os.environ, reason="make test-lakehouse"),
    pytest.mark.skipif(not (BIN / Versitygw.program).is_file(), reason="make test-s3 builds the server"),
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]
A = StreamShard("s", "shardId-000000000000")
WRITERS = 12


@pytest.fixture(scope="module")
def lake(tmp_path_factory):
    """Session and settings of a daemon whose table is on S3."""
    directory = tmp_path_factory.mktemp("host")
    with pytest.MonkeyPatch.context() as patch, Versitygw() as server:
        patch.setenv("AWS_ACCESS_KEY_ID", ACCOUNT)
        patch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
        server.client("s3").create_bucket(Bucket="lake")
        settings = settings_of(
            "mld.spark.sink.out.path = s3://lake/clicks",
            "mld.spark.sink.out.format = delta",
            "mld.spark.master = local[2]",
            "mld.spark.driverMemory = 800m",
            f"mld.spark.s3.endpoint = {server.endpoint}",
            "mld.spark.s3.region = us-east-1",
            "mld.spark.s3.pathStyle = true",
            "mld.spark.conf.spark.databricks.delta.snapshotPartitions = 1",
            sinks=(),
        )
        session = spark_session.start(settings, directory)
        yield session, settings
        session.stop()


def publish(spark, sink, end, marks):
    batch = spans({A: RecordPosition(end)}, marks)
    first = batch[A].after.sequence + 1 if batch[A].after else 1
    return sink.publish(spark.range(first, end + 1), batch, "b").marks


def test_what_is_delivered_again_is_there_once_and_a_zombie_is_fenced(lake):
    spark, settings = lake
    sink, zombie = (make_sink(settings.sinks[0], spark) for _ in range(2))
    old = zombie.open()
    marks = publish(spark, sink, 5, sink.open())
    with pytest.raises(Fenced):
        publish(spark, zombie, 3, old)
    assert publish(spark, zombie, 9, zombie.open()) == {A: RecordPosition(9)}
    assert marks == {A: RecordPosition(5)}
    rows = spark.read.format("delta").load("s3a://lake/clicks").collect()
    assert Counter(row.id for row in rows) == Counter(range(1, 10))


def test_one_of_many_gets_a_version_of_the_log(lake):
    """Each has found it free: the condition is asked when the file is closed."""
    spark, _ = lake
    java, gateway = spark._jvm, spark.sparkContext._gateway
    configuration = spark._jsparkSession.sessionState().newHadoopConf()
    loader = java.java.lang.Thread.currentThread().getContextClassLoader()
    types, values = (gateway.new_array(kind, 1) for kind in (java.java.lang.Class, java.java.lang.Object))
    types[0], values[0] = configuration.getClass(), configuration
    store = java.java.lang.Class.forName(jvm_classes.CLASS, True, loader).getConstructor(types).newInstance(values)
    path = java.org.apache.hadoop.fs.Path("s3a://lake/other/_delta_log/00000000000000000001.json")
    won, lost = [], []

    def write(number):
        try:
            store.write(path, java.java.util.Collections.singletonList(str(number)).iterator(), False, configuration)
            won.append(number)
        except Exception as error:
            lost.append("java.nio.file.FileAlreadyExistsException" in str(error))

    threads = [threading.Thread(target=write, args=(number,)) for number in range(WRITERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(won), lost) == (1, [True] * (WRITERS - 1))
    assert [row.value for row in spark.read.text(path.toString()).collect()] == [str(won[0])]


def test_the_store_is_tried_and_nothing_stays_of_it(lake):
    spark, _ = lake
    assert is_conditional(spark, "s3a://lake/tried")
    place = spark._jvm.org.apache.hadoop.fs.Path("s3a://lake/tried/_mld/probe")
    files = place.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())
    assert not files.exists(place) or not files.listFiles(place, True).hasNext()


def test_a_bucket_that_is_not_there_is_said(lake):
    spark, settings = lake
    with pytest.raises(SinkError, match="nowhere"):
        make_sink(replace(settings.sinks[0], path="s3://nowhere/t"), spark).open()
