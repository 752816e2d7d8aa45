"""The status page over values that a test chooses, served by the daemon's own server from a thread."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

from mld.core.positions import Position
from mld.core.steps import finish
from mld.core.streams import HASH_KEY_MAX, HashRange
from mld.core.webrule import WebRule
from mld.fleet.leader.lock import LockRow
from mld.fleet.report.reports import WorkerReport
from mld.leases.lease import Lease, ShardStatus
from mld.metrics.declaring import Instant
from mld.metrics.events import Event
from mld.metrics.identity import Identity
from mld.metrics.registry import Metrics
from mld.operating.fleet_status import fleet_status
from mld.operating.shard_view import ViewRules
from mld.serving.http import HttpServer
from mld.serving.http_answers import HttpAnswer, Question, text_answer
from mld.serving.json_pieces import in_pieces
from mld.serving.status import StatusView
from mld.serving.web_pages import HTML, JSON, page_and_policy, unlisted
from tests.support.patience import PATIENCE_S

NOW_S = 1_763_661_600
WORKERS = ("w-1", "w-2", "w-3")


def leases(count: int) -> list[Lease]:
    """So many open shards of equal shares, each a second further behind than the one before."""
    step = (HASH_KEY_MAX + 1) // count
    return [
        Lease(
            f"shardId-{number:012}",
            Position(str(10**20 + number)),
            owner=WORKERS[number % len(WORKERS)],
            hash_range=HashRange(number * step, HASH_KEY_MAX if number == count - 1 else (number + 1) * step - 1),
            status=ShardStatus("processing", NOW_S - 1, 1000 * number),
        )
        for number in range(count)
    ]


class ServedPage:
    """A context manager; what a test sets is shown from the next refresh on."""

    def __init__(self, rows: Sequence[Lease] = (), **about: str) -> None:
        self.rows = list(rows)
        self.identity = replace(Identity("clicks", "clicks-stream", "w-1", "0.2.0"), **about)
        self.spark: Sequence[Mapping[str, Any]] = ()
        self.events: Sequence[Event] = ()
        self.metrics = Metrics()
        self.fails = False
        self.apps = unlisted("the tables: not seen, allow dynamodb:ListTables")
        self.asked_apps = 0
        self.read_s_ago = 0.0
        """How old what was read from the table is."""
        self.base = ""

    def __enter__(self) -> Self:
        self._loop = asyncio.new_event_loop()
        ready: Future[str] = Future()
        self._thread = threading.Thread(target=self._serve, args=(ready,), daemon=True)
        self._thread.start()
        self.base = ready.result(PATIENCE_S)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._loop.call_soon_threadsafe(self._done.set)
        self._thread.join(PATIENCE_S)

    def _serve(self, ready: Future[str]) -> None:
        async def serve() -> None:
            self._done = asyncio.Event()
            routes = {"/": self._page, "/status.json": self._document, "/apps.json": self._apps}
            server = HttpServer(routes, WebRule(frozenset(), "", links=True))
            ready.set_result(f"http://127.0.0.1:{await server.start('127.0.0.1', 0)}")
            await self._done.wait()
            await server.close()

        self._loop.run_until_complete(serve())
        self._loop.close()

    async def _page(self, _: Question) -> HttpAnswer:
        page, policy = page_and_policy()
        return HttpAnswer(200, HTML, page, {"content-security-policy": policy})

    async def _apps(self, _: Question) -> HttpAnswer:
        self.asked_apps += 1
        return HttpAnswer(200, JSON, json.dumps(self.apps).encode())

    async def _document(self, _: Question) -> HttpAnswer:
        if self.fails:
            return text_answer(500, "this answer failed")
        reports = [WorkerReport(worker, NOW_S - 5, mld={"version": "0.2.0"}) for worker in WORKERS]
        fleet = fleet_status(self.rows, reports, LockRow("w-1", 120.0, "version"), NOW_S, ViewRules(10.0))
        view = StatusView(
            identity=self.identity,
            metrics=self.metrics,
            fleet=fleet,
            at=Instant(1000.0, NOW_S + self.read_s_ago),
            mode="CLIENT_VERSION_3X",
            spark=self.spark,
            events=self.events,
        )
        return HttpAnswer(200, JSON, finish(in_pieces(view.head(), view.lists())))
