"""`mode = merge`: which frames can be merged, and the SQL that does it. Real tables: `tests/lakehouse`."""

from __future__ import annotations

import pytest

from mld.processors.spark.sink_port import SinkRefused
from mld.processors.spark.sink_spec import SinkSpec
from mld.processors.spark.sinks.factory import make_sink
from mld.processors.spark.sinks.merge import Merge

COLUMNS = ("id", "name", "sequenceNumber")


@pytest.mark.parametrize(
    ("keys", "columns", "said"),
    [
        (("id", "day"), COLUMNS, "keys names day, the frame has no such column"),
        (("id",), ("id", "name"), "needs the column sequenceNumber"),
        (("id",), (*COLUMNS, "ID"), "the frame has id more than once"),
        (("id",), (*COLUMNS, "_mld_deleted"), "the column _mld_deleted is the sink's own"),
    ],
)
def test_a_frame_that_cannot_be_merged_is_refused_by_name(keys, columns, said) -> None:
    with pytest.raises(SinkRefused, match=said):
        Merge("out", keys).check(columns)


@pytest.mark.parametrize("columns", [COLUMNS, ("ID", "sequencenumber"), (*COLUMNS, "subSequenceNumber")])
def test_columns_are_found_as_spark_finds_them(columns) -> None:
    Merge("out", ("id",)).check(columns)


def test_the_newest_is_first_by_number_and_not_by_text() -> None:
    (first,) = Merge("out", ("id",)).order(COLUMNS)
    assert first == "lpad(CAST(`sequenceNumber` AS STRING), 129, '0') DESC"
    assert Merge("out", ("id",)).order((*COLUMNS, "subSequenceNumber")) == (first, "`subSequenceNumber` DESC")


def test_the_statement_without_deletes() -> None:
    assert Merge("out", ("id",)).statement("delta.`/a`", "{source}", ("id", "n")) == (
        "MERGE INTO delta.`/a` AS t USING {source} AS s ON t.`id` <=> s.`id` "
        "WHEN MATCHED THEN UPDATE SET t.`id` = s.`id`, t.`n` = s.`n` "
        "WHEN NOT MATCHED THEN INSERT (`id`, `n`) VALUES (s.`id`, s.`n`)"
    )


def test_the_statement_with_deletes_and_two_keys() -> None:
    merge = Merge("out", ("id", "d`y"), "op = 'REMOVE'")
    assert merge.is_deleted() == "coalesce((op = 'REMOVE'), false)"
    assert merge.statement("lake.db.t", "changes", ("id", "d`y")) == (
        "MERGE INTO lake.db.t AS t USING changes AS s "
        "ON t.`id` <=> s.`id` AND t.`d``y` <=> s.`d``y` "
        "WHEN MATCHED AND s._mld_deleted THEN DELETE "
        "WHEN MATCHED THEN UPDATE SET t.`id` = s.`id`, t.`d``y` = s.`d``y` "
        "WHEN NOT MATCHED AND NOT s._mld_deleted THEN INSERT (`id`, `d``y`) VALUES (s.`id`, s.`d``y`)"
    )


def test_an_order_leaves_out_what_is_older_and_keeps_deletes_as_rows() -> None:
    merge = Merge("out", ("id",), "op = 'REMOVE'", ("at", "seq"))
    assert merge.order(COLUMNS)[:2] == ("`at` DESC NULLS LAST", "`seq` DESC NULLS LAST")
    with pytest.raises(SinkRefused, match=r"out\.orderBy names at, seq, the frame has no such column"):
        merge.check(COLUMNS)
    assert merge.statement("t", "s", ("id", "at", "seq", "_mld_deleted")) == (
        "MERGE INTO t AS t USING s AS s ON t.`id` <=> s.`id` "
        "WHEN MATCHED AND (coalesce(s.`at` > t.`at`, s.`at` IS NOT NULL) OR s.`at` <=> t.`at` AND "
        "(coalesce(s.`seq` > t.`seq`, s.`seq` IS NOT NULL) OR s.`seq` <=> t.`seq` AND true)) "
        "THEN UPDATE SET t.`id` = s.`id`, t.`at` = s.`at`, t.`seq` = s.`seq`, t.`_mld_deleted` = s.`_mld_deleted` "
        "WHEN NOT MATCHED THEN INSERT (`id`, `at`, `seq`, `_mld_deleted`) "
        "VALUES (s.`id`, s.`at`, s.`seq`, s.`_mld_deleted`)"
    )


PLACES = {
    "delta": {"path": "/x"},
    "iceberg": {"path": "lake.db.t"},
    "jdbc": {"options": {"url": "jdbc:postgresql:x", "dbtable": "t"}},
}


def made(format, **more):
    return make_sink(SinkSpec("out", format, **PLACES[format], **more), None)


@pytest.mark.parametrize("format", list(PLACES))
@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"mode": "merge"}, "out.keys is missing"),
        ({"keys": ("id",)}, "out.keys has no effect without mld.spark.sink.out.mode = merge"),
        ({"delete_when": "x"}, "out.deleteWhen has no effect without"),
        ({"order_by": ("at",)}, "out.orderBy has no effect without"),
        ({"mode": "overwrite"}, "out.mode is overwrite; .* is written exactly once, by append or merge"),
    ],
)
def test_keys_that_do_not_fit_are_refused(format, spec, said) -> None:
    with pytest.raises(SinkRefused, match=said):
        made(format, **spec)


@pytest.mark.parametrize("format", ["delta", "jdbc"])
def test_a_sink_of_a_table_appends_or_merges(format) -> None:
    made(format)
    made(format, mode="MERGE", keys=("id",))


@pytest.mark.parametrize("given", [{"mode": "merge", "keys": ("id",)}, {"keys": ("id",)}, {"delete_when": "x"}])
def test_files_are_not_merged(tmp_path, given) -> None:
    with pytest.raises(SinkRefused, match="out"):
        make_sink(SinkSpec("out", "parquet", str(tmp_path), **given), None)
