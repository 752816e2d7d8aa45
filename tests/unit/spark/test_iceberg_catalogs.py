"""Tables and catalogs by their keys, and what Spark is told about them."""

from __future__ import annotations

import os

import pyspark
import pytest

from mld.processors.spark.host import examine
from mld.processors.spark.pipeline import PipelineError
from mld.processors.spark.session.lakehouse import formats_of, lake_settings
from mld.processors.spark.session.spark_session import lake
from mld.processors.spark.session_errors import SessionError
from mld.processors.spark.settings import SettingsError, load
from mld.processors.spark.sink_port import SinkRefused
from mld.properties.lines import parse
from mld.properties.references import Sources
from mld.properties.spark import read

GOOD = "streamName = clicks\napplicationName = app\nmld.spark.pipeline = p.py:transform\n"
REST = "mld.spark.catalog.lake.type = rest\nmld.spark.catalog.lake.uri = http://127.0.0.1:8181\n"
TABLE = "mld.spark.table.out = lake.db.clicks\n"
JDBC = {"type": "jdbc", "uri": "jdbc:postgresql://h/c", "warehouse": "s3://b/lake", "jdbc.password": "hush"}


def loaded(tmp_path, text):
    file = tmp_path / "app.properties"
    file.write_text(GOOD + text)
    return load(str(file), (), {})


def test_a_table_declares_the_sink_of_its_name(tmp_path):
    settings = loaded(tmp_path, TABLE + REST + "mld.spark.sink.out.partitionBy = day\n")
    (sink,) = settings.sinks
    assert (sink.name, sink.format, sink.path, sink.partition_by) == ("out", "iceberg", "lake.db.clicks", ("day",))
    assert settings.catalogs == {"lake": {"type": "rest", "uri": "http://127.0.0.1:8181"}}


