"""The Spark benchmarks: the stand-in serves JSON of the size that is said, and figures become tables."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.benchmarks import spark_report
from tests.benchmarks.path.figures import Row
from tests.benchmarks.path.records import sequence_number
from tests.benchmarks.spark_rig import PARTS, Running, SparkStand
from tests.benchmarks.spark_stand import KINDS
from tests.support.servers import make_client

SHARD = "shardId-000000000001"


@pytest.fixture(scope="module")
def server() -> Iterator[SparkStand]:
    stand = SparkStand(12, 1024)
    yield stand
    stand.close()


def test_records_are_events_of_the_size_that_is_said(server: SparkStand) -> None:
    server.tell("open")
    kinesis = make_client("kinesis", server.endpoint)
    start = kinesis.get_shard_iterator(StreamName="backlog-2-12", ShardId=SHARD, ShardIteratorType="TRIM_HORIZON")
    found = kinesis.get_records(ShardIterator=start["ShardIterator"])["Records"]
    assert [record["SequenceNumber"] for record in found] == [sequence_number(n) for n in range(12)]
    assert {len(record["Data"]) for record in found} == {1024}
    assert [json.loads(record["Data"])["kind"] for record in found] == list(KINDS) * 3


def test_triggers_are_read_from_the_log_once(tmp_path) -> None:
    said = "spark: INFO trigger: shards=2 records=30 jobs=1 lag_ms=? failed_shards=0"
    event = {"timestamp": "2026-01-02T03:04:05+00:00", "message": said, "action": "child_stderr"}
    log = tmp_path / "log.jsonl"
    log.write_text("no JSON\n" + json.dumps(event) + "\n" + json.dumps({"action": "consumer_started"}) + '\n{"half')
    daemon = type("Daemon", (), {"log_file": log})()
    running = Running(daemon, tmp_path)
    running.look()
    running.look()
    assert (running.records, running.started_shards) == (30, 1)
    assert dict(running.triggers[0].figures) == {"shards": 2, "records": 30, "jobs": 1, "failed_shards": 0}


def test_a_row_is_compared_with_ours_of_as_many_shards() -> None:
    figures = {f"{part}_{what}": 1.0 for part in PARTS for what in ("s_per_million", "pss_mb")}
    figures |= {"records_per_s": 40_000, "cores": 1.5, "records_per_trigger": 50_000}
    one = Row("backlog", "one session", "1 KB", 4, figures=figures)
    dear = Row("backlog", "old", "1 KB", 4, figures={**figures, "jvm_s_per_million": 5.0})
    table = spark_report.markdown([dear, one])
    assert "| 4 | one session | 40,000 | 4.0 | 1.0 | 1.0 | 1.0 | 1.0 | 1.50 | 50,000 | 1.00 | 1.00 |" in table
    assert "| 4 | old | 40,000 | 8.0 | 1.0 | 1.0 | 1.0 | 5.0 | 1.50 | 50,000 | 2.00 | 1.00 |" in table


def test_turns_are_compared_one_by_one() -> None:
    def row(subject: str, cost: float, speed: float) -> Row:
        figures = {f"{part}_{what}": cost for part in PARTS for what in ("s_per_million", "pss_mb")}
        return Row(
            "backlog",
            subject,
            "1 KB",
            4,
            figures={**figures, "records_per_s": speed, "cores": 1.5, "records_per_trigger": 9},
        )

    rows = [row("one session", 1.0, 40), row("old", 2.0, 30), row("one session", 2.0, 20), row("old", 3.0, 30)]
    table = spark_report.markdown(rows)
    ratios = [line.split("|")[-3:-1] for line in table.splitlines() if "| old |" in line]
    assert ratios == [[" 2.00 ", " 0.75 "], [" 1.50 ", " 1.50 "]]


def test_quiet_shards_have_a_line_for_each_second() -> None:
    row = Row("quiet", "low", "1 KB", 64, figures={f"{part}_ms_per_s": 2.5 for part in PARTS} | MEMORY | TRIGGERS)
    assert "| 64 | low | 10.0 | 2.5 | 2.5 | 2.5 | 2.5 |" in spark_report.markdown([row])


MEMORY = {f"{part}_pss_mb": 1.0 for part in PARTS}
TRIGGERS = {f"{part}_ms_per_trigger": 1.0 for part in PARTS}
TRIGGERS |= {"triggers": 1, "jobs": 1, "shards_per_trigger": 1, "records": 1}
TRIGGERS |= dict.fromkeys(("p50_ms", "p90_ms", "p99_ms", "max_ms"), 1.0)
