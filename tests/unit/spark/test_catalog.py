"""Tables over the files of a sink: what Glue is told, in which words, and what happens while it does not answer."""

from __future__ import annotations

import threading

import pytest

from mld.processors.spark.catalog import ddl
from mld.processors.spark.catalog import table as shapes
from mld.processors.spark.catalog.registrar import Registrar
from mld.processors.spark.catalog.table import CatalogTableError, Table
from mld.processors.spark.commit.ledger import LedgerEntry
from mld.processors.spark.commit.store import PosixStore
from mld.processors.spark.settings import SDK_CREDENTIALS
from mld.processors.spark.sink_port import SinkRefused, SinkSpec
from mld.processors.spark.sinks.files import FlatSink
from mld.processors.spark.sinks.glue_tables import attach
from mld.processors.spark.sinks.partitioned_files import PartitionedSink
from tests.support.patience import PATIENCE_S

DAYS = Table("lake", "clicks", "s3://b/clicks", "parquet", ("day", "Hour"))
COLUMNS = (("User", "string"), ("at", "timestamp_ntz"), ("Hour", "int"), ("day", "date"), ("v", "variant"))


@pytest.mark.parametrize(
    ("spark", "hive"),
    [
        ("bigint", "bigint"),
        ("decimal(9,2)", "decimal(9,2)"),
        ("timestamp_ntz", "timestamp"),
        ("struct<a:int,b:array<map<string,timestamp_ltz>>>", "struct<a:int,b:array<map<string,timestamp>>>"),
        ("struct<`A b`:int>", "struct<a b:int>"),
        ("variant", None),
        ("struct<a:interval day to second>", None),
        ("void", None),
    ],
)
def test_types_of_hive(spark, hive):
    assert shapes.hive_type(spark) == hive


def test_columns_of_files_and_of_partitions_in_the_order_of_the_keys():
    data, keys = shapes.split_columns(COLUMNS, ("day", "Hour"))
    assert data == [("user", "string"), ("at", "timestamp")]
    assert keys == [("day", "date"), ("hour", "int")]
    assert shapes.left_out(COLUMNS) == ["v"]


def test_a_key_without_a_type_of_hive_is_refused():
    with pytest.raises(CatalogTableError, match="the column v has no type"):
        shapes.split_columns(COLUMNS, ("v",))


@pytest.mark.parametrize("text", ["clicks", "a.b.c", "a. b c", ".b", "a."])
def test_what_names_no_table(text):
    with pytest.raises(CatalogTableError, match=r"write database\.table"):
        shapes.named(text)


def test_directories_of_partitions_and_their_values():
    files = [
        "day=2026-01-01/hour=5/a.parquet",
        "day=2026-01-01/hour=5/b.parquet",
        "day=x/hour=6/a.parquet",
        "a.parquet",
    ]
    assert shapes.directories(files) == ("day=2026-01-01/hour=5", "day=x/hour=6")
    assert shapes.values_of("day=2026-01-01 10%3A00/hour=__HIVE_DEFAULT_PARTITION__") == [
        "2026-01-01 10:00",
        shapes.NULL_PARTITION,
    ]
    made = shapes.partition_input(DAYS, [], "day=a%3Ab/hour=5")
    assert (made["Values"], made["StorageDescriptor"]["Location"]) == (["a:b", "5"], "s3://b/clicks/day=a%3Ab/hour=5/")


def test_columns_are_added_at_the_end_and_nothing_else_changes():
    made = shapes.table_input(DAYS, COLUMNS)
    existing = {**made, "VersionId": "3", "CreateTime": "now", "Description": "ours"}
    assert shapes.widened(existing, DAYS, (*COLUMNS, ("user", "int"))) is None
    wider = shapes.widened(existing, DAYS, (("new", "bigint"), *COLUMNS))
    assert wider["StorageDescriptor"]["Columns"][-1] == {"Name": "new", "Type": "bigint"}
    assert len(wider["StorageDescriptor"]["Columns"]) == 3
    assert wider["Description"] == "ours" and not {"VersionId", "CreateTime"} & wider.keys()


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (Table("lake", "clicks", "s3://b/other", "parquet", ("day", "hour")), "is over s3://b/clicks, and the sink"),
        (
            Table("lake", "clicks", "s3a://b/clicks/", "parquet", ("day",)),
            "partitioned by day, hour, and the sink by day",
        ),
    ],
)
def test_a_table_of_something_else_is_refused(other, said):
    with pytest.raises(CatalogTableError, match=said):
        shapes.check_existing(other, shapes.table_input(DAYS, COLUMNS))


def test_locations_that_differ_in_spelling_are_one():
    same = Table("lake", "clicks", "s3a://b/clicks/", "parquet", ("day", "hour"))
    shapes.check_existing(same, shapes.table_input(DAYS, COLUMNS))


def test_statements():
    assert shapes.ddl(DAYS, COLUMNS) == (
        "CREATE EXTERNAL TABLE IF NOT EXISTS `lake`.`clicks` (\n  `user` string,\n  `at` timestamp\n)\n"
        "PARTITIONED BY (\n  `day` date,\n  `hour` int\n)\nSTORED AS PARQUET\nLOCATION 's3://b/clicks';\n"
        "MSCK REPAIR TABLE `lake`.`clicks`;\n"
    )


