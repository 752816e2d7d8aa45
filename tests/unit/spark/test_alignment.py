"""Shards that are kept together: who may be fed, how pages are cut, and that nobody waits for ever."""

from __future__ import annotations

import asyncio
import json
import random
from types import SimpleNamespace

import pytest

from mld.processors.spark.batch.pieces import groups, pieces_of
from mld.processors.spark.batch.record_lines import split
from mld.processors.spark.high_water_marks import StreamShard
from mld.processors.spark.host.aligned_intake import AlignedIntake
from mld.processors.spark.host.alignment import ArrivalSpan, ShardFeed, earliest_to_come, may_feed
from mld.protocol.codec import encode_process_records
from mld.protocol.messages import Record

NOW, IDLE_S, ALIGN_MS = 1_000.0, 30.0, 100


def line(*arrivals, lag=0, key="k"):
    records = tuple(Record(b"%d" % n, key, str(n), 0, arrival) for n, arrival in enumerate(arrivals, 1))
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
        ([5], [(0, 1)]),
        ([0, 50, 51], [(0, 2), (2, 3)]),
        ([0, 500, 1_000], [(0, 1), (1, 2), (2, 3)]),
        ([50, 0, 100, 60], [(0, 2), (2, 4)]),
    ],
)
def test_runs_that_span_little_time(arrivals, wanted):
    assert list(groups(arrivals, 50)) == wanted


@pytest.mark.parametrize("key", ["k", '","approximateArrivalTimestamp":7,"', 'a"},{"data":"'])
def test_a_page_in_pieces_has_the_same_records(key):
    shard, page = StreamShard("s", "a"), line(0, 10, 70, 500, 510, key=key, lag=7)
    found = list(pieces_of(page, 50))
    assert [span for _, span in found] == [(0, 10), (70, 70), (500, 510)]
    cut = [split(piece, shard) for piece, _ in found]
    assert b"".join(bytes(part.records) for part in cut) == bytes(split(page, shard).records)
    assert [part.millis_behind_latest for part in cut] == [None, None, 7]


def test_pages_that_stay_whole():
    short, empty = line(0, 10), line()
    foreign = json.dumps(json.loads(line(0, 500))).encode() + b"\n"
    assert list(pieces_of(short, 50)) == [(short, (0, 10))]
    assert list(pieces_of(empty, 50)) == [(empty, None)]
    assert [piece for piece, _ in pieces_of(foreign, 50)] == [foreign]


# --- the intake ------------------------------------------------------------------------------------------------------


class Children:
    """Children that offer all pieces of a shard one after the other; `order` is what came, in milliseconds."""

    def __init__(self, spans, *, room=lambda child, size: True):
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
        if self.intake.admit(self.children[name], 1, ArrivalSpan(*self.left[name][0])):
            self.came(name)

    def came(self, name):
        span = self.left[name].pop(0)
        self.order.append((name, span))
        self.intake.offered(self.children[name].shard, None if self.left[name] else 0)
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
    children.intake = AlignedIntake(0, lambda child, size: True)
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
    children = Children({"a": [(9_000, 9_010)], "b": [(0, 1)]}, room=lambda child, size: asked.append(child) is None)
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
