"""The engine on a real session: hand-over, pipelines, sinks and dead letters, one session for all tests."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="needs the extra: pip install 'mld-kinesis[spark]'")

from mld.processors.spark.session import decoding, failing_rows, handover, jvm_classes
from mld.processors.spark.session.failing_rows import FailingRows
from mld.processors.spark.session.session_health import jvm_of
from mld.processors.spark.session.spark_session import start
from mld.processors.spark.session_errors import SessionError
from mld.processors.spark.testing import batch, records, session
from mld.properties.spark_values import Format
from tests.fuzz import json_payloads
from tests.support.spark_bed import A, engine_bed, rows
from tests.support.tiers import sliced
from tests.unit.spark.twins import settings_of

pytestmark = [pytest.mark.spark_slice, pytest.mark.spark, pytest.mark.timeout(900)]
JSON = ("mld.spark.format = json", "mld.spark.schema = n INT, kind STRING")


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    made = session()
    yield made
    made.stop()  # a test in the next file may start one of its own


def event(n: int, kind: str = "human") -> bytes:
    return json.dumps({"n": n, "kind": kind}).encode()


PARSED = """
from pyspark.sql import functions as F

def transform(records, batch):
    return records.select("sequenceNumber", F.udf(lambda text: int(text), "int")("payload").alias("payload"))
"""
PASS = "def transform(records, batch):\n    return records.select('sequenceNumber', 'payload.*')\n"


def test_avro_of_the_schema_registry_comes_as_columns(spark: Any) -> None:
    """What `mld.schemaRegistry = json` makes of frames by Java; a column that no writer knows is null."""
    pytest.importorskip("fastavro", reason="needs the extra: pip install 'mld-kinesis[schemas]'")
    from mld.schemas.avro_json import avro_decoder
    from tests.unit.schemas.test_java_frames import payloads

    events = [avro_decoder(definition)(data) for definition, data in payloads("AVRO")]
    schema = "id BIGINT, note STRING, price DECIMAL(9,2), at TIMESTAMP, place STRUCT<x: DOUBLE>, added STRING"
    framed = b"\x03\x00" + bytes(16) + b"\x0e"
    found = records(spark, [*events, framed], format="json", schema=schema)
    values = found.selectExpr(
        "payload.id", "payload.note", "string(payload.price)", "string(payload.at)", "payload.place.x", "payload.added"
    )
    rest = ("12.50", "2026-11-23 07:56:39.667", 1.5, None)
    assert [tuple(row) for row in values.collect()] == 2 * [(7, "ü", *rest), (-1, None, *rest)] + [(None,) * 6]


def test_json_is_decoded_and_what_is_not_json_is_a_dead_letter(spark: Any, tmp_path: Path) -> None:
    bed = engine_bed(spark, tmp_path, PASS, *JSON)
    outcome = bed.run({1: event(1), 2: b"{bad", 3: event(3), 4: b"", 5: b'{"n":"no number"}'})
    assert outcome.failed == {}
    assert [(row["sequenceNumber"], row["n"]) for row in rows(tmp_path / "out")] == [("1", 1), ("3", 3)]
    dead = {row["sequenceNumber"]: row["reason"] for row in rows(tmp_path / "dead")}
    generic = "not JSON of mld.spark.schema"
    assert dead == {"2": generic, "4": generic, "5": 'n is "no number", which is no int'}
    assert bed.run({n: event(n) for n in range(3, 8)}).failed == {}
    assert [row["n"] for row in rows(tmp_path / "out")] == [1, 3, 6, 7]


@pytest.mark.parametrize(
    "pipeline", ["SELECT sequenceNumber, CAST(payload AS INT) AS payload FROM records", PARSED], ids=["SQL", "Python"]
)
def test_a_record_that_speaks_of_a_full_disk_is_buried_and_stops_nothing(
    spark: Any, tmp_path: Path, pipeline: str
) -> None:
    bed = engine_bed(spark, tmp_path, pipeline, "mld.spark.format = text")
    assert bed.run({1: b"1", 2: b"No space left on device", 3: b"3"}).failed == {}
    assert [row["sequenceNumber"] for row in rows(tmp_path / "out")] == ["1", "3"]
    assert [row["sequenceNumber"] for row in rows(tmp_path / "dead")] == ["2"]


def test_a_batch_of_good_records_is_one_job(spark: Any, tmp_path: Path) -> None:
    bed = engine_bed(spark, tmp_path, PASS, *JSON)
    bed.run({1: event(1)})
    spark.sparkContext.setJobGroup(str(tmp_path), "one")
    bed.run({n: event(n) for n in range(2, 500)})
    assert len(spark.sparkContext.statusTracker().getJobIdsForGroup(str(tmp_path))) == 1
    spark.sparkContext.setLocalProperty("spark.jobGroup.id", None)


@pytest.mark.full
def test_without_a_dead_letter_malformed_records_keep_a_null_payload(spark: Any, tmp_path: Path) -> None:
    pipeline = (
        "def transform(records, batch):\n    return records.selectExpr('sequenceNumber', 'payload IS NULL AS bad')\n"
    )
    bed = engine_bed(spark, tmp_path, pipeline, *JSON, dead=False)
    assert bed.run({1: event(1), 2: b"{bad"}).figures.malformed == 1
    assert [row["bad"] for row in rows(tmp_path / "out")] == [False, True]


def test_a_pipeline_in_sql(spark: Any, tmp_path: Path) -> None:
    bed = engine_bed(spark, tmp_path, "SELECT payload.kind, count(*) AS n FROM records GROUP BY payload.kind;\n", *JSON)
    bed.run({1: event(1), 2: event(2, "bot"), 3: event(3)})
    assert sorted((row["kind"], row["n"]) for row in rows(tmp_path / "out")) == [("bot", 1), ("human", 2)]


@pytest.mark.full
def test_several_sinks(spark: Any, tmp_path: Path) -> None:
    pipeline = """