class MemoryCatalog:
    """A catalog that fails as often as it is told to."""

    name = "lake.clicks"

    def __init__(self, faults=()) -> None:
        self.faults = list(faults)
        self.shapes = []
        self.added = []

    def shape(self, columns):
        if self.faults:
            raise self.faults.pop(0)
        self.shapes.append(columns)

    def add(self, directories):
        if self.faults:
            raise self.faults.pop(0)
        self.added += directories


def registrar(catalog, **more):
    return Registrar(catalog, wait_s=PATIENCE_S, **more)


def test_a_partition_is_known_before_the_commit_and_told_once():
    catalog = MemoryCatalog()
    one = registrar(catalog)
    assert one.tell(COLUMNS, ["day=1"]) and one.tell(COLUMNS, ["day=1"]) and one.tell(COLUMNS, ["day=1", "day=2"])
    assert (catalog.shapes, catalog.added) == ([COLUMNS], ["day=1", "day=2"])
    wider = (*COLUMNS, ("new", "int"))
    assert one.tell(wider, ["day=1"])
    assert catalog.shapes == [COLUMNS, wider]
    one.stop()


def test_a_catalog_that_fails_holds_no_commit_and_is_told_later(caplog):
    caplog.set_level("INFO")
    catalog = MemoryCatalog([OSError("no route"), CatalogTableError("there is no database lake in Glue; create it")])
    failed, go_on = threading.Event(), threading.Event()

    def pause(stopping, seconds):
        failed.set()
        assert go_on.wait(PATIENCE_S)

    one = Registrar(catalog, wait_s=0.0, pause=pause)
    assert not one.tell(COLUMNS, ["day=1"])
    assert failed.wait(PATIENCE_S)
    assert not one.tell(COLUMNS, ["day=2"]), "while it fails, nobody waits"
    go_on.set()
    one._wait_s, one._failures = PATIENCE_S, 0
    assert one.tell(COLUMNS, ["day=3"])
    assert sorted(catalog.added) == ["day=1", "day=2", "day=3"]
    assert "OSError: no route. Nothing is lost" in caplog.text
    one.stop()


def test_partitions_beyond_the_bound_are_said_and_forgotten(monkeypatch, caplog):
    monkeypatch.setattr("mld.processors.spark.catalog.registrar.PENDING_MAX", 2)
    one = Registrar(MemoryCatalog(), wait_s=0.0)
    one.tell(COLUMNS, ["day=1", "day=2", "day=3"])
    assert "run MSCK REPAIR TABLE lake.clicks" in caplog.text
    one.stop()


# --- sinks that have a table, and statements --------------------------------------------------------------------------


def attached(tmp_path, **more):
    spec = SinkSpec("out", **{"path": str(tmp_path), "glue_table": "lake.clicks", **more})
    made = PartitionedSink if spec.partition_by else FlatSink
    sink = made(spec, PosixStore(tmp_path))
    attach(sink, spec, SDK_CREDENTIALS, None, None)
    return sink


def table_of(sink):
    (registrar,) = sink.before_commit.args
    return registrar._catalog._table


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"format": "csv", "partition_by": ("day",)}, "over parquet, orc, json, and the format is csv"),
        ({"glue_table": "clicks", "partition_by": ("day",)}, r"write database\.table"),
    ],
)
def test_what_can_have_no_table_is_told_at_start(tmp_path, more, said):
    with pytest.raises(SinkRefused, match=rf"mld\.spark\.sink\.out\.glueTable.*{said}"):
        attached(tmp_path, **more)


@pytest.mark.parametrize(("path", "location"), [("s3a://lake/clicks/", "s3://lake/clicks"), (None, "file://{}")])
def test_the_place_of_a_table_is_that_of_its_files_and_not_where_they_are_staged(tmp_path, path, location):
    sink = attached(tmp_path, path=path or str(tmp_path), partition_by=("day",))
    assert table_of(sink).location == location.format(tmp_path)


def test_a_sink_in_one_directory_has_a_table_and_one_that_has_begun_in_directories_has_none(tmp_path):
    sink = attached(tmp_path)
    assert table_of(sink).partition_keys == ()
    sink.open()
    head = LedgerEntry(1, "t", layout="parquet")
    with pytest.raises(SinkRefused, match=r"out\.glueTable.*a directory per commit"):
        sink._check_layout(head)


def test_a_sink_without_a_table_tells_nobody(tmp_path):
    sink = attached(tmp_path, glue_table=None)
    sink.before_commit((), [])
    assert not hasattr(sink.before_commit, "args")


def test_statements_of_sinks_that_cannot_have_them_say_why(tmp_path, capsys):
    file = tmp_path / "app.properties"
    file.write_text(
        "mld.spark.pipeline = p.sql\nmld.spark.sink.new.path = data\nmld.spark.sink.lines.path = x\n"
        "mld.spark.sink.lines.format = csv\nmld.spark.sink.far.path = hdfs://h:1/x\n"
    )
    assert ddl.main([str(file)]) == 0
    said = capsys.readouterr().out
    assert "-- sink new: has no commit with columns yet" in said
    assert "-- sink lines: no table over csv" in said
    assert "-- sink far: its ledger is not on this machine" in said
    assert (ddl.main([]), ddl.main([str(tmp_path / "none")])) == (2, 2)
