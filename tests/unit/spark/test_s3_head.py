"""The head of a sink on S3: what a writer does next, and what is read back."""

from __future__ import annotations

import pytest

from mld.processors.spark.commit import s3_head
from mld.processors.spark.commit.ledger import FileMove, LedgerEntry
from mld.processors.spark.commit.s3_head import Head, StagedFile, WriterStep, next_step

MINE, THEIRS, OLD = (s3_head.new_token(made, f"{digit}" * 32) for made, digit in ((2_000, 1), (2_000, 2), (900, 3)))
MOVES = (FileMove("data/a.parquet", "c000000000001-a.parquet"),)
SOURCES = {"data/a.parquet": StagedFile("data/a.parquet", '"e"', 12)}


def head(token: str, *, done: bool, swept_to: int = 0) -> Head:
    return Head(LedgerEntry(1, token, moves=MOVES), done, SOURCES, swept_to, "n")


@pytest.mark.parametrize(
    ("seen", "step"),
    [
        (None, WriterStep.COMMIT),
        (Head(), WriterStep.COMMIT),
        (head(THEIRS, done=True), WriterStep.COMMIT),
        (head(THEIRS, done=False), WriterStep.FINISH),
        (head(MINE, done=False), WriterStep.FINISH_OURS),
        (head(MINE, done=True), WriterStep.COMMITTED),
        (head(THEIRS, done=True, swept_to=2_000), WriterStep.COMMIT),
        (head(THEIRS, done=True, swept_to=2_001), WriterStep.CLEARED_AWAY),
        (Head(swept_to=2_001), WriterStep.CLEARED_AWAY),
        (head(MINE, done=True, swept_to=2_001), WriterStep.COMMITTED),
        (head(THEIRS, done=False, swept_to=2_001), WriterStep.FINISH),
    ],
)
def test_what_a_writer_does_next(seen, step):
    assert next_step(seen, MINE) is step


def test_a_head_comes_back_as_it_was_written():
    for one in (Head(), head(MINE, done=False), s3_head.swept(head(OLD, done=True), 1_000.9, "m")):
        assert s3_head.decode(s3_head.encode(one)) == one


def test_heads_that_follow_one_another():
    before = s3_head.swept(None, 1_000, "a")
    committed = s3_head.committed(before, LedgerEntry(1, MINE, moves=MOVES), SOURCES, "b")
    assert (committed.done, committed.swept_to) == (False, 1_000)
    assert s3_head.committed(committed, LedgerEntry(2, MINE), {}, "c").done, "nothing to move"
    done = s3_head.finished(committed, "d")
    assert (done.done, done.sources, done.nonce) == (True, SOURCES, "d")
    assert s3_head.swept(done, 500, "e").swept_to == 1_000, "it never goes back"


def test_tokens_say_when_they_were_made():
    assert s3_head.made_at(OLD) == 900
    assert s3_head.made_at("something else") is None
    assert s3_head.is_swept(Head(), "something else")


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"{", "Expecting"),
        (b"{}", "no head of a ledger"),
        (b"[]", "no head of a ledger"),
        (b'{"version":2}', "a head of version 2; this program knows 1"),
        (b'{"version":1,"entry":null,"done":1,"sources":{},"sweptTo":0,"nonce":""}', "neither true nor false"),
        (b'{"version":1,"entry":null,"done":true,"sources":{"a":["../x","e",1]},"sweptTo":0,"nonce":""}', "outside"),
        (b'{"version":1,"entry":null,"done":true,"sources":{"a":[1,"e",1]},"sweptTo":0,"nonce":""}', "no staged file"),
    ],
)
def test_a_damaged_head_is_told(data, said):
    with pytest.raises(ValueError, match=said):
        s3_head.decode(data)
