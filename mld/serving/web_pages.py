"""The pages of a daemon: probes, metrics, the status page and its data. Routes over `DaemonStatus`."""

from __future__ import annotations

import json
import logging
from importlib import resources

from mld.serving.daemon_status import DaemonStatus
from mld.serving.http import HttpAnswer, HttpServer, Question, text_answer
from mld.webrule import WebRule
from properties.values import ListenAddress

log = logging.getLogger(__name__)

PAGE = "page.html"
HTML, JSON = "text/html; charset=utf-8", "application/json"


class WebPages:
    """What is served over HTTP; nothing of it changes anything."""

    def __init__(self, status: DaemonStatus, *, with_metrics: bool = True) -> None:
        self._status = status
        self._with_metrics = with_metrics
        self._server: HttpServer | None = None

    async def start(self, address: ListenAddress, hosts: tuple[str, ...]) -> int:
        """Serve; returns the port. Raises OSError if the address cannot be had."""
        routes = {
            "/": self._page,
            "/status.json": self._document,
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

    # --- answers ------------------------------------------------------------------------------------------------------

    async def _page(self, _: Question) -> HttpAnswer:
        page = resources.files("mld.serving").joinpath(PAGE).read_bytes()
        return HttpAnswer(200, HTML, page)

    async def _document(self, _: Question) -> HttpAnswer:
        value = await self._status.document()
        return HttpAnswer(200, JSON, json.dumps(value, separators=(",", ":")).encode())

    async def _live(self, _: Question) -> HttpAnswer:
        why_not = self._status.why_not_alive()
        return text_answer(200, "ok") if why_not is None else text_answer(503, why_not)

    async def _ready(self, _: Question) -> HttpAnswer:
        why_not = self._status.why_not_ready()
        return text_answer(200, "ok") if why_not is None else text_answer(503, why_not)

    async def _exposition(self, question: Question) -> HttpAnswer:
        if not self._with_metrics:
            return text_answer(404, "there are none here: mld.metrics is set without prometheus")
        try:
            from mld.views.prometheus import exposition, process_collector
        except ImportError:
            return text_answer(501, "install the extra: pip install 'mld[metrics]'")
        content_type, text = exposition(
            self._status.snapshot(), question.headers.get("accept", ""), process_collector()
        )
        return HttpAnswer(200, content_type, text)
