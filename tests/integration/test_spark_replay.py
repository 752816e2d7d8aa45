"""A dead letter put back through a corrected pipeline: `mld-spark --replay-dead-letter` as people run it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="needs the extra: pip install 'mld-kinesis[spark]'")

from mld.processors.spark.batch.spool import open_spool
from mld.processors.spark.host.start_up import start
from mld.processors.spark.settings import load
from tests.support.spark_bed import rows
from tests.unit.spark.twins import run_data

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

PROPERTIES = """
streamName = s
applicationName = app
mld.spark.streamId = s-1
mld.spark.master = local[2]
mld.spark.driverMemory = 1g
mld.spark.pipeline = {here}/pipeline.py:transform
mld.spark.format = json
mld.spark.schema = n INT
mld.spark.deadLetter = {here}/dead
mld.spark.sink.out.path = {here}/out
mld.spark.sink.out.format = json
mld.spark.sink.all.path = {here}/all
mld.spark.sink.all.format = json
"""
PIPELINE = """
def transform(records, batch):
    return {{
        "out": records.selectExpr("sequenceNumber", "{divided} AS value"),
        "all": records.select("sequenceNumber", "payload.n"),
    }}
"""
BROKEN, OF_ANOTHER_TYPE, CORRECTED = "10 div payload.n", "10.0D", "CAST(try_divide(10, payload.n) AS BIGINT)"


def replay(file: Path, *options: str) -> subprocess.CompletedProcess[str]:
    code = "from mld.processors.spark.child import main; main()"
    return subprocess.run(
        [sys.executable, "-P", "-c", code, "--replay-dead-letter", *options, str(file)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )


def value(n: object) -> bytes:
    return json.dumps({"n": n}).encode()


def numbers(directory: Path) -> list[int]:
    return sorted(int(row["sequenceNumber"]) for row in rows(directory))


def test_a_dead_letter_is_put_back_once(tmp_path: Path) -> None:
    file, pipeline = tmp_path / "app.properties", tmp_path / "pipeline.py"
    file.write_text(PROPERTIES.format(here=tmp_path))
    pipeline.write_text(PIPELINE.format(divided=BROKEN))
    settings = load(str(file), (), {})
    spool = open_spool(None, tmp_path)
    started = start(settings, tmp_path, spool)
    try:
        data = {n: value(0 if n in (3, 7) else n) for n in range(1, 9)} | {5: b"{bad"}
        assert run_data(started.engine, spool, data, "a").failed == {}  # type: ignore[arg-type]
    finally:
        started.close()
        spool.close()
    assert (numbers(tmp_path / "out"), numbers(tmp_path / "dead")) == ([1, 2, 4, 6, 8], [3, 5, 7])
    assert numbers(tmp_path / "all") == [1, 2, 3, 4, 6, 7, 8]

    pipeline.write_text(PIPELINE.format(divided=OF_ANOTHER_TYPE))
    stopped = replay(file)
    assert stopped.returncode == 1
    assert "stopped: sink out: its column value is bigint, in this batch it is double" in stopped.stderr
    pipeline.write_text(PIPELINE.format(divided=CORRECTED))
    done = replay(file)
    assert (done.returncode, done.stdout.splitlines()[0]) == (
        1,
        "3 letters replayed: 2 are in the sinks, 1 are letters again",
    ), done.stderr
    assert numbers(tmp_path / "out") == numbers(tmp_path / "all") == [1, 2, 3, 4, 6, 7, 8]
    assert numbers(tmp_path / "dead") == [3, 5, 5, 7]

    again = replay(file)
    assert again.stdout.splitlines()[:2] == [
        "1 letters replayed: 0 are in the sinks, 1 are letters again",
        "3 letters were replayed before",
    ], again.stderr
    assert numbers(tmp_path / "out") == numbers(tmp_path / "all") == [1, 2, 3, 4, 6, 7, 8]


@pytest.mark.parametrize("arguments", [(), ("a", "b"), ("--nonsense",)])
def test_arguments_that_are_none_are_answered_with_the_usage(arguments: tuple[str, ...]) -> None:
    code = "from mld.processors.spark.child import main; main()"
    found = subprocess.run(
        [sys.executable, "-P", "-c", code, "--replay-dead-letter", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert (found.returncode, found.stderr) == (2, "usage: mld-spark --replay-dead-letter APP.properties\n")
