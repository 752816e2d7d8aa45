"""Every format of records into every kind of table, in each of the ways in which a stream is not as one wishes: bytes
of records in, rows of the table out, through one session.

`make test-all` runs it in an environment that has Delta and Iceberg; `make test` a slice, in one that has neither. What
a cell cannot have is refused by a sentence, which is what its test asks for. A record that ends the JVM takes the
session of all other cells with it, so it is tested in a process of its own.
"""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="needs the extra: pip install 'mld-kinesis[spark]'")

from mld.processors.spark.session import decoding
from tests.lakehouse.tables import KINDS, TableBed, session
from tests.support.databases import Postgres
from tests.support.fetch_databases import installed as has_postgres
from tests.support.spark_bed import A

pytestmark = [
    pytest.mark.spark_slice,
    pytest.mark.spark,
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]
HAS_LAKE = "MLD_LAKEHOUSE" in os.environ
FORMATS = ("json", "jsonlines", "text", "binary")
CELLS = [
    pytest.param((format, kind), id=f"{format}-{kind}", marks=pytest.mark.full)
    for kind in (KINDS if HAS_LAKE else KINDS[:1])
    for format in FORMATS
]
SLICED = [pytest.param(("json", "parquet"), id="json-parquet"), *CELLS[1:]]
MALFORMED = {"json": b"{bad", "jsonlines": b'{"id": 98, "v": "x", "n": "1"}\n{bad', "text": b"\xff", "binary": b"\xff"}
"""Binary data are never malformed; the pipeline cannot compute these."""
RULES = {
    "delta": ("v STRING", "ADD CONSTRAINT short CHECK (length(v) < 4)", "long"),
    "iceberg": ("v STRING NOT NULL", "", "-"),
    "jdbc": ("v TEXT CHECK (length(v) < 4)", "", "long"),
}
"""Of a table that somebody else has made: a column, a statement after that, and a value that breaks the rule."""


def record(format: str, id: int, v: str = "a", n: str = "1", **more: object) -> bytes:
    if format.startswith("json"):
        return json.dumps({"id": id, "v": v, "n": n, **more}).encode() + (b"\n" if format == "jsonlines" else b"")
    return f"{id} {v} {n}".encode()


def columns(format: str) -> list[str]:
    """SQL for `id`, `v` (NULL if it is "-") and `n`, an INT that comes as a text."""
    text = {"text": "payload", "binary": "string(data)"}.get(format)
    parts = [
        f"split_part({text}, ' ', {at})" if text else f"payload.{name}" for at, name in enumerate(("id", "v", "n"), 1)
    ]
    return [f"bigint({parts[0]}) AS id", f"nullif({parts[1]}, '-') AS v", f"int({parts[2]}) AS n"]


def pipeline(format: str, *more: str) -> str:
    chosen = ["sequenceNumber", *columns(format), *more]
    return f"def transform(records, batch):\n    return records.selectExpr(*{chosen!r})\n"


@pytest.fixture(scope="module")
def spark(tmp_path_factory):
    opened = session(tmp_path_factory.mktemp("warehouse"))
    yield opened
    opened.stop()


@pytest.fixture(scope="module")
def database():
    if not (HAS_LAKE and has_postgres()):
        yield None
        return
    with Postgres() as running:
        yield running


class Cell(TableBed):
    """A table of one kind that takes records of one format."""

    def __init__(self, spark: Any, directory: Any, format: str, kind: str, database: Postgres | None) -> None:
        super().__init__(spark, directory, kind, database)
        self.of_records = format

    def begin(self, *more: str, place: str = "") -> None:
        """A new engine over the table; `more` are columns, `place` is a field of the schema."""
        schema = f"id BIGINT, v STRING, n STRING{place}" if self.of_records.startswith("json") else None
        self.start(pipeline(self.of_records, *more), schema=schema, format=self.of_records)

    def put(self, *ids: int, after: int | None = None, **more: Any) -> Any:
        return self.run({id: record(self.of_records, id, **more) for id in ids}, after=after)

    def ids(self) -> list[int]:
        return sorted(int(id) for (id,) in self.rows("id"))


