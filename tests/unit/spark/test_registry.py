"""Which schema versions the records of a page name, and their definitions; no Spark."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mld.processors.spark.batch.page_file import PageWriter, rows, write_records
from mld.processors.spark.batch.record_columns import read_line
from mld.processors.spark.high_water_marks import StreamShard
from mld.processors.spark.session.handover import Definitions

ONE, OTHER = "00112233-4455-6677-8899-aabbccddeeff", "00112233-4455-6677-8899-aabbccddee00"


def line(*versions: tuple[str, Path] | None, style: tuple[str, str] = (",", ":")) -> bytes:
    """A batch as the daemon writes it, or in another style."""
    records = []
    for number, version in enumerate(versions):
        record: dict[str, object] = {
            "data": "eA==",
            "partitionKey": 'a"schemaVersionId":"',
            "sequenceNumber": str(100 + number),
            "approximateArrivalTimestamp": 1,
            "subSequenceNumber": 0,
        }
        if version is not None:
            named = {"schemaVersionId": version[0], "schemaName": 'or"ders', "schemaDataFormat": "AVRO"}
            record |= {**named, "schemaFile": str(version[1])}
        records.append({**record, "action": "record"})
    batch = {"action": "processRecords", "records": records, "millisBehindLatest": 0}
    return json.dumps(batch, separators=style).encode() + b"\n"


@pytest.mark.parametrize("style", [(",", ":"), (", ", ": ")])
def test_a_page_names_its_versions_however_the_daemon_writes(style: tuple[str, str], tmp_path: Path) -> None:
    given = line((ONE, tmp_path / "a b\\"), None, (OTHER, tmp_path / "ü"), (ONE, tmp_path / "a b\\"), style=style)
    writer = PageWriter(tmp_path / "page", StreamShard("s", "h"))
    for group in (*read_line(line(None)).groups, *read_line(given).groups):
        writer.add(group)
    named = {ONE: str(tmp_path / "a b\\"), OTHER: str(tmp_path / "ü")}
    assert writer.close().versions == named
    records = [record for _, record in rows(tmp_path / "page")]
    assert [record.version for record in records] == [None, ONE.encode(), None, OTHER.encode(), ONE.encode()]
    assert (records[1].schema_name, records[3].schema_file) == (b'or"ders', str(tmp_path / "ü").encode())
    assert write_records(tmp_path / "part", records) == named


def test_a_definition_is_read_once_and_one_that_is_gone_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / ONE).write_text('"string"')
    (tmp_path / "broken").write_text("no JSON")
    definitions = Definitions()
    batch = {ONE: str(tmp_path / ONE), OTHER: str(tmp_path / "gone")}
    assert definitions.of(batch) == {ONE: '"string"'}
    assert definitions.of(batch) == {ONE: '"string"'}
    assert caplog.text.count("cannot be read") == 1
    (tmp_path / ONE).unlink()
    assert definitions.of(batch) == {ONE: '"string"'}, "a version never changes"
    assert definitions.of({OTHER: str(tmp_path / "broken")}) == {}
