"""Marks and spans: what is trimmed, what is fenced."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mld.processors.spark.high_water_marks import advanced, decode_marks, encode_marks, fresh, lowest, moved, spans
from mld.processors.spark.positions import RecordPosition, ShardSpan, StreamShard

A, B = StreamShard("clicks", "shardId-000000000000"), StreamShard("clicks", "shardId-000000000001")
positions = st.builds(RecordPosition, st.integers(0, 10**56), st.integers(0, 500))
shards = st.builds(StreamShard, st.sampled_from(["", "s", "t/é"]), st.sampled_from(["0", "1", "2"]))
all_marks = st.dictionaries(shards, positions)


@given(all_marks)
def test_marks_survive_the_ledger(marks):
    assert decode_marks(encode_marks(marks)) == marks


@pytest.mark.parametrize("bad", [None, [], {"s": []}, {"s": {"x": 5}}, {"s": {"x": "5x"}}, {"s": {"x": "²"}}])
def test_bad_marks_are_named(bad):
    with pytest.raises(ValueError, match=r"mark|decimal"):
        decode_marks(bad)


def test_a_position_counts_within_an_aggregate():
    assert RecordPosition(5, 1) > RecordPosition(5, 0) > RecordPosition(4, 900)
    assert not fresh(RecordPosition(5, 1), RecordPosition(5, 1))
    assert fresh(RecordPosition(5, 2), RecordPosition(5, 1))
    assert fresh(RecordPosition(0), None)


def test_an_empty_span_is_a_fault():
    with pytest.raises(ValueError, match="empty span"):
        ShardSpan(RecordPosition(5), RecordPosition(5))


def test_what_the_sink_holds_is_dropped():
    assert spans({A: RecordPosition(9), B: RecordPosition(4)}, {A: RecordPosition(5), B: RecordPosition(4)}) == {
        A: ShardSpan(RecordPosition(5), RecordPosition(9))
    }


@given(all_marks, all_marks)
def test_a_batch_trimmed_at_the_marks_has_moved_nothing_and_never_goes_back(offered, marks):
    batch = spans(offered, marks)
    assert not moved(batch, marks)
    after = advanced(marks, batch)
    assert after == {
        shard: max(m for m in (marks.get(shard), offered.get(shard)) if m) for shard in {**marks, **offered}
    }
    assert not spans(offered, after)


@given(all_marks, all_marks, all_marks)
def test_a_batch_whose_shard_was_advanced_is_fenced_and_others_are_not(offered, marks, others):
    batch = spans(offered, marks)
    now = {**marks, **others}
    assert set(moved(batch, now)) == {shard for shard in batch if now.get(shard) != marks.get(shard)}


def test_a_checkpoint_waits_for_the_slowest_sink():
    assert lowest([{A: RecordPosition(5)}, {A: RecordPosition(7)}], A) == RecordPosition(5)
    assert lowest([{A: RecordPosition(5)}, {}], A) is None
    assert lowest([], A) is None
