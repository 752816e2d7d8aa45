"""Shards that are kept together: who may be fed, how pages are cut, and that nobody waits for ever."""

from __future__ import annotations

import asyncio
import random
from types import SimpleNamespace

import pytest

from mld.processors.spark.batch.record_columns import pieces_by_time, read_line
from mld.processors.spark.high_water_marks import StreamShard
from mld.processors.spark.host.connection import AlignedIntake, ArrivalSpan, ShardFeed, earliest_to_come, may_feed
from mld.protocol.codec import encode_process_records
from mld.protocol.messages import Record

NOW, IDLE_S, ALIGN_MS = 1_000.0, 30.0, 100


def line(*arrivals, lag=0):
    records = tuple(Record(b"%d" % n, "k", str(n), 0, arrival) for n, arrival in enumerate(arrivals, 1))
    return b"".join(encode_process_records(records, lag))


# --- decisions -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("feed", "wanted"),
    [
        (ShardFeed(NOW), 0),
        (ShardFeed(NOW - IDLE_S), None),
        (ShardFeed(NOW, fed_ms=500), 500),
        (ShardFeed(NOW, fed_ms=500, at_tip=True), None),
        (ShardFeed(NOW - IDLE_S, fed_ms=500), None),
        (ShardFeed(NOW - IDLE_S, fed_ms=500, is_busy=True), 500),
        (ShardFeed(NOW - IDLE_S, fed_ms=500, waiting=ArrivalSpan(700, 900)), 700),
        (ShardFeed(NOW, fed_ms=500, waiting=ArrivalSpan(400, 900)), 500),
    ],
)
def test_the_earliest_that_is_to_come_of_a_shard(feed, wanted):
    assert earliest_to_come(feed, NOW, IDLE_S) == wanted


@pytest.mark.parametrize(
    ("mine", "others", "wanted"),
    [
        ((0, 1_000), [], True),
        ((500, 550), [ShardFeed(NOW, fed_ms=450)], True),
        ((500, 551), [ShardFeed(NOW, fed_ms=450)], False),
        ((500, 551), [ShardFeed(NOW, fed_ms=450, at_tip=True)], True),
        ((500, 551), [ShardFeed(NOW, fed_ms=450), ShardFeed(NOW, fed_ms=900)], False),
        ((500, 551), [ShardFeed(NOW, fed_ms=450, waiting=ArrivalSpan(460, 480))], True),
        ((500, 551), [ShardFeed(NOW)], False),
        ((500, 9_999), [ShardFeed(NOW, fed_ms=600)], True),
    ],
    ids=["alone", "near", "too far", "tip", "the slowest counts", "it goes on later", "not heard yet", "the slowest"],
)
def test_who_may_be_fed(mine, others, wanted):
    feeds = {"me": ShardFeed(NOW, waiting=ArrivalSpan(*mine)), **dict(enumerate(others))}
    assert may_feed("me", feeds, ALIGN_MS, NOW, IDLE_S) is wanted


@pytest.mark.parametrize(
    ("arrivals", "wanted"),
    [
        ([5], [[5]]),
        ([0, 10], [[0, 10]]),
        ([0, 50, 51], [[0, 50], [51]]),
        ([0, 500, 1_000], [[0], [500], [1_000]]),
        ([50, 0, 100, 60], [[50, 0], [100, 60]]),
    ],
)
def test_pieces_that_span_little_time(arrivals, wanted):
    (columns,) = read_line(line(*arrivals)).groups
    found = list(pieces_by_time(columns, 50))
    assert [piece.arrivals for piece, _ in found] == wanted
    assert [span for _, span in found] == [(min(piece), max(piece)) for piece in wanted]
    for at, of in enumerate((columns.data, columns.keys, columns.sequences, columns.arrivals, columns.subs)):
        assert [one for piece, _ in found for one in piece[at]] == of
    assert all(piece.size for piece, _ in found)


def test_records_of_which_one_does_not_say_when_it_arrived_stay_together():
    text = line(0, 500, 1_000).replace(b":500,", b":null,")
    (columns,) = read_line(text).groups
    assert list(pieces_by_time(columns, 50)) == [(columns, None)]


# --- the intake ------------------------------------------------------------------------------------------------------


