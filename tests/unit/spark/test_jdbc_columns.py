"""Columns of a frame and of a table, and the options of a JDBC sink: tables of values."""

from __future__ import annotations

import pytest

from mld.processors.spark.sink_port import SinkRefused
from mld.processors.spark.sink_spec import SinkSpec
from mld.processors.spark.sinks.jdbc_connection import check_options, connection_options
from mld.processors.spark.sinks.merge import PLACES, SEQUENCE
from mld.processors.spark.sinks.postgres_sql import Column, fitted, places_of

ID, NAME = Column("id", "BIGINT"), Column("Name", "TEXT")


def test_columns_go_by_name_then_by_name_but_for_case():
    name, other, id = Column("name", "text"), Column("ID", "int8"), Column("id", "int8")
    assert fitted("table t", [ID, NAME], [name, other, id], ()) == [id, name]


def test_a_new_column_is_added():
    assert fitted("table t", [ID, NAME], [Column("id", "int8")], ()) == [Column("id", "int8"), NAME]


@pytest.mark.parametrize(
    ("frame", "table", "keys", "said"),
    [
        ([ID], [Column("id", "int8"), Column("at", "date", required=True)], (), "column at takes no NULL"),
        ([ID, Column("ID", "int")], [Column("id", "int8")], (), "column id twice"),
        ([ID, NAME], [Column("id", "int8")], ("name",), "key Name is no column of the table"),
    ],
)
def test_what_does_not_fit_is_refused(frame, table, keys, said):
    with pytest.raises(SinkRefused, match=f"table t: .*{said}"):
        fitted("table t", frame, table, keys)


def test_a_column_of_the_table_that_the_frame_lacks_may_be_null():
    assert fitted("table t", [ID], [Column("id", "int8"), Column("at", "date")], ()) == [Column("id", "int8")]


def test_places_are_those_of_names_whatever_their_case():
    sub, sequence = Column("subSequenceNumber", "BIGINT"), Column("SequenceNumber", "TEXT")
    assert places_of((SEQUENCE, *PLACES), [sub, ID, sequence]) == [2, 0]
    assert places_of(("ID", "absent"), [sub, ID]) == [1]


OPTIONS = {"url": "jdbc:postgresql://db/x?a=b", "dbTable": "t", "password": "secret", "batchsize": "7"}


def test_what_the_driver_is_told():
    told = connection_options(SinkSpec("out", "jdbc", options={**OPTIONS, "Driver": "mine"}))
    assert (told["Driver"], told.get("driver"), told["tcpKeepAlive"]) == ("mine", None, "true")
    assert (told["url"], told["batchsize"]) == (OPTIONS["url"], "7")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"options": {"url": "jdbc:postgresql:x"}}, "options.dbtable is missing"),
        ({"path": "/data"}, "path has no meaning"),
        ({"partition_by": ("a",)}, "partitionBy has no meaning"),
        ({"delete_when": "a", "mode": "merge", "keys": ("a",)}, "deleteWhen without orderBy has no meaning"),
        ({"options": {**OPTIONS, "truncate": "true"}}, "options.truncate has no meaning"),
    ],
)
def test_what_a_sink_cannot_be_told(change, said):
    spec = SinkSpec("out", "jdbc", **{"options": OPTIONS, **change})
    with pytest.raises(SinkRefused, match=said) as refused:
        check_options(spec)
    assert "secret" not in str(refused.value)
