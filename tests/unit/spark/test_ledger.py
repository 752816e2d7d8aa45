"""The ledger's entries and names."""

from __future__ import annotations

import json

import pytest

from mld.processors.spark.commit import ledger
from mld.processors.spark.commit.admission import Admission
from mld.processors.spark.commit.ledger import FileMove, LedgerEntry
from mld.processors.spark.commit.ledger_files import ENTRIES_KEPT, ENTRIES_SWEPT_FROM, Names
from mld.processors.spark.positions import RecordPosition, ShardSpan, StreamShard
from mld.processors.spark.sink_port import SinkRefused
from mld.processors.spark.writer_identity import WriterIdentity

A, B = StreamShard("clicks", "shardId-0"), StreamShard("clicks", "shardId-1")
ONE = WriterIdentity("app", "main", "clicks", "arn:aws:kinesis:eu-west-1:1:stream/clicks", "2026-01-02T03:04:05.000Z")
TWO = WriterIdentity("other", "main", "clicks", "arn:aws:kinesis:us-east-1:1:stream/clicks", "2026-01-02T03:04:05.000Z")
FIRST = (
    b'{"application":"mld","version":1,"number":3,"token":"t","batch":"app-3","writer":"host pid 1",'
    b'"at":"2026-01-01T00:00:00.000+00:00","rows":5,"spans":{"clicks/shardId-0":["1","5"]},'
    b'"marks":{"clicks":{"shardId-0":"5"}},"layout":"parquet","columns":[["id","bigint"]],"moves":[]}\n'
)
"""As version 1 of this program wrote it."""


def decode(data: bytes) -> LedgerEntry:
    return ledger.decode(data, "sink out: /t")


def test_an_entry_survives_its_file():
    entry = Admission(ONE, "out", "/x", shared=True).following(
        LedgerEntry(6, "s", {TWO: {A: RecordPosition(3)}}),
        {A: ShardSpan(None, RecordPosition(5, 2))},
        "token",
        moves=(FileMove("data/day=1/ä.parquet", "day=1/c1-ä.parquet"), FileMove("data/\udce9", "\udce9")),
        columns=(("day", "int"),),
        layout="parquet by day",
        batch_id="b",
        writer="w",
        at="2026-01-01",
        rows=3,
    )
    assert decode(ledger.encode(entry)) == entry
    assert entry.number == 7
    assert entry.writers == {TWO: {A: RecordPosition(3)}, ONE: {A: RecordPosition(5, 2)}}


def test_entries_are_cumulative_and_count_on():
    marks = {A: RecordPosition(5), B: RecordPosition(1)}
    head = LedgerEntry(7, "t", {ONE: marks, TWO: {A: RecordPosition(90)}})
    admission = Admission(ONE, "out", "/x", shared=True)
    after = admission.following(head, {A: ShardSpan(RecordPosition(5), RecordPosition(6))}, "u")
    assert after.writers == {ONE: {A: RecordPosition(6), B: RecordPosition(1)}, TWO: {A: RecordPosition(90)}}
    assert admission.following(head, {}, "u").number == 8


def test_an_entry_of_a_state_before_the_first_release_is_refused_by_its_version():
    with pytest.raises(SinkRefused, match=r"was written by mld 0\.1 \(version 1\)"):
        decode(FIRST)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda text: text[: len(text) // 2],
        lambda text: text.replace('"version":3', '"version":4'),
        lambda text: text.replace('"ended":{}', '"over":{}'),
        lambda text: text.replace('"ended":{}', '"ended":{"clicks":["1-"]}'),
        lambda text: text.replace('"pipeline":"main",', ""),
        lambda text: text.replace('"pipeline":"main"', '"pipeline":1'),
        lambda text: text.replace('"unclaimed":{', '"unclaimed":{"marks":[],"x":{'),
        lambda text: text.replace('"number":1', '"number":-1'),
        lambda text: text.replace('"number":1', '"number":true'),
        lambda text: text.replace('"number":1', '"number":1000000000000000000'),
        lambda text: text.replace('"x"', '"../x"'),
        lambda text: text.replace('"x"', '"/x"'),
        lambda text: text.replace('"token":"t",', ""),
        lambda _: "[]",
    ],
)
def test_a_damaged_entry_is_refused(spoil):
    text = ledger.encode(LedgerEntry(1, "t", {ONE: {A: RecordPosition(5)}}, moves=(FileMove("y", "x"),))).decode()
    assert decode(text.encode())
    with pytest.raises(SinkRefused, match=r"sink out: /t is (damaged: .*; restore it, or use a new|of a later mld)"):
        decode(spoil(text).encode())


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"version":3', '"version":2', r"was written by mld 0\.1 \(version 2\).*Use a new directory"),
        ('"unclaimed":{"marks":{}', '"unclaimed":{"marks":{"s":{}}', r"was written by mld 0\.1"),
        ('"version":3', '"version":4', r"is of a later mld \(version 4, this one knows 3\); run that one"),
    ],
)
def test_an_entry_of_another_version_says_so_and_not_that_it_is_damaged(old, new, said):
    text = ledger.encode(LedgerEntry(1, "t", {ONE: {A: RecordPosition(5)}})).decode()
    assert old in text
    with pytest.raises(SinkRefused, match=f"sink out: /t {said}") as caught:
        decode(text.replace(old, new).encode())
    assert "damaged" not in str(caught.value)


