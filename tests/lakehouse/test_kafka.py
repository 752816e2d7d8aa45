"""The sink of any other format with a real Kafka behind it: at least once, and never a known repetition.

The broker is a process of the test's own, from the jars that Spark has fetched for its session.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections import Counter
from pathlib import Path

import pytest

from mld.processors.spark.high_water_marks import spans
from mld.processors.spark.positions import RecordPosition, StreamShard
from mld.processors.spark.sink_spec import SinkSpec

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif("MLD_LAKEHOUSE" not in os.environ, reason="make test-lakehouse"),
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]

PACKAGES = "org.apache.spark:spark-sql-kafka-0-10_2.13:4.1.1,org.apache.kafka:kafka_2.13:3.9.1"
CLUSTER = "bWxkLXRlc3RzLWNsdXN0ZXI"
"""A name of a cluster, as Kafka wants it: 16 bytes in base64."""
START_S = 90.0
LOOK_S = 0.1
A = StreamShard("s", "0")
PROPERTIES = """
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{broker},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{broker}
controller.listener.names=CONTROLLER
log.dirs={directory}
offsets.topic.replication.factor=1
num.partitions=2
"""


@pytest.fixture(scope="module")
def spark():
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]")
    conf = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "700m",
        "spark.jars.packages": PACKAGES,
        "spark.jars.excludes": "org.slf4j:slf4j-api,org.scala-lang:scala-library",  # Spark has them
        "spark.sql.shuffle.partitions": "2",
        "spark.log.level": "OFF",
    }
    for key, value in conf.items():
        builder = builder.config(key, value)
    try:
        session = builder.getOrCreate()
    except Exception as error:
        pytest.skip(f"the jars cannot be fetched: {str(error)[:200]}")
    yield session
    session.stop()


class Broker:
    """One node that is broker and controller; it can be killed and started again at its address."""

    def __init__(self, jars, directory):
        self._java = ["java", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", ":".join(jars)]
        self._directory = directory
        self.port, controller = free_ports(2)
        self._file = directory / "server.properties"
        self._file.write_text(
            PROPERTIES.format(broker=self.port, controller=controller, directory=directory / "data"), encoding="ascii"
        )
        formatting = [*self._java, "kafka.tools.StorageTool", "format", "-t", CLUSTER, "-c", str(self._file)]
        subprocess.run(formatting, check=True, capture_output=True, timeout=START_S)

    def start(self):
        with (self._directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [*self._java, "kafka.Kafka", str(self._file)], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        deadline = time.monotonic() + START_S
        while not self._answers():
            assert self._process.poll() is None, (self._directory / "log").read_text()[-2000:]
            assert time.monotonic() < deadline, "no broker"
            time.sleep(LOOK_S)

    def kill(self):
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _answers(self):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
            return True
        return False


def free_ports(count):
    with contextlib.ExitStack() as stack:
        bound = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in bound:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in bound]


@pytest.fixture(scope="module")
def broker(spark, tmp_path_factory):
    import pyspark

    listed = spark.sparkContext._jsc.sc().listJars()
    jars = [str(listed.apply(index)) for index in range(listed.size())]
    local = [path.rpartition("/")[2] for path in jars]
    cache = spark.conf.get("spark.jars.ivy", str(Path.home() / ".ivy2.5.2"))
    mine = Path(pyspark.__file__).parent / "jars" / "*"
    one = Broker([*(f"{cache}/jars/{name}" for name in local), str(mine)], tmp_path_factory.mktemp("kafka"))
    one.start()
    yield one
    one.kill()


def sink_of(spark, broker, topic):
    from mld.processors.spark.sinks.factory import make_sink

    options = {"kafka.bootstrap.servers": f"127.0.0.1:{broker.port}", "topic": topic, "kafka.max.block.ms": "5000"}
    return make_sink(SinkSpec("out", "kafka", options=options), spark)


def publish(spark, sink, end, marks):
    batch = spans({A: RecordPosition(end)}, marks)
    first = batch[A].after.sequence + 1 if batch[A].after else 1
    frame = spark.range(first, end + 1).selectExpr("'0' AS key", "CAST(id AS STRING) AS value")
    return sink.publish(frame, batch, "b").marks


def found(spark, broker, topic):
    reading = spark.read.format("kafka").option("kafka.bootstrap.servers", f"127.0.0.1:{broker.port}")
    rows = reading.option("subscribe", topic).load().selectExpr("CAST(value AS STRING)").collect()
    return Counter(int(value) for (value,) in rows)


def test_records_arrive_once_and_again_once_somebody_else_may_have_had_the_shard(spark, broker, caplog):
    with caplog.at_level("WARNING", "mld.spark"):
        sink = sink_of(spark, broker, "t1")
    assert "kafka is written at least once" in caplog.text
    publish(spark, sink, 9, publish(spark, sink, 5, sink.open()))
    again = sink_of(spark, broker, "t1")
    publish(spark, again, 2, again.open())
    assert found(spark, broker, "t1") == Counter([*range(1, 10), 1, 2])
