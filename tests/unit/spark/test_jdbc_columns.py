"""Columns of a frame and of a table, and the options of a JDBC sink: tables of values."""

from __future__ import annotations

import pytest

from mld.processors.spark.sink_port import SinkRefused, SinkSpec
from mld.processors.spark.sinks.jdbc import check_options, connection_options, staging_options
from mld.processors.spark.sinks.postgres import (
    ColumnsRefused,
    FrameColumn,
    StagedColumn,
    TableColumn,
    TableName,
    fitted,
    newest_first,
)

ID, NAME = FrameColumn("id", "bigint"), FrameColumn("Name", "string")


def test_columns_go_by_name_then_by_name_but_for_case():
    table = [TableColumn("name", "text"), TableColumn("ID", "int8"), TableColumn("id", "int8")]
    assert fitted([ID, NAME], table, ()) == ([StagedColumn("c0", "id"), StagedColumn("c1", "name")], [])


def test_a_new_column_is_added():
    staged, added = fitted([ID, NAME], [TableColumn("id", "int8")], ())
    assert added == [("Name", "TEXT")]
    assert [column.target for column in staged] == ["id", "Name"]


@pytest.mark.parametrize(
    ("frame", "table", "keys", "said"),
    [
        ([NAME], [TableColumn("NAME", "text"), TableColumn("name", "text")], (), "could be NAME or name"),
        ([ID], [TableColumn("id", "int8"), TableColumn("at", "date", required=True)], (), "column at takes no NULL"),
        ([ID, FrameColumn("ID", "int")], [TableColumn("id", "int8")], (), "column id twice"),
        ([ID], [TableColumn("id", "int8")], ("user",), "key user is no column of the frame"),
        ([ID, NAME], [TableColumn("id", "int8")], ("name",), "key Name is no column of the table"),
        ([FrameColumn("at", "struct<a:int>")], [TableColumn("id", "int8")], (), "to_json"),
    ],
)
def test_what_does_not_fit_is_refused(frame, table, keys, said):
    with pytest.raises(ColumnsRefused, match=said):
        fitted(frame, table, keys)


def test_a_column_of_the_table_that_the_frame_lacks_may_be_null():
    assert fitted([ID], [TableColumn("id", "int8"), TableColumn("at", "date")], ())[1] == []


@pytest.mark.parametrize(
    ("frame", "order"),
    [
        ([ID], []),
        ([ID, FrameColumn("SequenceNumber", "string")], ['CHAR_LENGTH("c1") DESC', '"c1" DESC']),
        ([FrameColumn("sequenceNumber", "decimal(38,0)")], ['"c0" DESC']),
        (
            [FrameColumn("subSequenceNumber", "bigint"), FrameColumn("sequenceNumber", "string")],
            ['CHAR_LENGTH("c1") DESC', '"c1" DESC', '"c0" DESC'],
        ),
        ([FrameColumn("subSequenceNumber", "bigint")], []),
    ],
)
def test_the_newest_is_that_of_the_later_record(frame, order):
    assert newest_first(frame) == order


OPTIONS = {"url": "jdbc:postgresql://db/x?a=b", "dbTable": "t", "password": "secret", "batchsize": "7"}


def test_what_the_driver_and_what_the_writer_is_told():
    told = connection_options(SinkSpec("out", "jdbc", options={**OPTIONS, "Driver": "mine"}))
    assert (told["Driver"], told.get("driver"), told["tcpKeepAlive"]) == ("mine", None, "true")
    written = staging_options(told, TableName("x", "s"))
    assert written["url"] == OPTIONS["url"]
    assert (written["dbtable"], written["batchsize"], "dbTable" in written) == ('"x"."s"', "7", False)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"options": {"url": "jdbc:postgresql:x"}}, "options.dbtable is missing"),
        ({"path": "/data"}, "path has no meaning"),
        ({"partition_by": ("a",)}, "partitionBy has no meaning"),
        ({"delete_when": "a", "mode": "merge", "keys": ("a",)}, "deleteWhen has no meaning"),
        ({"options": {**OPTIONS, "truncate": "true"}}, "options.truncate has no meaning"),
    ],
)
def test_what_a_sink_cannot_be_told(change, said):
    spec = SinkSpec("out", "jdbc", **{"options": OPTIONS, **change})
    with pytest.raises(SinkRefused, match=said) as refused:
        check_options(spec)
    assert "secret" not in str(refused.value)
