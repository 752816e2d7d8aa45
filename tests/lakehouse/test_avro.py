"""Avro, as the data of records and as the format of a sink, against Spark's own module: `make test-lakehouse`."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mld.processors.spark.fatal import FatalError
from tests.support.spark_bed import Bed, bed

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif("MLD_LAKEHOUSE" not in os.environ, reason="make test-lakehouse"),
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]

SCHEMA = {
    "type": "record",
    "name": "Click",
    "namespace": "shop",
    "fields": [
        {"name": "user", "type": ["null", "string"]},
        {"name": "kind", "type": ["null", {"type": "enum", "name": "Kind", "symbols": ["view", "buy"]}]},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "again", "type": ["null", "Kind"]},
    ],
}
PLAIN = """
def transform(records, batch):
    text = "concat_ws(' ', payload.user, payload.kind, array_join(payload.tags, ','), payload.again)"
    return records.selectExpr("sequenceNumber", f"CASE WHEN payload IS NULL THEN 'none' ELSE {text} END AS payload")
"""
EMPTY = b"\0\0\0\0"
"""All that may be null is, and there are no tags."""


def number(value: int) -> bytes:
    """Zigzag, then seven bits a byte, the lowest first."""
    rest, written = value * 2, bytearray()
    while rest > 0x7F:
        written.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes([*written, rest])


def text(value: str) -> bytes:
    return number(len(value.encode())) + value.encode()


def click(user: str, kind: int, *tags: str) -> bytes:
    written = b"".join(map(text, tags))
    return number(1) + text(user) + number(1) + number(kind) + number(len(tags)) + written + number(0) + EMPTY[:1]


GOOD = {1: click("ann", 1, "a", "b"), 2: click("bé", 0, "c"), 20: EMPTY}
WANTED = Counter([(1, "ann buy a,b"), (2, "bé view c"), (20, "")])
GIBIBYTE = 1 << 30
BAD = {
    11: b"",
    12: GOOD[1][:-1],
    13: GOOD[1] + b"\0",
    14: b'{"user": "ann"}',
    15: b"Obj\x01" + bytes(60),
    16: number(1) + number(GIBIBYTE) + b"ann",
    17: EMPTY[:2] + number(GIBIBYTE) + text("a"),
    18: number(7),
    19: EMPTY + EMPTY,
}
"""Nothing, too short, too long, something else, a file; lengths for which no heap has room; no branch; two records."""


@contextmanager
def avro_bed(directory: Path, *keys: str) -> Iterator[Bed]:
    mine = (
        "mld.spark.packages = org.apache.spark:spark-avro_2.13:4.1.1",
        "mld.spark.format = avro",
        f"mld.spark.schema = {json.dumps(SCHEMA)}",
        "mld.spark.driverMemory = 600m",
        "mld.spark.master = local[2]",
    )
    try:
        with bed(directory, PLAIN, *mine, *keys) as made:
            yield made
    except FatalError as error:
        if "no Spark session" not in str(error):
            raise
        pytest.skip(f"the jar cannot be fetched: {error}")


def test_what_is_no_record_of_the_schema_goes_to_the_dead_letter(tmp_path: Path) -> None:
    keys = [f"mld.spark.deadLetter = {tmp_path / 'dead'}"]
    with avro_bed(tmp_path, *keys) as made:
        assert made.run({n: (GOOD | BAD)[n] for n in (1, 2, 11, 12, 13, 14)}).failed == {}
    with avro_bed(tmp_path, *keys) as made:
        assert made.run(dict(sorted((GOOD | BAD).items()))).failed == {}
        assert made.rows() == WANTED
        dead = made.spark.read.json(str(tmp_path / "dead")).collect()
    assert {(int(row.sequenceNumber), row.reason) for row in dead} == {(n, "not Avro of mld.spark.schema") for n in BAD}
    assert len(dead) == len(BAD)


def test_into_an_avro_sink_and_without_a_dead_letter(tmp_path: Path) -> None:
    sink = "mld.spark.sink.out.format = avro"
    with avro_bed(tmp_path, sink) as made:
        assert made.run({1: GOOD[1], 2: GOOD[2]}).failed == {}
    with avro_bed(tmp_path, sink) as made:
        outcome = made.run({**GOOD, 21: BAD[12]})
        assert (outcome.failed, outcome.figures.malformed) == ({}, 1)
        rows = made.spark.read.format("avro").load(str(made.out)).collect()
    assert Counter((int(row.sequenceNumber), row.payload) for row in rows) == WANTED + Counter([(21, "none")])


@pytest.mark.parametrize("schema", ['{"type": "recrod", "name": "x"}', '{"type": "record"}', "user STRING"])
def test_a_schema_that_is_none_is_told_at_start(tmp_path: Path, schema: str) -> None:
    said = "mld.spark.schema does not fit mld.spark.format = avro: "
    with pytest.raises(FatalError, match=said), avro_bed(tmp_path, f"mld.spark.schema = {schema}"):
        pass