def transform(records, batch):
    flat = records.select("payload.*")
    return {"bots": flat.where("kind = 'bot'"), "people": flat.where("kind <> 'bot'"), "nothing": None}
"""
    bed = engine_bed(spark, tmp_path, pipeline, *JSON, sinks=("bots", "people", "nothing"))
    bed.run({1: event(1), 2: event(2, "bot"), 3: event(3)})
    assert [row["n"] for row in rows(tmp_path / "bots")] == [2]
    assert sorted(row["n"] for row in rows(tmp_path / "people")) == [1, 3]
    assert rows(tmp_path / "nothing") == []


def test_a_record_that_fails_in_the_frame_of_one_sink_is_in_the_other_one(spark: Any, tmp_path: Path) -> None:
    """The first job over the records is the one that fails."""
    pipeline = (
        "def transform(records, batch):\n"
        "    return {'strict': records.selectExpr('CAST(payload.kind AS INT) AS kind'),"
        " 'lenient': records.select('payload.kind')}\n"
    )
    bed = engine_bed(spark, tmp_path, pipeline, *JSON, sinks=("strict", "lenient"))
    assert bed.run({1: event(1, "5"), 2: event(2, "x"), 3: event(3, "7"), 4: b"{bad"}).failed == {}
    assert [row["kind"] for row in rows(tmp_path / "strict")] == [5, 7]
    assert [row["kind"] for row in rows(tmp_path / "lenient")] == ["5", "x", "7"]
    assert {row["sequenceNumber"]: row.get("sinks") for row in rows(tmp_path / "dead")} == {"2": ["strict"], "4": None}


def test_a_record_that_fails_in_a_function_of_the_user_is_alone_in_the_dead_letter(spark: Any, tmp_path: Path) -> None:
    pipeline = """
from pyspark.sql import functions as F

def helper(n):
    return 10 // n

def transform(records, batch):
    inverse = F.udf(lambda n: helper(n), "int")
    return records.select("payload.n", inverse("payload.n").alias("inverse"))
"""
    bed = engine_bed(spark, tmp_path, pipeline, *JSON)
    assert bed.run({number: event(n) for number, n in enumerate([1, 2, 0, 5, 10], start=1)}).failed == {}
    assert [(row["n"], row["inverse"]) for row in rows(tmp_path / "out")] == [(1, 10), (2, 5), (5, 2), (10, 1)]
    (dead,) = rows(tmp_path / "dead")
    assert dead["sequenceNumber"] == "3" and "division" in dead["reason"]


@pytest.mark.parametrize("cached", [pytest.param("", marks=pytest.mark.full), ".cache()"])
def test_a_table_that_setup_has_read_may_be_written_anew(spark: Any, tmp_path: Path, cached: str) -> None:
    pipeline = f"""
def setup(spark):
    global names
    names = spark.read.parquet({str(tmp_path / "names")!r}){cached}

def transform(records, batch):
    return records.select("payload.*").join(names, "kind")
