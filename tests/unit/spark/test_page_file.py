"""A line becomes a Parquet file with the same records, or has to go as text; Spark itself reads such files in
`tests/integration/test_spark_pages.py`."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mld.processors.spark.batch import page_file, thrift
from mld.processors.spark.batch.page_file import Irregular
from mld.processors.spark.batch.record_lines import split
from mld.processors.spark.high_water_marks import RecordPosition, StreamShard
from mld.protocol.codec import encode_process_records
from mld.protocol.messages import Record
from tests.unit.spark.test_record_lines import SHARD, as_seen, batches


@pytest.mark.parametrize("group_bytes", [1, 300, page_file.GROUP_BYTES])
@given(records=batches, lag=st.one_of(st.none(), st.integers(0, 2**40)))
def test_a_page_has_the_records_of_its_line(
    tmp_path_factory: pytest.TempPathFactory, group_bytes: int, records: list[Record], lag: int | None
) -> None:
    line = b"".join(encode_process_records(tuple(records), lag))
    path = tmp_path_factory.getbasetemp() / "page.parquet"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(page_file, "GROUP_BYTES", group_bytes)
        if any('"' in record.partition_key for record in records):
            with pytest.raises(Irregular):
                page_file.write(path, line, SHARD)
            return
        page = page_file.write(path, line, SHARD)
    first, last = (
        RecordPosition(int(one.sequence_number), one.sub_sequence_number) for one in (records[0], records[-1])
    )
    assert page == (len(records), first, last, lag)
    assert as_seen(page_file.lines(path)) == as_seen(split(line, SHARD).records)


def test_a_name_of_several_streams_stands_in_a_page_as_in_a_line(tmp_path: Path) -> None:
    shard = StreamShard("us-east-1:000000000000:clicks:17", "shardId-000000000001")
    line = line_with()
    page_file.write(tmp_path / "page", line, shard)
    assert page_file.lines(tmp_path / "page") == bytes(split(line, shard).records)


RECORD = (
    '{"data":"QQ==","partitionKey":"k","sequenceNumber":"1","approximateArrivalTimestamp":17,'
    '"subSequenceNumber":0,"action":"record"}'
)


def line_with(*records: str) -> bytes:
    text = ",".join(records or (RECORD,))
    return f'{{"action":"processRecords","records":[{text}],"millisBehindLatest":0}}\n'.encode()


@pytest.mark.parametrize(
    "old, new",
    [
        ("17", "null"),
        ("17", "-1"),
        ("17", str(1 << 63)),
        ('Number":0', f'Number":{1 << 31}'),
        ('"QQ=="', "null"),
        ('"QQ=="', '"Q?=="'),
        ('"QQ=="', '"QQ"'),
        ('"1"', '"one"'),
        ('"1"', '""'),
        ('"1"', "1"),
        ('"k"', '"\\ud800"'),
        ('"k"', '"\\x"'),
        (',"partition', ', "partition'),
        ('"action"', '"schemaVersion":"3","action"'),
        ('"action":"record"}', '"more":1}'),
    ],
)
def test_what_no_column_takes_goes_as_text(tmp_path: Path, old: str, new: str) -> None:
    assert old in RECORD
    for records in ([RECORD.replace(old, new)], [RECORD, RECORD.replace(old, new), RECORD]):
        with pytest.raises(Irregular):
            page_file.write(tmp_path / "page", line_with(*records), SHARD)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("line", [b"", b"{}\n", line_with("")[:-1], line_with(f"{RECORD},"), line_with(f"{RECORD} ")])
def test_what_is_no_line_of_ours_goes_as_text(tmp_path: Path, line: bytes) -> None:
    with pytest.raises(Irregular):
        page_file.write(tmp_path / "page", line, SHARD)


def test_bytes_that_are_no_text_go_as_text_that_is_mended(tmp_path: Path) -> None:
    with pytest.raises(Irregular):
        page_file.write(tmp_path / "page", line_with(RECORD).replace(b'"k"', b'"\xff"'), SHARD)


def test_a_full_disk_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: object) -> bytes:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(page_file, "_foot", full)
    with pytest.raises(OSError, match="No space"):
        page_file.write(tmp_path / "page", line_with(), SHARD)
    assert list(tmp_path.iterdir()) == []


def test_lists_and_numbers_of_the_compact_protocol() -> None:
    """By hand, from its specification: a long list says its length after its type, numbers alternate their signs."""
    assert thrift.struct(thrift.i32s(1, [0, -1, 1])) == bytes((0x19, 0x35, 0, 1, 2, 0))
    assert thrift.struct(thrift.i64(2, 150)) == bytes((0x26, 0xAC, 0x02, 0))
    assert thrift.struct(thrift.texts(1, ["a"] * 15)) == bytes((0x19, 0xF8, 15)) + b"\x01a" * 15 + b"\0"
    assert thrift.struct(thrift.text(1, "é"), thrift.inner(3, b"\0")) == b"\x18\x02\xc3\xa9\x2c\0\0"
