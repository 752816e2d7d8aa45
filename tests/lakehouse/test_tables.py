"""What tables of every format do with records as they come: bytes in, rows out. `make test-lakehouse`."""

from __future__ import annotations

import os

import pytest

from tests.lakehouse.tables import KINDS, TableBed, session
from tests.support.databases import Postgres
from tests.support.fetch_databases import installed as has_postgres

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif("MLD_LAKEHOUSE" not in os.environ, reason="make test-lakehouse"),
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(scope="module")
def spark(tmp_path_factory):
    opened = session(tmp_path_factory.mktemp("warehouse"))
    yield opened
    opened.stop()


@pytest.fixture(scope="module")
def database():
    if not has_postgres():
        yield None
        return
    with Postgres() as running:
        yield running


@pytest.fixture
def table(request, spark, database, tmp_path):
    kind = request.param
    if kind.startswith("jdbc") and database is None:
        pytest.skip("no PostgreSQL: make test-jdbc fetches one")
    return TableBed(spark, tmp_path, kind, database)


def tables(*kinds):
    return pytest.mark.parametrize("table", kinds or KINDS, indirect=True)


FORMATS = {
    "json": (b'{"id": %d, "v": "%s"}', "'payload.*'"),
    "jsonlines": (b'{"id": %d, "v": "%s"}\n', "'rowNumber', 'payload.*'"),
    "text": (b"%d %s", "F.split('payload', ' ')[0].cast('bigint').alias('id'), F.split('payload', ' ')[1].alias('v')"),
    "binary": (
        b"%d %s",
        "F.expr(\"bigint(split_part(string(data), ' ', 1)) id\"), F.expr(\"split_part(string(data), ' ', 2) v\")",
    ),
}


@pytest.mark.parametrize("format", FORMATS)
@tables()
def test_records_of_every_format_are_in_every_table(table, format):
    text, columns = FORMATS[format]
    schema = "id BIGINT, v STRING" if format.startswith("json") else None
    pipeline = (
        "from pyspark.sql import functions as F\n\ndef transform(records, batch):\n"
        f"    return records.select('sequenceNumber', {columns})\n"
    )
    table.start(pipeline, schema=schema, format=format)
    assert table.run([text % (n, b"a") for n in range(5)]).failed == {}
    assert table.run({n + 10: text % (n, b"b") for n in range(3, 8)}).failed == {}
    first = range(3) if table.mode else range(5)
    assert table.rows() == sorted([(str(n), "a") for n in first] + [(str(n), "b") for n in range(3, 8)])
