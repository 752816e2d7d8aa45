"""Several sinks: what their frames have in common is computed once, and all of them see the same of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="needs the extra: pip install 'mld-kinesis[spark]'")

from mld.processors.spark.testing import session
from tests.support.spark_bed import engine_bed, rows

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

JSON = ("mld.spark.format = json", "mld.spark.schema = n INT")
PIPELINE = """
from pathlib import Path
from pyspark.sql import functions as F

def seen(n):
    with Path({calls!r}).open("a") as calls:
        calls.write(f"{{n}}\\n")
    return n

def transform(records, batch):
    common = records.select("sequenceNumber", F.udf(seen, "int")("payload.n").alias("n"), F.expr("uuid()").alias("id"))
    sums = common.groupBy().agg(F.sum("n").alias("n"))
    return {{"out": common, "few": common.where("n > 2").select("id"), "sums": sums}}
"""


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    made = session()
    yield made
    made.stop()  # a test in the next file may start one of its own


def test_three_sinks_see_one_evaluation_of_what_they_share(spark: Any, tmp_path: Path) -> None:
    calls = tmp_path / "calls"
    bed = engine_bed(spark, tmp_path, PIPELINE.format(calls=str(calls)), *JSON, sinks=("out", "few", "sums"))
    data = {n: json.dumps({"n": n}).encode() for n in range(1, 6)} | {6: b"{bad"}
    outcome = bed.run(data)
    assert (outcome.failed, outcome.figures.malformed) == ({}, 1)
    assert sorted(calls.read_text().split()) == ["1", "2", "3", "4", "5"]
    identities = {row["id"] for row in rows(tmp_path / "out")}
    assert len(identities) == 5
    assert {row["id"] for row in rows(tmp_path / "few")} < identities
    assert rows(tmp_path / "sums") == [{"n": 15}]
    assert spark.sparkContext._jsc.getPersistentRDDs().size() == 0


def test_frames_with_nothing_in_common_but_the_records_share_these(spark: Any, tmp_path: Path) -> None:
    """Each frame is right, whatever they have in common."""
    pipeline = """
def transform(records, batch):
    return {"out": records.select("sequenceNumber"), "few": records.sparkSession.range(3)}
"""
    bed = engine_bed(spark, tmp_path, pipeline, *JSON, sinks=("out", "few"))
    assert bed.run({1: b'{"n":1}', 2: b'{"n":2}'}).failed == {}
    assert (len(rows(tmp_path / "out")), len(rows(tmp_path / "few"))) == (2, 3)