class Children:
    """Children that offer all pieces of a shard one after the other; `order` is what came, in milliseconds."""

    def __init__(self, spans, *, room=lambda child: child.go_on()):
        self.now = 0.0
        self.order = []
        self.intake = AlignedIntake(ALIGN_MS, room, idle_s=IDLE_S, monotonic=lambda: self.now)
        self.children = {}
        self.left = {name: list(pieces) for name, pieces in spans.items()}
        for name in spans:
            child = SimpleNamespace(shard=StreamShard("s", name), number=name)
            child.go_on = lambda name=name: self.came(name)
            self.children[name] = child
            self.intake.joined(child)

    def offer(self, name):
        self.intake.admit(self.children[name], ArrivalSpan(*self.left[name][0]))

    def came(self, name):
        span = self.left[name].pop(0)
        self.order.append((name, span))
        self.intake.brought(self.children[name].shard, None if self.left[name] else 0)
        if self.left[name]:
            asyncio.get_running_loop().call_soon(self.offer, name)

    async def settle(self):
        for _ in range(50):
            await asyncio.sleep(0)

    async def pass_time(self, seconds):
        self.now += seconds
        self.intake._look()
        await self.settle()


def skew(order):
    """The most by which something came before what arrived earlier in another shard."""
    worst = 0
    for at, (name, span) in enumerate(order):
        later = [other.first_ms for one, other in ((n, ArrivalSpan(*s)) for n, s in order[at:]) if one != name]
        worst = max([worst, *(span[1] - first for first in later)])
    return worst


@pytest.mark.parametrize("seed", range(20))
async def test_no_shard_runs_ahead_and_all_come_to_their_end(seed):
    draw = random.Random(seed)
    spans = {}
    for name in "abcd"[: draw.randint(2, 4)]:
        pieces, at = [], draw.randint(0, 300)
        for _ in range(draw.randint(1, 40)):
            width = draw.randint(0, ALIGN_MS // 2)
            pieces.append((at, at + width))
            at += width + draw.choice([1, 20, 400])
        spans[name] = pieces
    children = Children(spans)
    for name in spans:
        children.offer(name)
    for _ in range(200):
        await children.settle()
        if not any(children.left.values()):
            break
    assert not any(children.left.values())
    assert skew(children.order) <= ALIGN_MS


async def test_without_alignment_it_would():
    children = Children({"a": [(0, 10), (5_000, 5_010)], "b": [(0, 10)]})
    children.intake = AlignedIntake(0, lambda child: child.go_on())
    children.offer("a")
    await children.settle()
    children.offer("b")
    assert skew(children.order) == 5_010


async def test_a_shard_that_brings_nothing_is_waited_for_until_it_is_idle():
    children = Children({"a": [(9_000, 9_010)], "b": [(0, 1)]})
    children.offer("a")
    await children.pass_time(IDLE_S - 1)
    assert children.order == []
    await children.pass_time(1)
    assert children.order == [("a", (9_000, 9_010))]


async def test_a_shard_whose_child_is_gone_holds_nobody_back():
    children = Children({"a": [(9_000, 9_010)], "b": [(0, 1)]})
    children.offer("a")
    children.intake.gone(children.children["b"])
    await children.pass_time(0)
    assert len(children.order) == 1


async def test_a_child_that_was_replaced_takes_nothing_with_it():
    children = Children({"a": [(9_000, 9_010)], "b": [(0, 1)]})
    old = SimpleNamespace(shard=StreamShard("s", "b"), number="old")
    children.intake.gone(old)
    children.offer("a")
    await children.pass_time(0)
    assert children.order == []


async def test_what_waits_takes_no_room_and_the_slow_one_is_let_in():
    asked = []
    children = Children({"a": [(9_000, 9_010)], "b": [(0, 1)]}, room=lambda child: asked.append(child))
    children.offer("a")
    assert asked == []
    children.offer("b")
    assert [child.shard.shard for child in asked] == ["b"]


async def test_all_are_let_in_when_a_child_is_asked_to_end():
    children = Children({"a": [(9_000, 9_010)], "b": [(0, 1)]})
    children.offer("a")
    children.intake.let_all()
    await children.pass_time(0)
    assert len(children.order) == 1