"""

    def write(name: str) -> None:
        spark.sql(f"SELECT 'human' AS kind, '{name}' AS name").write.mode("overwrite").parquet(str(tmp_path / "names"))

    write("old")
    bed = engine_bed(spark, tmp_path, pipeline, *JSON)
    bed.engine._jobs._pipeline.setup(spark)
    assert bed.run({1: event(1)}).failed == {}
    write("new")
    spark.catalog.clearCache()
    assert bed.run({2: event(2)}).failed == {}
    assert [(row["n"], row["name"]) for row in rows(tmp_path / "out")] == [(1, "old"), (2, "new")]


IN_SQL = "CAST(IF(n IN (3, 4, 199), 'x', '5') AS INT)"
FAILING: dict[str, tuple[Callable[[Any, Any], Any], list[tuple[int, int | None]]]] = {
    "Spark computes": (lambda frame, inverse: frame.selectExpr(IN_SQL), [(0, 3), (0, 4), (3, 199)]),
    "Python does": (lambda frame, inverse: frame.select(inverse("n")), [(0, 3), (0, 4), (3, 199)]),
    "it does after a filter": (lambda frame, inverse: frame.where("n > 3").select(inverse("n")), [(0, 4), (3, 199)]),
    "it does for two columns": (
        lambda frame, inverse: frame.withColumn("one", inverse("n")).withColumn("two", inverse(frame.n + 100)),
        [(0, 3), (0, 4), (1, 99), (3, 199)],
    ),
    "it does for a filter": (lambda frame, inverse: frame.where(inverse("n") == 1), [(0, 3), (0, 4), (3, 199)]),
    "SQL names a function": (lambda frame, inverse: frame.selectExpr("inverse(n)"), [(0, None), (3, None)]),
    "what has no result fails": (
        lambda frame, inverse: frame.select(inverse("n").alias("one")).selectExpr("assert_true(one IS NOT NULL)"),
        [(0, None), (0, 3), (0, 4), (3, None), (3, 199)],
    ),
    "rows are gathered first": (
        lambda frame, inverse: frame.sortWithinPartitions("n").selectExpr(IN_SQL),
        [(0, None), (0, 49), (3, 199)],
    ),
    "Python gets gathered rows": (
        lambda frame, inverse: frame.sortWithinPartitions("n").select(inverse("n")),
        [(0, 49), (3, 199)],
    ),
}


@pytest.mark.parametrize("how", sliced(FAILING, "Spark computes", "it does after a filter"))
def test_one_job_says_what_fails(spark: Any, how: str) -> None:
    """Of rows that a step has gathered some other one is told, and then none: who asks has each confirmed alone."""
    from pyspark.sql import functions as F

    inverse = F.udf(lambda n: 1 // (n not in (3, 4, 199)), "int")
    spark.udf.register("inverse", inverse)
    search, (pipeline, told) = FailingRows(spark), FAILING[how]
    numbers = spark.range(200).toDF("n").repartitionById(4, F.expr("CAST(n / 50 AS INT)"))
    with search.reporting_functions():
        frame = pipeline(search.pass_row_numbers(numbers, "n"), inverse)
    found = search.failing(frame, 4)
    assert sorted({(one.partition, -1 if one.row is None else one.row) for one in found}) == [
        (partition, -1 if row is None else row) for partition, row in told
    ]
    said = ("CAST_INVALID_INPUT", "ZeroDivisionError", "USER_RAISED_EXCEPTION")
    assert all(sum(words in one.text for words in said) == 1 for one in found)
    with pytest.raises(ValueError, match="partitions of its own"):
        search.failing(frame, 5)


def test_a_function_that_tells_its_rows_raises_in_jobs_that_do_not_search(spark: Any) -> None:
    """Else what a pipeline writes by itself while it is searched would have nulls where nothing was computed."""
    from pyspark.sql import functions as F
    from pyspark.sql.udf import UserDefinedFunction

    call = UserDefinedFunction.__call__
    with FailingRows(spark).reporting_functions(), pytest.raises(Exception, match="ZeroDivisionError"):
        spark.range(1).select(F.udf(lambda n: 1 // n, "int")("id")).collect()
    assert UserDefinedFunction.__call__ is call


def test_a_function_that_tells_its_rows_needs_nothing_of_ours_where_executors_run() -> None:
    from pyspark import cloudpickle

    code = cloudpickle.dumps(failing_rows.reporting(len, None, "length", False, None))
    script = "import pickle, sys; sys.modules['mld'] = None; print(pickle.load(sys.stdin.buffer)(7, 'abc'))"
    ran = subprocess.run([sys.executable, "-c", script], input=code, capture_output=True, check=True)
    assert ran.stdout.strip() == b"3"


@pytest.mark.parametrize("by_function", [pytest.param(False, marks=pytest.mark.full), True])
def test_what_one_job_says_is_bounded_whatever_the_producer_puts(spark: Any, by_function: bool) -> None:
    from pyspark.sql import functions as F

    search, count = FailingRows(spark), failing_rows.ROWS_MAX + 200
    with search.reporting_functions():
        numbered = search.pass_row_numbers(spark.range(count, numPartitions=1).toDF("n"), "n")
        rows_of = numbered.selectExpr("repeat('x', 20000) || n")
        cast = F.udf(lambda text: int(text), "int") if by_function else (lambda column: F.col(column).cast("int"))
        frame = rows_of.toDF("text").select(cast("text"))
    found = search.failing(frame, 1)
    assert [one.row for one in found] == [*range(failing_rows.ROWS_MAX), None]
    assert max(len(one.text) for one in found) <= 2 * failing_rows.TEXT_CHARS_MAX + 1


CAST = "def transform(records, batch):\n    return records.selectExpr('payload.n', 'CAST(payload.kind AS INT) AS k')\n"
TOGETHER = """
def transform(records, batch):
    return records.selectExpr("payload.n", "CAST(payload.kind AS INT) AS k").repartition(7, "n")
