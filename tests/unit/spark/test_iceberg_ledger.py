"""Which entry of the ledger of an Iceberg table is in force, and what a table's columns take."""

from __future__ import annotations

import json

import pytest

from mld.processors.spark.commit import ledger
from mld.processors.spark.commit.ledger import LedgerEntry
from mld.processors.spark.high_water_marks import RecordPosition, StreamShard, WriterIdentity
from mld.processors.spark.sink_port import SinkRefused
from mld.processors.spark.sinks.iceberg import Lineage, MainWasMoved, changes, head_of, note

NOBODY = WriterIdentity()


def entry(number: int) -> LedgerEntry:
    return LedgerEntry(number, f"token{number}", {NOBODY: {StreamShard("s", "0"): RecordPosition(number)}})


def text(of: LedgerEntry) -> str:
    return ledger.encode(of).decode()


def head(said, kept, *, whole=False, keep=None):
    return head_of(Lineage(said, whole), kept, keep)


@pytest.mark.parametrize(
    ("said", "kept", "whole", "number"),
    [
        (None, None, True, None),
        (note(entry(3)), text(entry(3)), False, 3),
        (None, text(entry(3)), False, 3),  # the snapshots with notes have expired
    ],
    ids=["nothing", "both agree", "expired"],
)
def test_the_entry_in_force(said, kept, whole, number):
    found = head(said, kept, whole=whole)
    assert (found.number if found else None) == number
    assert found is None or found.writers == entry(number).writers


@pytest.mark.parametrize(
    ("said", "whole"), [(note(entry(2)), False), (None, True)], ids=["to an earlier commit", "to before the first"]
)
def test_a_table_that_was_rolled_back_is_refused_unless_a_person_decides(said, whole):
    with pytest.raises(MainWasMoved) as moved:
        head(said, text(entry(3)), whole=whole)
    assert moved.value.number == 3
    with pytest.raises(MainWasMoved):
        head(said, text(entry(3)), whole=whole, keep="2")
    assert head(said, text(entry(3)), whole=whole, keep="3").number == 3
    forgotten = head(said, None, whole=whole)
    assert forgotten is None or (forgotten.number, forgotten.writers) == (2, {})


def test_a_note_is_short_and_nobody_takes_it_for_an_entry():
    long = entry(7)
    assert len(note(long)) < 150
    with pytest.raises(ValueError, match="version 'note'"):
        ledger.decode(note(long).encode())


def test_a_damaged_note_is_told():
    with pytest.raises(ValueError, match="no note"):
        head(json.dumps({"version": "note", "number": "x"}), text(entry(1)))


HAVE = [("id", "bigint"), ("Name", "string"), ("price", "decimal(10,2)")]


@pytest.mark.parametrize(
    ("new", "added", "absent"),
    [
        (HAVE, (), ()),
        ([("ID", "int"), ("name", "varchar(3)")], (), ("price",)),
        ([*HAVE, ("at", "timestamp")], (("at", "timestamp"),), ()),
        ([("id", "void")], (), ("Name", "price")),
    ],
)
def test_columns_that_are_added_and_those_that_stay_empty(new, added, absent):
    found = changes(HAVE, new, "out", "lake.db.t")
    assert (found.added, found.absent) == (added, absent)


@pytest.mark.parametrize("kind", ["string", "double", "decimal(20,0)", "struct<a:int>"])
def test_another_type_is_refused_with_the_column_and_both_types(kind):
    with pytest.raises(SinkRefused, match=r"column id of lake\.db\.t is bigint") as refused:
        changes(HAVE, [("id", kind)], "out", "lake.db.t")
    assert kind in str(refused.value) and "cast it" in str(refused.value)


def test_a_new_column_without_a_type_is_refused():
    with pytest.raises(SinkRefused, match="new column x has no type"):
        changes(HAVE, [("x", "void")], "out", "lake.db.t")
