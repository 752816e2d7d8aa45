"""Pages that children write, as Spark reads them: alone, several together, and in part."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="needs the extra: pip install 'mld-kinesis[spark]'")

from pyspark.sql import functions as F

from mld.processors.spark.batch.micro_batch import Offer
from mld.processors.spark.batch.spool import Spool
from mld.processors.spark.positions import StreamShard
from mld.processors.spark.session.handover import COLUMNS, Handover
from mld.processors.spark.testing import session
from mld.protocol.codec import encode_process_records
from mld.protocol.messages import Record
from tests.support.spark_bed import engine_bed, rows
from tests.unit.spark.twins import offer_to, page_of, run_offers, settings_of

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


@pytest.mark.parametrize(
    "count, size",
    [(7, 20), (3_000, 300), *(pytest.param(*case, marks=pytest.mark.full) for case in [(1, 0), (3, 2_000_000)])],
)
def test_spark_reads_what_the_daemon_wrote(spark: Any, tmp_path: Path, count: int, size: int) -> None:
    sent = records_of(count, size)
    offer = page_of(Spool(tmp_path), SHARD, b"".join(encode_process_records(sent, 0)))
    frame = Handover(spark, settings_of(), divert=False).of_pages([uri(tmp_path, offer)]).records
    assert frame.columns == list(COLUMNS)
    times = frame.withColumn("approximateArrivalTimestamp", F.unix_millis("approximateArrivalTimestamp"))
    found = sorted((tuple(row) for row in times.collect()), key=lambda row: row[2])
    assert found == [
        (*SHARD, one.sequence_number, one.sub_sequence_number, one.partition_key, one.approximate_arrival_ms, one.data)
        for one in sent
    ]


def test_what_few_records_have_is_null_in_the_others(spark: Any, tmp_path: Path) -> None:
    plain = json.loads(b"".join(encode_process_records(records_of(12, 3), 0)))
    for number, record in enumerate(plain["records"]):
        record["partitionKey"] = None if number % 3 == 0 else record["partitionKey"]
        record["approximateArrivalTimestamp"] = 17 if number % 5 == 0 else None
    whole = page_of(Spool(tmp_path), SHARD, json.dumps(plain).encode())
    nothing = page_of(Spool(tmp_path), SHARD, json.dumps({**plain, "records": plain["records"][1:2]}).encode())
    handover = Handover(spark, settings_of(), divert=False)
    frame = handover.of_pages([uri(tmp_path, whole), uri(tmp_path, nothing)]).records
    assert frame.where("partitionKey IS NULL").count() == 4
    assert frame.where("approximateArrivalTimestamp IS NULL").count() == 10
    assert frame.count() == 13


def test_records_in_their_order(spark: Any, tmp_path: Path) -> None:
    """For a sink to which the order of rows means something; Spark deals pages out by their sizes."""
    offers = [
        page_of(Spool(tmp_path), SHARD, b"".join(encode_process_records(records_of(count, size)[start:], 0)))
        for count, size, start in ((9, 10, 0), (200, 10, 9), (3_000, 300, 200))
    ]
    handover = Handover(
        spark, settings_of("mld.spark.sink.out.format = jdbc", "mld.spark.sink.out.mode = merge"), divert=False
    )
    frame = handover.of_pages([uri(tmp_path, offer) for offer in reversed(offers)]).records
    assert [int(row.sequenceNumber[5:]) for row in frame.select("sequenceNumber").collect()] == list(range(3_000))


def test_a_damaged_or_missing_page_is_an_error_whatever_is_set(spark: Any, tmp_path: Path) -> None:
    line = b"".join(encode_process_records(records_of(100, 50), 0))
    spool = Spool(tmp_path)
    offers = [page_of(spool, SHARD, line) for _ in range(2)]
    page = spool.page(offers[0].link, offers[0].number)
    lenient = {f"spark.sql.files.ignore{what}Files": "true" for what in ("Corrupt", "Missing")}
    for name, value in lenient.items():
        spark.conf.set(name, value)
    try:
        frame = Handover(spark, settings_of(), divert=False).of_pages(spool.uris(offers)).records
        assert frame.count() == 200
        page.write_bytes(page.read_bytes()[:-20])
        with pytest.raises(Exception, match=page.name):
            frame.collect()
        page.unlink()
        with pytest.raises(Exception, match=page.name):
            frame.collect()
    finally:
        for name in lenient:
            spark.conf.unset(name)


def test_pages_and_parts_of_them_become_one_batch(spark: Any, tmp_path: Path) -> None:
    """Whole pages are read as they are; of one that overlaps what the sink has, the rest gets a page of its own."""
    bed = engine_bed(spark, tmp_path, PASS, "mld.spark.format = text")

    def run(*parts: tuple[str, int, int]) -> None:
        offers = [offer_to(bed.spool, StreamShard("s", shard), range(first, last + 1)) for shard, first, last in parts]
        assert run_offers(bed.engine, *offers).failed == {}
        for offer in offers:
            bed.spool.remove(bed.spool.page(offer.link, offer.number))

    run(("a", 1, 5), ("b", 1, 3))
    run(("a", 6, 8), ("b", 4, 6), ("a", 9, 9))
    run(("a", 7, 12), ("b", 7, 9))
    found = sorted((row["shardId"], int(row["sequenceNumber"]), row["payload"]) for row in rows(tmp_path / "out"))
    expected = [*(("a", n, f"{n}") for n in range(1, 13)), *(("b", n, f"{n}") for n in range(1, 10))]
    assert found == expected
    assert list(bed.spool.directory.iterdir()) == []


def uri(directory: Path, offer: Offer) -> str:
    (found,) = Spool(directory).uris([offer])
    return found