def test_a_table_by_the_path_of_a_sink_goes_on_working(tmp_path):
    text = "mld.spark.sink.out.format = iceberg\nmld.spark.sink.out.path = mine.db.t\n"
    (sink,) = loaded(tmp_path, text + "mld.spark.conf.spark.sql.catalog.mine = a.B\n").sinks
    assert (sink.format, sink.path) == ("iceberg", "mine.db.t")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (TABLE, "in the catalog lake, which no key describes"),
        ("mld.spark.table.out = db.clicks\n" + REST, "no name of a table"),
        ("mld.spark.table.a/b = lake.db.t\n" + REST, "is no key"),
        (TABLE + REST + "mld.spark.sink.out.path = lake.db.other\n", "do not agree"),
        (TABLE + REST + "mld.spark.sink.out.format = delta\n", "do not agree"),
        ("mld.spark.catalog.lake.uri = x\n", "type: is missing; write glue, rest, jdbc or hadoop"),
        ("mld.spark.catalog.lake.type = hive\n", "is no kind of a catalog"),
        ("mld.spark.catalog.lake.type = jdbc\nmld.spark.catalog.lake.uri = jdbc:x\n", "warehouse: is required by"),
        (
            "mld.spark.catalog.lake.type = hadoop\nmld.spark.catalog.lake.warehouse = s3a://b/l\n",
            "no atomic rename: commits would be lost; use glue, rest or jdbc",
        ),
        (REST + "mld.spark.conf.spark.sql.catalog.lake = a.B\n", "the same catalog"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_key_and_a_remedy(tmp_path, text, said):
    with pytest.raises(SettingsError) as refused:
        loaded(tmp_path, text)
    assert said in str(refused.value), refused.value


@pytest.mark.parametrize("warehouse", ["/var/lake", "file:///var/lake", "hdfs://n/lake"])
def test_a_catalog_of_directories_is_for_file_systems(tmp_path, warehouse):
    text = f"mld.spark.catalog.lake.type = hadoop\nmld.spark.catalog.lake.warehouse = {warehouse}\n"
    assert loaded(tmp_path, TABLE + text).catalogs["lake"]["warehouse"] == warehouse


def test_no_secret_of_a_catalog_is_shown(tmp_path):
    text = GOOD + TABLE + "".join(f"mld.spark.catalog.lake.{key} = {value}\n" for key, value in JDBC.items())
    lines = read("f", parse((text + "mld.spark.catalog.lake.credential = id:hush\n").encode()), (), Sources({}))
    assert not lines.remarks
    assert "hush" not in str(lines.shown) and "jdbc:postgresql://h/c" in str(lines.shown)
    assert "hush" not in repr(loaded(tmp_path, text.removeprefix(GOOD)))


def test_spark_is_told_of_catalogs_packages_and_extensions():
    conf = {"spark.sql.extensions": "my.Ext", "spark.jars.packages": "a:b:1"}
    told = lake_settings(["iceberg", "parquet"], {"lake": JDBC}, conf, "4.1.1")
    assert told == {
        "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.lake.type": "jdbc",
        "spark.sql.catalog.lake.jdbc.schema-version": "V1",
        "spark.sql.catalog.lake.uri": "jdbc:postgresql://h/c",
        "spark.sql.catalog.lake.warehouse": "s3://b/lake",
        "spark.sql.catalog.lake.jdbc.password": "hush",
        "spark.sql.extensions": "my.Ext,org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        "spark.jars.packages": "a:b:1,org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0,"
        "org.apache.iceberg:iceberg-aws-bundle:1.12.0,org.postgresql:postgresql:42.7.7",
    }


def test_the_users_own_release_is_left_as_it_is():
    own = "org.apache.iceberg:iceberg-spark-runtime-4.9_2.13:9.9"
    told = lake_settings(["iceberg"], {}, {"spark.jars.packages": own}, "4.9.0")
    assert told["spark.jars.packages"] == own
    jars = {"spark.jars": "/jars/delta-spark_4.9.jar"}
    assert "spark.jars.packages" not in lake_settings(["delta"], {}, jars, "4.9.0")


def test_plain_files_need_nothing():
    assert lake_settings(["parquet", "jdbc"], {}, {}, "4.3.0") == {}
    assert formats_of(["Parquet", "Delta"], {"lake": JDBC}) == ("iceberg", "delta")


@pytest.mark.parametrize("format_", ["iceberg", "delta"])
def test_a_pyspark_without_a_release_is_refused_by_name(format_):
    with pytest.raises(SessionError, match=rf"{format_} needs PySpark 4\.\d.*and this is 4\.3\.0: pip install"):
        lake_settings([format_], {}, {}, "4.3.0")


def test_the_check_says_what_each_format_needs_and_what_is_there(tmp_path, monkeypatch):
    (tmp_path / "p.py").write_text("def transform(records, batch):\n    return records\n")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "app.properties").write_text(GOOD + TABLE + REST)
    monkeypatch.setattr(pyspark, "__version__", "4.1.1")
    assert "iceberg needs PySpark 4.1, pipeline" in examine.examine("app.properties", os.environ)
    monkeypatch.setattr(pyspark, "__version__", "4.3.0")
    with pytest.raises(SessionError, match=r"iceberg needs PySpark 4\.1, and this is 4\.3\.0: pip install 'mld"):
        examine.examine("app.properties", os.environ)
    database = "mld.spark.sink.out.format = jdbc\nmld.spark.sink.out.options.url = jdbc:mysql://db/x\n"
    (tmp_path / "app.properties").write_text(GOOD + database + "mld.spark.sink.out.options.dbtable = t\n")
    with pytest.raises(SinkRefused, match=r"sink\.out\.options\.url: of databases only PostgreSQL"):
        examine.examine("app.properties", os.environ)
    (tmp_path / "p.py").write_text(
        "def setup(spark):\n    import no_such_module\ndef transform(records, batch): return records\n"
    )
    with pytest.raises(PipelineError, match=r"setup\(\) of the pipeline cannot import: .*no_such_module"):
        examine.examine("app.properties", os.environ)


@pytest.mark.parametrize(
    ("catalog", "region"),
    [
        ({"type": "glue", "warehouse": "s3://b/lake"}, "eu-west-1"),
        ({"type": "glue", "warehouse": "s3://b/lake", "client.region": "us-east-2"}, "us-east-2"),
        (JDBC, "eu-west-1"),
        ({"type": "rest", "uri": "http://h", "io-impl": "org.apache.iceberg.aws.s3.S3FileIO"}, "eu-west-1"),
        ({"type": "jdbc", "uri": "jdbc:sqlite:c", "warehouse": "/lake"}, None),
    ],
)
def test_clients_of_aws_are_told_the_region_of_the_file(catalog, region):
    told = lake_settings(["iceberg"], {"lake": catalog}, {}, "4.1.1", "eu-west-1")
    assert told.get("spark.sql.catalog.lake.client.region") == region


def test_the_region_is_that_of_the_stream(tmp_path, monkeypatch):
    monkeypatch.setattr(pyspark, "__version__", "4.1.1")
    glue = (
        "mld.spark.catalog.lake.type = glue\nmld.spark.catalog.lake.warehouse = s3://b/lake\nregionName = eu-west-1\n"
    )
    assert lake(loaded(tmp_path, TABLE + glue))["spark.sql.catalog.lake.client.region"] == "eu-west-1"
