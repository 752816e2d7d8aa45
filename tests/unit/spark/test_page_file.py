"""Lines of a daemon become a page with the same records, whoever has written them; Spark itself reads such files in
`tests/integration/test_spark_pages.py`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mld.processors.spark.batch import page_file, record_columns, thrift
from mld.processors.spark.batch.page_file import PageWriter, SpoolPage, rows
from mld.processors.spark.batch.record_columns import LineError, read_line
from mld.processors.spark.batch.record_columns import SparkRecord as PageRecord
from mld.processors.spark.positions import RecordPosition, StreamShard
from mld.protocol.codec import encode_process_records
from mld.protocol.messages import Record

SHARD = StreamShard("clicks", "shardId-000000000007")
TRICKY = ['"},{"data":"', ',"action":"record"}', '"sequenceNumber":"1"', "\\", '\\"', "\n", "\u2028", "é", ""]
keys = st.one_of(st.sampled_from(TRICKY), st.text(st.characters(exclude_categories=["Cs"]), max_size=20))
records = st.builds(
    Record, st.binary(max_size=40), keys, st.integers(0, 10**56).map(str), st.integers(0, 999), st.integers(0, 2**41)
)
batches = st.lists(records, min_size=1, max_size=8)


def as_sent(batch: Sequence[Record], shard: StreamShard = SHARD) -> list[PageRecord]:
    names = shard.stream_name.encode(), shard.shard.encode()
    return [
        PageRecord(
            bytes(one.data),
            one.partition_key.encode(),
            one.sequence_number.encode(),
            one.approximate_arrival_ms,
            one.sub_sequence_number,
            *names,
        )
        for one in batch
    ]


def page_of(path: Path, *lines: bytes, shard: StreamShard = SHARD) -> SpoolPage:
    writer = PageWriter(path, shard)
    for line in lines:
        for columns in read_line(line).groups:
            writer.add(columns)
    return writer.close()


def test_records_without_data_make_groups_of_bounded_size_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counts: list[int] = []
    monkeypatch.setattr(page_file, "GROUP_BYTES", 50)
    monkeypatch.setattr(page_file._File, "put", lambda self, columns: counts.append(len(columns[0])))
    page_file.write_records(tmp_path / "page", as_sent([Record(b"", "k", str(10**20 + n), 0, 0) for n in range(9)]))
    assert counts == [3, 3, 3]


def records_of(path: Path) -> list[PageRecord]:
    return [record for _, record in rows(path)]


@pytest.mark.parametrize("group_bytes", [1, 300, record_columns.GROUP_BYTES])
@pytest.mark.parametrize("separators", [None, (" , ", " : ")], ids=["ours", "another style"])
@settings(max_examples=40)
@given(lines=st.lists(batches, min_size=1, max_size=3), lag=st.one_of(st.none(), st.integers(0, 2**40)))
def test_a_page_has_the_records_of_its_lines(
    tmp_path_factory: pytest.TempPathFactory,
    group_bytes: int,
    separators: tuple[str, str] | None,
    lines: list[list[Record]],
    lag: int | None,
) -> None:
    path = tmp_path_factory.getbasetemp() / "page.parquet"
    every = [record for line in lines for record in line]
    texts = [b"".join(encode_process_records(tuple(line), lag)) for line in lines]
    if separators is not None:
        styled = [{"millisBehindLatest": 0, **json.loads(text)} for text in texts]
        texts = [json.dumps(one, separators=separators).encode() + b"\n" for one in styled]
    with pytest.MonkeyPatch.context() as patch:
        for module in (page_file, record_columns):
            patch.setattr(module, "GROUP_BYTES", group_bytes)
        taken = [read_line(text) for text in texts]
        page = page_of(path, *texts)
    assert {one.millis_behind_latest for one in taken} == {lag}
    first, last = (RecordPosition(int(one.sequence_number), one.sub_sequence_number) for one in (every[0], every[-1]))
    assert (page.records, page.first, page.last) == (len(every), first, last)
    assert records_of(path) == as_sent(every)
    assert [position for position, _ in rows(path)] == [record.position for record in as_sent(every)]


def test_the_usual_style_is_not_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_columns, "_loaded", None)
    batch = (Record(b"x", "k", "1", 0, 1), Record(b"y", "é\n\\", "2", 0, 1))
    (columns,) = read_line(b"".join(encode_process_records(batch, 0))).groups
    assert columns.data == [b"x", b"y"]


def test_the_column_has_the_name_of_one_of_several_streams(tmp_path: Path) -> None:
    shard = StreamShard("us-east-1:000000000000:clicks:17", "shardId-000000000001")
    page_of(tmp_path / "page", line_with(), shard=shard)
    assert records_of(tmp_path / "page") == [PageRecord(b"A", b"k", b"1", 17, 0, b"clicks", b"shardId-000000000001")]


def test_a_record_that_names_its_stream_is_read_as_any_other(tmp_path: Path) -> None:
    named = Record(b"x", "k", "5", 0, 1, {"streamName": "orders"})
    page = page_of(tmp_path / "page", b"".join(encode_process_records([named] * 2, 0)))
    assert (page.records, page.first, page.last) == (2, RecordPosition(5), RecordPosition(5))


def test_an_empty_batch_has_no_groups() -> None:
    found = read_line(b'{"action":"processRecords","records":[],"millisBehindLatest":7}\n')
    assert (list(found.groups), found.size, found.millis_behind_latest) == ([], 0, 7)


RECORD = (
    '{"data":"QQ==","partitionKey":"k","sequenceNumber":"1","approximateArrivalTimestamp":17,'
    '"subSequenceNumber":0,"action":"record"}'
)
PLAIN = PageRecord(b"A", b"k", b"1", 17, 0, b"clicks", b"shardId-000000000007")


def line_with(*records: str) -> bytes:
    text = ",".join(records or (RECORD,))
    return f'{{"action":"processRecords","records":[{text}],"millisBehindLatest":0}}\n'.encode()


@pytest.mark.parametrize(
    "old, new, wanted",
    [
        ("17", "null", PLAIN._replace(arrival=None)),
        ("17", "-1", PLAIN._replace(arrival=-1)),
        ('"QQ=="', "null", PLAIN._replace(data=b"")),
        ('"k"', "null", PLAIN._replace(key=None)),
        ('"k"', '"\\ud800"', PLAIN._replace(key=b"?")),
        ('"1"', "1", PLAIN),
        ('"sub', '"more":{"data":"x"},"sub', PLAIN),
        (',"subSequenceNumber":0', "", PLAIN),
        ('"action"', '"schemaVersionId":"v","schemaFile":"f","action"', PLAIN),
    ],
)
def test_what_few_records_have_stands_beside_what_all_have(
    tmp_path: Path, old: str, new: str, wanted: PageRecord
) -> None:
    assert old in RECORD
    for at in range(3):
        every = [RECORD.replace(old, new) if n == at else RECORD for n in range(3)] * 5
        page_of(tmp_path / "page", line_with(*every))
        assert records_of(tmp_path / "page") == [wanted if n == at else PLAIN for n in range(3)] * 5
        page_of(tmp_path / "page", line_with(RECORD.replace(old, new)))
        assert records_of(tmp_path / "page") == [wanted]


@pytest.mark.parametrize(
    "old, new",
    [
        ("17", str(1 << 63)),
        ('Number":0', f'Number":{1 << 31}'),
        ('"QQ=="', '"Q?=="'),
        ('"QQ=="', '"QQ"'),
        ('"1"', '"one"'),
        ('"1"', '""'),
        ('"1"', '"-1"'),
        ('"1"', '"٣"'),
        (',"sequenceNumber":"1"', ""),
        ('"k"', '"\\x"'),
    ],
)
def test_a_record_that_no_column_takes_is_refused_with_a_sentence(old: str, new: str) -> None:
    assert old in RECORD
    for every in ([RECORD.replace(old, new)], [RECORD, RECORD.replace(old, new), RECORD]):
        with pytest.raises(LineError, match="not a batch"):
            list(read_line(line_with(*every)).groups)


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{}\n",
        b"nonsense",
        b"[]\n",
        b'{"action":"initialize"}',
        b'{"action":"processRecords"}',
        b'{"action":"processRecords","records":7}',
        line_with(f"{RECORD},"),
        b"[" * 100_000,
    ],
)
def test_what_is_no_batch_gets_a_sentence(line: bytes) -> None:
    with pytest.raises(LineError, match="not a batch"):
        list(read_line(line).groups)


def test_bytes_that_are_no_text_are_mended(tmp_path: Path) -> None:
    page_of(tmp_path / "page", line_with(RECORD).replace(b'"k"', b'"\xff"'))
    assert records_of(tmp_path / "page") == [PLAIN._replace(key="\ufffd".encode())]


def test_records_of_several_shards_make_a_page_of_their_own(tmp_path: Path) -> None:
    others = [PLAIN, PLAIN._replace(shard=b"other", key=None)]
    page_file.write_records(tmp_path / "page", others)
    assert records_of(tmp_path / "page") == others
    page_file.write_records(tmp_path / "page", [])
    assert records_of(tmp_path / "page") == []


@pytest.mark.parametrize("count", [1, 1_000])
def test_a_full_disk_leaves_no_file(tmp_path: Path, count: int) -> None:
    """It is full when the file is closed, or while it is written."""
    path = tmp_path / "page"
    for write in (
        lambda: page_of(path, line_with(*[RECORD] * count)),
        lambda: page_file.write_records(path, [PLAIN] * count),
    ):
        path.symlink_to("/dev/full")
        with pytest.raises(page_file.SpoolError, match="No space"):
            write()
        assert list(tmp_path.iterdir()) == []


def test_lists_and_numbers_of_the_compact_protocol() -> None:
    """By hand, from its specification: a long list says its length after its type, numbers alternate their signs."""
    encoded, I32, BINARY, LIST = thrift.encoded, thrift.I32, thrift.BINARY, thrift.LIST
    assert encoded((1, LIST, (I32, [0, -1, 1]))) == bytes((0x19, 0x35, 0, 1, 2, 0))
    assert encoded((2, thrift.I64, 150)) == bytes((0x26, 0xAC, 0x02, 0))
    assert encoded((1, LIST, (BINARY, ["a"] * 15))) == bytes((0x19, 0xF8, 15)) + b"\x01a" * 15 + b"\0"
    assert encoded((1, BINARY, "é"), (3, thrift.STRUCT, b"\0")) == b"\x18\x02\xc3\xa9\x2c\0\0"
    assert [thrift.varint(n).hex() for n in (0, 127, 128, 2**40)] == ["00", "7f", "8001", "808080808020"]
