"""A record that ends the JVM, or holds up its task, each time it is computed: it is found, and everything else is in
the sink once.
"""

from __future__ import annotations

import sys

import pytest

from tests.integration import test_spark
from tests.integration.test_spark import put_bad, texts, wanted
from tests.integration.world import MakeWorld
from tests.support.spark_bed import rows

pytest.importorskip("pyspark", reason="needs the extra: pip install 'mld-kinesis[spark]'")

TASK_MS = 15_000
"""Far above what these batches take, also on a machine that is busy."""
ENDS = """
from pyspark.sql import functions as F

def transform(records, batch):
    ends = F.expr("IF(payload = 'e', length(repeat(payload, 1000000000)), 0) AS n")
    return records.select("sequenceNumber", F.upper("payload").alias("text"), ends)
"""


HANGS = """
from pyspark.sql import functions as F

def last(text):
    while text == "e":
        pass
    return text.upper()

def transform(records, batch):
    return records.select("sequenceNumber", F.udf(last, "string")("payload").alias("text"))
"""
"""In Python: Spark ends the worker."""


@pytest.mark.full
@pytest.mark.spark
@pytest.mark.timeout(1_500)
@pytest.mark.parametrize("pipeline", [ENDS, HANGS], ids=["ends", "hangs"])
def test_a_record_that_ends_the_jvm_or_hangs_is_a_dead_letter_and_all_others_are_there(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch, pipeline: str
) -> None:
    monkeypatch.setattr(sys.modules[test_spark.__name__], "PIPELINE", pipeline)
    world = make_world(shards=2)
    world.put(20)
    put_bad(world, b"e")
    world.put(20)
    daemon = test_spark.start(world, **{"mld.spark.taskTimeoutMillis": TASK_MS})
    world.until(lambda: rows(world.directory / "dead"), 1_200, "the record in the dead letter")
    (dead,) = rows(world.directory / "dead")
    assert (dead["data"], dead["reason"][:39]) == ("ZQ==", "the session of Spark has ended, or was ")
    world.until(lambda: texts(world) == wanted(world), test_spark.SESSION_S, "all others in the sink")
    assert daemon.log().count("a session has ended, or was held up") < 20
    assert daemon.stop(timeout_s=200) == 0
