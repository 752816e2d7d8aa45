"""What a daemon answers about itself and its fleet: probes, metrics, the status page. Joins views and server.

Nothing here changes anything, and nothing here is needed: an answer that fails costs nobody but who asked. Liveness
asks the loops of this process only. The tables are read at most every few seconds, and only while somebody looks.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from importlib import resources

from mld.clock import Clock
from mld.errors import MldError
from mld.metrics.registry import Metrics
from mld.metrics.rings import PERIOD_S, History
from mld.metrics.snapshot import Identity, Snapshot, take_snapshot
from mld.operating.fleet_reader import FleetReader
from mld.operating.fleet_status import FleetStatus
from mld.serving.http import HttpAnswer, HttpServer, Question, text_answer
from mld.serving.status import document
from mld.surviving import survived
from mld.webrule import WebRule
from properties.values import ListenAddress

log = logging.getLogger(__name__)

LOOK_PERIOD_S = 5.0
PAGE = "page.html"
HTML, JSON = "text/html; charset=utf-8", "application/json"
LOOP = "event loop"
LOOP_STEP_S = 1.0


class Operations:
    """Everything that a daemon tells about itself; `run` samples, `start` and `close` are the server's."""

    def __init__(
        self,
        metrics: Metrics,
        identity: Identity,
        reader: FleetReader,
        clock: Clock,
        *,
        prefetch_limit_bytes: int,
        mode: Callable[[], str],
        is_ready: Callable[[], bool],
    ) -> None:
        self._metrics = metrics
        self._identity = identity
        self._reader = reader
        self._clock = clock
        self._prefetch_limit_bytes = prefetch_limit_bytes
        self._mode = mode
        self._is_ready = is_ready
        self._history = History()
        self._looking = asyncio.Lock()
        self._looked_at: float | None = None
        self._fleet: FleetStatus | None = None
        self._trouble: str | None = None
        self._server: HttpServer | None = None

    async def start(self, address: ListenAddress, hosts: tuple[str, ...]) -> int:
        """Serve; returns the port. Raises OSError if the address cannot be had."""
        routes = {
            "/": self._page,
            "/status.json": self._status,
            "/livez": self._live,
            "/healthz": self._live,
            "/readyz": self._ready,
            "/metrics": self._exposition,
        }
        self._server = HttpServer(routes, WebRule(frozenset(hosts), "add the name to mld.httpHosts"))
        port = await self._server.start(address.host, address.port)
        shown = ListenAddress(address.host, port)
        log.info("status page at http://%s/", shown, extra={"action": "http_serving", "address": str(shown)})
        return port

    async def close(self) -> None:
        if self._server is not None:
            await self._server.close()

    async def run(self) -> None:
        """Measure how late the loop is, and take a value a minute for the page, until cancelled."""
        sampled_at = self._clock.monotonic()
        while True:
            asleep_at = self._clock.monotonic()
            self._metrics.progress.step(LOOP, asleep_at, LOOP_STEP_S)
            await self._clock.sleep(LOOP_STEP_S)
            now = self._clock.monotonic()
            self._metrics.worker.loop_delay.note(max(0.0, now - asleep_at - LOOP_STEP_S))
            if now - sampled_at >= PERIOD_S:
                sampled_at = now
                self._history.note(self.snapshot())

    def snapshot(self) -> Snapshot:
        """The metrics of now."""
        return take_snapshot(
            self._metrics,
            self._identity,
            self._clock.monotonic(),
            self._clock.wall(),
            prefetch_limit_bytes=self._prefetch_limit_bytes,
        )

    # --- answers ------------------------------------------------------------------------------------------------------

    async def _page(self, _: Question) -> HttpAnswer:
        page = resources.files("mld.serving").joinpath(PAGE).read_bytes()
        return HttpAnswer(200, HTML, page)

    async def _status(self, _: Question) -> HttpAnswer:
        fleet = await self._look()
        value = document(self.snapshot(), fleet, self._history, mode=self._mode(), trouble=self._trouble)
        return HttpAnswer(200, JSON, json.dumps(value, separators=(",", ":")).encode())

    async def _live(self, _: Question) -> HttpAnswer:
        overdue = self._metrics.progress.overdue(self._clock.monotonic())
        if not overdue:
            return text_answer(200, "ok")
        words = ", ".join(f"{one.name} (silent for {one.since_s:.0f} s)" for one in overdue)
        return text_answer(503, f"no progress: {words}")

    async def _ready(self, _: Question) -> HttpAnswer:
        return text_answer(200, "ok") if self._is_ready() else text_answer(503, "not initialized, or stopping")

    async def _exposition(self, question: Question) -> HttpAnswer:
        try:
            from mld.views.prometheus import exposition, process_collector
        except ImportError:
            return text_answer(501, "install the extra: pip install 'mld[metrics]'")
        content_type, text = exposition(self.snapshot(), question.headers.get("accept", ""), process_collector())
        return HttpAnswer(200, content_type, text)

    async def _look(self) -> FleetStatus | None:
        """The fleet by its tables, a few seconds old at most; what was known before if they cannot be read."""
        async with self._looking:
            now = self._clock.monotonic()
            if self._looked_at is None or now - self._looked_at >= LOOK_PERIOD_S:
                try:
                    self._fleet, self._trouble = await self._reader.look(), None
                except Exception as error:
                    failure: MldError = survived(error, "looking at the fleet")
                    self._trouble = f"the tables cannot be read: {failure}"
                self._looked_at = self._clock.monotonic()
            return self._fleet
