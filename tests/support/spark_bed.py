"""What a session host has, without its links: session, engine and spool as they are started in production."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from mld.processors.spark.batch.engine import Engine
from mld.processors.spark.batch.outcome import BatchOutcome
from mld.processors.spark.batch.spool import Spool, open_spool
from mld.processors.spark.fatal import FatalError
from mld.processors.spark.host.start_up import start
from mld.processors.spark.pipeline import load
from mld.processors.spark.positions import RecordPosition, StreamShard
from mld.processors.spark.session.handover import Handover
from mld.processors.spark.session.session_health import SessionHealth
from mld.processors.spark.sink_spec import SinkSpec
from mld.processors.spark.sinks.factory import make_sink
from tests.unit.spark.twins import run_data, settings_of

A = StreamShard("s", "a")
PLAIN = "def transform(records, batch):\n    return records.select('sequenceNumber', 'payload')\n"
RECORDS, RECORD_BYTES = 3_000, 2_000
"""Together six times what a driver may collect, where `spark.driver.maxResultSize` is 1m."""


def rows(directory: Path) -> list[dict[str, Any]]:
    """What a reader of a sink of JSON sees."""
    files = sorted(directory.glob("c[0-9]*-*"))
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


class Bed:
    """Batches into sinks of JSON, each in a directory of its own name."""

    def __init__(self, spark: Any, engine: Engine, spool: Spool, directory: Path) -> None:
        self.spark, self.engine, self.spool, self.out = spark, engine, spool, directory / "out"

    def run(self, data: Mapping[int, bytes], shard: str = "a", after: int | None = None) -> BatchOutcome:
        """`after`: the number of the record that was delivered right before them."""
        position = None if after is None else RecordPosition(after)
        return run_data(self.engine, self.spool, data, shard, position)

    def rows(self) -> Counter[tuple[int, str]]:
        return Counter((int(row["sequenceNumber"]), row["payload"]) for row in rows(self.out))


WITH_HELPERS = """
import mld_test_helper
from pyspark.sql import functions as F

def shout(text):
    from mld_test_package.deep import louder
    return louder(mld_test_helper.shout(text))

def transform(records, batch):
    return records.select("sequenceNumber", F.udf(shout, "string")("payload").alias("payload"))
"""
HELPERS = {
    "mld_test_helper.py": "import os\ndef shout(text):\n    return text.upper()\n",
    "mld_test_package/__init__.py": "",
    "mld_test_package/deep.py": "def louder(text):\n    return text + '!'\n",
}
"""Modules beside `WITH_HELPERS`, one imported by its file and one by its function."""


def run_with_helpers(made: Bed) -> None:
    """Functions that import modules from beside the pipeline, in a process that has another working directory."""
    outcome = made.run({1: b"a", 2: b"b"})
    assert (outcome.failed, outcome.figures.attempts) == ({}, 1)
    assert made.rows() == Counter({(1, "A!"): 1, (2, "B!"): 1})


def lay_helpers(directory: Path) -> None:
    for name, text in HELPERS.items():
        (directory / name).parent.mkdir(exist_ok=True)
        (directory / name).write_text(text)


def run_more_than_a_driver_collects(made: Bed) -> None:
    """All but the last of the records, and then the last ones with some that are delivered again."""
    data = {n: os.urandom(RECORD_BYTES // 2).hex().encode() for n in range(1, RECORDS + 1)}
    assert made.run({n: data[n] for n in range(1, RECORDS - 9)}).failed == {}
    assert made.run({n: data[n] for n in range(RECORDS - 19, RECORDS + 1)}).failed == {}
    assert made.rows() == Counter((n, text.decode()) for n, text in data.items())
    with pytest.raises(Exception, match="maxResultSize"):
        made.spark.read.json(str(made.out)).repartition(1).collect()


def engine_bed(
    spark: Any, directory: Path, pipeline: str, *keys: str, sinks: tuple[str, ...] = ("out",), dead: bool = True
) -> Bed:
    """An engine over a session that others use as well; `pipeline` is Python, or one SELECT."""
    suffix = ".sql" if pipeline.startswith("SELECT") else ".py"
    file = directory / f"pipeline{suffix}"
    file.write_text(pipeline)
    paths = [f"mld.spark.sink.{sink}.path = {directory / sink}" for sink in sinks]
    formats = [f"mld.spark.sink.{sink}.format = json" for sink in sinks]
    letters = [f"mld.spark.deadLetter = {directory / 'dead'}"] if dead else []
    settings = settings_of(*paths, *formats, *letters, *keys, sinks=sinks)
    loaded = load(str(file) if suffix == ".sql" else f"{file}:transform", sinks)
    spool = Spool(Path(tempfile.mkdtemp(prefix="spool-", dir=directory)))
    dead_letter = make_sink(SinkSpec("dead", "json", settings.dead_letter), spark) if dead else None
    made = [make_sink(spec, spark) for spec in settings.sinks]
    frames, health = Handover(spark, settings, divert=dead), SessionHealth(spark)
    engine = Engine(settings, frames, health, loaded, made, dead_letter, spool)
    engine.start()
    loaded.setup(spark)
    health.check()
    return Bed(spark, engine, spool, directory)


@contextlib.contextmanager
def bed(directory: Path, pipeline: str, *keys: str) -> Iterator[Bed]:
    """A bed with a session of its own; records are text unless `keys` say otherwise."""
    (directory / "pipeline.py").write_text(pipeline)
    settings = settings_of(
        f"mld.spark.pipeline = {directory / 'pipeline.py'}:transform",
        "mld.spark.format = text",
        f"mld.spark.sink.out.path = {directory / 'out'}",
        "mld.spark.sink.out.format = json",
        *keys,
    )
    spool = open_spool(settings.spool, directory, settings.s3)
    try:
        started = start(settings, directory, spool)
        try:
            yield Bed(started.spark, started.engine, spool, directory)
        finally:
            started.close()
    except FatalError:
        _stop_session()  # a host would end with its session; the next test here would go on with it
        raise
    finally:
        spool.close()


def _stop_session() -> None:
    from pyspark.sql import SparkSession

    session = SparkSession.getActiveSession()
    if session is not None:
        session.stop()
