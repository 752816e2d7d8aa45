"""What a daemon answers over its control socket, on the metrics of a worker and without a connection."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from mld.consumer.protocol_trace import LISTENERS_MAX, ProtocolTraces
from mld.metrics.children import ChildLoad, ChildLoads
from mld.metrics.identity import Identity
from mld.metrics.reach import TableReach
from mld.metrics.registry import Metrics
from mld.operating.daemon_listing import children_in_words, daemon_headline, daemon_listing
from mld.serving.control import RequestRefused
from mld.serving.control_answers import ControlAnswers
from mld.serving.daemon_status import DaemonStatus
from tests.twins.streams import VirtualClock
from tests.virtual_time import virtual

SHARD = "shardId-000000000003"


class Daemon:
    """A worker's metrics, and who answers for them."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.metrics = Metrics()
        self.traces = ProtocolTraces()
        self.is_ready = True

        status = DaemonStatus(
            identity=Identity("clicks-app", "clicks", "w1", "1.0"),
            metrics=self.metrics,
            reader=None,  # type: ignore[arg-type]  # the tables are not asked
            clock=self.clock,
            reach=TableReach("clicks-app", 10.0, self.clock.monotonic()),
            mode=lambda: "3.x",
            is_ready=lambda: self.is_ready,
        )
        self.routes = ControlAnswers(status, self.traces, self.clock).routes()

    async def ask(self, what: str, **more: object) -> Any:
        answers = self.routes[what]({"ask": what, **more})
        try:
            value = await anext(answers)
        finally:
            await answers.aclose()
        return json.loads(value) if isinstance(value, bytes) else value


@pytest.fixture(autouse=True)
def level_kept() -> Iterator[None]:
    before = logging.getLogger().level
    yield
    logging.getLogger().setLevel(before)


@virtual
async def test_a_daemon_is_alive_while_its_loops_keep_their_word():
    daemon = Daemon()
    daemon.metrics.progress.step("renewals", daemon.clock.monotonic(), 1.0)
    assert await daemon.ask("live") == {"isMet": True, "words": "ok"}
    await daemon.clock.sleep(20.0)
    verdict = await daemon.ask("live")
    assert (verdict["isMet"], verdict["words"]) == (False, "no progress: renewals (silent for 20 s) -> restart it")
    value = await daemon.ask("status")
    assert value["isAlive"] is False
    assert "not alive: no progress: renewals (silent for 20 s) -> restart it" in daemon_listing(value).notes


@virtual
async def test_a_stopping_daemon_is_not_ready():
    daemon = Daemon()
    assert await daemon.ask("ready") == {"isMet": True, "words": "ok"}
    daemon.is_ready = False
    assert (await daemon.ask("ready"))["isMet"] is False
    assert "not ready: not initialized, or stopping" in daemon_listing(await daemon.ask("status")).notes


@virtual
async def test_the_shards_of_the_daemon_the_furthest_behind_first():
    daemon = Daemon()
    for number, behind_ms in ((1, 500), (2, 90_000), (3, None)):
        part = daemon.metrics.begin(f"shardId-{number:012d}", daemon.clock.monotonic())
        if behind_ms is not None:
            part.saw_lag(behind_ms, daemon.clock.wall())
    daemon.metrics.shards[SHARD].last_error = "closed its output " * 20
    daemon.metrics.shards[SHARD].restarts.add("failed")
    value = await daemon.ask("status")
    assert daemon_headline(value).startswith("clicks-app on clicks: worker w1, pid ")
    listing = daemon_listing(value)
    assert [row[0][-1] for row in listing.rows] == ["2", "1", "3"]
    assert [row[2] for row in listing.rows] == ["90 s", "500 ms", "unknown"]
    assert listing.rows[2][6] == "1" and listing.rows[2][7].endswith("…")
    assert listing.notes == (
        "3 shards; furthest behind: 90 s",
        "shardId-000000000002: 90 s behind -> mld lag --watch",
        "shardId-000000000003: not read yet -> mld workers",
    )


