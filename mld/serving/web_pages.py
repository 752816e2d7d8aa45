"""The pages of a daemon: probes, metrics, the status page and its data. Routes over `DaemonStatus`."""

from __future__ import annotations

import base64
import hashlib
import logging
import re
from collections.abc import Iterable, Mapping
from functools import cache
from importlib import resources
from pathlib import Path

from mld import pip_install
from mld.core.clock import in_turns
from mld.core.webrule import WebRule
from mld.properties.values import ListenAddress
from mld.serving.daemon_status import DaemonStatus
from mld.serving.http import HttpAnswer, HttpServer, Question, Route, SharedAnswers, text_answer

log = logging.getLogger(__name__)

PAGE = "page.html"
PROBES = ("/livez", "/healthz", "/readyz")
HTML, JSON = "text/html; charset=utf-8", "application/json"


class WebPages:
    """What is served over HTTP; nothing of it changes anything."""

    def __init__(self, status: DaemonStatus, *, with_metrics: bool = True) -> None:
        self._status = status
        self._with_metrics = with_metrics
        self._expositions, self._documents = SharedAnswers(), SharedAnswers()
        self._server: HttpServer | None = None

    async def start(self, address: ListenAddress, hosts: tuple[str, ...]) -> int:
        """Serve; returns the port. Raises OSError if the address cannot be had."""
        self._server = HttpServer(self._routes(), rule_of(hosts), PROBES)
        port = await self._server.start(address.host, address.port)
        log_serving(address, port)
        return port

    async def start_at(self, socket: Path) -> None:
        """Serve those who come with a file's rights. Raises OSError if the socket cannot be made."""
        self._server = HttpServer(self._routes(), rule_of(()))
        await self._server.start_at(socket)

    def _routes(self) -> dict[str, Route]:
        return {
            "/": self._page,
            "/status.json": self._document,
            "/livez": self._live,
            "/healthz": self._live,
            "/readyz": self._ready,
            "/metrics": self._exposition,
        }

    async def close(self) -> None:
        if self._server is not None:
            await self._server.close()

    # --- answers ------------------------------------------------------------------------------------------------------

    async def _page(self, _: Question) -> HttpAnswer:
        page, policy = page_and_policy()
        return HttpAnswer(200, HTML, page, {"content-security-policy": policy})

    async def _document(self, question: Question) -> HttpAnswer:
        zipped = takes_gzip(question.headers)
        headers = {"vary": "accept-encoding"} | ({"content-encoding": "gzip"} if zipped else {})

        async def made() -> HttpAnswer:
            return HttpAnswer(200, JSON, await self._status.body(zipped=zipped), headers)

        return await self._documents.answer(str(zipped), made)

    async def _live(self, _: Question) -> HttpAnswer:
        return probed(self._status.why_not_alive())

    async def _ready(self, _: Question) -> HttpAnswer:
        return probed(self._status.why_not_ready())

    async def _exposition(self, question: Question) -> HttpAnswer:
        if not self._with_metrics:
            return text_answer(404, "there are none here: mld.metrics is set without prometheus")
        try:
            from prometheus_client.exposition import choose_encoder

            from mld.serving.prometheus import exposition_steps, process_collector
        except ImportError:
            return text_answer(501, f"install the extra: {pip_install('metrics')}")
        accept = question.headers.get("accept", "")

        async def made() -> HttpAnswer:
            status = self._status
            steps = exposition_steps(status.metrics, status.identity, status.instant(), accept, process_collector())
            content_type, pieces = await in_turns(steps)
            return HttpAnswer(200, content_type, pieces)

        return await self._expositions.answer(choose_encoder(accept)[1], made)


def rule_of(hosts: Iterable[str]) -> WebRule:
    """Return who may call, with the names that the operator allows."""
    return WebRule(frozenset(hosts), "add the name to mld.httpHosts", links=True)


def log_serving(address: ListenAddress, port: int) -> None:
    """Say where the page is."""
    shown = ListenAddress(address.host, port)
    log.info("status page at http://%s/", shown, extra={"action": "http_serving", "address": str(shown)})


def probed(why_not: str | None) -> HttpAnswer:
    """Return the answer of a probe."""
    return text_answer(200, "ok") if why_not is None else text_answer(503, why_not)


def takes_gzip(headers: Mapping[str, str]) -> bool:
    """Return whether Accept-Encoding names gzip, and does not refuse it."""
    for offer in headers.get("accept-encoding", "").lower().split(","):
        coding, _, parameter = offer.replace(" ", "").partition(";")
        if coding == "gzip":
            return re.fullmatch(r"q=0(\.0*)?", parameter) is None
    return False


@cache
def page_and_policy() -> tuple[bytes, str]:
    """Return the page, and the Content-Security-Policy that lets its own script and style run and nothing else."""
    page = resources.files("mld.serving").joinpath(PAGE).read_bytes()
    hashes = {
        tag: " ".join(
            f"'sha256-{base64.b64encode(hashlib.sha256(inner).digest()).decode()}'"
            for inner in re.findall(rb"<%b>(.*?)</%b>" % (tag.encode(), tag.encode()), page, re.DOTALL)
        )
        for tag in ("script", "style")
    }
    policy = (
        f"default-src 'none'; script-src {hashes['script']}; style-src {hashes['style']}; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return page, policy
