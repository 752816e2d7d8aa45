"""What a frame does to the columns of a sink: types in, types out."""

from __future__ import annotations

import logging

import pytest
from pyspark.sql import types as T

from mld.processors.spark.sink_port import SinkRefused
from mld.processors.spark.sinks.columns import SinkColumns, holds, of_ledger, place_of, text_of, to_ledger

KINDS = {
    "TINYINT": T.ByteType(),
    "SMALLINT": T.ShortType(),
    "INT": T.IntegerType(),
    "BIGINT": T.LongType(),
    "FLOAT": T.FloatType(),
    "DOUBLE": T.DoubleType(),
    "TEXT": T.StringType(),
    "VOID": T.NullType(),
    "D10,2": T.DecimalType(10, 2),
    "D12,2": T.DecimalType(12, 2),
    "D12,3": T.DecimalType(12, 3),
}


def fields(**given):
    """A struct of fields; a text names a type, a dict is a struct, a list of one an array, a tuple of one a map."""
    return T.StructType([T.StructField(name, kind_of(given)) for name, given in given.items()])


def kind_of(given):
    match given:
        case dict():
            return fields(**given)
        case [_] if isinstance(given, list):
            return T.ArrayType(kind_of(given[0]))
        case (_,):
            return T.MapType(T.StringType(), kind_of(given[0]))
    return KINDS[given]


def grown(had, new, **more):
    return SinkColumns("out").grown(fields(**had), fields(**new), **more)


@pytest.mark.parametrize(
    ("had", "new", "whole"),
    [
        ({}, {"a": "INT"}, {"a": "INT"}),
        ({"a": "INT", "b": "TEXT"}, {"B": "TEXT"}, {"a": "INT", "b": "TEXT"}),
        ({"a": "INT"}, {"b": "TEXT", "A": "INT"}, {"a": "INT", "b": "TEXT"}),
        ({"a": {"x": "INT"}}, {"A": {"y": "INT", "X": "INT"}}, {"a": {"x": "INT", "y": "INT"}}),
        ({"a": [{"x": "INT"}]}, {"a": [{"y": {"z": "INT"}}]}, {"a": [{"x": "INT", "y": {"z": "INT"}}]}),
        ({"a": ({"x": "INT"},)}, {"a": ({"y": "INT"},)}, {"a": ({"x": "INT", "y": "INT"},)}),
        ({"a": "VOID"}, {"a": {"x": "INT"}}, {"a": {"x": "INT"}}),
        ({"a": {"x": "BIGINT"}}, {"a": {"x": "VOID"}}, {"a": {"x": "BIGINT"}}),
        ({"a": "VOID"}, {"a": "VOID"}, {"a": "VOID"}),
        ({"a": ["DOUBLE"]}, {"a": ["INT"]}, {"a": ["DOUBLE"]}),
    ],
)
def test_fields_are_found_whatever_their_case_and_new_ones_are_added(had, new, whole):
    assert grown(had, new) == fields(**whole)


@pytest.mark.parametrize(
    ("had", "new"), [("INT", "BIGINT"), ("TINYINT", "INT"), ("FLOAT", "DOUBLE"), ("D10,2", "D12,2")]
)
def test_a_type_becomes_wider_where_the_format_can_change_it(had, new):
    assert grown({"a": [{"x": had}]}, {"a": [{"x": new}]}, wider=True) == fields(a=[{"x": new}])
    with pytest.raises(SinkRefused, match=r"its column a\.element\.x is .*; cast it in the pipeline, or make another"):
        grown({"a": [{"x": had}]}, {"a": [{"x": new}]}, remedy="make another")
    assert grown({"a": new}, {"a": had}, wider=True) == fields(a=new), "the narrower one fits"