"""
FUNCTION = """
from pyspark.sql import functions as F

number, half = F.udf(lambda kind: int(kind), "int"), F.udf(lambda n: n // 2, "int")

def transform(records, batch):
    return records{before}.select("payload.n", {made}.alias("k")){after}
"""


@pytest.mark.full
@pytest.mark.parametrize(
    ("pipeline", "commits"),
    [
        pytest.param(CAST, 1, id="by records"),
        pytest.param(TOGETHER, None, id="by its own parts", marks=pytest.mark.full),
        pytest.param(FUNCTION.format(before="", made="number('payload.kind')", after=""), 1, id="by a function"),
        pytest.param(
            FUNCTION.format(before="", made="half(number('payload.kind'))", after=""), 1, id="by one upon another"
        ),
        pytest.param(
            FUNCTION.format(before="", made="number('payload.kind')", after=".where('assert_true(k > 0) IS NULL')"),
            1,
            id="by a function without whose result the next step fails",
        ),
        pytest.param(
            FUNCTION.format(before=".sortWithinPartitions('partitionKey')", made="number('payload.kind')", after=""),
            1,
            id="by a function over rows that were gathered first",
        ),
    ],
)
def test_records_that_fail_are_found_together(spark: Any, tmp_path: Path, pipeline: str, commits: int | None) -> None:
    """Each with its own reason; all in one commit, unless the pipeline has partitions of its own."""
    bed = engine_bed(spark, tmp_path, pipeline, *JSON)
    bad = {3: "three", 300: "x", 301: "y"}
    assert bed.run({n: event(n, bad.get(n, "5")) for n in range(1, 601)}).failed == {}
    assert sorted(row["n"] for row in rows(tmp_path / "out")) == [n for n in range(1, 601) if n not in bad]
    dead = {int(row["sequenceNumber"]): row["reason"] for row in rows(tmp_path / "dead")}
    assert dead.keys() == bad.keys()
    if "assert_true" not in pipeline or not spark.version.startswith("4.1."):  # where that is all that is said
        assert {n: kind for n, kind in bad.items() if f"'{kind}'" not in dead[n]} == {}, dead
    if commits is not None:
        assert len([*(tmp_path / "dead").glob("*.json")]) == len([*(tmp_path / "out").glob("*.json")]) == commits


def test_a_record_over_which_a_function_raised_before_but_not_alone_is_not_buried(spark: Any, tmp_path: Path) -> None:
    """It raises in the batch, and in the first job of the search."""
    calls = tmp_path / "calls"
    pipeline = f"""
from pyspark.sql import functions as F

def moody(n):
    if n == 300:
        with open({str(calls)!r}, "a+") as calls:
            calls.write("x")
            calls.seek(0)
            if len(calls.read()) <= 2:
                raise ValueError(n)
    return n

def transform(records, batch):
    return records.select(F.udf(moody, "int")("payload.n").alias("n"))
"""
    bed = engine_bed(spark, tmp_path, pipeline, *JSON)
    assert bed.run({n: event(n) for n in range(1, 601)}).failed == {}
    assert sorted(row["n"] for row in rows(tmp_path / "out")) == [*range(1, 601)]
    assert len(calls.read_text()) > 2 and rows(tmp_path / "dead") == []


@pytest.mark.full
def test_a_function_that_raises_for_every_record_stops_the_shard(spark: Any, tmp_path: Path) -> None:
    pipeline = FUNCTION.format(before="", made="number('payload.kind')", after="")
    bed = engine_bed(spark, tmp_path, pipeline, *JSON)
    assert "and so do the 8 others" in bed.run({n: event(n, "x") for n in range(1, 301)}).failed[A]
    assert rows(tmp_path / "dead") == rows(tmp_path / "out") == []


def test_a_column_that_is_not_there_stops_with_a_sentence(spark: Any, tmp_path: Path) -> None:
    pipeline = "def transform(records, batch):\n    return records.select('payload.no_such_field')\n"
    outcome = engine_bed(spark, tmp_path, pipeline, *JSON).run({1: event(1), 2: event(2)})
    assert "no_such_field" in outcome.failed[A]
    assert rows(tmp_path / "out") == rows(tmp_path / "dead") == []


@pytest.mark.parametrize(
    ("keys", "good", "bad"),
    [
        (("mld.spark.format = text",), "é".encode(), b"\xff"),
    ],
)
def test_other_formats(spark: Any, tmp_path: Path, keys: tuple[str, ...], good: bytes, bad: bytes) -> None:
    bed = engine_bed(spark, tmp_path, "def transform(records, batch):\n    return records.select('payload')\n", *keys)
    bed.run({1: good, 2: bad})
    assert [row["payload"] for row in rows(tmp_path / "out")] in ([{"n": 7, "kind": "human"}], ["é"])
    assert [row["sequenceNumber"] for row in rows(tmp_path / "dead")] == ["2"]


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_directory_that_was_put_back_from_a_backup_refuses_what_does_not_follow(
    spark: Any, tmp_path: Path, is_restarted: bool
) -> None:
    bed, out, backup = engine_bed(spark, tmp_path, PASS, *JSON), tmp_path / "out", tmp_path / "backup"
    bed.run({n: event(n) for n in range(1, 6)})
    shutil.copytree(out, backup)
    bed.run({n: event(n) for n in range(6, 11)}, after=5)
    shutil.rmtree(out)
    shutil.copytree(backup, out)
    if is_restarted:
        bed = engine_bed(spark, tmp_path, PASS, *JSON)
    outcome = bed.run({n: event(n) for n in range(11, 16)}, after=10)
    assert "sink out holds a up to 5, and the application has come to 10" in outcome.failed[A]
    assert bed.run({n: event(n) for n in range(5, 16)}, after=4).failed == {}, "after a reset"
    assert [row["n"] for row in rows(out)] == [*range(1, 16)]


ANOTHER = b'{"n": 8, "kind": "human"}'
GARBAGE = {
    "json": [
        *(event(7) + more for more in (b"\n" + ANOTHER, ANOTHER, b" garbage", b"}", b"]", b",", b"\x00")),
        *(b'{"n": 7, "kind": "\xff"}', b"{'n': 7, 'kind': 'human'}", b"[" + ANOTHER + b"]", b"null", b" \n", b""),
        *(b'{"n": 7, "kind": "\xed\xa0\x80"}', b"\xef\xbb\xbf" + ANOTHER, ANOTHER + b"\x00"),
        *(ANOTHER.decode().encode(utf) for utf in ("utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be", "utf-16")),
    ],
    "jsonlines": [
        *(event(7) + more for more in (ANOTHER, b"," + ANOTHER, b" garbage", b"\n{bad", b"\nnull", b"\n[]", b"}")),
        *(b'{"n": 7\n"kind": "x"},{"n": 8}', b'{"n": 7, "kind": "\xff"}', b"[" + ANOTHER + b"]", b"\n", b""),
    ],
    "text": [b"human\xff"],
}


@pytest.mark.parametrize("format", sliced(GARBAGE, "json"))
def test_a_payload_and_garbage_is_malformed_and_no_part_of_it_is_in_the_table(
    spark: Any, tmp_path: Path, format: str
) -> None:
    """Avro: `tests/lakehouse/test_avro.py`; binary payloads are never malformed."""
    schema = () if format == "text" else JSON[1:]
    bed = engine_bed(spark, tmp_path, PASS.replace("payload.*", "payload"), f"mld.spark.format = {format}", *schema)
    good = b"human" if format == "text" else event(7)
    outcome = bed.run(dict(enumerate([good, *GARBAGE[format], good], start=1)))
    count = len(GARBAGE[format])
    assert (outcome.failed, outcome.figures.malformed) == ({}, count)
    assert [row["sequenceNumber"] for row in rows(tmp_path / "out")] == ["1", str(count + 2)]
    assert len(rows(tmp_path / "dead")) == count


def test_several_events_in_a_record_are_rows_numbered_within_it_and_each_is_there_once(
    spark: Any, tmp_path: Path
) -> None:
    columns = ("sequenceNumber", "rowNumber", "payload.n")
    pipeline = f"def transform(records, batch):\n    return records.select{columns}\n"
    bed = engine_bed(spark, tmp_path, pipeline, "mld.spark.format = jsonlines", JSON[1])
    events = {1: event(1) + b"\r\n\n" + event(2) + b"\n", 2: event(3), 3: event(4) + b"\n{bad"}
    assert bed.run(events).failed == {}
    assert bed.run({**events, 4: event(5) + b"\n" + event(6)}).failed == {}
    found = [(row["sequenceNumber"], row["rowNumber"], row["n"]) for row in rows(tmp_path / "out")]
    assert found == [("1", 0, 1), ("1", 1, 2), ("2", 0, 3), ("4", 0, 5), ("4", 1, 6)]
    (dead,) = rows(tmp_path / "dead")
    assert (dead["sequenceNumber"], dead["reason"]) == ("3", "not lines of JSON of mld.spark.schema")


def test_a_number_whose_digits_nobody_can_write_is_malformed(spark: Any) -> None:
    found = records(
        spark, [b'{"a":1e100000000}', b'{"a":1e2}', b'{"a":"1e99999"}'], format="json", schema="a DECIMAL(9,2)"
    )
    assert [row.payload and int(row.payload.a) for row in found.collect()] == [None, 100, None]


@pytest.mark.full
def test_whatever_a_producer_puts_as_json_is_decoded_or_malformed_with_a_reason_and_holds_up_nobody(spark: Any) -> None:
    """A slice; the long run is `python -m tests.fuzz.json_payloads`."""
    reasons = json_payloads.check(spark, [data for data, _ in json_payloads.ATTACKS.values()])
    for (name, (_, wanted)), why in zip(json_payloads.ATTACKS.items(), reasons, strict=True):
        assert why is None if wanted is None else (why or "").startswith(wanted), f"{name}: {why}"
    source = random.Random(51)
    reasons = json_payloads.check(spark, [json_payloads.drawn(source) for _ in range(300)])
    assert 0 < sum(why is None for why in reasons) < 300


@pytest.mark.full
def test_a_short_record_that_would_hold_every_shard_is_a_dead_letter(spark: Any, tmp_path: Path) -> None:
    schema = ", ".join(("amount DECIMAL(10,2)", *(f"c{n} STRING" for n in range(100))))
    bed = engine_bed(spark, tmp_path, PASS, "mld.spark.format = jsonlines", f"mld.spark.schema = {schema}")
    data = {1: b'{"amount":1}', 2: b'{"amount":1e100000000}', 3: b"{}\n" * 100_000, 4: b'{"amount":4}'}
    assert bed.run(data).failed == {}
    assert [row["amount"] for row in rows(tmp_path / "out")] == [1, 4]
    assert [row["reason"] for row in rows(tmp_path / "dead")] == [
        "amount is 1e100000000, a number whose exponent is too large",
        "too many objects, lists and values for the number of fields of mld.spark.schema",
    ]


def test_a_text_of_a_later_line_is_what_stands_there(spark: Any) -> None:
    lines = b'{"n": 1}\n{"n": 2, "kind": {"a": [1, "x"]}}'
    found = records(spark, [lines], format="jsonlines", schema="n INT, kind STRING").collect()
    assert [row.payload.kind for row in found] == [None, '{"a": [1, "x"]}']


ROOT = Path(__file__).parents[2]
BEYOND = "a time beyond the year 9999: a number is read as seconds"
NESTED = (
    "n INT, at TIMESTAMP, place STRUCT<x: INT, since: DATE>, times ARRAY<TIMESTAMP>, many ARRAY<STRUCT<x: INT>>, "
    "by MAP<STRING, STRUCT<x: INT>>"
)


@pytest.mark.parametrize("format", sliced(["json", "jsonlines"], "json"))
def test_a_letter_says_which_field_is_wrong_and_times_beyond_the_calendar_are(
    spark: Any, tmp_path: Path, format: str
) -> None:
    good = b'{"n": 1, "at": 1767323045, "place": {"x": 1, "since": "2026-01-02"}, "times": ["2026-01-02T03:04:05Z"]}'
    bad = {
        b'{"n": 2, "at": 1767323045123}': f"at is 1767323045123, {BEYOND}",
        b'{"n": 2, "times": [null, 1767323045123]}': f"times[1] is 1767323045123, {BEYOND}",
        b'{"n": 2, "at": 1767323045123456789}': f"at is 1767323045123456789, {BEYOND}",
        b'{"n": 2, "at": -9223372036854775808}': f"at is -9223372036854775808, {BEYOND}",
        b'{"n": 1.0}': "n is 1.0, which is no int",
        b'{"n": 2.50}': "n is 2.50, which is no int",
        b'{"many": [{"x": 1}, {"x": 1e3}]}': "many[1].x is 1e3, which is no int",
        b'{"by": {"k": {"x": 1}, "l": {"x": "two"}}}': 'by.l.x is "two", which is no int',
        b'{"many": [{"x": 1}, 7]}': 'many is [{"x": 1}, 7], which is no array<struct<x:int>>',
        b'{"place": {"x": "a"}}': 'place.x is "a", which is no int',
        b'{"place": 7}': "place is 7, which is no struct<x:int,since:date>",
    }
    bed = engine_bed(spark, tmp_path, PASS, f"mld.spark.format = {format}", f"mld.spark.schema = {NESTED}")
    outcome = bed.run(dict(enumerate([good, *bad, good], start=1)))
    assert (outcome.failed, outcome.figures.malformed) == ({}, len(bad))
    assert [row["n"] for row in rows(tmp_path / "out")] == [1, 1]
    assert [row["reason"] for row in rows(tmp_path / "dead")] == list(bad.values())


def test_what_the_page_says_of_values_of_json_is_so(spark: Any) -> None:
    page = (ROOT / "docs/use/spark-pipeline.md").read_text()
    table = page.partition("| JSON | Column | Becomes |\n|---|---|---|\n")[2].partition("\n\n")[0]
    cases = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
    schema = ", ".join(f"c{n} {type}" for n, (_, type, _) in enumerate(cases))
    lines = [f'{{"c{n}": {value.strip("`")}}}'.encode() for n, (value, _, _) in enumerate(cases)]
    found = records(spark, lines, format="json", schema=schema)
    texts = found.selectExpr(*(f"string(payload.c{n})" for n in range(len(cases)))).collect()
    for n, (value, type, becomes) in enumerate(cases):
        wanted = None if becomes.startswith("malformed") else becomes.split("`")[1]
        assert (value, type, texts[n][n]) == (value, type, wanted)


STRAY = (
    b'{"n": 1, "N": 2.0, "x": [{"a": "\\u0001"}], "nothing": null, "place": {"x": 1, "y": "b", "any": {"z": 1}}, '
    b'"many": [{"x": 1}, {"w": 7}]}'
)


@pytest.mark.parametrize("format", sliced(["json", "jsonlines"], "json"))
def test_fields_that_the_schema_does_not_name_are_counted_and_said_once_or_kept(
    spark: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture, format: str
) -> None:
    schema = "n INT, place STRUCT<x: INT, any: STRING>, many ARRAY<STRUCT<x: INT>>"
    keys = (f"mld.spark.format = {format}", f"mld.spark.schema = {schema}")
    bed = engine_bed(spark, tmp_path, PASS, *keys)
    data = dict.fromkeys(range(1, 4), STRAY) | {4: b'{"n": 4}', 5: b'{"n": "x", "z": 1}'}
    assert bed.run(data).figures.stray == 3
    assert bed.run(dict.fromkeys(range(6, 9), STRAY)).figures.stray == 3
    (said,) = [one.getMessage() for one in caplog.records if "does not name" in one.getMessage()]
    assert (
        said.startswith("3 records have fields that mld.spark.schema does not name")
        and "N, x, nothing, place.y, many.w (" in said
    )
    (tmp_path / "kept").mkdir()
    bed = engine_bed(spark, tmp_path / "kept", PASS, *keys, "mld.spark.rescuedColumn = rest")
    assert bed.run(data).figures.stray == 3
    kept = [row.get("rest") for row in rows(tmp_path / "kept" / "out")]
    assert kept[3] is None
    rest = '{"N":2.0,"x":[{"a": "\\u0001"}],"nothing":null,"place.y":"b","many[1].w":7}'
    assert kept[:3] == [rest] * 3


def test_a_type_that_changes_upstream_stops_the_shard_with_the_field_that_is_wrong(spark: Any, tmp_path: Path) -> None:
    bed = engine_bed(spark, tmp_path, PASS, *JSON)
    data = {n: event(n) if n <= 20 else json.dumps({"n": f"id-{n}"}).encode() for n in range(1, 121)}
    for _ in range(2):
        said = bed.run(data).failed[A]
        assert "100 of the last 120 records are malformed" in said and 'n is "id-' in said and "which is no int" in said
        assert [row["n"] for row in rows(tmp_path / "out")] == [*range(1, 21)]
        assert rows(tmp_path / "dead") == []
    bed = engine_bed(spark, tmp_path, PASS, *JSON, "mld.spark.malformedShareMax = 1")
    assert bed.run(data).failed == {}
    assert (len(rows(tmp_path / "out")), len(rows(tmp_path / "dead"))) == (20, 100)


def test_the_class_that_reads_json_is_compiled_and_called_by_this_spark(spark: Any) -> None:
    """By the newest one in `make test`, and by the oldest that setup.cfg allows in `make test-lakehouse`."""
    type = "STRUCT<events: ARRAY<STRUCT<value: STRUCT<n: INT>, number: INT>>, why: STRING, strays: STRING>"
    for of_lines in (False, True):
        column = jvm_classes.json_column(spark, "data", type, of_lines=of_lines, rescues=False)
        frame = spark.createDataFrame([(b'{"n": 7}',), (b"{bad",)], "data BINARY").select(column.alias("c"))
        assert [(row.c.events[0].value, row.c.why) for row in frame.collect()] == [((7,), None), (None, "")]


LET_THROUGH = [b'{"n": 9}, "kind": {}']
"""Malformed for the class alone: what would go on with the frame around a payload."""


@pytest.mark.parametrize("format", sliced(["json", "jsonlines"], "jsonlines"))
@pytest.mark.parametrize("why", sliced(["not compiled", "not linked"], "not compiled"))
def test_a_spark_that_lacks_what_the_class_calls_reads_json_by_itself_and_says_so_once(
    spark: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: Any, format: str, why: str
) -> None:
    source = (jvm_classes.SOURCES / "MldJson.java").read_text().replace("MldJson", name := f"MldJson{why[-6:]}")
    file = tmp_path / f"{name}.java"
    if why == "not compiled":
        file.write_text(source.replace("JacksonParser(", "JacksonParserOfTomorrow("))
    else:
        thrown = 'if (!isWhole) throw new NoSuchMethodError("JacksonParser.parse");\n    isWhole = true;'
        file.write_text(source.replace("isWhole = true;", thrown, 1))
    monkeypatch.setattr(jvm_classes, "SOURCES", tmp_path)
    monkeypatch.setattr(jvm_classes, "JSON_CLASS", name)
    decoding._warn.cache_clear()
    schema = f"mld.spark.schema = {NESTED}, kind STRING"
    bed = engine_bed(spark, tmp_path, PASS, f"mld.spark.format = {format}", schema)
    decoding.check_schema(spark, Format(format), "n INT")
    (said,) = [one.getMessage() for one in caplog.records if "from_json" in one.getMessage()]
    assert "install the PySpark that mld[spark] names: " in said
    assert said.endswith("JacksonParser.parse") == (why == "not linked")
    bad = [*GARBAGE[format], b'{"place": {"x": "a"}}', b'{"n": 2.5}']
    outcome = bed.run(dict(enumerate([event(1), *bad, *LET_THROUGH, event(2)], start=1)))
    assert (outcome.failed, outcome.figures.malformed) == ({}, len(bad))
    assert [row["n"] for row in rows(tmp_path / "out")] == [1, 9, 2]
    assert {row["reason"] for row in rows(tmp_path / "dead")} == {decoding.NOT_DECODED[Format(format)]}


def test_a_column_for_stray_fields_has_a_name_of_its_own(spark: Any) -> None:
    with pytest.raises(SessionError, match=r"rescuedColumn = N is a field of mld.spark.schema; name another one"):
        decoding.check_schema(spark, Format.JSON, "n INT", rescued="N")


def test_without_a_dead_letter_a_malformed_record_of_lines_is_one_row(spark: Any) -> None:
    found = records(spark, [event(1) + b"\n" + event(2), b"{bad"], format="jsonlines", schema="n INT").collect()
    assert [(row.rowNumber, row.payload and row.payload.n) for row in found] == [(0, 1), (1, 2), (None, None)]


def test_a_schema_that_is_none_gets_a_sentence(spark: Any) -> None:
    with pytest.raises(SessionError, match=r"mld.spark.schema does not fit mld.spark.format = json: "):
        decoding.check_schema(spark, Format.JSON, "n STRIN")


def test_the_helper_for_users_makes_the_frame_of_production(spark: Any) -> None:
    frame = records(spark, [{"n": 1}, '{"n":2}', b"{bad"], format="json", schema="n INT")
    assert frame.columns == [*handover.COLUMNS, decoding.PAYLOAD]
    found = [(row.sequenceNumber, row.payload.n if row.payload else None) for row in frame.collect()]
    assert found == [("1", 1), ("2", 2), ("3", None)]
    assert batch(3).shards == ("shardId-000000000000",)


def test_permissions_of_files_are_those_of_hadoop_and_cost_no_process(spark: Any, tmp_path: Path) -> None:
    def waited_for() -> int:
        """Page faults of the programs that the JVM has run."""
        return int(Path(f"/proc/{jvm_of(spark).pid}/stat").read_text().rpartition(")")[2].split()[8])

    def written(name: str) -> tuple[bool, set[tuple[bool, int]]]:
        before = waited_for()
        spark.range(10).coalesce(1).write.parquet(str(tmp_path / name))
        made = [tmp_path / name, *(tmp_path / name).iterdir()]
        return waited_for() > before, {(path.is_dir(), path.stat().st_mode & 0o7777) for path in made}

    java = spark._jvm.org.apache.hadoop.fs
    configuration = spark.sparkContext._jsc.hadoopConfiguration()
    ran_a_program, theirs = written("theirs")
    assert ran_a_program, "Hadoop has its native library here: nothing to save"
    assert jvm_classes.install_files(spark)
    assert written("ours") == (False, theirs)
    files = java.FileSystem.get(spark._jvm.java.net.URI("file:///"), configuration)
    files.setPermission(java.Path(str(tmp_path / "ours")), java.permission.FsPermission("1770"))
    assert (tmp_path / "ours").stat().st_mode & 0o7777 == 0o1770
    (tmp_path / "ours").chmod(0o2700)
    files.setPermission(java.Path(str(tmp_path / "ours")), java.permission.FsPermission("750"))
    assert (tmp_path / "ours").stat().st_mode & 0o7777 == 0o2750, "files of the directory keep its group"
    assert spark.read.parquet(str(tmp_path / "ours")).count() == 10


@pytest.mark.parametrize(
    "keys", [(), ("mld.spark.conf.spark.hadoop.fs.file.impl = org.apache.hadoop.fs.LocalFileSystem",)]
)
def test_a_local_session_has_it_unless_the_user_has_another(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keys: tuple[str, ...]
) -> None:
    installed: list[Any] = []
    monkeypatch.setattr(jvm_classes, "install_files", installed.append)
    assert start(settings_of(*keys), tmp_path) is spark
    assert installed == ([] if keys else [spark])


def test_without_the_compiler_hadoop_sets_permissions(caplog: pytest.LogCaptureFixture) -> None:
    class NoJanino:
        def __getattr__(self, name: str) -> Any:
            raise TypeError("'JavaPackage' object is not callable\nand more")

    class Session:
        _jvm = NoJanino()

    caplog.set_level("INFO")
    assert not jvm_classes.install_files(Session())  # type: ignore[arg-type]
    (said,) = caplog.messages
    assert said.startswith("permissions of files are set by chmod: ") and "'JavaPackage' object is not callable" in said
