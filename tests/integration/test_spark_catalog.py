"""Tables over a sink: in the Glue of moto, and by the statements that `mld-spark --ddl` prints, in Spark SQL."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="needs the extra: pip install 'mld-kinesis[spark]'")

from mld.processors.spark.catalog.ddl import statements
from mld.processors.spark.testing import session
from tests.support.servers import Moto
from tests.support.spark_bed import Bed, engine_bed

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]
KEYS = ("mld.spark.format = json", "mld.spark.schema = n INT, day DATE, User STRING")
SQL = "SELECT payload.n, payload.User, payload.day FROM records"
BY_DAY = ("mld.spark.sink.out.format = parquet", "mld.spark.sink.out.partitionBy = day")


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    made = session()
    yield made
    made.stop()  # a test in the next file may start one of its own


@pytest.fixture(scope="module")
def moto() -> Iterator[Moto]:
    with Moto() as server:
        yield server


def event(n: int, day: int) -> bytes:
    return json.dumps({"n": n, "day": f"2026-01-{day:02d}", "User": "ü"}).encode()


def with_table(spark: Any, directory: Path, endpoint: str, table: str, monkeypatch: pytest.MonkeyPatch) -> Bed:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    glue = f"mld.spark.glue.endpoint = {endpoint}", "mld.spark.glue.region = eu-west-1"
    return engine_bed(spark, directory, SQL, *KEYS, *BY_DAY, *glue, f"mld.spark.sink.out.glueTable = {table}")


def test_glue_learns_of_columns_and_partitions(
    spark: Any, tmp_path: Path, moto: Moto, monkeypatch: pytest.MonkeyPatch
) -> None:
    glue = moto.client("glue", region="eu-west-1")
    glue.create_database(DatabaseInput={"Name": "lake"})
    bed = with_table(spark, tmp_path, moto.endpoint, "lake.clicks", monkeypatch)
    assert bed.run({1: event(1, 1), 2: event(2, 2)}).failed == {}
    assert bed.run({3: event(3, 2), 4: event(4, 3)}).failed == {}
    table = glue.get_table(DatabaseName="lake", Name="clicks")["Table"]
    assert table["StorageDescriptor"]["Columns"] == [{"Name": "n", "Type": "int"}, {"Name": "user", "Type": "string"}]
    assert table["PartitionKeys"] == [{"Name": "day", "Type": "date"}]
    found = glue.get_partitions(DatabaseName="lake", TableName="clicks")["Partitions"]
    places = {part["Values"][0]: part["StorageDescriptor"]["Location"] for part in found}
    assert places == {f"2026-01-0{n}": f"file://{tmp_path}/out/day=2026-01-0{n}/" for n in (1, 2, 3)}
    again = with_table(spark, tmp_path, moto.endpoint, "lake.clicks", monkeypatch)
    assert again.run({5: event(5, 3)}).failed == {}
    assert len(glue.get_partitions(DatabaseName="lake", TableName="clicks")["Partitions"]) == 3


def test_a_database_that_is_not_there_stops_no_shard(
    spark: Any, tmp_path: Path, moto: Moto, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bed = with_table(spark, tmp_path, moto.endpoint, "none.clicks", monkeypatch)
    assert bed.run({1: event(1, 1)}).failed == {}
    assert spark.read.parquet(str(tmp_path / "out")).count() == 1
    assert "there is no database none in Glue; create it" in caplog.text


def test_glue_learns_of_a_sink_in_one_directory(
    spark: Any, tmp_path: Path, moto: Moto, monkeypatch: pytest.MonkeyPatch
) -> None:
    glue = moto.client("glue", region="eu-west-1")
    glue.create_database(DatabaseInput={"Name": "flat"})
    monkeypatch.setitem(globals(), "BY_DAY", BY_DAY[:1])
    bed = with_table(spark, tmp_path, moto.endpoint, "flat.clicks", monkeypatch)
    assert bed.run({1: event(1, 1), 2: event(2, 2)}).failed == {}
    table = glue.get_table(DatabaseName="flat", Name="clicks")["Table"]
    assert [column["Name"] for column in table["StorageDescriptor"]["Columns"]] == ["n", "user", "day"]
    assert table.get("PartitionKeys", []) == []
    assert table["StorageDescriptor"]["Location"].rstrip("/") == f"file://{tmp_path}/out"


HIVE = """
import json, sys
from pyspark.sql import SparkSession
spark = (SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    .config("spark.driver.bindAddress", "127.0.0.1").config("spark.driver.host", "127.0.0.1")
    .config("spark.sql.shuffle.partitions", "1").enableHiveSupport().getOrCreate())
spark.sql("CREATE DATABASE lake")
for statement in open(sys.argv[1]).read().split(";\\n"):
    if statement.strip():
        spark.sql(statement)
rows = {name: [list(row) for row in spark.sql(f"SELECT n, user, string(day) FROM lake.{name} ORDER BY n").collect()]
        for name in sys.argv[2:]}
print(json.dumps(rows))
"""


def test_spark_sql_reads_the_tables_of_the_printed_statements(spark: Any, tmp_path: Path) -> None:
    (tmp_path / "by_day").mkdir()
    (tmp_path / "flat").mkdir()
    by_day = engine_bed(spark, tmp_path / "by_day", SQL, *KEYS, *BY_DAY)
    flat = engine_bed(spark, tmp_path / "flat", SQL, *KEYS, BY_DAY[0])
    for bed in (by_day, flat):
        assert bed.run({1: event(1, 1), 2: event(2, 2)}).failed == {}
        assert bed.run({3: event(3, 2)}).failed == {}
    properties = tmp_path / "app.properties"
    lines = ["mld.spark.pipeline = p.sql", "streamName = s", "applicationName = a"]
    for name in ("by_day", "flat"):
        key = f"mld.spark.sink.{name}"
        lines += [f"{key}.path = {tmp_path / name / 'out'}", f"{key}.glueTable = lake.{name}"]
    lines.append("mld.spark.sink.by_day.partitionBy = day")
    properties.write_text("\n".join(lines))
    printed = tmp_path / "tables.sql"
    printed.write_text("\n".join(statements(str(properties), {})))
    (tmp_path / "hive.py").write_text(HIVE)
    ran = subprocess.run(
        [sys.executable, "hive.py", printed, "by_day", "flat"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"},
    )
    assert ran.returncode == 0, ran.stderr[-3_000:]
    wanted = [[1, "ü", "2026-01-01"], [2, "ü", "2026-01-02"], [3, "ü", "2026-01-02"]]
    assert json.loads(ran.stdout.splitlines()[-1]) == {"by_day": wanted, "flat": wanted}
