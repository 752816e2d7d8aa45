"""When alerts are posted and when not, in virtual time."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import pytest

from mld.aws.table_calls import TableCalls
from mld.aws.webhook import PostFailedError, Webhook
from mld.core.clock import Clock
from mld.leases.lease import Lease, ShardStatus
from mld.metrics.identity import Identity
from mld.metrics.words import DYNAMODB
from mld.operating.events import KEY, EventsTable, alerts_in
from mld.operating.faults import HOLD_S, PAUSE_HOLD_S, FleetFault
from mld.operating.fleet_sight import DiskTrouble, FleetSight, Own
from mld.operating.fleet_status import FleetStatus
from mld.operating.verdicts import all_kinds, faults_of
from mld.properties.scrubber import Scrubber
from mld.serving.alert_book import AlertBook, Post
from mld.serving.alert_post import SUBJECTS_MAX, document
from mld.serving.notifier import (
    ATTEMPTS_MAX,
    LOOK_PERIOD_S,
    POSTS_MAX,
    Notifier,
)
from tests.support.chats import ATTACKS, acted_on, texts_in
from tests.twins.dynamo import MemoryDynamo
from tests.twins.streams import VirtualClock
from tests.unit.aws.test_wire import Server, answer
from tests.unit.operating.test_fleet_status import NOW_S, lease, view
from tests.virtual_time import virtual

ME = Identity("clicks", "clicks-stream", "w-1", "0.2.0")
FAILING = lease(status=ShardStatus("failing", NOW_S, 0, why="at 12:00: KeyError, password=hunter22"))
TABLE = "app"
RUNBOOK = "docs/use/operations.md#a-shard-is-failing"
TOKEN = "t0ken-in-a-path"


# --- which, pure ------------------------------------------------------------------------------------------------------


def test_the_silence_of_javas_workers_is_shown_and_not_posted() -> None:
    (silent,) = faults_of(FleetSight(fleet=view(lease(status=None))))
    book = AlertBook(())
    book.due([silent], 0.0)
    assert book.due([silent], 10 * HOLD_S) == []


def test_what_begins_together_is_one_post_and_so_is_what_ends_together() -> None:
    book = AlertBook(())
    found = {FleetFault("failing", f"shardId-{n}") for n in range(3)} | {FleetFault("parked", "shardId-9")}
    assert book.due(found, 0.0) == []
    posts = book.due(found, HOLD_S)
    assert [(post.kind, post.begins, len(post.alerts)) for post in posts] == [("failing", True, 3), ("parked", True, 1)]
    assert book.due(found, HOLD_S + 1) == posts, "until they are posted"
    for post in posts:
        book.note(post)
    assert book.due(found, HOLD_S + 2) == []
    assert book.due(set(), HOLD_S + 60) == []
    ended = book.due(set(), 2 * HOLD_S + 60)
    assert [(post.kind, post.begins, len(post.alerts)) for post in ended] == [
        ("failing", False, 3),
        ("parked", False, 1),
    ]


def test_what_comes_and_goes_within_two_looks_is_not_posted() -> None:
    book, flicker = AlertBook(()), {FleetFault("stopped", "shardId-0")}
    for look in range(20):
        assert book.due(flicker if look % 2 else (), look * LOOK_PERIOD_S) == []


def test_a_pause_is_somebodys_wish_for_four_hours() -> None:
    book, paused = AlertBook(()), {FleetFault("paused", "shardId-0")}
    book.due(paused, 0.0)
    assert book.due(paused, PAUSE_HOLD_S - 1) == []
    assert len(book.due(paused, PAUSE_HOLD_S)) == 1


def test_a_post_has_no_secret_and_names_some_of_many() -> None:
    alerts = tuple(
        FleetFault("failing", f"shardId-{n:03}", "KeyError, password=hunter22", "mld peek 3") for n in range(300)
    )
    told = document(Post("failing", True, alerts), ME, NOW_S, Scrubber(), with_details=True)
    assert (told["count"], len(told["subjects"]), told["status"]) == (300, SUBJECTS_MAX, "begun")
    assert told["text"].startswith("clicks: failing (300): shardId-000, ")
    assert told["text"].endswith(
        f", …. The record processor of a shard fails on and on. mld lag has the error, and the mld peek that shows the "
        f"record. {RUNBOOK}"
    )
    assert told["runbook"] == "docs/use/operations.md#a-shard-is-failing"
    assert told["details"][0] == {"name": "shardId-000", "why": "KeyError, password=***"}
    assert told["at"] == "2025-11-20T18:00:00Z"
    assert "hunter22" not in json.dumps(told)


def test_what_others_wrote_is_posted_only_if_asked_for_and_never_in_the_text() -> None:
    fault = FleetFault("failing", "shardId-0", "ValueError: bad customer Jane Doe", "mld peek 0", owner="w-2")
    post = Post("failing", True, (fault,))
    bare = document(post, ME, NOW_S, Scrubber(), with_details=False)
    assert "details" not in bare and "Jane" not in json.dumps(bare)
    assert bare["subjects"] == [{"name": "shardId-0", "owner": "w-2"}]
    told = document(post, ME, NOW_S, Scrubber(), with_details=True)
    assert told["details"] == [{"name": "shardId-0", "why": fault.words}]
    assert told | {"details": None} == bare | {"details": None}


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("begins", [True, False])
def test_no_name_and_no_reason_calls_anybody_or_leads_anywhere(attack: str, begins: bool) -> None:
    fault = FleetFault("failing", attack, f"KeyError: {attack}", f"mld peek {attack}", owner=attack)
    told = document(Post("failing", begins, (fault,)), ME, NOW_S, Scrubber(), with_details=True)
    assert [found for text in texts_in(told) for found in acted_on(text, (RUNBOOK,))] == []


def test_an_alert_in_the_table_of_an_unknown_kind_is_never_posted() -> None:
    book = AlertBook(["<!channel> shardId-0", "melted shardId-1", "failing", "failing shardId-2"])
    assert book.posted == {"failing shardId-2"}
    assert book.raised == {FleetFault("failing", "shardId-2")}
    book.due((), 0.0)
    assert [(post.kind, len(post.alerts)) for post in book.due((), HOLD_S)] == [("failing", 1)]


# --- when, in virtual time --------------------------------------------------------------------------------------------


@dataclass(eq=False)
class Stage:
    """A notifier over a fleet that the test changes; `posts` are what came through."""

    clock: Clock
    rows: tuple[Lease, ...] = (FAILING,)
    speaks: bool = True
    trouble: str | None = None
    fails: bool = False
    own: Own = field(default_factory=lambda: Own(worker="w-1"))
    posts: list[dict[str, Any]] = field(default_factory=list)
    tried: int = 0

    def __post_init__(self) -> None:
        self.dynamo = MemoryDynamo(self.clock)
        calls = TableCalls(self.dynamo.client("w-1"), TABLE, 10.0)
        self.table = EventsTable(calls, self.clock, Random(1))

    async def with_row(self, alerts: frozenset[str] = frozenset()) -> Stage:
        """The table has the row of events, with these alerts."""
        key = [{"AttributeName": "leaseKey", "KeyType": "HASH"}]
        kinds = [{"AttributeName": "leaseKey", "AttributeType": "S"}]
        request = {
            "TableName": TABLE,
            "KeySchema": key,
            "AttributeDefinitions": kinds,
            "BillingMode": "PAY_PER_REQUEST",
        }
        await self.dynamo.call("CreateTable", request)
        self.dynamo.finish_indexes(TABLE)
        self.dynamo.put_row(TABLE, {"leaseKey": {"S": KEY}, "entityType": {"S": "LEADER"}})
        await self.table.set_alerts(alerts)
        return self

    def raised(self) -> frozenset[str]:
        return alerts_in(self.dynamo.row(TABLE, KEY))

    async def look(self) -> tuple[FleetStatus | None, str | None]:
        return replace(view(*self.rows), alerts=self.raised()), self.trouble

    async def post(self, told: Mapping[str, Any]) -> None:
        self.tried += 1
        if self.fails:
            raise PostFailedError("HTTP status 500")
        self.posts.append(dict(told))

    def start(self) -> asyncio.Task[None]:
        return asyncio.create_task(self.notifier().run())

    def notifier(self) -> Notifier:
        own = lambda: FleetSight(own=self.own, file="app.properties")  # noqa: E731
        return Notifier(self.post, self.look, own, lambda: self.speaks, self.table, self.clock, ME, Scrubber())

    def told(self) -> list[tuple[str, str]]:
        return [(one["alert"], one["status"]) for one in self.posts]


async def until_s(seconds: float) -> None:
    await asyncio.sleep(seconds - asyncio.get_running_loop().time())


@virtual
async def test_a_shard_that_fails_for_two_looks_is_posted_once_and_so_is_its_end() -> None:
    stage = await Stage(VirtualClock()).with_row()
    running = stage.start()
    await until_s(LOOK_PERIOD_S + 1)
    assert stage.posts == []
    await until_s(3600)
    assert stage.told() == [("failing", "begun")]
    assert stage.raised() == {f"failing {FAILING.key}"}
    stage.rows = (lease(),)
    await until_s(7200)
    assert stage.told() == [("failing", "begun"), ("failing", "ended")]
    assert stage.raised() == frozenset()
    running.cancel()


@virtual
async def test_the_next_one_to_speak_posts_nothing_twice_and_no_end_is_lost() -> None:
    first = await Stage(VirtualClock()).with_row()
    running = first.start()
    await until_s(600)
    running.cancel()  # as in a deploy, which also repairs the processor
    second = await Stage(VirtualClock(), rows=(lease(),)).with_row(first.raised())
    running = second.start()
    await until_s(1200)
    assert second.told() == [("failing", "ended")]
    running.cancel()
    third = await Stage(VirtualClock()).with_row(first.raised())
    running = third.start()
    await until_s(2400)
    assert third.told() == [], "it still fails, and that was posted"
    running.cancel()


@virtual
async def test_who_does_not_speak_does_not_look() -> None:
    stage = await Stage(VirtualClock(), speaks=False).with_row()
    running = stage.start()
    stage.look = None  # type: ignore[assignment, method-assign]
    await until_s(600)
    assert stage.posts == []
    running.cancel()


@virtual
async def test_while_the_table_cannot_be_read_nothing_else_begins_or_ends() -> None:
    stage = await Stage(VirtualClock()).with_row()
    running = stage.start()
    await until_s(600)
    stage.trouble, stage.rows = "the tables cannot be read: no", (lease(owner=None),)
    await until_s(1200)
    assert stage.told() == [("failing", "begun"), ("table", "begun")]
    stage.trouble, stage.rows = None, (FAILING,)
    await until_s(1800)
    assert stage.told()[2:] == [("table", "ended")]
    running.cancel()


@virtual
async def test_who_spoke_tells_that_the_table_is_away_and_its_end_also_when_it_was_lost_with_the_leadership() -> None:
    stage = await Stage(VirtualClock()).with_row()
    running = stage.start()
    await until_s(600)
    raised = stage.raised()
    stage.speaks, stage.trouble = False, "the tables cannot be read: no"
    await until_s(1200)
    assert stage.told() == [("failing", "begun"), ("table", "begun")]
    stage.trouble, stage.rows = None, (lease("shardId-1", owner=None),)
    await until_s(2400)
    assert stage.told()[2:] == [("table", "ended")], "the rest is for the worker that speaks now"
    assert stage.raised() == raised
    stage.look = None  # type: ignore[assignment, method-assign]
    await until_s(3000)
    assert not running.done()
    running.cancel()


@virtual
async def test_a_webhook_that_fails_is_asked_a_few_times_a_minute_and_gets_it_later() -> None:
    stage = await Stage(VirtualClock(), fails=True, rows=(FAILING, lease("shardId-1", owner=None))).with_row()
    running = stage.start()
    await until_s(1200)
    assert stage.posts == []
    assert stage.tried <= ATTEMPTS_MAX * (1200 / LOOK_PERIOD_S), "the second alert waits for the first"
    stage.fails = False
    await until_s(1500)
    assert stage.told() == [("failing", "begun"), ("stopped", "begun")]
    running.cancel()


@virtual
async def test_there_are_ten_posts_a_minute_at_most() -> None:
    stage = await Stage(VirtualClock()).with_row()
    running = stage.start()
    kinds = [FleetFault(one.name, "x") for one in all_kinds() if one.hold_s == HOLD_S]
    assert len(kinds) > 2 * POSTS_MAX
    book = AlertBook(())
    book.due(kinds, -HOLD_S)
    await stage.notifier()._tell([(AlertBook(()), ()), (book, kinds)])
    assert len(stage.posts) == POSTS_MAX
    running.cancel()


FULL = DiskTrouble("spool", "/var/spool: no room, password=hunter22", "free some room", True)


@virtual
async def test_what_a_worker_alone_knows_it_posts_once_with_its_name_though_it_does_not_speak() -> None:
    stage = await Stage(VirtualClock(), speaks=False).with_row()
    stage.look = None  # type: ignore[assignment, method-assign]
    stage.own = Own(worker="w-1", disks=[FULL], slow={DYNAMODB: "answers take 9 s"}, refused={"app.properties": "bad"})
    running = stage.start()
    await until_s(3600)
    assert stage.told() == [("answers-late", "begun"), ("config-refused", "begun"), ("disk-unwritable", "begun")]
    assert stage.posts[2]["text"].startswith("clicks: disk-unwritable (1) of worker w-1: spool. A daemon or its ")
    assert (stage.posts[2]["subjects"][0]["owner"], "hunter22" in json.dumps(stage.posts)) == ("w-1", False)
    assert stage.raised() == frozenset(), "the table has what the fleet's speaker posted"
    stage.own = Own(worker="w-1")
    await until_s(7200)
    assert sorted(stage.told()[3:]) == [
        ("answers-late", "ended"),
        ("config-refused", "ended"),
        ("disk-unwritable", "ended"),
    ]
    running.cancel()


@virtual
async def test_who_speaks_posts_the_clocks_it_knows_of_and_nobody_elses_disks_end_with_it() -> None:
    stage = await Stage(VirtualClock(), rows=(lease(),)).with_row()
    stage.own = Own(worker="w-1", disks=[FULL], clocks_off={"w-9": -600.0})
    running = stage.start()
    await until_s(600)
    assert sorted(stage.told()) == [("clocks-disagree", "begun"), ("disk-unwritable", "begun")]
    assert stage.raised() == {"clocks-disagree w-9"}
    running.cancel()


@virtual
async def test_a_loss_is_posted_and_has_no_end() -> None:
    stage = await Stage(VirtualClock(), speaks=False).with_row()
    stage.own = Own(worker="w-1", lost={"shardId-0": "whatever came after record 7"})
    running = stage.start()
    await until_s(600)
    stage.own = Own(worker="w-1")
    await until_s(1200)
    assert stage.told() == [("records-lost", "begun")]
    running.cancel()


# --- to a real server: how a document is posted is in tests/unit/aws/test_webhook.py -------------------------------


class Hurried(VirtualClock):
    """Time that passes as fast as whoever sleeps asks for, over a loop with real sockets."""

    def __init__(self) -> None:
        super().__init__()
        self.passed_s = 0.0

    def monotonic(self) -> float:
        return self.passed_s

    async def sleep(self, seconds: float) -> None:
        self.passed_s += seconds
        await asyncio.sleep(0.001)


async def test_alerts_reach_a_real_server_once_it_answers_and_the_log_never_names_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    with Server(*[answer(b"", status="500 Oh")] * ATTEMPTS_MAX) as server:

        def bodies() -> list[Any]:
            return [json.loads(request.partition(b"\r\n\r\n")[2]) for request in server.requests]

        stage = await Stage(Hurried()).with_row()
        ours = Webhook(f"http://127.0.0.1:{server.port}/{TOKEN}?key={TOKEN}", 20.0)
        stage.post = ours.post  # type: ignore[method-assign]
        running = stage.start()
        async with asyncio.timeout(60):
            while len(server.requests) <= ATTEMPTS_MAX:
                await asyncio.sleep(0.01)
            stage.rows = (lease(),)
            while bodies()[-1]["status"] != "ended":
                await asyncio.sleep(0.01)
        running.cancel()
        ours.close()
    assert {one["alert"] for one in bodies()} == {"failing"}
    assert [one for one in caplog.records if "not posted" in one.message]
    assert TOKEN not in caplog.text