@pytest.fixture
def cell(request, spark, database, tmp_path):
    format, kind = request.param
    if kind.startswith("jdbc") and database is None:
        pytest.skip("no PostgreSQL: make test-jdbc fetches one")
    return Cell(spark, tmp_path, format, kind, database)


def cells(chosen):
    return pytest.mark.parametrize("cell", chosen, indirect=True)


def test_json_is_read_by_the_class_and_not_by_what_stands_in_for_it(spark, caplog):
    """The oldest PySpark of setup.cfg in `make test-all`, the newest in `make test`."""
    decoding._warn.cache_clear()
    for format in (decoding.Format.JSON, decoding.Format.JSON_LINES):
        decoding.check_schema(spark, format, "n INT")
    assert [one.getMessage() for one in caplog.records] == []


@cells(SLICED)
def test_what_is_malformed_or_cannot_be_computed_is_a_letter_and_all_else_is_a_row(cell):
    cell.begin()
    assert cell.put(1, 2, 3).failed == {}
    format = cell.of_records
    data = {n: record(format, n) for n in range(3, 9)} | {5: MALFORMED[format], 7: record(format, 7, n="x")}
    outcome = cell.run(data)
    assert outcome.failed == {}
    assert cell.rows("id, v, n") == [(str(n), "a", "1") for n in (1, 2, 3, 4, 6, 8)]
    assert outcome.figures.malformed == (format != "binary")
    assert len(cell.letters()) == 2


@cells(CELLS)
def test_a_row_that_breaks_a_rule_of_somebody_elses_table_is_a_letter_and_all_others_are_rows(cell):
    if cell.format == "parquet":  # which has no rules; what others have put there stays
        cell.spark.sql("SELECT 9L AS id, 'other' AS v, 9 AS n").write.parquet(cell.place)
        cell.begin()
        assert cell.put(1).failed == {}
        assert cell.rows("id, v, n") == [("1", "a", "1"), ("9", "other", "9")]
        return
    column, rule, bad = RULES[cell.format]
    key = " PRIMARY KEY" if (cell.format, cell.mode) == ("jdbc", "merge") else ""
    cell.make(f"id BIGINT{key}, {column}, extra INT")
    if rule:
        cell.sql(f"ALTER TABLE {cell.name} {rule}")
    cell.begin()
    assert cell.put(1).failed == {}
    data = {n: record(cell.of_records, n, v=bad if n == 4 else "b") for n in range(2, 7)}
    assert cell.run(data).failed == {}
    assert cell.rows("id, v, n, extra") == [(str(n), "a" if n == 1 else "b", "1", None) for n in (1, 2, 3, 5, 6)]
    assert len(cell.letters()) == 1


@cells(CELLS)
def test_a_field_that_a_struct_gets_midway_is_null_in_rows_before_it(cell):
    is_json = cell.of_records.startswith("json")
    x, y = ("payload.place", "payload.place") if is_json else ("struct(id AS x)", "struct(id AS x, v AS y)")
    made = [text.replace("id", columns(cell.of_records)[0].removesuffix(" AS id"), 1) for text in (x, y)]
    made = [text.replace("v AS", "'b' AS", 1) for text in made]
    cell.begin(f"{made[0]} AS place", place=", place STRUCT<x: BIGINT>")
    outcome = cell.put(1, place={"x": 1})
    if cell.format == "jdbc":
        assert "PostgreSQL has no type for a column" in outcome.failed[A] and "to_json" in outcome.failed[A]
        return
    assert outcome.failed == {}
    cell.begin(f"{made[1]} AS place", place=", place STRUCT<x: BIGINT, y: STRING>")
    assert cell.put(2, place={"x": 2, "y": "b"}).failed == {}
    assert cell.rows("id, place.x, place.y") == [("1", "1", None), ("2", "2", "b")]


@cells(CELLS)
def test_a_table_that_went_back_in_time_stops_its_shard_until_it_is_filled(cell):
    cell.begin()
    assert cell.put(1, 2).failed == {}
    cell.back_up()
    assert cell.put(3, 4, after=2).failed == {}
    cell.restore()
    cell.begin()
    assert "sink out holds a up to 2, and the application has come to 4" in cell.put(5, after=4).failed[A]
    assert cell.put(3, 4, 5, after=2).failed == {}, "after a reset"
    assert cell.ids() == [1, 2, 3, 4, 5]
