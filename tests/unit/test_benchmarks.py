"""The stand-ins of the benchmarks tell the truth: what they serve is what Kinesis would, and children count it."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from mld.aws.wire.frame_stream import FrameStream
from mld.core.positions import Position
from mld.core.streams import HashRange
from mld.leases.rows import parse_row
from mld.retrieval.rawbody import page_of
from tests.benchmarks.path import java, report
from tests.benchmarks.path.canned import Kinesis
from tests.benchmarks.path.figures import LOADS, Row, read, write
from tests.benchmarks.path.records import Records, event_records_max, index_of, sequence_number
from tests.benchmarks.path.rig import PYTHON_SINK, Stand, build
from tests.benchmarks.path.subject import Notes
from tests.benchmarks.path.yardsticks import BOTO3, per
from tests.support.patience import PATIENCE_S
from tests.support.servers import make_client

LIVE_TOLERANCE_S = PATIENCE_S


@pytest.fixture(scope="module")
def server() -> Iterator[Stand]:
    stand = Stand("canned", 25, 10)
    yield stand
    stand.close()


def read_all(kinesis: Any, stream: str, shard: str, limit: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    iterator = kinesis.get_shard_iterator(StreamName=stream, ShardId=shard, ShardIteratorType="TRIM_HORIZON")
    answer = {"NextShardIterator": iterator["ShardIterator"], "MillisBehindLatest": 1}
    while answer["MillisBehindLatest"]:
        answer = kinesis.get_records(ShardIterator=answer["NextShardIterator"], Limit=limit)
        found += answer["Records"]
    return found


def test_a_backlog_is_there_once_the_gate_is_open(server: Stand) -> None:
    kinesis = make_client("kinesis", server.endpoint)
    shards = [shard["ShardId"] for shard in kinesis.list_shards(StreamName="backlog-2-20")["Shards"]]
    assert len(shards) == 2
    assert read_all(kinesis, "backlog-2-20", shards[1], 7) == []
    server.tell("open")
    records = read_all(kinesis, "backlog-2-20", shards[1], 7)
    server.tell("close")
    assert [index_of(record["SequenceNumber"]) for record in records] == list(range(20))
    assert {len(record["Data"]) for record in records} == {10}


def test_live_records_bear_the_time_they_were_put() -> None:
    with closing(Records(0, 10)) as records:
        kinesis = Kinesis(records)
    stream = kinesis.stream("live-4-10")
    at = kinesis.put_at(stream, 3, 5)
    assert kinesis.available(stream, 3, 0, at - 0.001) == 5
    assert kinesis.available(stream, 3, 0, at + 0.001) == 6
    (record,) = json.loads(b"[%b]" % kinesis.live_texts(stream, 3, 5, 6))
    assert float(record["PartitionKey"]) == pytest.approx(at, abs=1e-5)
    assert abs(at - time.time()) < LIVE_TOLERANCE_S


def test_slices_of_the_text_are_pages_and_events_hold_the_same_records() -> None:
    with closing(Records(2500, 1000)) as records:
        check_slices(records)


def check_slices(records: Records) -> None:
    body = b'{"NextShardIterator":"n","MillisBehindLatest":0,"Records":[%b]}'
    page = page_of(body % bytes(records.text(2, 2500)))
    assert (page.count, page.data_bytes) == (2498, 2_498_000)
    assert (page.first_sequence, page.last_sequence) == (sequence_number(2), sequence_number(2499))
    events = records.events()
    stream = FrameStream(chunked=True)
    for piece in events.pieces(events.span(0, 2500), 100_000):
        stream.feed(bytes(piece))
    stream.feed(b"0\r\n\r\n")
    assert stream.is_complete
    assert len(stream.frames) == -(-2500 // event_records_max(1000))
    assert sum(b"".join(frame).count(b'"SequenceNumber"') for frame in stream.frames) == 2500


def children(directory: Path) -> list[tuple[str, ...]]:
    native = build(directory).sink if shutil.which("cc") or shutil.which("gcc") else PYTHON_SINK
    return [PYTHON_SINK, native]


def test_both_children_answer_count_and_ask_for_checkpoints_alike(tmp_path: Path) -> None:
    records = ",".join(json.dumps({"partitionKey": "1.5", "sequenceNumber": sequence_number(n)}) for n in range(3000))
    said = (
        '{"action":"initialize","shardId":"shard-7"}\n',
        f'{{"action":"processRecords","records":[{records}]}}\n',
        f'{{"action":"processRecords","records":[{records}]}}\n',
        '{"action":"checkpoint","error":null}\n',
        '{"action":"shutdownRequested"}\n',
    )
    answers = [
        {"action": "status", "responseFor": "initialize"},
        {"action": "status", "responseFor": "processRecords"},
        {"action": "checkpoint", "sequenceNumber": sequence_number(2999), "subSequenceNumber": 0},
        {"action": "status", "responseFor": "processRecords"},
        {"action": "status", "responseFor": "shutdownRequested"},
    ]
    for number, command in enumerate(children(tmp_path)):
        notes = Notes(tmp_path / str(number))
        env = {"BENCH_NOTES": str(notes.file), "BENCH_CHECKPOINT_EVERY": "2"}
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env) as child:
            assert child.stdin and child.stdout
            for line, answer in zip(said, answers, strict=True):
                child.stdin.write(line.encode())
                child.stdin.flush()
                assert json.loads(child.stdout.readline()) == answer
            child.stdin.close()
        notes.look()
        assert (notes.initialized, notes.records, notes.batches) == ({"shard-7"}, {"shard-7": 3000}, 2)


def test_the_report_sets_a_daemon_beside_the_yardsticks_of_its_wire(tmp_path: Path) -> None:
    slow, quick = per(29.0, 30.0, 1_000_000, 1000), per(2.0, 4.0, 1_000_000, 1000)
    rest = {"rss_mb": 60.0, "threads": 20, "batches": 9}
    rows = [
        Row("yardstick", BOTO3, "1 KB", 1, True, "", slow),
        Row("backlog", "mld", "1 KB", 4, True, "POLLING", {**slow, **rest}),
        Row("backlog", "mld", "1 KB", 4, True, "POLLING", {**quick, **rest}),
        Row("backlog", "mld", "1 KB", 4, False, "POLLING", {**quick, **rest}),
    ]
    file = tmp_path / "results.jsonl"
    write(file, rows)
    latest = read(file)
    assert len(latest) == 3, "a measurement made again takes the place of the first"
    shown = report.markdown(latest)
    assert "| 1 KB | 4 | TLS | polling | mld | 2.00 | 2.00 | 14.5 |" in shown
    assert "| 1 KB | 4 | plain | polling | mld | 2.00 | 2.00 | - |" in shown


def turn_of(turn: int, java: float, ours: float) -> list[Row]:
    """Records of 1 KB in one shard, without TLS."""

    def measured(name: str, cost: float) -> Row:
        whole, steady = cost + 10, {"steady_cpu_s_per_gb": cost}
        figures = {**steady, "whole_cpu_s_per_gb": whole, "peak_mb": 100 * cost}
        return Row("backlog", name, "1 KB", 1, figures=figures, turn=turn)

    yardstick = Row("yardstick", BOTO3, "1 KB", 1, figures={"cpu_s_per_gb": 40.0}, turn=turn)
    return [yardstick, measured("mld", ours), measured("Java 3.5.1", java), measured("0.1", 2 * ours)]


def test_the_table_has_the_ranges_of_all_turns_and_factors_of_each(tmp_path: Path) -> None:
    write(tmp_path / "results.jsonl", [*turn_of(1, 12.0, 2.0), *turn_of(2, 20.0, 4.0)])
    shown = report.markdown([*read(tmp_path / "results.jsonl"), Row("backlog", "mld", "1 KB", 64, figures={}, turn=1)])
    head = "|  | Java 3.5.1 | 0.1 | mld | boto3 in a loop | Java 3.5.1 / mld | 0.1 / mld |"
    costs = "| 12.0-20.0 / 22.0-30.0 | 4.00-8.00 / 14.0-18.0 | 2.00-4.00 / 12.0-14.0 | 40.0 |"
    factors = " 5.00-6.00 / 1.83-2.14 | 2.00 / 1.17-1.29 |"
    assert head in shown
    assert f"| 1 KB, 1 shard, s/GB {costs}{factors}" in shown
    assert " peak in a backlog of 1 KB | - / 1,200-2,000 | - / 400-800 | - / 200-400 | - |" in shown
    assert "with TLS" not in shown


def test_java_finds_a_lease_without_an_owner_for_each_shard(server: Stand) -> None:
    leases = Stand("leases")
    try:
        java.prepare(leases.endpoint, server.endpoint, "application", "backlog-2-20")
        found = make_client("dynamodb", leases.endpoint).scan(TableName="application")["Items"]
    finally:
        leases.close()
    found_leases = {lease.key: lease for lease in map(parse_row, found) if lease is not None}
    assert sorted(found_leases) == ["shardId-000000000000", "shardId-000000000001"]
    assert {(lease.owner, lease.checkpoint) for lease in found_leases.values()} == {(None, Position("TRIM_HORIZON"))}
    assert found_leases["shardId-000000000001"].hash_range == HashRange(2**127, 2**128 - 1)


def test_backlogs_are_whole_events() -> None:
    for load in LOADS.values():
        each = event_records_max(load.record_bytes)
        assert load.records(64, each) % each == 0
        assert load.records(64, each) <= load.records(1, each)