def test_names_that_are_no_numbers_are_ignored():
    names = Names.of(
        ["000000000002.json", "000000000001.json", "000000000001.done", ".000000000003.json.draft", "3.json", "x.done"]
    )
    assert names.head == 2
    assert names.unfinished == (2,)
    assert Names.of([]).head == 0


def _many(count: int, undone: int | None = None) -> Names:
    numbers = range(1, count + 1)
    return Names(tuple(numbers), frozenset(number for number in numbers if number != undone))


def test_old_entries_go_in_bulk_and_the_newest_stay():
    assert _many(ENTRIES_SWEPT_FROM - 1).obsolete == ()
    assert _many(ENTRIES_SWEPT_FROM).obsolete == tuple(range(1, ENTRIES_SWEPT_FROM - ENTRIES_KEPT + 1))


def test_an_unfinished_entry_stays_with_all_after_it():
    assert _many(ENTRIES_SWEPT_FROM, undone=10).obsolete == tuple(range(1, 10))


SPOILED = {
    "a token that is a path": ('"token":"t"', '"token":"../../../secret"'),
    "a token that is all staging areas": ('"token":"t"', '"token":""'),
    "a token above": ('"token":"t"', '"token":".."'),
    "a source above": ('"data/p"', '"data/../../../../secret/credentials"'),
    "a source that is the area": ('"data/p"', '"data/./p"'),
    "a target above": ('"c1-p"', '"a/../../c1-p"'),
    "a path with a zero": ('"c1-p"', '"c1\\u0000-p"'),
    "a path that no file can have": ('"c1-p"', '"c1-\\ud800"'),
    "an endless number": ('"moves"', '"sweptTo":1e999,"moves"'),
    "a list for an object": ('"unclaimed":{"marks":{},"at":"","batch":""}', '"unclaimed":[]'),
    "depths": ('"layout":""', '"layout":' + "[" * 200_000),
    "a move of three": ('["data/p","c1-p"]', '["data/p","c1-p","x"]'),
}


@pytest.mark.parametrize("spoiled", SPOILED.values(), ids=SPOILED)
def test_whatever_somebody_has_written_into_an_entry_only_our_own_error_leaves_it(spoiled):
    old, new = spoiled
    text = ledger.encode(LedgerEntry(1, "t", moves=(FileMove("data/p", "c1-p"),))).decode()
    assert decode(text.encode()).token == "t" and old in text
    with pytest.raises(SinkRefused, match="sink out: /t is damaged"):
        decode(text.replace(old, new).encode())


def test_the_shards_of_all_writers_of_an_entry_are_bounded_together(monkeypatch):
    monkeypatch.setattr(ledger, "SHARDS_MAX", 10_000)
    many = "".join(f',"s{n}":["0-999"]' for n in range(5))[1:]
    entry = json.loads(ledger.encode(LedgerEntry(1, "t", {ONE: {}})))
    writers = [{**entry["writers"][0], "application": f"a{n}", "ended": json.loads(f"{{{many}}}")} for n in range(3)]
    with pytest.raises(SinkRefused, match="or too many of them"):
        decode(json.dumps({**entry, "writers": writers}).encode())
