"""Whatever cannot work gets a sentence with the remedy, ends as documented, and moves no checkpoint."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="needs the extra: pip install 'mld-kinesis[spark]'")

from mld.processors.spark.fatal import EXIT_CONFIGURATION, FatalError
from tests.integration import test_spark
from tests.integration.world import MakeWorld
from tests.support.daemon import Daemon
from tests.support.spark_bed import PLAIN, bed

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]
LOCKED = """
import threading
from pyspark.sql import functions as F

lock = threading.Lock()

def transform(records, batch):
    return records.select(F.udf(lambda text: lock.locked(), "boolean")("payload").alias("x"))
"""


def ends_without_a_checkpoint(make_world: MakeWorld, said: str, **keys: object) -> Daemon:
    world = make_world()
    world.put(3)
    daemon = test_spark.start(world, **{"mld.childFailurePolicy": "exit", **keys})
    assert daemon.wait(test_spark.SESSION_S) == 1
    assert said in daemon.log(), daemon.tail()
    assert all(lease.checkpoint.number is None for lease in world.leases().values())
    assert not list((world.directory / "out").glob("c[0-9]*"))
    return daemon


def test_a_java_that_is_too_old(make_world: MakeWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java = tmp_path / "jre" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n")
    java.chmod(0o755)
    said = f"{java} is Java 11; Spark 4 needs 17 or later; install a JRE 17"
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jre"))
    daemon = ends_without_a_checkpoint(make_world, said)
    assert "exited with status 2" in daemon.log(), "another attempt cannot help"


def test_a_cluster_that_is_not_there(make_world: MakeWorld) -> None:
    """Spark itself gives up after a minute."""
    with socket.socket() as taken:  # bound and not listening: refused for certain
        taken.bind(("127.0.0.1", 0))
        master = f"spark://127.0.0.1:{taken.getsockname()[1]}"
        keys = {"mld.spark.master": master, "mld.spark.spool": "spool"}
        daemon = ends_without_a_checkpoint(make_world, f"no Spark session at {master}", **keys)
    assert "exited with status 1" in daemon.log(), "another attempt may help"


def test_a_function_that_cannot_travel(make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[test_spark.__name__], "PIPELINE", LOCKED)
    ends_without_a_checkpoint(make_world, "cannot pickle '_thread.lock' object; correct the pipeline")


@pytest.mark.parametrize(
    ("key", "said"),
    [
        (
            "format = nosuch",
            "mld.spark.sink.out.format is nosuch, which Spark does not know: .*; correct it, or add the package",
        ),
        (
            "path = hdfs:///out",
            "mld.spark.sink.out.path = hdfs:///out: .*, not to hdfs, .*; use a directory .*, s3, or",
        ),
    ],
)
def test_a_sink_that_cannot_be(tmp_path: Path, key: str, said: str) -> None:
    (tmp_path / "file").touch()
    keys = [f"mld.spark.sink.out.{key.replace('@', str(tmp_path))}", "mld.spark.master = local[1]"]
    with pytest.raises(FatalError, match=said) as caught, bed(tmp_path, PLAIN, *keys):
        pass
    assert caught.value.status == EXIT_CONFIGURATION


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        (
            '{"type": "record", "name": "R", "fields": [{"name": "n", "type": "int"}]}',
            "mld.spark.format is avro, .* no Avro module; write mld.spark.packages = org.apache.spark:spark-avro_2.13:",
        ),
        ("n INT", "mld.spark.schema does not fit mld.spark.format = avro: it is not JSON .*; write the Avro schema"),
    ],
)
def test_avro_without_its_module_or_without_its_schema(tmp_path: Path, schema: str, said: str) -> None:
    keys = ["mld.spark.format = avro", f"mld.spark.schema = {schema}", "mld.spark.master = local[1]"]
    with pytest.raises(FatalError, match=said) as caught, bed(tmp_path, PLAIN, *keys):
        pass
    assert caught.value.status == EXIT_CONFIGURATION
