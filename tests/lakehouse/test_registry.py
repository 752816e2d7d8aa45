"""Avro that names its schema, written by Amazon's serializers and by several versions: `make test-lakehouse`."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mld.processors.spark.batch.spool import Spool
from mld.processors.spark.high_water_marks import StreamShard
from mld.processors.spark.session.handover import Handed, Handover
from mld.schemas.decoder import HEADER_BYTES, frame_of, inflated
from tests.unit.spark.twins import page_of, settings_of

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif("MLD_LAKEHOUSE" not in os.environ, reason="make test-lakehouse"),
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]
RECORDED = json.loads((Path(__file__).parents[1] / "interop" / "frames" / "frames.json").read_text())
JAVA_ID, OLD_ID, GONE_ID = (f"00112233-4455-6677-8899-aabbccddee{end}" for end in ("ff", "01", "02"))
OLD = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [{"name": "id", "type": "int"}, {"name": "left", "type": "string"}],
}
READER = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "note", "type": ["null", "string"], "default": None},
        {"name": "tags", "type": {"type": "array", "items": "string"}, "default": []},
        {"name": "origin", "type": "string", "default": "unknown"},
    ],
}
REGISTRY = (
    "mld.spark.format = avro",
    "mld.spark.schema = registry",
    f"mld.spark.schema.reader = {json.dumps(READER)}",
)
OLD_DATA = b"\x54\x04ab"
"""id 42, left "ab"."""


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    session = builder.config("spark.jars.packages", "org.apache.spark:spark-avro_2.13:4.1.1").getOrCreate()
    yield session
    session.stop()


def batch(*records: tuple[bytes, str | None, Path | None]) -> bytes:
    made = []
    for number, (data, version, file) in enumerate(records, 1):
        record: dict[str, object] = {
            "data": base64.b64encode(data).decode(),
            "partitionKey": "k",
            "sequenceNumber": str(number),
            "approximateArrivalTimestamp": 1,
            "subSequenceNumber": 0,
        }
        if version is not None:
            named = {"schemaVersionId": version, "schemaName": "orders", "schemaDataFormat": "AVRO"}
            record |= {**named, "schemaFile": str(file)}
        made.append({**record, "action": "record"})
    line = json.dumps({"action": "processRecords", "records": made, "millisBehindLatest": 0}, separators=(",", ":"))
    return line.encode() + b"\n"


def handed(handover: Handover, directory: Path, line: bytes) -> Handed:
    spool = Spool(directory)
    offer = page_of(spool, StreamShard("s", "h"), line)
    return handover.of_pages(spool.uris([offer]), offer.versions)


def test_records_of_several_versions_are_read_by_one_schema(spark: Any, tmp_path: Path) -> None:
    java = next(one for one in RECORDED["written"] if one["format"] == "AVRO")
    data = base64.b64decode(java["data"])
    frame, payload = frame_of(data), data[HEADER_BYTES:]
    assert frame is not None
    (tmp_path / JAVA_ID).write_text(java["definition"])
    (tmp_path / OLD_ID).write_text(json.dumps(OLD))
    line = batch(
        (inflated(payload) if frame.is_compressed else payload, JAVA_ID, tmp_path / JAVA_ID),
        (OLD_DATA, OLD_ID, tmp_path / OLD_ID),
        (OLD_DATA[:-1], OLD_ID, tmp_path / OLD_ID),
        (OLD_DATA, GONE_ID, tmp_path / GONE_ID),
        (OLD_DATA, None, None),
    )
    made = handed(Handover(spark, settings_of(*REGISTRY), divert=True), tmp_path, line)
    fields = ["sequenceNumber", "schemaName", "schemaVersionId", "payload.*"]
    rows = {row.sequenceNumber: row.asDict() for row in made.records.select(*fields).collect()}
    common = {"schemaName": "orders", "origin": "unknown"}
    assert rows == {
        "1": {**common, "sequenceNumber": "1", "schemaVersionId": JAVA_ID, "id": 7, "note": "ü", "tags": ["a", "b"]},
        "2": {**common, "sequenceNumber": "2", "schemaVersionId": OLD_ID, "id": 42, "note": None, "tags": []},
    }
    assert made.malformed is not None
    bad = {row.sequenceNumber: row.reason for row in made.malformed().collect()}
    assert set(bad) == {"3", "4", "5"}, "damaged, of a version that cannot be had, without a frame"


def test_a_batch_without_any_version_keeps_its_columns(spark: Any, tmp_path: Path) -> None:
    handover = Handover(spark, settings_of(*REGISTRY), divert=False)
    made = handed(handover, tmp_path, batch((OLD_DATA, None, None)))
    (row,) = made.records.collect()
    assert (row.payload, row.schemaVersionId) == (None, None)
    assert [field.name for field in made.records.schema["payload"].dataType] == ["id", "note", "tags", "origin"]