@pytest.mark.parametrize(
    ("had", "new"),
    [
        ("INT", "DOUBLE"),
        ("INT", "TEXT"),
        ("BIGINT", "DOUBLE"),
        ("BIGINT", "D12,2"),
        ("D10,2", "D12,3"),
        ("D10,2", "DOUBLE"),
        ({"x": "INT"}, "TEXT"),
        (["INT"], "INT"),
    ],
)
def test_any_other_type_is_refused_with_both(had, new):
    with pytest.raises(SinkRefused, match="sink out: its column a is ") as refused:
        grown({"a": had}, {"a": new}, wider=True)
    assert all(kind_of(one).simpleString() in str(refused.value) for one in (had, new))


def test_an_integer_is_held_exactly_or_not_at_all():
    assert [name for name, kind in KINDS.items() if holds(kind, T.IntegerType())] == [
        "INT",
        "BIGINT",
        "DOUBLE",
        "D12,2",
    ]
    assert not holds(T.DoubleType(), T.LongType()) and not holds(T.FloatType(), T.IntegerType())


@pytest.mark.parametrize("new", [{"a": "VOID"}, {"a": {"x": "VOID"}}, {"a": ["VOID"]}, {"a": ({"x": ["VOID"]},)}])
def test_a_new_column_that_is_only_null_is_refused_with_the_remedy(new):
    with pytest.raises(SinkRefused, match=r"the new column a\S* has no type, .* cast it"):
        grown({"b": "INT"}, new)


@pytest.mark.parametrize("new", [{"id": "INT", "ID": "INT"}, {"a": {"id": "INT", "Id": "INT"}}])
def test_names_that_differ_by_case_alone_are_refused(new):
    with pytest.raises(SinkRefused, match=r"the frame has (a\.)?id twice, but for case"):
        grown({}, new)


def test_what_a_table_requires_it_requires_still():
    had = T.StructType([T.StructField("a", fields(x="INT"), nullable=False)])
    whole = SinkColumns("out").grown(had, T.StructType([T.StructField("a", fields(y="INT"))]))
    assert (whole["a"].nullable, whole["a"].dataType) == (False, fields(x="INT", y="INT"))


def test_a_column_that_is_added_or_absent_is_said_once(caplog):
    columns = SinkColumns("out")
    with caplog.at_level(logging.WARNING, "mld.spark"):
        columns.grown(T.StructType(), fields(first="INT"))
        assert caplog.records == []
        for _ in range(2):
            columns.grown(fields(code="INT", c={"x": "INT"}), fields(c={"X": "INT", "y": "INT"}, more="INT"))
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]
    said = [record.getMessage() for record in caplog.records]
    assert "added: c.y, more;" in said[0] and "lacks columns that are there: code;" in said[1]


def test_a_ledger_keeps_texts_that_are_parsed_only_where_they_differ():
    odd = fields(**{"a b": "INT", "n": [{"größe": "INT"}]})
    assert text_of(odd) == "struct<`a b`:int,n:array<struct<`größe`:int>>>"
    had = (("id", "bigint"), ("c", odd.simpleString()), ("gone", "decimal(10,2)"))
    new = T.StructType([T.StructField("C", odd), T.StructField("id", T.LongType())])
    whole = SinkColumns("out").grown(of_ledger(had, new), new)
    assert to_ledger(had, whole) == (("id", "bigint"), ("c", text_of(odd)), ("gone", "decimal(10,2)"))


@pytest.mark.parametrize(
    ("name", "place"),
    [("a.b", "`a.b`"), ("A.c", "`A`.`c`"), ("geo.at.x", "`geo`.`at`.`x`"), ("geo.b.c", "`geo`.`b.c`"), ("a.d", None)],
)
def test_a_name_is_one_column_before_it_is_a_path(name, place):
    columns = fields(**{"a.b": "INT", "a": {"b": "TEXT", "c": "TEXT"}, "geo": {"at": {"x": "INT"}, "b.c": "INT"}})
    found = place_of(columns, name)
    assert (found and found[0]) == place