@virtual
async def test_the_children_of_a_shard_are_told_by_their_numbers():
    daemon = Daemon()
    part, other = (daemon.metrics.begin(shard, daemon.clock.monotonic()) for shard in (SHARD, f"{SHARD[:-1]}4"))
    now = daemon.clock.monotonic()
    part.children = ChildLoads([ChildLoad(number, f"pid {number + 7}") for number in range(3)], now)
    part.children.given(1, 60, now)
    part.children.given(2, 20, now)
    first = part.children.children[1]
    first.in_hand, first.waiting, first.busy_since = 10, 50, now - 3
    trace = daemon.traces.begin(SHARD, daemon.clock)
    for number in range(3):
        trace.of_child(number).started(f"pid {number + 7}")
    value = await daemon.ask("status")
    by_shard = {one["shard"]: one for one in value["shards"]}
    assert "childProcesses" not in by_shard[other.shard_id], "a shard with one child is told as ever"
    loads = by_shard[SHARD]["childProcesses"]
    assert [one["number"] for one in loads] == [0, 1, 2]
    assert loads[1] == {
        "number": 1, "child": "pid 8", "inHand": 10, "busySeconds": 3.0, "waiting": 50, "share": 0.75
    }  # fmt: skip
    words = (
        "3 children, the busiest gets 75% of the records: child 1 has 10 in hand for 3 s, 50 wait, "
        "child 2 has none in hand, 20 wait"
    )
    assert f"{SHARD}: {words}" in daemon_listing(value).notes
    about = await daemon.ask("tap", shard=SHARD)
    assert about["child"] == "child 0: pid 7, child 1: pid 8, child 2: pid 9"
    assert about["childProcesses"] == loads
    assert children_in_words(about) == [words]


def test_children_without_records_and_many_with_some_are_told_in_few_words():
    assert children_in_words({}) == []
    loads = ChildLoads([ChildLoad(number, "") for number in range(20)], 0.0)
    assert children_in_words({"childProcesses": loads.value(0.0)}) == ["20 children: none has records"]
    for number in range(20):
        loads.given(number, 1, 0.0)
    (words,) = children_in_words({"childProcesses": loads.value(0.0)})
    assert words.startswith("20 children, the busiest gets 5% of the records: child 0 has none in hand, 1 wait, ")
    assert words.endswith("child 15 has none in hand, 1 wait, 4 more have records")


@virtual
@pytest.mark.parametrize("shard", [None, 3, "shardId-000000000007", "9" * 4000, "3 "])
async def test_a_trace_of_what_is_not_there_is_refused(shard):
    daemon = Daemon()
    daemon.traces.begin(SHARD, daemon.clock)
    with pytest.raises(RequestRefused, match=r"name a shard|no lease of shard"):
        await daemon.ask("tap", shard=shard)


@virtual
async def test_a_trace_begins_with_the_situation_and_its_end_makes_room():
    daemon = Daemon()
    trace = daemon.traces.begin(SHARD, daemon.clock)
    trace.started("pid 7")
    daemon.metrics.begin(SHARD, daemon.clock.monotonic())
    for _ in range(LISTENERS_MAX + 1):
        about = await daemon.ask("tap", shard="3")
        assert (about["shard"], about["child"], about["state"]) == (SHARD, "pid 7", "idle")
    assert trace.listeners == []
    open_ones = [daemon.routes["tap"]({"shard": SHARD}) for _ in range(LISTENERS_MAX)]
    for one in open_ones:
        await anext(one)
    with pytest.raises(RequestRefused, match="4 follow shards of this daemon"):
        await daemon.ask("tap", shard="3")
    for one in open_ones:
        await one.aclose()


@virtual
async def test_a_trace_of_one_of_several_streams_is_named_with_the_stream():
    daemon = Daemon()
    keys = [f"111111111111:{name}:17:{SHARD}" for name in ("orders", "clicks")]
    for key in keys:
        daemon.traces.begin(key, daemon.clock)
    daemon.metrics.stream_labels = {"111111111111:orders:17": "shop"}
    for name in ("3", SHARD):
        with pytest.raises(RequestRefused, match="2 streams: say which one, as STREAM:SHARD"):
            await daemon.ask("tap", shard=name)
    for name in ("shop:3", "orders:3", keys[0]):
        assert (await daemon.ask("tap", shard=name))["shard"] == keys[0]
