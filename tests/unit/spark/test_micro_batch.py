"""From offers to a micro-batch: what is dropped, what is trimmed, and when a batch is due."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mld.processors.spark.batch.micro_batch import Offer, plan
from mld.processors.spark.positions import RecordPosition, StreamShard

A, B = StreamShard("s", "a"), StreamShard("s", "b")


def offer(shard: StreamShard, first: int, last: int, number: int = 1) -> Offer:
    return Offer(1, number, shard, RecordPosition(first), RecordPosition(last), last - first + 1, 10)


def test_all_shards_go_into_one_batch():
    batch = plan([offer(A, 1, 5), offer(B, 1, 3), offer(A, 6, 9)], {})
    assert batch.ends == {A: RecordPosition(9), B: RecordPosition(3)}
    assert (batch.records, batch.size, batch.done) == (12, 30, ())


def test_what_the_sinks_hold_is_dropped_and_trimmed():
    old, across, new = offer(A, 1, 5), offer(A, 4, 9), offer(A, 10, 12)
    batch = plan([old, across, new], {A: RecordPosition(7)})
    assert batch.done == (old,)
    assert [(s.offer, s.after) for s in batch.slices] == [(across, RecordPosition(7)), (new, None)]


def test_an_overlap_within_a_batch_is_trimmed():
    batch = plan([offer(A, 1, 5), offer(A, 3, 8), offer(A, 2, 4)], {})
    assert [piece.after for piece in batch.slices] == [None, RecordPosition(5)]
    assert len(batch.done) == 1


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 9)), max_size=8), st.integers(0, 30))
def test_every_position_behind_the_mark_is_in_the_batch_once(parts, mark):
    offers = [offer(A, first, first + more) for first, more in parts]
    batch = plan(offers, {A: RecordPosition(mark)})
    taken: list[int] = []
    for piece in batch.slices:
        low = piece.offer.first.sequence if piece.after is None else piece.after.sequence + 1
        taken += range(low, piece.offer.last.sequence + 1)
    assert len(taken) == len(set(taken)), "nothing twice"
    assert taken == sorted(taken), "in order"
    assert all(position > mark for position in taken)
    if parts and len(parts) == 1:
        assert taken == [p for p in range(parts[0][0], sum(parts[0]) + 1) if p > mark]
