"""Pages that children write, as Spark reads them: the same rows as from lines, alone, mixed, and in part."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="needs the extra: pip install 'mld-kinesis[spark]'")

from mld.processors.spark.batch import page_file
from mld.processors.spark.batch.record_lines import split
from mld.processors.spark.batch.spool import Spool
from mld.processors.spark.high_water_marks import StreamShard
from mld.processors.spark.session.handover import Handover
from mld.processors.spark.testing import session
from mld.properties.spark import Format
from mld.protocol.codec import encode_process_records
from mld.protocol.messages import Record
from tests.support.spark_bed import engine_bed, rows
from tests.unit.spark.twins import offer_to, run_offers

pytestmark = [pytest.mark.spark_slice, pytest.mark.spark, pytest.mark.timeout(900)]
SHARD = StreamShard("clicks", "shardId-000000000007")
KEYS = ["k", "", "é", "\u2028", "\\", "a\tb", "x" * 256, "\U0001f600"]
PASS = "def transform(records, batch):\n    return records.select('shardId', 'sequenceNumber', 'payload')\n"


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    made = session()
    yield made
    made.stop()  # a test in the next file may start one of its own


def records_of(count: int, size: int) -> tuple[Record, ...]:
    return tuple(
        Record(
            bytes((number + i) % 256 for i in range(number * size % (size + 7))),
            KEYS[number % len(KEYS)],
            f"49650{number:051d}",
            number % 3,
            1_790_000_000_000 + number,
        )
        for number in range(count)
    )


@pytest.mark.parametrize("count, size", [(1, 0), (7, 20), (3_000, 300), (3, 2_000_000)])
def test_spark_reads_the_same_rows_from_a_page_as_from_lines(spark: Any, tmp_path: Path, count: int, size: int) -> None:
    line = b"".join(encode_process_records(records_of(count, size), 0))
    file = tmp_path / "lines.jsonl"
    file.write_bytes(split(line, SHARD).records)
    pages = tmp_path / "pages"
    pages.mkdir()
    page_file.write(pages / "one.parquet", line, SHARD)
    handover = Handover(spark, Format.BINARY, None, divert=False)
    by_line, by_page = (
        sorted(map(tuple, frame.records.collect()))
        for frame in (handover.of_file(file), handover.of_pages(pages, None))
    )
    assert len(by_page) == count
    assert by_page == by_line
    assert handover.of_pages(pages, file).records.count() == 2 * count
    assert handover.of_pages(pages, None).records.schema == handover.of_file(file).records.schema


def test_a_damaged_or_missing_page_is_an_error_whatever_is_set(spark: Any, tmp_path: Path) -> None:
    line = b"".join(encode_process_records(records_of(100, 50), 0))
    pages = tmp_path / "pages"
    pages.mkdir()
    for name in ("one", "two"):
        page_file.write(pages / f"{name}.parquet", line, SHARD)
    lenient = {f"spark.sql.files.ignore{what}Files": "true" for what in ("Corrupt", "Missing")}
    for name, value in lenient.items():
        spark.conf.set(name, value)
    try:
        frame = Handover(spark, Format.BINARY, None, divert=False).of_pages(pages, None).records
        assert frame.count() == 200
        (pages / "one.parquet").write_bytes((pages / "one.parquet").read_bytes()[:-20])
        with pytest.raises(Exception, match=r"one\.parquet"):
            frame.collect()
        (pages / "one.parquet").unlink()
        with pytest.raises(Exception, match=r"one\.parquet"):
            frame.collect()
    finally:
        for name in lenient:
            spark.conf.unset(name)


def test_pages_lines_and_parts_of_them_become_one_batch(spark: Any, tmp_path: Path) -> None:
    """Whole pages are read as they are; of one that overlaps what the sink has, the rest comes as lines."""
    bed = engine_bed(spark, tmp_path, PASS, "mld.spark.format = text")
    spool: Spool = bed.spool

    def offer(shard: str, first: int, last: int, *, as_page: bool) -> Any:
        return offer_to(spool, StreamShard("s", shard), range(first, last + 1), as_page=as_page)

    def run(*offers: Any) -> None:
        assert run_offers(bed.engine, spool, *offers).failed == {}

    run(offer("a", 1, 5, as_page=True), offer("b", 1, 3, as_page=False))
    run(offer("a", 6, 8, as_page=True), offer("b", 4, 6, as_page=True), offer("a", 9, 9, as_page=True))
    run(offer("a", 7, 12, as_page=True), offer("b", 7, 9, as_page=True))
    found = sorted((row["shardId"], int(row["sequenceNumber"]), row["payload"]) for row in rows(tmp_path / "out"))
    expected = [*(("a", n, f"{n}") for n in range(1, 13)), *(("b", n, f"{n}") for n in range(1, 10))]
    assert found == expected
    assert not [path for path in spool.directory.iterdir() if path.is_dir()]
